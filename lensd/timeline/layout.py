"""One request's evidence laid out as six stages on one line."""

from collections.abc import Sequence
from typing import NamedTuple

from lensd_collectors import conventions as c
from lensd_collectors.conventions import Outcome, Stage, StageState

from lensd.records import Gap, StageTime, Timeline
from lensd.timeline.estimate import Scrape, estimate
from lensd.timeline.evidence import LONGEST_AGO_MS, RequestEvidence, Span
from lensd.timeline.limits import Limits
from lensd.timeline.partition import Segment, partition

SKEW_FLOOR_US = 100_000
"""Below this, a child that starts before its parent is a matter of rounding and of when a socket's end is noticed."""


class Placed(NamedTuple):
    """Where a stage lies (microseconds since the epoch) and who says so."""

    segments: tuple[Segment, ...]
    source: str
    estimated: bool = False


def layout(request: RequestEvidence, scrapes: Sequence[Scrape], ended_at: int | None, outcome: str, now: int, limits: Limits) -> Timeline:
    """The request's timeline; an open request (`ended_at` None) is drawn up to `now`. Instants in microseconds since the epoch."""
    skew = clock_skew(request)
    placed = _place(request, scrapes, ended_at if ended_at is not None else now, skew)
    start, end = _extent(request, placed, ended_at, now, skew)
    relative = {stage: [(a - start, b - start) for a, b in p.segments] for stage, p in placed.items()}
    shares = partition(relative, end - start)
    hit = _stage_hit(request, placed, outcome)
    stages = tuple(
        _stage_time(stage, placed.get(stage), start, shares.exclusive[stage], _state(stage, placed, request, outcome, hit, limits))
        for stage in Stage
    )
    gaps = tuple(
        Gap(start_ms=g.start / 1000, duration_ms=(g.end - g.start) / 1000, between=(str(g.before), str(g.after))) for g in shares.gaps
    )
    return Timeline(
        stages=stages,
        unattributed_ms=shares.unattributed / 1000,
        gaps=gaps,
        total_ms=(end - start) / 1000,
        clock_skew_ms=skew / 1000 if skew else None,
    )


def clock_skew(request: RequestEvidence) -> int:
    """Microseconds that the client's clock is ahead of the server's (0: none seen), from a span that sticks out of its parent."""
    client, entry = request.client, request.entry
    if client is None or entry is None or entry.end - entry.start > client.end - client.start + SKEW_FLOOR_US:
        return 0
    early, late = client.start - entry.start, entry.end - client.end
    if max(early, late) <= SKEW_FLOOR_US:
        return 0
    return (client.start + client.end - entry.start - entry.end) // 2  # the server's span in the middle of its parent


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


def _within(span: Span, name: str) -> int | None:
    """The instant that lies as many milliseconds after the span's start as its attribute says."""
    ms = span.number(name)
    return None if ms is None else span.start + int(1000 * min(max(ms, 0.0), LONGEST_AGO_MS))


def request_start(request: RequestEvidence) -> int:
    """The server side's first instant of the request."""
    if request.entry is not None:
        return request.entry.start
    if request.signals:
        return request.signals[0].ago(c.PROGRESS_AGE_MS)
    return min(s.start for s in (request.client, *request.engine_spans) if s is not None)


def _extent(request: RequestEvidence, placed: dict[Stage, Placed], ended_at: int | None, now: int, skew: int) -> Segment:
    start = request_start(request)
    end = ended_at if ended_at is not None else now
    if request.client is not None:
        start = min(start, request.client.start - skew)
        end = max(end, request.client.end - skew) if request.entry is None else max(request.entry.end, request.client.end - skew)
    edges = [edge for p in placed.values() for segment in p.segments for edge in segment if p.source != "scrape"]
    return min([start, *edges]), max([end, start, *edges])


def _place(request: RequestEvidence, scrapes: Sequence[Scrape], end: int, skew: int) -> dict[Stage, Placed]:
    placed: dict[Stage, Placed] = {}
    client, entry = request.client, request.entry
    if client is not None and entry is not None:
        a, b = client.start - skew, client.end - skew
        segments = ((a, max(a, entry.start)), (min(b, entry.end), b))
        placed[Stage.CLIENT] = Placed(tuple(s for s in segments if s[1] > s[0]) or ((a, a),), "client")
    elif client is not None:
        placed[Stage.CLIENT] = Placed(((client.start, client.end),), "client")
    _place_auth_routing(request, placed, end)
    if request.streaming is not None:
        placed[Stage.STREAMING] = Placed(((request.streaming.start, request.streaming.end),), "gateway")
    elif request.middleware is not None and (first := first_byte_at(request)) is not None:
        placed[Stage.STREAMING] = Placed(((first, last_byte_at(request) or first),), "middleware")
    placed |= _place_engine(request, scrapes, end)
    return placed


def _place_auth_routing(request: RequestEvidence, placed: dict[Stage, Placed], end: int) -> None:
    if request.auth_routing is not None:
        placed[Stage.AUTH_ROUTING] = Placed(((request.auth_routing.start, request.auth_routing.end),), "gateway")
    elif request.signals and request.entry is None and not request.is_inside_engine:
        start = request_start(request)
        placed[Stage.AUTH_ROUTING] = Placed(((start, handed_over_at(request) or end),), "gateway")


def _place_engine(request: RequestEvidence, scrapes: Sequence[Scrape], end: int) -> dict[Stage, Placed]:
    """Queue, prefill and decode: from the engine's own durations, else estimated from outside."""
    sent, first = handed_over_at(request), first_byte_at(request)
    times = request.engine_times()
    if times is not None:
        return _from_durations(request, sent, first, end)
    if sent is None or _refused_by_engine(request):
        return {}
    placed: dict[Stage, Placed] = {}
    waited = estimate(scrapes, sent, max(sent, first if first is not None else end))
    if waited.queue:
        placed[Stage.QUEUE] = Placed(waited.queue, waited.source, True)
    if waited.prefill:
        placed[Stage.PREFILL] = Placed(waited.prefill, waited.source, True)
    if first is not None:
        placed[Stage.DECODE] = Placed(((first, max(first, last_byte_at(request) or end)),), "gateway", True)
    return placed


def _from_durations(request: RequestEvidence, sent: int | None, first: int | None, end: int) -> dict[Stage, Placed]:
    """Durations carry no wall clock: they are laid out backwards from the first token that somebody saw."""
    times = request.engine_times()
    assert times is not None
    queue, prefill, decode = (None if ms is None else int(ms * 1000) for ms in (times.queue_ms, times.prefill_ms, times.decode_ms))
    if first is None and times.arrival is not None:
        before = int(1000 * max(0.0, (times.ttft_ms or 0.0) - (times.queue_ms or 0.0) - (times.prefill_ms or 0.0)))
        token = times.arrival + before + (queue or 0) + (prefill or 0)
    elif first is None:
        token = end - (decode or 0)
    else:
        token = first if request.value(c.IS_STREAMING) else first - (decode or 0)
    placed: dict[Stage, Placed] = {}
    floor = sent if sent is not None else token - (queue or 0) - (prefill or 0)
    scheduled = max(floor, token - (prefill or 0))
    if queue is not None:
        placed[Stage.QUEUE] = Placed(((max(floor, scheduled - queue), scheduled),), times.source)
    if prefill is not None and (prefill > 0 or decode):
        placed[Stage.PREFILL] = Placed(((scheduled, max(scheduled, token)),), times.source)
    if decode is not None and (decode > 0 or first is not None):
        placed[Stage.DECODE] = Placed(((max(scheduled, token), max(scheduled, token) + decode),), times.source)
    return placed


def _refused_by_engine(request: RequestEvidence) -> bool:
    return bool(request.value(c.OUTCOME) == Outcome.REFUSED)


_ORDER = (Stage.AUTH_ROUTING, Stage.QUEUE, Stage.PREFILL, Stage.DECODE)
_ENDED_BADLY = frozenset({Outcome.FAILED, Outcome.TIMED_OUT, Outcome.CALLER_GONE, Outcome.CUT, Outcome.LOST})


def _stage_hit(request: RequestEvidence, placed: dict[Stage, Placed], outcome: str) -> Stage | None:
    """The stage that the bad end lies in: the last one reached, streaming and client aside unless nothing else was seen."""
    if outcome == Outcome.REFUSED:
        return Stage.AUTH_ROUTING
    if outcome not in _ENDED_BADLY:
        return None
    reached = [s for s in (Stage.DECODE, Stage.PREFILL, Stage.QUEUE, Stage.AUTH_ROUTING, Stage.CLIENT) if s in placed]
    return reached[0] if reached else None


def _state(
    stage: Stage, placed: dict[Stage, Placed], request: RequestEvidence, outcome: str, hit: Stage | None, limits: Limits
) -> StageState:
    if stage is hit:
        return StageState.FAILED
    if stage not in placed:
        return _absent(stage, request, placed, outcome)
    ms = sum(b - a for a, b in placed[stage].segments) / 1000
    return StageState.SLOW if _is_slow(stage, ms, placed, request, limits) else StageState.OK


def _is_slow(stage: Stage, ms: float, placed: dict[Stage, Placed], request: RequestEvidence, limits: Limits) -> bool:
    match stage:
        case Stage.AUTH_ROUTING:
            return ms > limits.auth_routing_ms
        case Stage.QUEUE:
            return ms > limits.queue_ms and ms > limits.queue_share_of_ttft * _until_first_token(placed)
        case Stage.PREFILL:
            return ms > limits.prefill_ms
        case Stage.DECODE:
            return _tpot_ms(request, ms) > limits.tpot_ms
        case _:
            return False


def _absent(stage: Stage, request: RequestEvidence, placed: dict[Stage, Placed], outcome: str) -> StageState:
    """A stage nobody placed was either not reached, or nobody stood where it could be seen."""
    if stage is Stage.CLIENT:
        return StageState.NOT_OBSERVED
    server_side = request.gateway is not None or request.middleware is not None or bool(request.signals)
    if stage is Stage.AUTH_ROUTING or not (server_side or request.engine_spans):
        return StageState.NOT_OBSERVED
    stopped = outcome == Outcome.REFUSED or outcome in _ENDED_BADLY or outcome == Outcome.OPEN
    if stage is Stage.STREAMING:
        return StageState.NOT_REACHED if server_side and stopped else StageState.NOT_OBSERVED
    if any(later in placed for later in _ORDER[_ORDER.index(stage) + 1 :]):
        return StageState.NOT_OBSERVED  # it was passed, nobody saw when
    return StageState.NOT_REACHED if stopped else StageState.NOT_OBSERVED


def _until_first_token(placed: dict[Stage, Placed]) -> float:
    return sum((b - a) / 1000 for stage in (Stage.QUEUE, Stage.PREFILL) if stage in placed for a, b in placed[stage].segments)


def _tpot_ms(request: RequestEvidence, decode_ms: float) -> float:
    tokens = answer_tokens(request)
    return decode_ms / (tokens - 1) if tokens is not None and tokens > 1 else 0.0


def answer_tokens(request: RequestEvidence) -> int | None:
    """Tokens of the answer that ended last: usage counts those of all answers together, which came side by side."""
    span = request.last_engine_span
    tokens = span.count("gen_ai.usage.completion_tokens") if span is not None else None
    if tokens is None:
        told = request.value(c.OUTPUT_TOKENS)
        tokens = int(told) if isinstance(told, int | float) and len(request.engine_spans) <= 1 else None
    return tokens


def _stage_time(stage: Stage, placed: Placed | None, start: int, exclusive: int, state: StageState) -> StageTime:
    if placed is None:
        return StageTime(stage=stage, state=state)
    segments = tuple(((a - start) / 1000, (b - a) / 1000) for a, b in placed.segments)
    return StageTime(
        stage=stage,
        state=state,
        start_ms=segments[0][0],
        duration_ms=sum(d for _, d in segments),
        exclusive_ms=exclusive / 1000,
        segments=segments,
        source=placed.source,
        estimated=placed.estimated,
    )
