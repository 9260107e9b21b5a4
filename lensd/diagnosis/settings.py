"""What follows from the settings in a folder of files, as the receiver would have worked it out while they came in."""

import copy
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence

from lensd_collectors.read.revisions import Rank, compare, rank_of
from lensd_collectors.read.settings import Origin
from lensd_collectors.rows import ConfigFact, EngineSample, Event, Row

from lensd.receive import starts
from lensd.receive.derive import SIGNS, Derived
from lensd.receive.ledger import Ledger

Table = tuple[str, int | None, Row]
"""Table, instant and row."""


def compare_files(rows: Mapping[str, list[Row]]) -> None:
    """Where files of arguments say by their names which is the older, sets on the newest one's facts what they were."""
    files: dict[str, list[ConfigFact]] = {}
    facts = rows.get("config_facts", [])
    telling = {(row.src or "").rpartition(":")[0] for row in rows.get("events", ()) if isinstance(row, Event)}
    for fact in facts:
        if isinstance(fact, ConfigFact) and fact.origin == Origin.FLAG and fact.seen_at is None:
            files.setdefault((fact.src or "").rpartition(":")[0], []).append(fact)
    if not any(fact.was is not None for own in files.values() for fact in own):
        names = [name for name in files if name not in telling]
        facts += compare([(rank, files[name]) for name, rank in zip(names, _ranks(names), strict=True)])


def _ranks(names: Sequence[str]) -> list[Rank | None]:
    """Of `serve.args` and `serve.args.old` the one that says nothing is the other."""
    ranks = [rank_of(name) for name in names]
    said = [rank for rank in ranks if rank is not None]
    if len(names) == 2 and len(said) == 1 and said[0][0] == "word" and len({name.partition(".")[0] for name in names}) == 1:
        kind, text, number = said[0]
        return [(kind, text, 1 - number) if rank is None else rank for rank in ranks]
    return ranks


def derived_rows(rows: Mapping[str, Sequence[Row]]) -> dict[str, list[Row]]:
    """Derived facts, and events of changed starts, start by start; the rows themselves stay as they are."""
    begun = sorted(at for _, at, row in _signs(rows) if isinstance(row, Event) and row.name == starts.NAME and at is not None)
    pieces: list[dict[str, list[Row]]] = [{} for _ in range(len(begun) + 1)]
    for table, at, row in (*_signs(rows), *_facts(rows.get("config_facts", ()))):
        pieces[bisect_right(begun, at or 0)].setdefault(table, []).append(row)
    derived = Derived(Ledger())
    found: dict[str, list[Row]] = {"config_facts": [], "events": []}
    for made in pieces:
        before = set(map(id, made.get("events", ())))
        derived.take(made)
        found["config_facts"] += [
            row for row in made.get("config_facts", ()) if isinstance(row, ConfigFact) and row.origin == Origin.DERIVED
        ]
        found["events"] += [row for row in made.get("events", ()) if id(row) not in before]
    return found


def _signs(rows: Mapping[str, Sequence[Row]]) -> Iterator[Table]:
    for row in rows.get("events", ()):
        if isinstance(row, Event) and row.name in SIGNS:
            yield "events", row.seen_at, row
    told = set[tuple[str | None, int]]()
    for row in rows.get("engine_samples", ()):
        if isinstance(row, EngineSample) and row.start_at is not None and (row.engine, row.start_at) not in told:
            told.add((row.engine, row.start_at))
            yield "engine_samples", row.start_at, row


def _facts(facts: Sequence[Row]) -> Iterator[Table]:
    """Copies of those of known hour, and of the others what no start can have changed, or what no other says."""
    own = [fact for fact in facts if isinstance(fact, ConfigFact)]
    dated = {fact.name for fact in own if fact.seen_at is not None}
    for fact in own:
        if fact.seen_at is not None or fact.origin == Origin.MODEL or fact.name not in dated:
            yield "config_facts", fact.seen_at, copy.copy(fact)
