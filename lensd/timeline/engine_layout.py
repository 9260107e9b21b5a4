"""Where queue, prefill and decode of a request lie: by the engine's own durations, else estimated from outside."""

from collections.abc import Sequence
from typing import NamedTuple

from lensd_collectors import conventions as c
from lensd_collectors.conventions import Outcome, Stage

from lensd.timeline.engine_times import EngineTimes, Measure, last_tokens
from lensd.timeline.estimate import Scrape, estimate
from lensd.timeline.evidence import RequestEvidence
from lensd.timeline.instants import (
    engine_skew,
    entered_engine_at,
    first_byte_at,
    first_content_at,
    handed_over_at,
    last_content_at,
    last_reply_byte_at,
)
from lensd.timeline.partition import Segment

SLACK_US = 1000  # wall clock and monotonic clock of one process are read one after the other


class Placed(NamedTuple):
    """Where a stage lies (microseconds since the epoch) and who says so."""

    segments: tuple[Segment, ...]
    source: str
    estimated: bool = False


class Frontend(NamedTuple):
    """Parse, chat template and tokenising before the engine's queue: the first segment of prefill."""

    start: int
    end: int


def place_engine(request: RequestEvidence, scrapes: Sequence[Scrape], end: int) -> tuple[dict[Stage, Placed], Frontend | None]:
    """Queue, prefill and decode; the front end is part of prefill, and None where its ends were not seen."""
    times = request.engine_times()
    if times is not None and times.queue is not None and times.prefill is None and last_tokens(request.answers()) == 0:
        return _ended_in_prefill(request, times, times.queue, end), None
    if times is not None:
        return _from_durations(request, times, end)
    return _estimated(request, scrapes, end), None


def _estimated(request: RequestEvidence, scrapes: Sequence[Scrape], end: int) -> dict[Stage, Placed]:
    sent, first = handed_over_at(request), first_content_at(request)
    if sent is None or request.value(c.OUTCOME) == Outcome.REFUSED:
        return {}
    placed: dict[Stage, Placed] = {}
    waited = estimate(scrapes, sent, max(sent, first if first is not None else end))
    if waited.queue:
        placed[Stage.QUEUE] = Placed(waited.queue, waited.source, True)
    if waited.prefill:
        placed[Stage.PREFILL] = Placed(waited.prefill, waited.source, True)
    if first is not None:
        seen_by = "middleware" if request.upstream is None and (request.middleware or request.is_inside_engine) else "gateway"
        placed[Stage.DECODE] = Placed(((first, max(first, last_content_at(request) or end)),), seen_by, True)
    return placed


def _from_durations(request: RequestEvidence, times: EngineTimes, end: int) -> tuple[dict[Stage, Placed], Frontend | None]:
    """Durations carry no wall clock: they are laid out backwards from the first token that somebody saw."""
    queue, prefill, decode = (_us(measure) for measure in (times.queue, times.prefill, times.decode))
    sent, arrival = entered_engine_at(request), _arrival(request, times)
    floor = next((at for at in (sent, handed_over_at(request), arrival) if at is not None), None)
    token = _first_token(request, times, arrival, floor, end)
    prefilled = token if not times.split else _handed_on(times, arrival, floor, token)
    if floor is None:
        floor = prefilled - (queue or 0) - (prefill or 0)
    scheduled = max(floor, prefilled - (prefill or 0))
    queued = max(floor, scheduled - (queue or 0))
    front = _frontend(request, times, sent, arrival, queued) if times.queue is not None and times.prefill is not None else None
    placed: dict[Stage, Placed] = {}
    if times.queue is not None:
        placed[Stage.QUEUE] = Placed(((queued, scheduled),), times.queue.source)
    if times.prefill is not None and prefill is not None and (prefill > 0 or decode or times.split):
        before = ((front.start, front.end),) if front is not None and front.end > front.start else ()
        placed[Stage.PREFILL] = Placed((*before, (scheduled, max(scheduled, prefilled))), times.prefill.source)
    if times.decode is not None and decode is not None and (decode > 0 or first_byte_at(request) is not None):
        begun = max(scheduled, token)
        placed[Stage.DECODE] = Placed(((begun, begun + decode),), times.decode.source)
    return placed, front if Stage.PREFILL in placed else None


def _ended_in_prefill(request: RequestEvidence, times: EngineTimes, queue: Measure, end: int) -> dict[Stage, Placed]:
    """The engine scheduled it and made no token: from then on it was in prefill, however long that would have taken."""
    until = _ended(request, times, end)
    begun = next((at for at in (entered_engine_at(request), _arrival(request, times), handed_over_at(request)) if at is not None), until)
    scheduled = min(begun + int(queue.ms * 1000), max(begun, until))
    return {
        Stage.QUEUE: Placed(((begun, scheduled),), queue.source),
        Stage.PREFILL: Placed(((scheduled, max(scheduled, until)),), queue.source, True),
    }


def _us(measure: Measure | None) -> int | None:
    return None if measure is None else int(measure.ms * 1000)


def _is_dated(times: EngineTimes) -> bool:
    """Not a span that is shorter than what it holds: it came without instants, and was dated by somebody else."""
    if times.split or times.arrival is None or times.end is None:
        return True
    held = sum(_us(measure) or 0 for measure in (times.queue, times.prefill, times.decode))
    return times.end - times.arrival >= held - SLACK_US


def _arrival(request: RequestEvidence, times: EngineTimes) -> int | None:
    return None if times.arrival is None or not _is_dated(times) else times.arrival - engine_skew(request)


def _ended(request: RequestEvidence, times: EngineTimes, end: int) -> int:
    return end if times.end is None or not _is_dated(times) else times.end - engine_skew(request)


def _first_token(request: RequestEvidence, times: EngineTimes, arrival: int | None, floor: int | None, end: int) -> int:
    """When the first token was there: as it was passed on, else by the engine's wall clock, else back from the end."""
    queue, prefill, decode = (_us(measure) or 0 for measure in (times.queue, times.prefill, times.decode))
    by_engine = None if arrival is None or times.ttft_ms is None else arrival + int(times.ttft_ms * 1000)
    if request.value(c.IS_STREAMING) and (seen := first_content_at(request)) is not None:
        last = last_reply_byte_at(request)  # text may come some tokens after the first, but the last token came before the last byte
        return seen if last is None or times.decode is None else min(seen, last - decode)
    replied = _replied_at(request)
    if replied is None:
        if by_engine is not None and not times.split:
            return max(by_engine, (arrival or 0) + queue + prefill)
        return _ended(request, times, end) - decode
    token = replied - decode  # an answer in one piece; what it took to write it down is not told apart
    if by_engine is None and arrival is not None and times.end is not None:  # a plugin tells the last token's instant, not the first's
        by_engine = times.end - engine_skew(request) - decode
    if request.middleware is None or by_engine is None or times.split:
        return token
    return min(token, max(by_engine, (floor or by_engine) + queue + prefill))  # one clock for both: the engine's process


def _replied_at(request: RequestEvidence) -> int | None:
    """When an answer in one piece came, as the one nearest to the engine saw it."""
    if request.middleware is not None and (ms := request.middleware.number(c.FIRST_BYTE_MS)) is not None:
        return request.middleware.start - engine_skew(request) + int(1000 * max(ms, 0.0))
    return first_byte_at(request)


def _handed_on(times: EngineTimes, arrival: int | None, floor: int | None, token: int) -> int:
    """When the engine that read the prompt was done: by its own clock where that lies before the other's first token."""
    queue, prefill = _us(times.queue) or 0, _us(times.prefill) or 0
    if arrival is not None and times.ttft_ms is not None and (floor or arrival) <= arrival + int(times.ttft_ms * 1000) <= token:
        return arrival + int(times.ttft_ms * 1000)
    return min(token, (token if floor is None else floor) + queue + prefill)


def _frontend(request: RequestEvidence, times: EngineTimes, sent: int | None, arrival: int | None, queued: int) -> Frontend | None:
    """From the middleware's first line to the queue, where the first token was seen; by the engine's own span where it stands alone."""
    if sent is not None:
        seen = first_content_at(request) if request.value(c.IS_STREAMING) else _replied_at(request)
        return None if seen is None else Frontend(sent, max(sent, queued))
    outside = request.gateway is not None or request.signals or request.upstreams  # what lies between is the network's too
    if outside or times.ttft_ms is None or arrival is None:
        return None
    return Frontend(arrival, max(arrival, queued))
