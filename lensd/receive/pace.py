"""Lets bodies in as fast as the store takes them while it is behind, so that senders slow down evenly, long before the journal is full."""

import time
from collections.abc import Callable
from typing import Final

PATIENCE_S: Final = 0.5
"""Behind by less, the store holds nobody up."""
AIM_S: Final = 1.5
"""How far behind the store stays when bodies come in just as fast as it takes them."""
MOST_S: Final = 2.0
"""No body waits longer."""


class Pace:
    """Gives each body its turn. Turns lie as far apart as the store takes over a body, times how far behind it is over `AIM_S`.

    So a checkpoint, in which the store takes nothing, does not show in the waits: what the store takes over a body is of many seconds.
    """

    def __init__(self, lag_s: Callable[[], float], s_a_body: Callable[[], float], clock: Callable[[], float] = time.monotonic) -> None:
        """`lag_s`: how far the store is behind the journal. `s_a_body`: how long it takes over a body; 0 where nobody knows yet."""
        self._lag_s, self._s_a_body, self._clock = lag_s, s_a_body, clock
        self._next = 0.0

    def wait_s(self) -> float:
        """Seconds until the turn of a body that has come now."""
        now, lag_s = self._clock(), self._lag_s()
        if lag_s < PATIENCE_S:
            self._next = now
            return 0.0
        turn = min(max(now, self._next), now + MOST_S)
        self._next = turn + self._s_a_body() * lag_s / AIM_S
        return turn - now
