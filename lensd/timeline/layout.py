"""One request's evidence laid out as six stages on one line."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

from lensd_collectors import conventions as c
from lensd_collectors.conventions import Outcome, Stage, StageState

from lensd.records import Gap, StageTime, Timeline
from lensd.timeline.engine_layout import Frontend, Placed, place_engine
from lensd.timeline.engine_times import last_tokens
from lensd.timeline.estimate import Scrape
from lensd.timeline.evidence import RequestEvidence
from lensd.timeline.instants import clock_skew, first_byte_at, handed_over_at, last_byte_at, request_start
from lensd.timeline.limits import Limits
from lensd.timeline.partition import Gap as Uncovered
from lensd.timeline.partition import Segment, partition
from lensd.timeline.told import is_number


def layout(request: RequestEvidence, scrapes: Sequence[Scrape], ended_at: int | None, outcome: str, now: int, limits: Limits) -> Timeline:
    """The request's timeline; an open request (`ended_at` None) is drawn up to `now`. Instants in microseconds since the epoch."""
    skew = clock_skew(request)
    placed, front = _place(request, scrapes, ended_at if ended_at is not None else now, skew)
    start, end = _extent(request, placed, ended_at, now, skew)
    relative = {stage: [(a - start, b - start) for a, b in p.segments] for stage, p in placed.items()}
    shares = partition(relative, end - start)
    hit = _stage_hit(request, placed, outcome)
    stages = tuple(
        _stage_time(stage, placed.get(stage), start, shares.exclusive[stage], _state(stage, placed, request, outcome, hit, limits))
        for stage in Stage
    )
    attempts = [span.start - start for span in request.upstreams]
    gaps = tuple(
        Gap(start_ms=g.start / 1000, duration_ms=(g.end - g.start) / 1000, between=(str(g.before), str(g.after)))
        for whole in shares.gaps
        for g in _between_attempts(whole, attempts)
    )
    return Timeline(
        stages=stages,
        unattributed_ms=shares.unattributed / 1000,
        gaps=gaps,
        total_ms=(end - start) / 1000,
        clock_skew_ms=skew / 1000 if skew else None,
        frontend_ms=(front.end - front.start) / 1000 if front is not None else None,
    )


def _between_attempts(gap: Uncovered, attempts: Sequence[int]) -> Iterator[Uncovered]:
    """The gap cut where attempts began, if it spans several: before the last lie those that failed, and the waits after them."""
    edges = [at for at in attempts if gap.start < at < gap.end] if len(attempts) > 1 else []
    if not edges:
        yield gap
        return
    begun = sum(at <= gap.start for at in attempts)
    names = [f"attempt {begun}" if begun else gap.before, *(f"attempt {begun + n + 1}" for n in range(len(edges))), gap.after]
    for piece, between in zip(pairwise([gap.start, *edges, gap.end]), pairwise(names), strict=True):
        yield Uncovered(*piece, *between)


def _extent(request: RequestEvidence, placed: dict[Stage, Placed], ended_at: int | None, now: int, skew: int) -> Segment:
    start = request_start(request)
    end = ended_at if ended_at is not None else now
    if request.client is not None:
        start = min(start, request.client.start - skew)
        end = max(end if request.entry is None else request.entry.end, request.client.end - skew)
    edges = [edge for p in placed.values() for segment in p.segments for edge in segment if p.source != "scrape"]
    return min([start, *edges]), max([end, start, *edges])


def _place(request: RequestEvidence, scrapes: Sequence[Scrape], end: int, skew: int) -> tuple[dict[Stage, Placed], Frontend | None]:
    placed: dict[Stage, Placed] = {}
    client, entry = request.client, request.entry
    if client is not None and entry is not None:
        a, b = client.start - skew, client.end - skew
        segments = ((a, max(a, entry.start)), (min(b, entry.end), b))
        placed[Stage.CLIENT] = Placed(tuple(s for s in segments if s[1] > s[0]) or ((a, a),), "client")
    elif client is not None:
        placed[Stage.CLIENT] = Placed(((client.start - skew, client.end - skew),), "client")
    _place_auth_routing(request, placed, end)
    if request.streaming is not None:
        placed[Stage.STREAMING] = Placed(((request.streaming.start, request.streaming.end),), "gateway")
    elif request.middleware is not None and (first := first_byte_at(request)) is not None:
        placed[Stage.STREAMING] = Placed(((first, last_byte_at(request) or first),), "middleware")
    in_engine, front = place_engine(request, scrapes, end)
    return placed | in_engine, front


def _place_auth_routing(request: RequestEvidence, placed: dict[Stage, Placed], end: int) -> None:
    if request.auth_routing is not None:
        placed[Stage.AUTH_ROUTING] = Placed(((request.auth_routing.start, request.auth_routing.end),), "gateway")
    elif request.signals and request.entry is None and not request.is_inside_engine:
        start = request_start(request)
        placed[Stage.AUTH_ROUTING] = Placed(((start, handed_over_at(request) or end),), "gateway")
    elif request.entry is not None and request.entry is request.middleware and request.value(c.OUTCOME) == Outcome.REFUSED:
        placed[Stage.AUTH_ROUTING] = Placed(((request.entry.start, request.entry.end),), "middleware")


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
    tokens = last_tokens(request.answers())
    if tokens is not None:
        return tokens
    told = request.value(c.OUTPUT_TOKENS)
    return int(told) if is_number(told) and len(request.engine_spans) <= 1 else None


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
