"""A log line as its program wrote it, and when: wrappers of shells, containers and terminals taken off, clocks resolved."""

import re
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from lensd_collectors.rows import Instant

_ANSI: Final = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_LATE: Final = timedelta(hours=36)  # a file copied between zones may be "older" than its last line
_WRAPPERS: Final = re.compile(
    r"(?:\d{1,9}[:-](?=\(|INFO|WARNING|ERROR|DEBUG|CRITICAL|\[)"  # grep -n
    r"|[\w.-]+ +\| "  # docker compose
    r"|(?P<instant>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)) "  # docker -t, kubectl --timestamps
    r"(?:(?:stdout|stderr) [FP] )?"  # CRI
    r"|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \S+ [\w.@-]+\[\d+\]: )"  # journald
)


class Unwrapped(NamedTuple):
    text: str
    at: Instant | None  # the wrapper's own instant, where it names year and zone


def unwrap(line: str) -> Unwrapped:
    """The line without line end, colour codes, all but the last state of a progress bar, and outer prefixes."""
    text = line.rstrip("\r\n")
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    if "\r" in text:
        parts = [part for part in text.split("\r") if part.strip()]
        text = parts[-1] if parts else ""
    at = None
    for _ in range(4):  # compose around docker around grep; no more than that is worth a loop
        match = _WRAPPERS.match(text)
        if match is None:
            break
        if match["instant"]:
            at = rfc3339(match["instant"]) or at
        text = text[match.end() :]
    return Unwrapped(text, at)


def rfc3339(text: str) -> Instant | None:
    """Microseconds since the epoch of an RFC 3339 instant; without a zone it is taken as UTC."""
    text = re.sub(r"(\.\d{6})\d+", r"\1", text.strip().replace("Z", "+00:00"))
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    return instant(at if at.tzinfo else at.replace(tzinfo=UTC))


def instant(at: datetime) -> Instant:
    return Instant(round((at - datetime(1970, 1, 1, tzinfo=UTC)) / timedelta(microseconds=1)))


class Clock:
    """Instants of a log that writes no zone and perhaps no year; both are a guess.

    `reference`: an instant near the log's; None: a date without a year stays unknown. `dated` True: it comes from another artefact,
    so the nearest year is right; False: it is the file's time of last change, so nothing in the log is later.
    """

    def __init__(self, reference: Instant | None, *, dated: bool = False) -> None:
        self._near = None if reference is None else datetime.fromtimestamp(reference / 1e6, UTC)
        self._dated = dated
        self._last: tuple[str, str, Instant | None] = ("", "", None)

    def at(self, date: str, time: str) -> Instant | None:
        """The instant of `MM-DD` or `YYYY-MM-DD` and `HH:MM:SS`."""
        if self._last[0] == date and self._last[1] == time:
            return self._last[2]
        found = rfc3339(f"{date}T{time}") if len(date) == 10 else self._guess(date, time)
        self._last = (date, time, found)
        return found

    def _guess(self, date: str, time: str) -> Instant | None:
        if self._near is None:
            return None
        years = (self._near.year + 1, self._near.year, self._near.year - 1, *range(self._near.year - 2, self._near.year - 5, -1))
        candidates = []
        for year in years:  # five years back: a leap day needs up to four
            try:
                candidates.append(datetime.fromisoformat(f"{year}-{date}T{time}+00:00"))
            except ValueError:
                continue
        if not candidates:
            return None
        near = self._near
        if self._dated:
            return instant(min(candidates, key=lambda at: abs(at - near)))
        past = [at for at in candidates if at <= near + _LATE]
        return instant(max(past)) if past else None
