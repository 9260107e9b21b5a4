"""When traces that were written down without instants happened: as an engine's log tells by their ids, else at some time."""

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec
from lensd_collectors.rows import Event, Instant, RequestRow, SpanRow

_RANDOM: Final = re.compile(r"-[0-9a-f]{8}$")
_INDEX: Final = re.compile(r"-\d{1,3}$")
_BEGINS: Final = ("request.received",)
_ENDS: Final = ("request.aborted", "request.failed")


class Hours(NamedTuple):
    """First and last instant at which something is known to have happened, microseconds since the epoch."""

    first: int
    last: int


def names_of(logged: str) -> tuple[str, ...]:
    """What a request may be called elsewhere that vLLM's log calls `logged`: without eight random hex digits, without a prompt's index."""
    outer = _RANDOM.sub("", logged)
    return tuple(dict.fromkeys((logged, outer, _INDEX.sub("", outer) if outer.startswith("cmpl-") else outer)))


def date_spans(spans: Sequence[SpanRow], events: Sequence[Event], hours: Hours) -> frozenset[str]:
    """Give spans without an instant one, a trace at a time; traces whose hour stays unknown begin at the first, and are returned."""
    traces: dict[str | None, list[SpanRow]] = {}
    for span in spans:
        if span.started_at is None:
            traces.setdefault(span.trace_id, []).append(span)
    if not traces:
        return frozenset()
    begun, ended = _told(events, _BEGINS), _told(events, _ENDS)
    unknown = set()
    for trace, members in traces.items():
        names = [span.request_id for span in members if span.request_id]
        length = max(_length(span) for span in members)
        start = next((begun[name] for name in names if name in begun), None)
        if start is None:
            start = next((ended[name] - length for name in names if name in ended), None)
        if start is None:
            start = hours.first
            unknown.add(trace)
        for span in members:
            span.started_at = Instant(start)
            span.ended_at = Instant(start + _length(span))
    return frozenset(trace for trace in unknown if trace is not None)


def widen(request: RequestRow, hours: Hours) -> RequestRow:
    """The request at whatever hour: from the first instant to the last. What took how long stays as it was measured."""
    end = max(hours.last, request.ended_at or hours.first)
    return msgspec.structs.replace(request, started_at=Instant(hours.first), ended_at=Instant(end))


def _length(span: SpanRow) -> int:
    return int((span.duration_ms or 0.0) * 1000)


def _told(events: Sequence[Event], names: tuple[str, ...]) -> dict[str, int]:
    """Request id to the first instant at which the log speaks of it."""
    told: dict[str, int] = {}
    for event in events:
        if event.name in names and event.request_id and event.seen_at is not None:
            for name in names_of(event.request_id):
                told.setdefault(name, event.seen_at)
    return told
