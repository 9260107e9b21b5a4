"""One start of an engine shows in several ways (its log, its spans, counters that fall back): each start is told once."""

from collections import deque
from typing import Final

import msgspec

NAME: Final = "engine.started"
SAME_US: Final = 60_000_000
_STARTS: Final = 16
_ENGINES: Final = 1_000


class _Start(msgspec.Struct):
    first: int
    last: int
    tellers: set[str]


class Starts:
    """The latest starts of each engine, in microseconds since the epoch. Not for several threads at once."""

    def __init__(self) -> None:
        self._told: dict[str | None, deque[_Start]] = {}

    def is_new(self, engine: str | None, first: int, last: int, teller: str | None = None) -> bool:
        """Whether a sign of a start that lies between two instants is to be told: not if a start within 60 s of them has been.

        A `teller` shows each start once, so two of its signs are two starts however close they are. None: its signs may repeat.
        """
        told = self._told.get(engine)
        if told is None:
            if len(self._told) >= _ENGINES:
                self._told.pop(next(iter(self._told)))
            told = self._told[engine] = deque(maxlen=_STARTS)
        near = [start for start in told if start.first - SAME_US <= last and first <= start.last + SAME_US and teller not in start.tellers]
        if teller is not None:
            for start in near:
                start.tellers.add(teller)
        if near:
            return False
        told.append(_Start(first, last, set() if teller is None else {teller}))
        return True
