"""Calls in a table as people type what they measured: words above, cells that stand two blanks or more apart, units in them → exchanges."""

import re
from collections.abc import Sequence
from typing import Final

from lensd_collectors.read.call_fields import exchange_of, is_key_of
from lensd_collectors.read.lines import Clock
from lensd_collectors.rows import HttpExchange, Row

LONGEST: Final = 400  # characters of a line; nobody types wider tables
_APART: Final = re.compile(r" {2,}|\t+")
_HEADED: Final = re.compile(r"#* *(?P<name>[^\d\s(\[][^(\[]*?)(?: ?[(\[](?P<unit>m?s)[)\]])?")
_COLUMNS: Final = ("ttfb_ms", "max_gap_ms", "duration_ms", "prompt_tokens", "completion_tokens", "cached_tokens", "chunks", "status")
_FEWEST: Final = 2  # columns of a header that measure a call
_MOST_OVER: Final = 2  # cells of a row before the first that has a word above it
_STATISTIC: Final = re.compile(r"(?:p ?\d{1,2}(?:\.\d+)?|mean|median|avg|average|min|max|std\w*|sum|total)\b", re.IGNORECASE)
_THOUSANDS: Final = re.compile(r"(?<=\d),(?=\d{3}\b)")
_SERVER: Final = re.compile(r"https?://(?P<host>[^\s/]+)")


class Aligned:
    """One table after another; it ends with the first line that is none of its rows."""

    def __init__(self, name: str, engine: str | None, clock: Clock | None) -> None:
        self._name, self._engine, self._clock = name, engine, clock
        self._header: list[str] = []

    def read(self, line: str, number: int) -> list[Row] | None:
        """The call of a row, nothing of a header; None for a line of no table, or one that tells of no call."""
        cells = [cell for cell in _APART.split(line.strip()) if cell] if len(line) <= LONGEST else []
        if len(cells) < _FEWEST:
            self._header = []
            return None
        if header := _header(cells):
            self._header = header
            return []
        row = self._call(cells, number) if self._header else None
        if row is None:
            self._header = []
            return None
        return [row]

    def _call(self, cells: Sequence[str], number: int) -> HttpExchange | None:
        """Who was asked may stand before all, where the header has no word for it."""
        over = len(cells) - len(self._header)
        if not 0 <= over <= _MOST_OVER or _STATISTIC.match(cells[0]):
            return None
        pairs = {name: _THOUSANDS.sub("", cell) for name, cell in zip(self._header, cells[over:], strict=True)}
        if over and (server := _SERVER.match(cells[0])):
            pairs["upstream"] = server["host"]
        served = {**pairs, "status": "200"}  # a first piece came, and nobody says that it failed
        said = any(is_key_of(name, column) for name in pairs for column in ("status", "error_message", "error_code"))
        row = exchange_of(pairs if said else served, engine=self._engine, src=f"{self._name}:{number}", hop="client", clock=self._clock)
        measured = row is not None and (row.ttfb_ms is not None or row.duration_ms is not None)
        return row if measured else None


def _header(cells: Sequence[str]) -> list[str]:
    """The columns' names with their units; empty for a line that is no header of measured calls."""
    matches = [_HEADED.fullmatch(cell) for cell in cells]
    names = [f"{match['name']}_{match['unit']}" if match["unit"] else match["name"] for match in matches if match is not None]
    known = sum(any(is_key_of(name, column) for column in _COLUMNS) for name in names)
    return names if len(names) == len(cells) and known >= _FEWEST else []
