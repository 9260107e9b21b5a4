"""A command that counts the connections it lists, and the number that it prints → how many were open."""

import re
from collections.abc import Iterable
from typing import Final

import msgspec

from lensd_collectors.rows import Event, Instant, Row

_COUNTS: Final = re.compile(r"\|\s*(?:wc\s+-l|grep\s+(?:-\w+\s+)*-\w*c\w*\b)")
_HEADED: Final = re.compile(r"\bss\s+-(?!\w*H)\w+\b(?!.*--no-header)(?!.*\|\s*(?:grep|awk|tail|sed)\b)")  # its heading is counted too
_NUMBER: Final = re.compile(r"\s*(?P<n>\d{1,7})\s*")
_BESIDE: Final = re.compile(r"(?:[-=]+>|→|=|:|#) *(?P<n>\d{1,7})\s*$")  # on the command's own line
_WITHIN: Final = 3  # lines below the command
LISTED: Final = "host.sockets"
COUNTED: Final = "host.connections"


class Counted:
    """Remembers the last such command until its number has come."""

    def __init__(self, name: str, engine: str | None) -> None:
        self._name, self._engine = name, engine
        self._port: int | None = None
        self._line = self._headings = 0

    def hear(self, line: str, number: int, at: Instant | None, rows: Iterable[Row]) -> list[Row]:
        """Takes note of a command that lists connections and has them counted; how many, where somebody wrote the number behind it."""
        listed = next((row for row in rows if isinstance(row, Event) and row.name == LISTED), None)
        counts = _COUNTS.search(line) if listed is not None else None
        if listed is None or counts is None:
            return []
        port = msgspec.json.decode(listed.fields or "{}").get("port")
        self._port = port if isinstance(port, int) else None
        self._line, self._headings = number, 1 if _HEADED.search(line) else 0
        beside = _BESIDE.search(line, counts.end())
        return [self._counted(int(beside["n"]), line, number, at)] if beside is not None and self._port is not None else []

    def read(self, line: str, number: int, at: Instant | None) -> list[Row] | None:
        """How many connections there were; None for a line that is not the number."""
        match = _NUMBER.fullmatch(line) if self._port is not None and number - self._line <= _WITHIN else None
        if match is None:
            return None
        return [self._counted(int(match["n"]), line, number, at)]

    def _counted(self, count: int, line: str, number: int, at: Instant | None) -> Event:
        fields = msgspec.json.encode({"port": self._port, "open": max(0, count - self._headings)}).decode()
        src, self._port = f"{self._name}:{number}", None
        return Event(seen_at=at, seq=number, engine=self._engine, name=COUNTED, severity="info", fields=fields, line=line.strip(), src=src)
