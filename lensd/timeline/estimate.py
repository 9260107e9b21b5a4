"""Queue and prefill of a request the engine says nothing of, from the scrapes of those seconds.

vLLM exports nothing for a request whose caller left, that is still open, or that died with the engine. What is left are
the engine's gauges while the request was there. Marked estimated wherever it is shown.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from lensd.store.interface import Cursor
from lensd.timeline.partition import Segment


class Scrape(NamedTuple):
    """One engine's gauges at one instant (microseconds since the epoch)."""

    at: int
    running: float | None
    waiting: float | None


class Estimate(NamedTuple):
    queue: tuple[Segment, ...]
    prefill: tuple[Segment, ...]
    source: str  # scrape, or estimate where no scrape covers those seconds


def estimate(scrapes: Sequence[Scrape], handed_over: int, until: int) -> Estimate:
    """Divide the time without a byte, `handed_over..until`, into queue and prefill.

    A scrape with somebody waiting: the request may still wait. Nobody waiting and somebody running: it is one of them, so
    it is in prefill from then on (it came last, so it leaves the line last). Neither: the engine has not taken it in, or
    does not move; that is queue, since prefill cannot be told apart from outside.
    """
    seen = [s for s in scrapes if handed_over <= s.at <= until and s.waiting is not None]
    if not seen:
        return Estimate(((handed_over, until),), (), "estimate")
    last_waiting = max((s.at for s in seen if s.waiting), default=None)
    running_from = next((s.at for s in seen if not s.waiting and s.running and (last_waiting is None or s.at > last_waiting)), None)
    if running_from is None:
        return Estimate(((handed_over, until),), (), "scrape")
    left_line = handed_over if last_waiting is None else (last_waiting + running_from) // 2
    return Estimate(((handed_over, left_line),), ((left_line, until),), "scrape")


class Scrapes:
    """Scrapes of some engines over some time, read once for a whole batch of requests."""

    def __init__(self, by_engine: Mapping[str | None, Sequence[Scrape]]) -> None:
        self._by_engine = by_engine
        self._instants = {engine: [s.at for s in rows] for engine, rows in by_engine.items()}

    @classmethod
    def read(cls, cursor: Cursor, start: int, end: int) -> "Scrapes":
        """Scrapes of `start..end` (microseconds since the epoch)."""
        rows = cursor.execute(_SCRAPES, {"start": start, "end": end}).fetchall()
        by_engine: dict[str | None, list[Scrape]] = {}
        for engine, at, running, waiting in rows:
            by_engine.setdefault(engine, []).append(Scrape(at, running, waiting))
        return cls(by_engine)

    def of(self, engine: str | None, start: int, end: int) -> Sequence[Scrape]:
        """One engine's scrapes of that time; an unknown engine has none, unless there is only one it can be."""
        if engine not in self._by_engine:
            if engine is not None or len(self._by_engine) != 1:
                return ()
            engine = next(iter(self._by_engine))
        instants = self._instants[engine]
        return self._by_engine[engine][bisect_left(instants, start) : bisect_right(instants, end)]


_SCRAPES = """
select engine, epoch_us(seen_at), sum(running), sum(waiting) from engine_samples
where seen_at between make_timestamp($start) and make_timestamp($end) and waiting is not null
group by all order by 2
"""
