"""Calls in a table as a database's shell or a page of notes prints it, cells between bars below a header and a rule → exchanges."""

import re
from typing import Final

from lensd_collectors.read.call_fields import exchange_of
from lensd_collectors.read.lines import Clock
from lensd_collectors.rows import HttpExchange, Row

_RULE: Final = re.compile(r"^\s*[|+]?[\s:]*-{2,}[\s:]*(?:[|+][\s:]*-{2,}[\s:]*)+[|+]?\s*$")
_OF_GATEWAYS: Final = frozenset(
    {"startTime", "endTime", "api_base", "spend", "user_api_key", "litellm_call_id"}
)  # columns of a gateway's own records
LONGEST: Final = 4000


class Printed:
    """One table after another; it ends with the first line that is none of its rows."""

    def __init__(self, name: str, engine: str | None, clock: Clock | None) -> None:
        self._name, self._engine, self._clock = name, engine, clock
        self._above: list[str] = []
        self._header: list[str] = []

    def read(self, line: str, number: int) -> list[Row] | None:
        """The call of a row, nothing of a rule; None for a line of no table, or one that tells of no call."""
        if len(line) > LONGEST:
            return None
        if _RULE.match(line):
            self._header, self._above = self._above, []
            return []
        cells = [cell.strip() for cell in line.strip().removeprefix("|").removesuffix("|").split("|")]
        if len(cells) != len(self._header):
            self._above, self._header = cells, []
            return None
        row = self._call(cells, number)
        return [row] if row is not None else None

    def _call(self, cells: list[str], number: int) -> HttpExchange | None:
        hop = "gateway" if _OF_GATEWAYS.intersection(self._header) else None
        pairs = dict(zip(self._header, cells, strict=True))
        return exchange_of(pairs, engine=self._engine, src=f"{self._name}:{number}", hop=hop, clock=self._clock)
