"""A table with a header, as spreadsheets, dashboards and shells export it → its rows as records whose names say the unit.

Cells between commas, semicolons, tabs or bars; decimal commas where the cells lie between semicolons or tabs; a unit in a cell
(`410 ms`, `8.6 %`, `1.2 K`); shares written as percents without a sign; a measure a line (name, instant, value).
"""

import csv
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from lensd_collectors.read.call_fields import instant_of
from lensd_collectors.read.columns import Table, is_when, measure_of
from lensd_collectors.read.lines import Clock
from lensd_collectors.read.prometheus import parse_line, rows_of_scrape
from lensd_collectors.rows import Row

DELIMITERS: Final = (",", ";", "\t", "|")
LONGEST_NAME: Final = 200
MOST_LOOKED_AT: Final = 10_000  # lines below the header
_NUMBER: Final = re.compile(
    r"(?P<number>[+-]?\d[\d.,' ]*|[+-]?\.\d+)(?P<exponent>[eE][+-]?\d+)? ?(?P<unit>%|[A-Za-zµμ毫秒°]{1,12}(?:/[a-z]{1,6})?)?"
)
_THOUSANDS: Final = re.compile(r"[+-]?\d{1,3}(?:,\d{3})+(?:\.\d+)?")
_SHORT: Final = {"K": 1e3, "k": 1e3, "Mil": 1e6, "Bil": 1e9, "Mio": 1e6, "Tsd": 1e3}
_METRIC: Final = re.compile(r"[A-Za-z_:][\w:]*\{.*\}$")
_NAMED: Final = ("metric", "metric_name", "metricname", "series", "measure", "field", "_field", "_measurement")
_VALUED: Final = ("value", "metric_value", "_value", "average", "avg", "mean", "maximum")


def delimiter_of(line: str) -> str:
    """What stands between the cells of a header: of several signs the one that stands there most often."""
    return max(DELIMITERS, key=line.count)


def cells_of(line: str, delimiter: str) -> list[str]:
    if delimiter == "|":
        line = line.strip().removeprefix("|").removesuffix("|")
    try:
        return [cell.strip() for cell in next(csv.reader([line], delimiter=delimiter), [])]
    except csv.Error:
        return []


def is_header(cells: Sequence[str]) -> bool:
    """Whether each cell names something: no number, no instant; `5xx` and `95%` are names."""
    return len(cells) > 1 and all(cell and len(cell) <= LONGEST_NAME and not _is_value(cell) for cell in cells)


def _is_value(cell: str) -> bool:
    return cell[:1].isdigit() and not re.fullmatch(r"[2-5]xx.{0,20}|\d{1,3}(?:\.\d+)?%|[2-5]\d\d[ _/][a-z].{0,20}", cell, re.IGNORECASE)


class Sheet:
    """The columns of one table; `below` are its rows, by which it is told how they write shares and numbers."""

    def __init__(self, header: Sequence[str], delimiter: str, below: Iterable[Sequence[str]]) -> None:
        self.header = tuple(header)
        self._has_commas = delimiter != ","
        lower = [name.lower() for name in header]
        self._name = next((at for at, name in enumerate(lower) if name in _NAMED), None)
        self._value = next((at for at, name in enumerate(lower) if name in _VALUED), None)
        self.is_long = self._name is not None and self._value is not None and any(is_when(name) for name in header)
        self._metrics = {at: name for at, name in enumerate(header) if _METRIC.match(name)}
        self._places = [at for at, name in enumerate(header) if _is_bare_share(name)]
        self._percents: frozenset[int] = frozenset()
        self._percents = self._in_percent(below) if self._places else frozenset()

    def _in_percent(self, below: Iterable[Sequence[str]]) -> frozenset[int]:
        return frozenset(
            at for cells in below if len(cells) == len(self.header) for at in self._places if (self._number(cells[at]) or (0.0, ""))[0] > 1
        )

    def record(self, cells: Sequence[str]) -> Mapping[str, str]:
        """A row by its columns' names, numbers as programs write them, a cell's unit behind the name; of a measure a line its own name."""
        if self.is_long and self._name is not None and self._value is not None:
            whens = {name: cell for name, cell in zip(self.header, cells, strict=True) if is_when(name)}
            return {**whens, **self._pair(cells[self._name], cells[self._value], is_percent=False)}
        record: dict[str, str] = {}
        for at, (name, cell) in enumerate(zip(self.header, cells, strict=True)):
            if at in self._metrics:
                continue
            record |= {name: cell} if is_when(name) else self._pair(name, cell, is_percent=at in self._percents)
        return record

    def scraped(self, cells: Sequence[str], number: int, *, engine: str | None, name: str, clock: Clock | None) -> list[Row]:
        """The rows of a line whose columns are metrics with their labels, as a scrape of that instant."""
        found = [(label, self._number(cells[at])) for at, label in self._metrics.items()]
        series = [one for label, figure in found if figure and (one := parse_line(f"{label} {figure[0]!r}", number)) is not None]
        at = instant_of(next((cell for label, cell in zip(self.header, cells, strict=True) if is_when(label)), None), clock)
        return rows_of_scrape(series, at=at, seq=number, name=name, engine=engine)

    def _pair(self, name: str, cell: str, *, is_percent: bool) -> Mapping[str, str]:
        found = self._number(cell)
        if found is None:
            return {name: cell}
        number, unit = found
        return {f"{name} ({unit})" if unit else f"{name} (%)" if is_percent else name: f"{number:.15g}"}

    def _number(self, cell: str) -> tuple[float, str] | None:
        match = _NUMBER.fullmatch(cell)
        if match is None:
            return None
        text, unit = match["number"].strip().replace(" ", "").replace("'", ""), match["unit"] or ""
        if self._has_commas and "," in text and not _THOUSANDS.fullmatch(text):
            text = text.replace(".", "").replace(",", ".")
        elif self._has_commas and text.count(",") == 1 and "." not in text:
            text = text.replace(",", ".")  # three digits behind it, in a table that needs no other comma
        try:
            number = float(text.replace(",", "") + (match["exponent"] or ""))
        except ValueError:
            return None
        return (number * _SHORT[unit], "") if unit in _SHORT else (number, unit)


def _is_bare_share(name: str) -> bool:
    measure = measure_of(name)
    return (
        measure is not None
        and measure.factor is None
        and measure.table in (Table.ENGINE, Table.CARD)
        and not measure.column.endswith("_bytes")
    )
