"""A log in which several services speak, each line under its name (compose, kubectl, stern): each engine has a life of its own."""

import re
from collections.abc import Callable
from typing import Final

from lensd_collectors.dialects import Dialect
from lensd_collectors.read.engine_log import LineReader
from lensd_collectors.read.lines import unwrap
from lensd_collectors.rows import Instant, Row

MOST: Final = 64  # services that are told apart
_PREFIX: Final = re.compile(
    r"(?:\[pod/(?P<kubectl>[\w.-]+)/[\w.-]+\] |(?P<compose>[\w.-]+) +\| |(?P<stern>[a-z0-9][\w.-]*) [a-z0-9][\w.-]* (?=\d{4}-\d\d-\d\dT))"
)


def service_of(line: str) -> str | None:
    match = _PREFIX.match(line)
    return (match["kubectl"] or match["compose"] or match["stern"]) if match is not None else None


def several(head: str, dialect: Dialect) -> bool:
    """Whether more than one service of a log's first part speaks this dialect."""
    found: set[str] = set()
    for line in head.split("\n"):
        service = service_of(line)
        if service is not None and service not in found:
            text = unwrap(line).text
            if any(mark.search(text) for mark in dialect.recognise.log):
                found.add(service)
    return len(found) > 1


class Services:
    """Reads such a log as if each service wrote its own; a service's name is its engine's."""

    def __init__(self, reader: Callable[[str | None], LineReader]) -> None:
        self._make = reader
        self._nameless = reader(None)
        self._of: dict[str, LineReader] = {}

    @property
    def path(self) -> str:
        return self._nameless.path

    @property
    def instant(self) -> Instant | None:
        return self._nameless.instant

    @property
    def near(self) -> Instant | None:
        return self._nameless.near

    @property
    def unread(self) -> int:
        return self._nameless.unread + sum(reader.unread for reader in self._of.values()) - self._read_by_others

    @unread.setter
    def unread(self, count: int) -> None:
        self._read_by_others += self.unread - count

    _read_by_others = 0

    def feed(self, line: str, *, number: int, at_us: int | None) -> list[Row]:
        service = service_of(line)
        reader = self._nameless if service is None else self._of.get(service)
        if reader is None and service is not None:
            if len(self._of) >= MOST:
                return self._nameless.feed(line, number=number, at_us=at_us)
            reader = self._of[service] = self._make(service)
        assert reader is not None
        return reader.feed(line, number=number, at_us=at_us)

    def rest(self, at_us: int | None = None) -> list[Row]:
        return [row for reader in (self._nameless, *self._of.values()) for row in reader.rest(at_us)]
