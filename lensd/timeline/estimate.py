"""Queue and prefill of a request the engine says nothing of, from the scrapes of those seconds.

vLLM exports nothing for a request whose caller left, that is still open, or that died with the engine. What is left are
the engine's gauges while the request was there. Marked estimated wherever it is shown.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from lensd.store.interface import Cursor
from lensd.timeline.partition import Segment

GRACE_US = 200_000
"""A gauge read sooner after the hand-over does not show the request yet: it is still being tokenised."""
AROUND_US = 2_000_000
"""How far before and after a wait a scrape's counters are looked at."""


class Scrape(NamedTuple):
    """One engine's gauges at one instant (microseconds since the epoch); `made`: tokens it has generated since its start."""

    at: int
    running: float | None
    waiting: float | None
    made: float | None = None


class Estimate(NamedTuple):
    queue: tuple[Segment, ...]
    prefill: tuple[Segment, ...]
    source: str  # scrape, or estimate where no scrape tells anything


def estimate(scrapes: Sequence[Scrape], handed_over: int, until: int) -> Estimate:
    """Divide the time without a byte, `handed_over..until`, into queue and prefill.

    A scrape with somebody waiting: the request may still wait. Nobody waiting and somebody running: it is one of them, so
    it is in prefill from then on (it came last, so it leaves the line last). Neither, yet tokens were made between the scrape
    before and the one after: it ran between two scrapes. Neither and no token made: the engine has not taken it in, or does
    not move; that is queue, since prefill cannot be told apart from outside. So is what an engine that stands still shows: who
    runs there did so before.
    """
    if _stands_still(scrapes, handed_over, until):
        return Estimate(((handed_over, until),), (), "estimate")
    seen = [s for s in scrapes if handed_over + GRACE_US <= s.at <= until and s.waiting is not None]
    last_waiting = max((s.at for s in seen if s.waiting), default=None)
    running_from = next((s.at for s in seen if not s.waiting and s.running and (last_waiting is None or s.at > last_waiting)), None)
    if running_from is None:
        if last_waiting is None and _worked(scrapes, handed_over, until):
            return Estimate(((handed_over, handed_over),), ((handed_over, until),), "scrape")
        return Estimate(((handed_over, until),), (), "scrape" if seen else "estimate")
    left_line = handed_over if last_waiting is None else (last_waiting + running_from) // 2
    return Estimate(((handed_over, left_line),), ((left_line, until),), "scrape")


def _stands_still(scrapes: Sequence[Scrape], handed_over: int, until: int) -> bool:
    """Nothing that an engine shows has moved since before the hand-over: taking the request in would have moved its gauges."""
    before = [s for s in scrapes if s.at < handed_over and s.made is not None]
    during = [s for s in scrapes if handed_over + GRACE_US <= s.at <= until and s.made is not None]
    if not before or not during or not before[-1].running:
        return False
    return all(s[1:] == before[-1][1:] for s in during)


def _worked(scrapes: Sequence[Scrape], handed_over: int, until: int) -> bool:
    """Tokens were made from the scrape before to the one after, and nobody was seen waiting."""
    around = [s for s in scrapes if s.made is not None and handed_over - AROUND_US <= s.at <= until + AROUND_US]
    after = [s for s in around if s.at >= until]
    before = [s for s in around if after and s.at < min(handed_over + GRACE_US, after[0].at)]
    if not before or any(s.waiting for s in around if s.at <= after[0].at):
        return False
    return (after[0].made or 0) > (before[-1].made or 0)


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
        for engine, *told in rows:
            by_engine.setdefault(engine, []).append(Scrape(*told))
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
select engine, epoch_us(seen_at), sum(running), sum(waiting), sum(generation_tokens_total) from (
    select distinct engine, model, seen_at, running, waiting, generation_tokens_total from engine_samples
    where seen_at between make_timestamp($start) and make_timestamp($end) and waiting is not null
) group by all order by 2
"""
"""One row an instant, of all its models together; what a sender sends again counts once."""
