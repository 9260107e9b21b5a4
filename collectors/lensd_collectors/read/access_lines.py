"""Access lines that differ in nothing but who asked: read once with all care, known from then on. They are most of most logs."""

import re
from copy import copy
from typing import Final, NamedTuple

from lensd_collectors.rows import HttpExchange, Instant, Row

MOST_KNOWN: Final = 4096  # kinds of lines that are remembered; scanners try more paths than that
_LINE: Final = re.compile(
    rb'((?:\([A-Za-z_0-9]+ pid=\d+\) )?[A-Z]+: +)([\d.]+):\d+( - "[A-Z]+ [^\s"?@\x1b\r]+ HTTP/[\d.]+" \d{3}[ A-Za-z]*)\r?\n?',
)
_PROBES: Final = ("/health", "/metrics", "/ping", "/version", "/load")


class AccessLine(NamedTuple):
    """`kind` is the same in all lines that differ in nothing but who asked."""

    kind: tuple[bytes, bytes]
    peer: str


class AccessLines:
    """Remembers what a line was read as; of a probe that is answered as ever only the first and the last are told."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._known: dict[tuple[bytes, bytes], HttpExchange] = {}
        self._unchanged: dict[tuple[bytes, bytes], tuple[int, str]] = {}  # number and peer of the last line of each probe

    def parse(self, line: bytes) -> AccessLine | None:
        """None for a line of another form, which has to be read."""
        match = _LINE.fullmatch(line)
        return AccessLine((match[1], match[3]), match[2].decode()) if match is not None else None

    def learn(self, line: AccessLine, rows: list[Row]) -> bool:
        """Keep what the first line of a kind was read as, where that is one exchange; whether it is kept."""
        if len(rows) != 1 or not isinstance(rows[0], HttpExchange) or len(self._known) >= MOST_KNOWN:
            return False
        self._known[line.kind] = rows[0]
        if rows[0].method == "GET" and rows[0].status == 200 and rows[0].path in _PROBES:
            self._unchanged[line.kind] = 0, line.peer
        return True

    def again(self, line: AccessLine, number: int, seen_at: Instant | None) -> list[Row] | None:
        """The rows of a line of a kind that is known; None where it is not."""
        first = self._known.get(line.kind)
        if first is None:
            return None
        if line.kind in self._unchanged:
            self._unchanged[line.kind] = number, line.peer
            return []
        return [self._row(first, line.peer, number, seen_at)]

    def rest(self) -> list[Row]:
        """The last line of each probe."""
        return [self._row(self._known[kind], peer, number, None) for kind, (number, peer) in self._unchanged.items() if number]

    def _row(self, first: HttpExchange, peer: str | None, number: int, seen_at: Instant | None) -> HttpExchange:
        row = copy(first)
        row.seen_at, row.peer = seen_at, peer
        row.src = f"{self._path}:{number}"
        return row
