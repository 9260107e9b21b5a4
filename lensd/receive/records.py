"""How many records a body holds, and a body without those that are too many."""

from collections.abc import Iterator
from typing import Any

from lensd.store.segments import Signal


def leave_out(kind: Signal, message: Any, most: int) -> int:
    """Keep the first `most` spans, data points or log records of a message; how many went."""
    room, gone = most, 0
    for records in _lists(kind, message):
        here = len(records)
        if here > room:
            gone += here - room
            del records[room:]
        room = max(0, room - here)
    return gone


def _lists(kind: Signal, message: Any) -> Iterator[Any]:
    if kind is Signal.TRACES:
        yield from (scope.spans for resource in message.resource_spans for scope in resource.scope_spans)
    elif kind is Signal.LOGS:
        yield from (scope.log_records for resource in message.resource_logs for scope in resource.scope_logs)
    else:
        for resource in message.resource_metrics:
            for scope in resource.scope_metrics:
                for metric in scope.metrics:
                    if which := metric.WhichOneof("data"):
                        yield getattr(metric, which).data_points
