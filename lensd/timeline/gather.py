"""Evidence of many requests at once: a fixed number of queries, however many requests."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from lensd_collectors import conventions as c

from lensd.store.interface import Cursor
from lensd.timeline.evidence import RequestEvidence, Signal, Span

_SPANS = """
select trace_id, span_id, parent_span_id, name, kind, scope, service, instance, engine, request_id,
       epoch_us(started_at), epoch_us(ended_at), status, status_message, attributes, src
from spans where {where} order by started_at
"""
_EVENTS = """
select trace_id, span_id, name, epoch_us(seen_at), engine, fields, src
from events where {where} and name in ($started, $progress) order by seen_at, seq
"""
_RECORDS = """
select request_id, name, epoch_us(seen_at), fields, src
from events where name = $record and request_id in (select unnest($ids)) order by seen_at
"""
_NAMES = ("trace_id", "span_id", "parent_span_id", "name", "kind", "scope", "service", "instance", "engine", "request_id")
_json = msgspec.json.Decoder()


def gather(cursor: Cursor, trace_ids: Sequence[str] | None = None) -> list[RequestEvidence]:
    """Evidence of the requests of these traces, or of every request in the store; a trace can hold several."""
    where = "true" if trace_ids is None else "trace_id in (select unnest($traces))"
    traces: dict[str, Any] = {} if trace_ids is None else {"traces": list(trace_ids)}
    spans = [_span(row) for row in cursor.execute(_SPANS.format(where=where), traces).fetchall()]
    names = {"started": c.EVENT_STARTED, "progress": c.EVENT_PROGRESS}
    events = cursor.execute(_EVENTS.format(where=where), traces | names).fetchall()
    found = _by_request(spans, events)
    _add_engine_records(cursor, found)
    return found


def _span(row: Sequence[Any]) -> Span:
    start, end, status, message, attributes, src = row[10:]
    return Span(
        **dict(zip(_NAMES, row[:10], strict=True)),
        start=start,
        end=end if end is not None else start,
        status=status,
        status_message=message,
        attributes=_json.decode(attributes) if attributes else {},
        src=src,
    )


def _by_request(spans: Sequence[Span], events: Iterable[Sequence[Any]]) -> list[RequestEvidence]:
    by_trace: dict[str, list[Span]] = defaultdict(list)
    signals: dict[tuple[str, str], list[Signal]] = defaultdict(list)
    for span in spans:
        by_trace[span.trace_id].append(span)
    for trace_id, span_id, name, at, engine, fields, src in events:
        known = {c.ENGINE: engine} | (_json.decode(fields) if fields else {})
        signals[trace_id, span_id].append(Signal(name, at, known, src))
        by_trace.setdefault(trace_id, [])
    found = []
    for trace_id, members in by_trace.items():
        found += _requests_of_trace(trace_id, members, {key[1]: value for key, value in signals.items() if key[0] == trace_id})
    return found


def _requests_of_trace(trace_id: str, spans: Sequence[Span], signals: dict[str, list[Signal]]) -> list[RequestEvidence]:
    by_id = {span.span_id: span for span in spans}
    requests = {span_id: RequestEvidence(trace_id, span_id, signals=seen) for span_id, seen in signals.items()}
    for span in sorted((s for s in spans if _rank(s) is not None), key=lambda s: (_rank(s), s.start)):
        _attach(span, by_id, requests)
    for request in requests.values():
        _attach_children(request, spans)
    return list(requests.values())


def _rank(span: Span) -> int | None:
    """Which span stands for a request, best first; None: not a span of a request's own."""
    if span.scope == c.SCOPE_GATEWAY and span.kind == "server":
        return 0
    if span.scope == c.SCOPE_VLLM and span.kind == "server":
        return 1
    if span.name == c.SPAN_VLLM_REQUEST:
        return 2
    if span.scope == c.SCOPE_CLIENT or (span.kind in ("client", None) and (c.REQUEST_MODEL in span.attributes or _names_limit(span))):
        return None if span.scope == c.SCOPE_GATEWAY else 3
    return None


def _names_limit(span: Span) -> bool:
    return "timeout_s" in span.attributes or c.CLIENT_TIMEOUT_MS in span.attributes


def _attach(span: Span, by_id: dict[str, Span], requests: dict[str, RequestEvidence]) -> None:
    """Give the span to the request it is part of, or let it stand for one of its own."""
    rank = _rank(span)
    owner = None if rank == 0 else _owner(span, by_id, requests, above=rank != 3)
    if owner is None:
        owner = requests.setdefault(span.span_id, RequestEvidence(span.trace_id, span.span_id))
    if rank == 0:
        owner.gateway = span
    elif rank == 1:
        owner.middleware = span
    elif rank == 2:
        owner.engine_spans.append(span)
    else:
        owner.client = span


def _owner(span: Span, by_id: dict[str, Span], requests: dict[str, RequestEvidence], *, above: bool) -> RequestEvidence | None:
    """The request whose span lies above this one (engine side) or below it (client side)."""
    if above:
        for ancestor in _ancestors(span, by_id):
            if ancestor in requests:
                return requests[ancestor]
    else:
        below = [r for r in requests.values() if _stands_below(r, span, by_id)]
        if len(below) == 1:
            return below[0]
    # Lists of spans written by hand carry no parents, and an open request's own spans are not here yet: then the only
    # request of the trace can only be the one.
    only = next(iter(requests.values())) if len(requests) == 1 else None
    return only if only is not None and (span.parent_span_id is None or (above and only.entry is None)) else None


def _stands_below(request: RequestEvidence, client: Span, by_id: dict[str, Span]) -> bool:
    top = request.entry or (request.engine_spans[0] if request.engine_spans else None)
    if top is None:
        return bool(request.signals) and request.value(c.PARENT_SPAN_ID) == client.span_id
    return client.span_id in _ancestors(top, by_id)


def _ancestors(span: Span, by_id: dict[str, Span]) -> list[str]:
    """Span ids above this one, nearest first; the gateway's span ids are above its children even before it has ended."""
    chain: list[str] = []
    parent = span.parent_span_id
    while parent and parent not in chain and len(chain) < 32:
        chain.append(parent)
        above = by_id.get(parent)
        parent = above.parent_span_id if above is not None else None
    return chain


def _attach_children(request: RequestEvidence, spans: Iterable[Span]) -> None:
    children = [s for s in spans if s.parent_span_id == request.span_id and s.scope == c.SCOPE_GATEWAY]
    request.auth_routing = next((s for s in children if s.name == c.SPAN_AUTH_ROUTING), None)
    request.upstreams = [s for s in children if s.name == c.SPAN_UPSTREAM]
    request.streaming = next((s for s in children if s.name == c.SPAN_STREAMING), None)


def _add_engine_records(cursor: Cursor, found: Sequence[RequestEvidence]) -> None:
    """Join the plugin's records by the id in the engine's reply, which is the gateway's id with a prefix."""
    wanted: dict[str, RequestEvidence] = {}
    for request in found:
        for name in engine_ids(request):
            wanted[name] = request
    if not wanted:
        return
    rows = cursor.execute(_RECORDS, {"record": c.EVENT_ENGINE_REQUEST, "ids": list(wanted)}).fetchall()
    for engine_id, name, at, fields, src in rows:
        wanted[engine_id].engine_record = Signal(name, at, _json.decode(fields) if fields else {}, src)


def engine_ids(request: RequestEvidence) -> list[str]:
    """Names the engine may call this request by: the id of its reply, and the forms vLLM makes of X-Request-Id."""
    response, ours = request.value(c.RESPONSE_ID), request.value(c.REQUEST_ID)
    names = [response] if response else []
    if ours:
        names += [f"chatcmpl-{ours}", f"cmpl-{ours}-0"]
    elif response and str(response).startswith("cmpl-"):
        names.append(f"{response}-0")
    return list(dict.fromkeys(names))
