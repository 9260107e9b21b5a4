"""When the last sign of a request came, by our own clock."""

from collections.abc import Callable

from lensd.timeline.assemble import request_key
from lensd.timeline.evidence import RequestEvidence
from lensd.timeline.life import has_ended, last_sign

TRAVEL_US = 2_000_000  # a sign that came later than this after its instant was sent late, or by another clock

Heard = Callable[[RequestEvidence], int]
"""When the last sign of a request came, by our own clock (microseconds since the epoch)."""


class Ears:
    """When the last sign of each request came, by our own clock: what waits must not depend on how senders' clocks stand."""

    def __init__(self, signs: dict[int, tuple[int, int]], now: int) -> None:
        self.signs, self._now = signs, now

    def __call__(self, request: RequestEvidence) -> int:
        key, told = request_key(request.trace_id, request.span_id), last_sign(request)
        before, heard_at = self.signs.get(key, (None, 0))
        if before != told:
            heard_at = max(told, self._now - TRAVEL_US)
        self.signs[key] = told, min(heard_at, self._now)  # never ahead, also not where our own clock was set back
        return self.signs[key][1]


def heard_long_ago(request: RequestEvidence) -> int:
    """For who waits for nothing: what has ended has done so for good, what is open may still be."""
    return 0 if has_ended(request) else last_sign(request)
