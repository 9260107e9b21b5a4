"""A table with a header, cells between commas, semicolons, tabs or blanks: its columns, and a line of it by columns of `gpu_samples`."""

import csv
import re
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from lensd_collectors.dialects import GpuTable
from lensd_collectors.read.cells import fault, header_name, is_none, quantity, scale
from lensd_collectors.read.gpu_columns import BOOLEANS, THROTTLE, Cell, reasons_said, typed

DELIMITERS: Final = (",", "\t", ";")
BLANKS: Final = " "  # one or more
MOST_REMEMBERED: Final = 4096  # texts of cells
SAID: Final = {"yes": 1.0, "no": 0.0, "active": 1.0, "not active": 0.0, "not_active": 0.0, "true": 1.0, "false": 0.0}
_DAY: Final = re.compile(r"(\d{4})[/-]?(\d\d)[/-]?(\d\d)")
_TEXTS: Final = ("name", "gpu_name", "process_name", "process", "command", "cmd", "cmdline", "comm")  # may hold a delimiter, unquoted


class Part(NamedTuple):
    place: int
    factor: float  # where the cell writes no unit


class Measure(NamedTuple):
    """A column of `gpu_samples` and the cells that add up to it."""

    column: str
    parts: tuple[Part, ...]


class Heard(NamedTuple):
    """What the cells of a measure say; `is_said`: a value, or that there is none."""

    value: Cell
    faults: tuple[str, ...]
    is_said: bool


class Cells(NamedTuple):
    """A line of a table; `faults` are the states of the card that stand where values should."""

    values: dict[str, Cell]
    labels: dict[str, str]
    faults: list[str]


class Header:
    """The columns of a table, under the names that `tables` know."""

    def __init__(self, names: Sequence[str], delimiter: str, tables: Iterable[GpuTable]) -> None:
        if delimiter == BLANKS and [name.strip("#").lower() for name in names[:2]] == ["date", "time"]:
            names = [names[0], *names[2:]]  # their cells become one
        self.delimiter, self.width = delimiter, len(names)
        spelled = [header_name(name) for name in names]
        self.names = frozenset(one.name for one in spelled)
        self.written = tuple(names)
        self._places = {one.name: place for place, one in reversed(list(enumerate(spelled)))}
        self._units = [one.unit for one in spelled]
        self._measures: list[Measure] = []
        self._labels: dict[str, int] = {}
        self._reasons: dict[str, int] = {}
        for table in tables:
            self._take(table)
        texts = [self._places[name] for name in _TEXTS if name in self._places]
        self._text_place = texts[0] if len(texts) == 1 else None
        self._remembered: dict[tuple[str, ...], Heard] = {}

    def _take(self, table: GpuTable) -> None:
        for column, sources in table.columns.items():
            for source in sources:
                places = [self._places[name.lower()] for name in source.names if name.lower() in self._places]
                if len(places) == len(source.names):
                    self._measures.append(Measure(column, tuple(Part(place, self._factor(place, source.factor)) for place in places)))
        for what, names in table.labels.items():
            for name in names:
                if name in self._places and (what != "at" or self.delimiter != BLANKS or self._places[name] == 0):
                    self._labels.setdefault(what, self._places[name])  # elsewhere among blanks TIME is that of the processor
        self._reasons |= {reason: self._places[name] for reason, names in table.reasons.items() for name in names if name in self._places}

    def _factor(self, place: int, otherwise: float) -> float:
        return scale(self._units[place], decimal=False) or otherwise

    @property
    def columns(self) -> frozenset[str]:
        """The columns of `gpu_samples` that it fills."""
        return frozenset(measure.column for measure in self._measures) | ({THROTTLE} if self._reasons else set())

    @property
    def labels(self) -> frozenset[str]:
        return frozenset(self._labels)

    def read(self, text: str) -> Cells | None:
        """A line under this header; None for what is none: another number of cells, or nothing where values belong."""
        cells = self.split(text)
        if len(cells) != self.width:
            return None
        values: dict[str, Cell] = {}
        faults: list[str] = []
        is_said = False
        for measure in self._measures:
            heard = self._heard(measure, cells)
            is_said = is_said or heard.is_said
            if heard.faults:
                faults += heard.faults
            if heard.value is not None and measure.column not in values:
                values[measure.column] = heard.value
        active = {reason: SAID[word] for reason, place in self._reasons.items() if (word := cells[place].lower()) in SAID}
        if active and THROTTLE not in values:
            values[THROTTLE] = ",".join(reason for reason, is_on in active.items() if is_on)
        if not (is_said or faults or active):
            return None
        return Cells(values, {what: cells[place] for what, place in self._labels.items()}, faults)

    def _heard(self, measure: Measure, cells: Sequence[str]) -> Heard:
        """What the cells of a measure say. The same few texts come again and again, so they are read once."""
        column, parts = measure
        key = column, *(cells[place] for place, _ in parts)
        heard = self._remembered.get(key)
        if heard is None:
            if len(self._remembered) >= MOST_REMEMBERED:
                self._remembered.clear()
            heard = self._remembered[key] = _listen(measure, cells)
        return heard

    def split(self, text: str) -> list[str]:
        """The cells of a line; as many as the header has where the line is one of its own."""
        if self.delimiter == BLANKS:
            cells = text.split()
            if self._labels.get("at") == 0 and len(cells) > self.width and _DAY.fullmatch(cells[0]):
                cells[:2] = [f"{_day(cells[0])} {cells[1]}"]
        elif '"' in text:
            cells = [cell.strip() for cell in _unquoted(text, self.delimiter)]
        else:
            cells = [cell.strip() for cell in text.split(self.delimiter)]
        over = len(cells) - self.width
        if over > 0 and self._text_place is not None:
            end = self._text_place + over + 1
            glue = self.delimiter.strip() + " "
            cells[self._text_place : end] = [glue.join(cells[self._text_place : end])]
        return cells


def _listen(measure: Measure, cells: Sequence[str]) -> Heard:
    numbers = [_number(cells[place], factor, is_flag=measure.column in BOOLEANS) for place, factor in measure.parts]
    texts = [cells[place] for place, _ in measure.parts]
    found = [number for number in numbers if number is not None]
    value = typed(measure.column, sum(found)) if len(found) == len(numbers) else None
    if value is None and measure.column == THROTTLE:
        value = reasons_said(texts[0])
    return Heard(
        value=value,
        faults=tuple(state for text in texts if (state := fault(text))),
        is_said=bool(found) or value is not None or any(is_none(text) for text in texts),
    )


def _number(text: str, factor: float, *, is_flag: bool) -> float | None:
    """A cell in its column's unit, its own unit going before `factor`."""
    if is_flag:
        return SAID.get(text.lower())
    found = quantity(text)
    return found.number * (scale(found.unit, decimal=False) or factor) if found else None


def _unquoted(text: str, delimiter: str) -> list[str]:
    try:
        return next(csv.reader([text], delimiter=delimiter, skipinitialspace=True), [])
    except csv.Error:
        return text.split(delimiter)


def _day(text: str) -> str:
    """A date as the other cells have it: 20260103 too."""
    return _DAY.sub(r"\1-\2-\3", text)
