"""Metric series of one scrape → one wide row an engine and model; the same for a file and for what the agent forwards."""

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from lensd_collectors.dialects import Dialect, Selector
from lensd_collectors.read.engine_log import ranked
from lensd_collectors.rows import EngineSample, Instant

Group = tuple[str | None, str | None]  # model, data-parallel rank


class Series(NamedTuple):
    """One value of one scrape under its own name, and the line it stands on where it has one."""

    name: str
    labels: Mapping[str, str]
    value: float
    line: int = 0
    at: Instant | None = None


def group_of(dialect: Dialect, labels: Mapping[str, str]) -> Group:
    """Model and rank that a series speaks of; (None, None) for a value of the whole process."""
    found = [next((labels[name] for name in dialect.labels.get(what, ()) if name in labels), None) for what in ("model", "rank")]
    return found[0], found[1]


def engine_samples(
    dialect: Dialect,
    scrape: Iterable[Series],
    *,
    engine: str | None,
    seen_at: Instant | None,
    seq: int | None,
    src: Callable[[Series], str],
) -> list[EngineSample]:
    """The wide rows of one scrape; `src` names the place of the first series of a row.

    Values of the whole process (`up`, its start) go to every row. A scrape that holds no engine value but `up` gives one row, since
    `up` 0 is all that a dead engine leaves.
    """
    names = {selector.name for selectors in dialect.selectors.values() for selector in selectors}
    groups: dict[Group, list[Series]] = {}
    for series in scrape:
        if series.name in names:
            groups.setdefault(group_of(dialect, series.labels), []).append(series)
    shared = groups.pop((None, None), [])
    for model, rank in [group for group in groups if None in group]:  # said of a model, or of a rank: of the first that it may mean
        meant = next((one for one in groups if None not in one and (model in (None, one[0])) and (rank in (None, one[1]))), None)
        if meant is not None:
            groups[meant] += groups.pop((model, rank))
    if not groups and any(series.name != "process_start_time_seconds" for series in shared):
        groups[None, None] = []
    rows = []
    for (model, rank), own in groups.items():
        every = [*own, *shared]
        row = EngineSample(seen_at=seen_at, seq=seq, engine=ranked(engine, rank), model=model, src=src(every[0]))
        for column, selectors in dialect.selectors.items():
            value = _value(selectors, every)
            if value is not None:
                setattr(row, column, _typed(column, value))
        rows.append(row)
    return rows


def picked(selectors: Iterable[Selector], scrape: Iterable[Series]) -> list[Series]:
    """The series behind a column: all of a sum, else one; empty where none of the names is there."""
    series = list(scrape)
    for selector in selectors:
        found = [one for one in series if selector.picks(one.name, one.labels)]
        if found:
            return found if selector.total else found[-1:]
    return []


def _value(selectors: Iterable[Selector], scrape: Iterable[Series]) -> float | None:
    found = [one.value for one in picked(selectors, scrape) if one.value == one.value]
    return sum(found) if found else None


def _typed(column: str, value: float) -> float | bool | Instant | None:
    if column == "up":
        return value > 0
    if column == "start_at":
        return Instant(round(value * 1e6)) if 0 < value < 1e11 else None
    return value
