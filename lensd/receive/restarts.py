"""Restarts that only an engine's counters show: a total that falls has begun anew."""

from collections.abc import Iterable
from typing import Final

from lensd_collectors.rows import EngineSample, Event, Instant, Row

from lensd.receive import starts, values
from lensd.receive.starts import Starts

_SUM: Final = "finished_total"  # of several series: a collector may send a scrape in parts, and part of a sum is lower than the whole
_TOTALS: Final = tuple(column for column in EngineSample.__struct_fields__ if column.endswith("_total") and column != _SUM)
_SOURCES: Final = 1_000

Source = tuple[str, str]
"""An engine, and who tells its counters: two senders may differ by a token without a restart."""
Group = tuple[str | None, str | None]


class Restarts:
    """The last totals of each engine that does not say when its process began. Not for several threads at once."""

    def __init__(self, told: Starts) -> None:
        self._told = told
        self._last: dict[Source, dict[Group, tuple[Instant, dict[str, float]]]] = {}

    def events(self, engine: str, source: str, rows: Iterable[EngineSample]) -> list[Row]:
        """`engine.started` where a total in the rows of one scrape is lower than it was, unless that start is known already.

        Rows with `start_at` tell a restart themselves; rows that come late tell nothing.
        """
        rows = [row for row in rows if row.seen_at is not None]
        if any(row.start_at is not None for row in rows):
            self._last.pop((engine, source), None)
            return []
        if (engine, source) not in self._last and len(self._last) >= _SOURCES:
            self._last.pop(next(iter(self._last)))
        last = self._last.setdefault((engine, source), {})
        fallen = next((found for row in rows if (found := _fallen(row, last.get(_group(row))))), None)
        if fallen is not None:
            last.clear()  # a total that is not back yet begins anew as well
        for row in rows:
            _keep(row, last)
        if fallen is None:
            return []
        row, before, column = fallen
        is_new = row.seen_at is not None and self._told.is_new(engine, before, row.seen_at, f"counters of {source}")
        return [_started(row, engine, column)] if is_new else []


def _group(row: EngineSample) -> Group:
    return row.engine, row.model


def _totals(row: EngineSample) -> dict[str, float]:
    return {column: value for column in _TOTALS if (value := getattr(row, column)) is not None}


def _fallen(row: EngineSample, last: tuple[Instant, dict[str, float]] | None) -> tuple[EngineSample, Instant, str] | None:
    """The row, the instant of the reading before, and the column that is lower than it was then."""
    if last is None or row.seen_at is None or row.seen_at <= last[0]:
        return None
    return next(((row, last[0], column) for column, value in _totals(row).items() if value < last[1].get(column, value)), None)


def _keep(row: EngineSample, last: dict[Group, tuple[Instant, dict[str, float]]]) -> None:
    totals = _totals(row)
    at, before = last.get(_group(row), (None, dict[str, float]()))
    if totals and row.seen_at is not None and (at is None or row.seen_at > at):
        last[_group(row)] = row.seen_at, before | totals


def _started(row: EngineSample, engine: str, column: str) -> Event:
    fields = values.json({"sign": "counters", "total": column})
    return Event(seen_at=row.seen_at, engine=engine, name=starts.NAME, severity="info", fields=fields, src=row.src)
