"""What follows from an engine's facts as they come in: derived facts, and an event where a start has other settings than the one before."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

import msgspec
from lensd_collectors import conventions
from lensd_collectors.read.engine_log import ARGUMENTS
from lensd_collectors.read.settings import MEASURED, Origin
from lensd_collectors.rows import ConfigFact, EngineSample, Event, Instant, Row

from lensd.memory.facts import derived
from lensd.receive import starts, values
from lensd.receive.budget import BLOCK, COUNTED, LOADED, ROOM, Budget, budget
from lensd.receive.ledger import UNSAID, Change, Ledger, Subject

SIGNS: Final = (starts.NAME, ARGUMENTS)
"""Events that a start shows itself in."""
Derive = Callable[[Mapping[str, str]], dict[str, str]]
Sign = tuple[int, int, ConfigFact | Event | EngineSample]
"""Instant, rank among those of one instant (a start before its facts), and what was seen."""


class Derived:
    """Goes over the rows of each body. Not for several threads at once."""

    def __init__(self, ledger: Ledger, derive: Derive = derived) -> None:
        self._ledger, self._derive = ledger, derive

    def take(self, made: dict[str, list[Row]]) -> None:
        """Leaves out facts told before, and adds those that follow and events of changed starts."""
        told = made.pop("config_facts", [])
        news: dict[str | None, list[ConfigFact]] = {}
        for at, _, row in sorted(_signs(told, made), key=lambda sign: sign[:2]):
            if not isinstance(row, ConfigFact):
                _begin(self._ledger.of(row.engine), row, Instant(at))
            elif self._ledger.of(row.subject).take(row):
                news.setdefault(row.subject, []).append(row)
        for name, facts in news.items():
            more, event = self._follow(name, facts)
            made.setdefault("config_facts", []).extend([*facts, *more])
            if event is not None:
                made.setdefault("events", []).append(event)

    def _follow(self, name: str | None, news: list[ConfigFact]) -> tuple[list[ConfigFact], Event | None]:
        """Derived facts that are news, and the event that tells of changes which these facts brought."""
        subject, last = self._ledger.of(name), news[-1]
        known = in_force(subject)
        more = []
        for setting, value in self._derive(known).items():
            src = f"derived:{name or '-'}/{setting}@{values.rfc3339(last.seen_at or 0)}"
            fact = ConfigFact(seen_at=last.seen_at, subject=name, name=setting, value=value, src=src, origin=Origin.DERIVED)
            known[setting] = value
            more += [fact] if subject.take(fact) else []
        return more, _event(name, subject, news, budget(known, subject.changes))


def in_force(subject: Subject) -> dict[str, str]:
    """A subject's settings by name; what an earlier start measured only where nothing that bears on it has changed."""
    changed = subject.changes.keys()
    gone = set(MEASURED) if changed & ROOM else set[str]()
    gone -= {"device_total_bytes"} if changed & LOADED else {"device_total_bytes", "weights_bytes"}
    gone |= COUNTED if changed & BLOCK else set()
    return {name: value for name, value, is_new in subject.known() if is_new or name not in gone}


def said(change: Change) -> str:
    """`max_model_len 4096 -> 32768`."""
    was, value = (text if text is not None else "not given" for text in (change.was, change.value))
    return f"{change.name} {was} -> {value}"


def _signs(facts: Iterable[Row], made: Mapping[str, list[Row]]) -> Iterator[Sign]:
    for row in made.get("events", ()):
        if isinstance(row, Event) and row.name in SIGNS:
            yield row.seen_at or 0, 0 if row.name == starts.NAME else 1, row
    for row in made.get("engine_samples", ()):
        if isinstance(row, EngineSample) and row.start_at is not None:
            yield row.start_at, 2, row
    for row in facts:
        if isinstance(row, ConfigFact):
            yield row.seen_at or 0, 3, row


def _begin(subject: Subject, sign: Event | EngineSample, at: Instant) -> None:
    """A log's arguments and a process' own start are signs of a start that its first line may have told already."""
    if isinstance(sign, Event) and sign.name == starts.NAME:
        subject.begin(at)
    else:
        subject.began(at)


def _event(name: str | None, subject: Subject, news: list[ConfigFact], room: Budget) -> Event | None:
    """Told once for each change, and once more where it shows only later that the changed start needs too much."""
    changes = [change for change in subject.changes.values() if any(_brings(fact, change) for fact in news)]
    is_over = bool(room.over_budget) and not subject.is_flagged and bool(subject.changes)
    if not changes and not is_over:
        return None
    subject.is_flagged |= is_over
    shown, last = changes or list(subject.changes.values()), news[-1]
    return Event(
        seen_at=last.seen_at,
        engine=name,
        name=conventions.EVENT_CONFIG_CHANGED,
        severity="warning" if room.over_budget else "info",
        fields=msgspec.json.encode({"changes": shown, **msgspec.to_builtins(room)}).decode(),
        line=", ".join(map(said, shown)),
        src=f"{last.src}/changed",
    )


def _brings(fact: ConfigFact, change: Change) -> bool:
    return (fact.origin or UNSAID, fact.name) == (change.origin, change.name) and fact.value == change.value
