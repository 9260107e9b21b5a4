"""Each engine's settings as they were told last: what is told again is no news, and what another start tells otherwise is a change.

Facts come from several senders in several bodies of one start (arguments, resolved values, gauges), and again whenever an agent or a
daemon starts. A fact is compared with those of its own origin at an earlier start; without a start between, a second value is
another replica's, or another line's word for the same thing, and no change.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec
from lensd_collectors.read.settings import Origin
from lensd_collectors.rows import ConfigFact, Instant

from lensd.receive.starts import SAME_US
from lensd.store import queries
from lensd.store.interface import Cursor

Key = tuple[str, str]
"""Origin and name."""
_LAST: Final = """
select * from config_facts
qualify row_number() over (partition by subject, coalesce(origin, ''), name order by seen_at desc nulls last) = 1
"""
_SUBJECTS: Final = 1_000
_NAMES: Final = 500  # facts kept of one subject
_VALUES: Final = 8  # values of one fact in one start
UNSAID: Final = ""  # the origin of a fact whose sender names none
_RESOLVED: Final[Mapping[str, int]] = {Origin.MODEL: 0, UNSAID: 1, Origin.FLAG: 2, Origin.EFFECTIVE: 3, Origin.MEASURED: 4}
_OF_CHANGES: Final = (UNSAID, Origin.FLAG, Origin.EFFECTIVE)


class Change(msgspec.Struct, frozen=True):
    """A setting that this start has otherwise than the one before; None: not given."""

    name: str
    was: str | None
    value: str | None
    origin: str


class _Told(msgspec.Struct):
    start: int  # number of the start it was told in
    values: list[str | None]
    before: list[str | None] = []  # of the start before that told it


class Subject:
    """The facts of one engine, by origin and name."""

    def __init__(self) -> None:
        self.start = 0  # counts the starts seen
        self.started_at: Instant | None = None
        self.changes: dict[str, Change] = {}  # of this start
        self.is_flagged = False  # this start was said to need more memory than there is
        self._told: dict[Key, _Told] = {}
        self._given_since: int | None = None  # number of the first start whose arguments are known

    def begin(self, at: Instant) -> None:
        """Another start."""
        self.start += 1
        self.started_at = max(at, self.started_at or at)
        self.changes, self.is_flagged = {}, False

    def began(self, at: Instant) -> None:
        """A weaker sign of a start: another one only where it is later than the last that is known."""
        if self.started_at is not None and at > self.started_at + SAME_US:
            self.begin(at)
        self.started_at = max(at, self.started_at or at)

    def recall(self, fact: ConfigFact) -> None:
        """A fact stored earlier."""
        self._told[_key(fact)] = _Told(self.start, [fact.value])
        self._mark_given(fact)
        if fact.seen_at is not None:
            self.started_at = max(fact.seen_at, self.started_at or fact.seen_at)

    def take(self, fact: ConfigFact) -> bool:
        """Whether a fact is news; sets what it `was` where that is known."""
        told = self._told.get(_key(fact))
        if told is None:
            return self._first(fact)
        if told.start == self.start:
            if fact.value in told.values or len(told.values) >= _VALUES:
                return False
            told.values.append(fact.value)
            fact.was = None
            return True
        told.before, told.values, told.start = told.values, [fact.value], self.start
        fact.was = None if fact.value in told.before else told.before[-1]
        self._mark_given(fact)
        if fact.value not in told.before:
            self._changed(fact)
        return True

    def given(self) -> dict[str, str]:
        """The arguments of the last start, by name."""
        return {
            name: value for (origin, name), told in self._told.items() if origin == Origin.FLAG and (value := told.values[-1]) is not None
        }

    def known(self) -> Iterator[tuple[str, str, bool]]:
        """Name and value of each setting as it is in force now, and whether this very start has told it.

        The latest start that told a setting counts, and of one start what the engine made of it before what it was given.
        """
        best: dict[str, tuple[tuple[int, int], str | None]] = {}
        for (origin, name), told in self._told.items():
            if origin not in _RESOLVED or told.values[-1] == "auto":
                continue
            rank = told.start, _RESOLVED[origin]
            if name not in best or rank > best[name][0]:
                best[name] = rank, told.values[-1]
        for name, ((start, _), value) in best.items():
            if value is not None:
                yield name, value, start == self.start

    def _first(self, fact: ConfigFact) -> bool:
        if fact.value is None or len(self._told) >= _NAMES:
            return False
        is_added = fact.origin == Origin.FLAG and self._given_since is not None and self._given_since < self.start
        self._told[_key(fact)] = _Told(self.start, [fact.value])
        self._mark_given(fact)
        fact.was = None
        if is_added:
            self._changed(fact)
        return True

    def _mark_given(self, fact: ConfigFact) -> None:
        if fact.origin == Origin.FLAG and self._given_since is None:
            self._given_since = self.start

    def _changed(self, fact: ConfigFact) -> None:
        origin, name = _key(fact)
        if origin in _OF_CHANGES and name not in self.changes:
            self.changes[name] = Change(name, fact.was, fact.value, origin)


class Ledger:
    """The subjects known, each made when it is first asked for. Not for several threads at once."""

    def __init__(self, stored: Iterable[ConfigFact] = ()) -> None:
        self._subjects: dict[str | None, Subject] = {}
        for fact in stored:
            self.of(fact.subject).recall(fact)

    def of(self, subject: str | None) -> Subject:
        found = self._subjects.get(subject)
        if found is None:
            if len(self._subjects) >= _SUBJECTS:
                self._subjects.pop(next(iter(self._subjects)))
            found = self._subjects[subject] = Subject()
        return found

    def given(self, subject: str | None) -> Mapping[str, str]:
        """The arguments of an engine's last start, by name; none of an engine that nothing is known of."""
        return self._subjects[subject].given() if subject in self._subjects else {}


def last_facts(cursor: Cursor) -> list[ConfigFact]:
    """The last fact of each subject, origin and name that a store holds, for a ledger to begin with."""
    return queries.structs(cursor, ConfigFact, _LAST)


def _key(fact: ConfigFact) -> Key:
    return fact.origin or UNSAID, fact.name or ""
