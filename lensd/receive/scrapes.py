"""When an engine's own scrape answered: its plugin sends the same numbers, and only one of the two may fill a row at a time."""

from collections import deque
from typing import Final

import msgspec
from lensd_collectors.rows import Instant

FRESH_US: Final = 10_000_000
_LONGEST_US: Final = 120_000_000
_SPELLS: Final = 16
_ENGINES: Final = 1_000


class _Spell(msgspec.Struct):
    """Scrapes that answered one after another; `fresh` is how long the last of them counts."""

    first: Instant
    last: Instant
    fresh: int = FRESH_US


class Scrapes:
    """The latest spells in which each engine's scrape answered, in the senders' own time. Not for several threads at once."""

    def __init__(self) -> None:
        self._spells: dict[str, deque[_Spell]] = {}

    def answered(self, engine: str, at: Instant) -> None:
        spells = self._spells.get(engine)
        if spells is None:
            if len(self._spells) >= _ENGINES:
                self._spells.pop(next(iter(self._spells)))
            spells = self._spells[engine] = deque(maxlen=_SPELLS)
        for spell in reversed(spells):
            if spell.first - FRESH_US <= at <= spell.last + spell.fresh:
                if at > spell.last:
                    spell.fresh = _fresh(at - spell.last)
                spell.first, spell.last = min(spell.first, at), max(spell.last, at)
                return
        # of an engine that is scraped more seldom than that the next scrape is waited for, else the two would take turns
        step = at - spells[-1].last if spells else 0
        spells.append(_Spell(at, at, _fresh(step) if step <= _LONGEST_US else FRESH_US))

    def covers(self, engine: str, at: Instant) -> bool:
        """Whether a scrape of the engine had answered in the 10 s before an instant, or later where scrapes are further apart."""
        return any(spell.first <= at <= spell.last + spell.fresh for spell in self._spells.get(engine, ()))


def _fresh(step: int) -> int:
    return max(FRESH_US, min(step * 3 // 2, _LONGEST_US))
