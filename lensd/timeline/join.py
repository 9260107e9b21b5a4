"""Which spans and events of one trace are one request, and which are several."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

from lensd_collectors import conventions as c
from lensd_collectors.client.foreign import callers

from lensd.timeline.engine_ids import bases, engine_base
from lensd.timeline.engine_times import of_span, split_over
from lensd.timeline.evidence import RequestEvidence, Signal, Span

EARLY_US = 2_000_000
"""How much sooner than its request a part may seem to lie: hosts' clocks differ."""

GATEWAY, MIDDLEWARE, ENGINE, CLIENT = range(4)


def requests_of_trace(trace_id: str, spans: Sequence[Span], signals: dict[str, list[Signal]]) -> list[RequestEvidence]:
    """The requests of a trace. `spans` and `signals` (by span id) in order of time, each once."""
    told = callers(spans)
    for span in spans:
        span.attributes = told.get(span.span_id, span.attributes)
    by_id = {span.span_id: span for span in spans}
    requests = {span_id: RequestEvidence(trace_id, span_id, signals=seen) for span_id, seen in signals.items()}
    ranked = sorted(((rank, _begun(span, by_id), n) for n, span in enumerate(spans) if (rank := _rank(span, told)) is not None))
    named = _Named(requests.values())
    for rank, _, number in ranked:
        if rank < CLIENT:
            named.add(_attach(spans[number], rank, by_id, requests, named))
    _join_engine_side(by_id, requests)
    below = _by_span_above(by_id, requests)
    for rank, _, number in sorted(ranked, key=lambda each: spans[each[2]].span_id not in below):  # those with a server below them first
        if rank == CLIENT:
            _attach_client(spans[number], below.get(spans[number].span_id, ()), requests)
    for rank, _, number in ranked:
        if rank == CLIENT:
            _attach_tries(spans[number], below, by_id)
    for span in spans:
        if span.parent_span_id in requests and span.scope == c.SCOPE_GATEWAY:
            _attach_child(requests[span.parent_span_id], span)
    return list(requests.values())


class _Named:
    """Requests of a trace by what their replies may be called: a run of thousands of calls is not compared call by call."""

    def __init__(self, requests: Iterable[RequestEvidence]) -> None:
        self.told_of = list(requests)  # by events: the only ones that may be open
        self._by_name: dict[str | None, dict[str, RequestEvidence]] = defaultdict(dict)
        for request in self.told_of:
            self.add(request)

    def add(self, request: RequestEvidence) -> None:
        for name in bases(request) or (None,):
            self._by_name[name][request.span_id] = request

    def of(self, engine_id: str) -> Iterable[RequestEvidence]:
        """Those that may be called this, and those of which nothing is known yet."""
        return {key: r for name in (engine_id, engine_base(engine_id), None) for key, r in self._by_name.get(name, {}).items()}.values()


def _begun(span: Span, by_id: dict[str, Span]) -> int:
    """When it began; of what a gateway asked an engine for, when it asked: of several attempts the order is then by one clock."""
    above = by_id.get(span.parent_span_id or "")
    return above.start if above is not None and above.scope == c.SCOPE_GATEWAY else span.start


def _rank(span: Span, told: Mapping[str, object]) -> int | None:
    """Which span stands for a request, best first; None: not a span of a request's own."""
    if span.scope == c.SCOPE_GATEWAY and span.kind == "server":
        return GATEWAY
    if span.scope == c.SCOPE_VLLM and span.kind == "server":
        return MIDDLEWARE
    if span.name == c.SPAN_VLLM_REQUEST:
        return ENGINE
    return CLIENT if span.span_id in told else None


def _attach(span: Span, rank: int, by_id: dict[str, Span], requests: dict[str, RequestEvidence], named: _Named) -> RequestEvidence:
    """Give a server's span to the request it is part of, or let it stand for one of its own; returns that request."""
    owner = None if rank == GATEWAY or span.span_id in requests else _owner(span, rank, by_id, requests, named)
    if owner is None:
        owner = requests.setdefault(span.span_id, RequestEvidence(span.trace_id, span.span_id))
    if rank == GATEWAY:
        owner.gateway = span
    elif rank == MIDDLEWARE:
        owner.middleware = span
    else:
        owner.engine_spans.append(span)
    return owner


def _owner(span: Span, rank: int, by_id: dict[str, Span], requests: dict[str, RequestEvidence], named: _Named) -> RequestEvidence | None:
    """The request that a span of the engine's side is part of: one whose span lies above it, else one that it fits."""
    for ancestor in _ancestors(span.parent_span_id, by_id):
        if ancestor in requests:
            return requests[ancestor]
    if not requests:
        return None
    only = next(iter(requests.values())) if len(requests) == 1 else None
    if span.parent_span_id is None and only is not None and (rank == MIDDLEWARE or _may_share_id(span, only)):
        return only  # lists of spans written by hand carry no parents
    if rank == MIDDLEWARE:
        fits = [r for r in named.told_of if _is_open_around(span, r)]
    else:
        name = of_span(span).engine_id
        fits = [r for r in (requests.values() if name is None else named.of(name)) if _is_engines(span, r)]
    return min(fits, key=lambda r: (abs(_extent(r)[1] - span.end), r.span_id), default=None)


def _is_open_around(span: Span, request: RequestEvidence) -> bool:
    """Whether an open request, whose own spans are not here yet, is the one that this span of the middleware is about."""
    is_open = request.entry is None and bool(request.signals)
    return is_open and request.value(c.REQUEST_ID) == span.attributes.get(c.REQUEST_ID) and _overlaps(request, span)


def _is_engines(span: Span, request: RequestEvidence) -> bool:
    """Whether a span of the engine that lies below none of a request's is about it all the same.

    It does where the engine took the caller's trace and not the middleware's, where the gateway's spans are on their way, and
    for one of several answers. Ids have to agree, and times, since callers choose ids and use them again.
    """
    if not _may_share_id(span, request):
        return False
    if request.entry is None and request.signals:
        return _overlaps(request, span)
    if request.gateway is not None:  # the middleware's span, which lies between the two, never came
        return request.middleware is None and _has_id(span, request) and _overlaps(request, span)
    if request.entry is not None:
        return span.parent_span_id == request.parent_span_id and _overlaps(request, span)
    others = request.engine_spans
    if split_over([*map(of_span, others), of_span(span)]) is not None:
        return True  # the same id on two engines: one read the prompt, the other went on with it
    return span.parent_span_id == others[0].parent_span_id and any(s.start <= span.end and span.start <= s.end for s in others)


def _may_share_id(span: Span, request: RequestEvidence) -> bool:
    return not bases(request) or of_span(span).engine_id is None or _has_id(span, request)


def _has_id(span: Span, request: RequestEvidence) -> bool:
    known, name = bases(request), of_span(span).engine_id
    return name is not None and (name in known or engine_base(name) in known)


def _overlaps(request: RequestEvidence, span: Span) -> bool:
    first, last = _extent(request)
    return span.start <= last + EARLY_US and first - EARLY_US <= span.end


def _extent(request: RequestEvidence) -> tuple[int, int]:
    extent = request.server_extent
    assert extent is not None  # only servers' spans and events make requests before clients are looked at
    return extent


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
                owner.taken_in.append((request.trace_id, span_id))
                owner.middleware = owner.middleware or request.middleware
                owner.engine_spans += request.engine_spans


def _is_around(outer: RequestEvidence, inner: RequestEvidence) -> bool:
    if inner.parent_span_id is None or outer.value(c.REQUEST_ID) != inner.value(c.REQUEST_ID):
        return False
    first, last = _extent(outer)
    return first - EARLY_US <= inner.signals[0].ago(c.PROGRESS_AGE_MS) <= last + EARLY_US


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


def _attach_tries(span: Span, below: dict[str, list[RequestEvidence]], by_id: dict[str, Span]) -> None:
    """Below a caller's span with several requests, give each that has none the plain HTTP client's span that lies above it alone."""
    several = below.get(span.span_id, ())
    for request in several if len(several) > 1 else ():
        chain = _ancestors(request.parent_span_id, by_id)
        inner = (by_id[a] for a in chain[: chain.index(span.span_id)] if a in by_id and len(below[a]) == 1)
        if request.client is None:
            request.client = next((s for s in inner if s.kind == "client" and s.scope != c.SCOPE_GATEWAY), None)


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
