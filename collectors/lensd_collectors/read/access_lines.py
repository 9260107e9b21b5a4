"""Access lines that differ in nothing but who asked: read once with all care, known from then on. They are most of most logs."""

import re
from copy import copy
from typing import Final

from lensd_collectors.rows import HttpExchange, Instant, Row

MOST_KNOWN: Final = 4096  # kinds of lines that are remembered; scanners try more paths than that
_LINE: Final = re.compile(
    rb'((?:\([A-Za-z_0-9]+ pid=\d+\) )?[A-Z]+: +)[\d.]+:\d+( - "[A-Z]+ [^\s"?@\x1b\r]+ HTTP/[\d.]+" \d{3}[ A-Za-z]*)\r?\n?',
)
_PROBES: Final = ("/health", "/metrics", "/ping", "/version", "/load")

Kind = tuple[bytes, bytes]


class AccessLines:
    """Remembers what a line was read as; of a probe that is answered as ever only the first and the last are told."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._known: dict[Kind, HttpExchange] = {}
        self._unchanged: dict[Kind, int] = {}  # number of the last line of each probe

    def kind(self, line: bytes) -> Kind | None:
        """What is the same in all such lines; None for a line of another form, which has to be read."""
        match = _LINE.fullmatch(line)
        return match.groups() if match is not None else None  # type: ignore[return-value]

    def learn(self, kind: Kind, rows: list[Row]) -> None:
        """Keep what the first line of a kind was read as, where that is one exchange."""
        if len(rows) == 1 and isinstance(rows[0], HttpExchange) and len(self._known) < MOST_KNOWN:
            self._known[kind] = rows[0]
            if rows[0].method == "GET" and rows[0].status == 200 and rows[0].path in _PROBES:
                self._unchanged[kind] = 0

    def again(self, kind: Kind, number: int, seen_at: Instant | None) -> list[Row] | None:
        """The rows of a line of this kind; None where the kind is not known."""
        first = self._known.get(kind)
        if first is None:
            return None
        if kind in self._unchanged:
            self._unchanged[kind] = number
            return []
        return [self._row(first, number, seen_at)]

    def rest(self) -> list[Row]:
        """The last line of each probe."""
        return [self._row(self._known[kind], number, None) for kind, number in self._unchanged.items() if number]

    def _row(self, first: HttpExchange, number: int, seen_at: Instant | None) -> HttpExchange:
        row = copy(first)
        row.seen_at = seen_at
        row.src = f"{self._path}:{number}"
        return row
