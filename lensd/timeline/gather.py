"""Evidence of many requests at once: a fixed number of queries, however many requests."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from lensd_collectors import conventions as c

from lensd.store.interface import Cursor
from lensd.timeline.evidence import RequestEvidence, Signal, Span
from lensd.timeline.life import has_ended
from lensd.timeline.senders import add_successors

_SPANS = """
select trace_id, span_id, parent_span_id, name, kind, scope, service, instance, engine, request_id,
       epoch_us(started_at), epoch_us(ended_at), status, status_message, attributes, src
from spans where {where} and started_at >= make_timestamp($since) order by started_at
"""
_EVENTS = """
select trace_id, span_id, name, epoch_us(seen_at), host, engine, fields, src
from events where {where} and name in ($started, $progress) and seen_at >= make_timestamp($since) order by seen_at, seq
"""
_RECORDS = """
select request_id, name, epoch_us(seen_at), fields, src
from events
where name = $record and request_id in (select unnest($ids)) and seen_at between make_timestamp($since) and make_timestamp($until)
order by seen_at
"""
_NAMES = ("trace_id", "span_id", "parent_span_id", "name", "kind", "scope", "service", "instance", "engine", "request_id")
_json = msgspec.json.Decoder()
RECORD_LATE_US = 15_000_000  # a plugin tells of a request when it ends there, which may be a while after its caller left
RECORD_EARLY_US = 2_000_000  # hosts' clocks differ


def gather(cursor: Cursor, trace_ids: Sequence[str] | None = None, since: int = 0) -> list[RequestEvidence]:
    """Evidence of the requests of these traces, or of every request in the store; a trace can hold several.

    `since`: nothing that began before it is read (microseconds since the epoch); a store holds many days.
    """
    where = "true" if trace_ids is None else "trace_id in (select unnest($traces))"
    given: dict[str, Any] = {"since": max(0, since)} | ({} if trace_ids is None else {"traces": list(trace_ids)})
    spans = [_span(row) for row in cursor.execute(_SPANS.format(where=where), given).fetchall()]
    names = {"started": c.EVENT_STARTED, "progress": c.EVENT_PROGRESS}
    events = cursor.execute(_EVENTS.format(where=where), given | names).fetchall()
    found = _by_request(spans, events)
    _add_engine_records(cursor, found)
    add_successors(cursor, [request for request in found if not has_ended(request)])
    return found


def _span(row: Sequence[Any]) -> Span:
    start, end, status, message, attributes, src = row[10:]
    return Span(
        **dict(zip(_NAMES, row[:10], strict=True)),
        start=start,
        end=max(start, end) if end is not None else start,  # a clock set back during the span gives an end before its start
        status=status,
        status_message=message,
        attributes=_json.decode(attributes) if attributes else {},
        src=src,
    )


def _by_request(spans: Sequence[Span], events: Iterable[Sequence[Any]]) -> list[RequestEvidence]:
    by_trace: dict[str, list[Span]] = defaultdict(list)
    signals: dict[str, dict[str, list[Signal]]] = defaultdict(dict)
    for span in spans:
        by_trace[span.trace_id].append(span)
    for trace_id, span_id, name, at, host, engine, fields, src in events:
        known = {c.HOST_NAME: host, c.ENGINE: engine} | (_json.decode(fields) if fields else {})
        signals[trace_id].setdefault(span_id, []).append(Signal(name, at, known, src))
        by_trace.setdefault(trace_id, [])
    found = []
    for trace_id, members in by_trace.items():
        found += _requests_of_trace(trace_id, members, signals.get(trace_id, {}))
    return found


def _requests_of_trace(trace_id: str, spans: Sequence[Span], signals: dict[str, list[Signal]]) -> list[RequestEvidence]:
    by_id = {span.span_id: span for span in spans}
    requests = {span_id: RequestEvidence(trace_id, span_id, signals=seen) for span_id, seen in signals.items()}
    ranked = sorted(((rank, span.start, n) for n, span in enumerate(spans) if (rank := _rank(span)) is not None))
    for rank, _, number in ranked:
        if rank < CLIENT:
            _attach(spans[number], rank, by_id, requests)
    _join_engine_side(by_id, requests)
    below = _by_span_above(by_id, requests)
    for rank, _, number in ranked:
        if rank == CLIENT:
            _attach_client(spans[number], below.get(spans[number].span_id, ()), requests)
    for span in spans:
        if span.parent_span_id in requests and span.scope == c.SCOPE_GATEWAY:
            _attach_child(requests[span.parent_span_id], span)
    return list(requests.values())


GATEWAY, MIDDLEWARE, ENGINE, CLIENT = range(4)


def _rank(span: Span) -> int | None:
    """Which span stands for a request, best first; None: not a span of a request's own."""
    if span.scope == c.SCOPE_GATEWAY and span.kind == "server":
        return GATEWAY
    if span.scope == c.SCOPE_VLLM and span.kind == "server":
        return MIDDLEWARE
    if span.name == c.SPAN_VLLM_REQUEST:
        return ENGINE
    if span.scope == c.SCOPE_CLIENT or (span.kind in ("client", None) and (c.REQUEST_MODEL in span.attributes or _names_limit(span))):
        return None if span.scope == c.SCOPE_GATEWAY else CLIENT
    return None


def _names_limit(span: Span) -> bool:
    return "timeout_s" in span.attributes or c.CLIENT_TIMEOUT_MS in span.attributes


def _attach(span: Span, rank: int, by_id: dict[str, Span], requests: dict[str, RequestEvidence]) -> None:
    """Give a server's span to the request it is part of, or let it stand for one of its own."""
    owner = None if rank == GATEWAY or span.span_id in requests else _owner(span, rank, by_id, requests)
    if owner is None:
        owner = requests.setdefault(span.span_id, RequestEvidence(span.trace_id, span.span_id))
    if rank == GATEWAY:
        owner.gateway = span
    elif rank == MIDDLEWARE:
        owner.middleware = span
    else:
        owner.engine_spans.append(span)


def _owner(span: Span, rank: int, by_id: dict[str, Span], requests: dict[str, RequestEvidence]) -> RequestEvidence | None:
    """The request whose span lies above this one of the engine's side."""
    for ancestor in _ancestors(span.parent_span_id, by_id):
        if ancestor in requests:
            return requests[ancestor]
    # Lists of spans written by hand carry no parents, and an open request's own spans are not here yet: then the only
    # request of the trace can only be the one.
    only = next(iter(requests.values())) if len(requests) == 1 else None
    if only is None or span.parent_span_id is None:
        return only
    is_its = rank == ENGINE or only.value(c.REQUEST_ID) == span.attributes.get(c.REQUEST_ID)
    return only if only.entry is None and is_its else None


def _join_engine_side(by_id: dict[str, Span], requests: dict[str, RequestEvidence]) -> None:
    """A gateway's request that is open inside the engine too is told of twice, by the middleware as well: make it one.

    While the gateway's spans are on their way nothing names what lies between the two; then the id they share has to do.
    """
    outside = [r for r in requests.values() if r.gateway is not None or (r.signals and not r.is_inside_engine)]
    if not outside:
        return
    for span_id, request in list(requests.items()):
        if request.gateway is None and request.signals and request.is_inside_engine:
            above = (requests[a] for a in _ancestors(request.parent_span_id, by_id) if a in requests)
            around = (r for r in outside if _is_around(r, request))
            owner = next(above, None) or next(around, None)
            if owner is not None:
                del requests[span_id]
                owner.middleware = owner.middleware or request.middleware
                owner.engine_spans += request.engine_spans


def _is_around(outer: RequestEvidence, inner: RequestEvidence) -> bool:
    if inner.parent_span_id is None or outer.value(c.REQUEST_ID) != inner.value(c.REQUEST_ID):
        return False
    first, last = _extent(outer)
    return first - RECORD_EARLY_US <= inner.signals[0].ago(c.PROGRESS_AGE_MS) <= last + RECORD_EARLY_US


def _by_span_above(by_id: dict[str, Span], requests: dict[str, RequestEvidence]) -> dict[str, list[RequestEvidence]]:
    """The requests below each span, by the span's id."""
    below: dict[str, list[RequestEvidence]] = defaultdict(list)
    for request in requests.values():
        for span_id in _ancestors(request.parent_span_id, by_id):
            below[span_id].append(request)
    return below


def _attach_client(span: Span, below: Sequence[RequestEvidence], requests: dict[str, RequestEvidence]) -> None:
    """Give a caller's span to the one request below it. With several below (retries, an agent's run) it is no request itself."""
    if len(below) == 1:
        below[0].client = span
    elif not below:
        only = next(iter(requests.values())) if len(requests) == 1 else None
        if only is None or only.client is not None or span.parent_span_id is not None:
            only = requests.setdefault(span.span_id, RequestEvidence(span.trace_id, span.span_id))
        only.client = span


def _ancestors(parent: str | None, by_id: dict[str, Span]) -> list[str]:
    """Span ids from this one upwards; the gateway's span ids are above its children even before it has ended."""
    chain: list[str] = []
    while parent and parent not in chain and len(chain) < 32:
        chain.append(parent)
        above = by_id.get(parent)
        parent = above.parent_span_id if above is not None else None
    return chain


def _attach_child(request: RequestEvidence, span: Span) -> None:
    if span.name == c.SPAN_UPSTREAM:
        request.upstreams.append(span)
    elif span.name == c.SPAN_AUTH_ROUTING and request.auth_routing is None:
        request.auth_routing = span
    elif span.name == c.SPAN_STREAMING and request.streaming is None:
        request.streaming = span


def _add_engine_records(cursor: Cursor, found: Sequence[RequestEvidence]) -> None:
    """Join the plugin's records by the id in the engine's reply, which is the gateway's id with a prefix.

    Callers choose ids, and ids repeat: a record belongs to a request that was there when it was written, and where several
    were, to the one that ended nearest to it.
    """
    wanted: dict[str, list[tuple[int, int, RequestEvidence]]] = defaultdict(list)
    for request in found:
        names = engine_ids(request)
        if names:
            start, end = _extent(request)
            for name in names:
                wanted[name].append((start - RECORD_EARLY_US, end, request))
    if not wanted:
        return
    extent = [edge for entries in wanted.values() for start, end, _ in entries for edge in (start, end + RECORD_LATE_US)]
    between = {"since": max(0, min(extent)), "until": max(extent)}
    rows = cursor.execute(_RECORDS, {"record": c.EVENT_ENGINE_REQUEST, "ids": list(wanted), **between}).fetchall()
    for engine_id, name, at, fields, src in rows:
        there = [(abs(at - end), n) for n, (start, end, _) in enumerate(wanted[engine_id]) if start <= at <= end + RECORD_LATE_US]
        if there:
            record = Signal(name, at, _json.decode(fields) if fields else {}, src)
            wanted[engine_id][min(there)[1]][2].engine_record = record


def _extent(request: RequestEvidence) -> tuple[int, int]:
    """From the first instant to the last that is known of a request by its server's side, else by its client's."""
    seen = [s for s in (request.gateway, request.middleware, *request.engine_spans) if s is not None]
    if not seen and not request.signals and request.client is not None:
        seen = [request.client]
    instants = [*(s.start for s in seen), *(s.end for s in seen)]
    for signal in request.signals:
        instants += [signal.ago(c.PROGRESS_AGE_MS), signal.at]
    return min(instants), max(instants)


def engine_ids(request: RequestEvidence) -> list[str]:
    """Names the engine may call this request by: the id of its reply, and the forms vLLM makes of X-Request-Id."""
    response, ours = (told if isinstance(told, str) else None for told in map(request.value, (c.RESPONSE_ID, c.REQUEST_ID)))
    names = [response] if response else []
    if ours:
        names += [f"chatcmpl-{ours}", f"cmpl-{ours}-0"]
    elif response and response.startswith("cmpl-"):
        names.append(f"{response}-0")
    return list(dict.fromkeys(names))
