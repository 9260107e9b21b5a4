"""Instants of a request that a gateway, an engine's middleware or an event saw, all by the outermost server's clock.

Microseconds since the epoch.
"""

from lensd_collectors import conventions as c

from lensd.timeline.evidence import LONGEST_AGO_MS, RequestEvidence, Span

SKEW_FLOOR_US = 100_000
"""Below this, a child that starts before its parent is a matter of rounding and of when a socket's end is noticed."""


def clock_skew(request: RequestEvidence) -> int:
    """Microseconds that the client's clock is ahead of the server's (0: none seen), from a span that sticks out of its parent."""
    client, inner = request.client, _server(request)
    if client is None or inner is None:
        return 0
    return _ahead((client.start, client.end), inner, client.status == "error")


def engine_skew(request: RequestEvidence) -> int:
    """Microseconds that the engine's clock is ahead of the gateway's, from what its side saw of an attempt of the gateway's."""
    if request.engine_ahead is None:
        request.engine_ahead = _engine_ahead(request)
    return request.engine_ahead


def _engine_ahead(request: RequestEvidence) -> int:
    inner = request.middleware or (request.engine_spans[-1] if request.engine_spans else None)
    if request.upstream is None or inner is None:
        return 0
    outer = next((attempt for attempt in request.upstreams if attempt.span_id == inner.parent_span_id), request.upstream)
    gave_up = str(request.value(c.OUTCOME)) in _GAVE_UP
    behind = outer.start - inner.start
    return -_ahead((outer.start, outer.end), (inner.start, inner.end), gave_up) or (-behind if 0 < behind <= SKEW_FLOOR_US else 0)


_GAVE_UP = ("caller_gone", "timed_out", "failed", "cut")


def _server(request: RequestEvidence) -> tuple[int, int] | None:
    if request.entry is not None:
        return request.entry.start, request.entry.end
    spans = request.engine_spans
    return (min(s.start for s in spans), max(s.end for s in spans)) if spans and not request.signals else None


def _ahead(outer: tuple[int, int], inner: tuple[int, int], gave_up: bool) -> int:
    """How far the clock of the outer is ahead. One that gave up has left before the inner noticed: that is no clock's doing."""
    if inner[1] - inner[0] > outer[1] - outer[0] + SKEW_FLOOR_US:
        return 0
    early, late = outer[0] - inner[0], inner[1] - outer[1]
    if max(early, late) <= SKEW_FLOOR_US or (gave_up and early <= SKEW_FLOOR_US and outer[1] > inner[0]):
        return 0
    return (outer[0] + outer[1] - inner[0] - inner[1]) // 2  # the inner in the middle of the outer


def handed_over_at(request: RequestEvidence) -> int | None:
    """When the request was sent to the engine, or None: it was not."""
    if request.upstream is not None:
        return request.upstream.start
    if request.middleware is not None:
        return request.middleware.start
    for signal in reversed(request.signals):
        if signal.fields.get(c.PROGRESS_STAGE) == "upstream":
            return signal.ago(c.PROGRESS_STAGE_AGE_MS)
    streaming = first_byte_at(request)
    return request_start(request) if streaming is not None else None


def entered_engine_at(request: RequestEvidence) -> int | None:
    """When the engine's middleware had the request; None: there is none."""
    return request.middleware.start - engine_skew(request) if request.middleware is not None else None


def first_byte_at(request: RequestEvidence) -> int | None:
    """When the first body byte came from the engine, as the gateway, the middleware or a progress event says."""
    for span in (request.upstream, request.middleware):
        if span is not None:
            return _within(span, c.FIRST_BYTE_MS)
    for signal in reversed(request.signals):
        if signal.fields.get(c.PROGRESS_STAGE) == "streaming":
            return signal.ago(c.PROGRESS_STAGE_AGE_MS)
    return None


def last_byte_at(request: RequestEvidence) -> int | None:
    for span in (request.upstream, request.middleware):
        if span is not None:
            return _within(span, c.LAST_BYTE_MS)
    return None


def first_content_at(request: RequestEvidence) -> int | None:
    """When the first generated text came; the first byte where nobody told text apart (a stream may begin with comments)."""
    seen = _nearest(request, c.FIRST_CONTENT_MS)
    return seen if seen is not None else _nearest_byte(request, c.FIRST_BYTE_MS, first_byte_at(request))


def last_content_at(request: RequestEvidence) -> int | None:
    seen = _nearest(request, c.LAST_CONTENT_MS)
    return seen if seen is not None else last_reply_byte_at(request)


def last_reply_byte_at(request: RequestEvidence) -> int | None:
    """When the last body byte came from the engine, as the one nearest to it saw it."""
    return _nearest_byte(request, c.LAST_BYTE_MS, last_byte_at(request))


def entry_content_at(request: RequestEvidence) -> int | None:
    """The first generated text as the outermost server passed it, by its clock; the first byte where text was not told apart."""
    outer = request.upstream if request.gateway is not None else request.middleware
    seen = _within(outer, c.FIRST_CONTENT_MS) if outer is not None else None
    return seen if seen is not None else first_byte_at(request)


def _nearest(request: RequestEvidence, name: str) -> int | None:
    """As the one nearest to the engine saw it."""
    if request.middleware is not None and (seen := _within(request.middleware, name)) is not None:
        return seen - engine_skew(request)
    return _within(request.upstream, name) if request.upstream is not None else None


def _nearest_byte(request: RequestEvidence, name: str, otherwise: int | None) -> int | None:
    seen = _nearest(request, name)
    return seen if seen is not None else otherwise


def _within(span: Span, name: str) -> int | None:
    """The instant that lies as many milliseconds after the span's start as its attribute says."""
    ms = span.number(name)
    return None if ms is None else span.start + int(1000 * min(max(ms, 0.0), LONGEST_AGO_MS))


def request_start(request: RequestEvidence) -> int:
    """The server side's first instant of the request, the caller's where no server tells of it."""
    if request.entry is not None:
        return request.entry.start
    if request.signals:
        return request.signals[0].ago(c.PROGRESS_AGE_MS)
    extent = request.server_extent
    if extent is None:
        assert request.client is not None
        return request.client.start
    return extent[0]
