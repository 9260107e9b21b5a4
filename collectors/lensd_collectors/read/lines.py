"""A log line as its program wrote it, and when: wrappers of shells, containers and terminals taken off, pieces joined, clocks resolved."""

import re
from datetime import UTC, datetime, timedelta
from typing import Final, NamedTuple

from lensd_collectors.read import json_lines
from lensd_collectors.rows import Instant

LONGEST_JOINED: Final = 1 << 20  # characters of a line that came in pieces
_STREAMS: Final = 8  # of a log whose lines come in pieces
_ANSI: Final = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_LATE: Final = timedelta(hours=36)  # a file copied between zones may be "older" than its last line
_WRAPPERS: Final = re.compile(
    r"(?:\d{1,9}[:-](?=\(|INFO|WARNING|ERROR|DEBUG|CRITICAL|\[)"  # grep -n
    r"|\d{1,4}: (?=[(\[A-Z]| {2}|[\w.]+(?:Error|Exception)\b)"  # srun --label
    r"|[\w.-]+ +\| "  # docker compose
    r"|\[pod/[\w.-]+/[\w.-]+\] "  # kubectl logs --prefix
    r"|[a-z0-9][\w.-]* [a-z0-9][\w.-]* (?=\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d+Z )"  # stern
    r"|(?P<iso>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:?\d\d)) \S+ [\w.@-]+\[\d+\]: "  # journalctl -o short-iso
    r"|(?P<instant>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:Z|[+-]\d\d:\d\d)) "  # docker -t, kubectl --timestamps
    r"(?:(?P<stream>stdout|stderr) (?P<tag>[FP])(?::\S*)?(?: |$))?"  # CRI
    r"|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \S+ [\w.@-]+\[\d+\]: )"  # journald
)


_JOURNALD: Final = re.compile(r"(?P<day>[A-Z][a-z]{2} [ \d]\d) (?P<time>\d\d:\d\d:\d\d) \S+ [\w.@-]+\[\d+\]: ")
_CTIME: Final = re.compile(
    r"[A-Z][a-z]{2} (?P<month>[A-Z][a-z]{2}) +(?P<day>\d{1,2}) (?P<time>\d\d:\d\d:\d\d) (?:(?:UTC|GMT) )?(?P<year>\d{4})"
)
_MONTH_FIRST: Final = re.compile(r"(?P<month>[A-Z][a-z]{2}) +(?P<day>\d{1,2})")
_WEB_TIME: Final = re.compile(
    r"(?P<day>\d\d)/(?P<month>[A-Z][a-z]{2})/(?P<year>\d{4}):(?P<time>\d\d:\d\d:\d\d(?:\.\d+)?)(?: (?P<hours>[+-]\d\d)(?P<minutes>\d\d))?"
)
_TRTLLM_TIME: Final = re.compile(r"(?P<month>\d\d)/(?P<day>\d\d)/(?P<year>\d{4})-(?P<time>\d\d:\d\d:\d\d)")
_MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")


class Unwrapped(NamedTuple):
    text: str  # several lines where a JSON record held a message of several
    at: Instant | None  # the wrapper's own instant, where it names year and zone
    more: bool = False  # a container runtime cut the line here: the stream's next piece goes on with it
    stream: str = ""  # stdout, stderr, where the wrapper says which


def unwrap(line: str) -> Unwrapped:
    """The line without line end, colour codes, all but the last state of a progress bar, and outer prefixes; a cut piece as it is."""
    text = line.rstrip("\r\n")
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    at, more, stream = None, False, ""
    for _ in range(4):  # compose around docker around grep; no more than that is worth a loop
        if text[:1] == "{":
            inner = json_lines.read(text)
            if inner is None:
                break
            text, more, stream = inner.text, inner.more, inner.stream or stream
            at = (Instant(inner.at_us) if inner.at_us is not None else rfc3339(inner.time) if inner.time else None) or at
            continue
        match = _WRAPPERS.match(text)
        if match is None:
            break
        if match["instant"] or match["iso"]:
            at = rfc3339(match["instant"] or match["iso"]) or at
        if match["stream"]:
            more, stream = match["tag"] == "P", match["stream"]
        text = text[match.end() :]
    return Unwrapped(text if more else _tidy(text), at, more, stream)


def written_by_journald(line: str) -> tuple[str, str] | None:
    """The day and the time, without year and zone, before a line as journalctl and syslog print it."""
    match = _JOURNALD.match(line)
    return (match["day"], match["time"]) if match is not None else None


def _tidy(text: str) -> str:
    text = text.rstrip("\r\n")
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    if "\r" in text:
        parts = [part for part in text.split("\r") if part.strip()]
        text = parts[-1] if parts else ""
    return text


class Piece:
    """A line of which the end has not come yet."""

    __slots__ = ("at", "number", "parts", "size")

    def __init__(self, at: Instant | None, number: int) -> None:
        self.parts: list[str] = []
        self.size, self.at, self.number = 0, at, number

    def add(self, text: str) -> None:
        kept = text[: max(0, LONGEST_JOINED - self.size)]
        if kept:
            self.parts.append(kept)
            self.size += len(kept)


class Whole(NamedTuple):
    text: str
    at: Instant | None  # of the first piece
    number: int  # of the first piece


class Pieces:
    """Puts together lines that a container runtime cut: one at a time for each stream, at most 1 MiB of each."""

    def __init__(self) -> None:
        self._held: dict[str, Piece] = {}

    def take(self, got: Unwrapped, number: int) -> Whole | None:
        """The whole line that ends with this piece; None while there is more to come."""
        held = self._held.get(got.stream) if self._held else None
        if held is None and not got.more:
            return Whole(got.text, got.at, number)
        if held is None:
            if len(self._held) >= _STREAMS:
                self._held.pop(next(iter(self._held)))
            held = self._held[got.stream] = Piece(got.at, number)
        held.add(got.text)
        if got.more:
            return None
        del self._held[got.stream]
        return _whole(held)

    def rest(self) -> list[Whole]:
        """What is held, once nothing can follow it."""
        held, self._held = list(self._held.values()), {}
        return [_whole(piece) for piece in held]


def _whole(piece: Piece) -> Whole:
    return Whole(_tidy("".join(piece.parts)), piece.at, piece.number)


_ZONE_APART: Final = re.compile(r" +(?=[+-]\d\d:?\d\d$)")  # as .NET and Ruby write it


def rfc3339(text: str) -> Instant | None:
    """Microseconds since the epoch of an RFC 3339 instant; without a zone it is taken as UTC."""
    text = _ZONE_APART.sub("", re.sub(r"(\.\d{6})\d+", r"\1", text.strip().replace("Z", "+00:00")))
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        return None
    return instant(at if at.tzinfo else at.replace(tzinfo=UTC))


def dated(text: str) -> Instant | None:
    """The instant that a line names with its year: RFC 3339, as web servers write it (`18/Nov/2026:10:00:05 +0000`), or
    without a zone, as C's `ctime` does (`Wed Nov 18 10:00:05 2026`), TensorRT-LLM (`11/18/2026-10:00:05`) and nginx's error log."""
    if (match := _CTIME.fullmatch(text)) and match["month"] in _MONTHS:
        return rfc3339(f"{match['year']}-{_MONTHS.index(match['month']) + 1:02d}-{int(match['day']):02d}T{match['time']}")
    if "/" not in text:
        return rfc3339(text)
    if text[4:5] == "/" and text[:4].isdigit():
        return rfc3339(text.replace("/", "-", 2).replace(",", "."))
    if text[4:5] == "/":  # nginx's error log
        return rfc3339(text.replace("/", "-"))
    if match := _TRTLLM_TIME.fullmatch(text):
        return rfc3339(f"{match['year']}-{match['month']}-{match['day']}T{match['time']}")
    match = _WEB_TIME.fullmatch(text)
    if match is None or match["month"] not in _MONTHS:
        return None
    month = _MONTHS.index(match["month"]) + 1
    zone = f"{match['hours']}:{match['minutes']}" if match["hours"] else "Z"
    return rfc3339(f"{match['year']}-{month:02d}-{match['day']}T{match['time']}{zone}")


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
        """The instant of `MM-DD` or `YYYY-MM-DD` and `HH:MM:SS`; without a date that of the day next to the reference, if that is dated."""
        if self._last[0] == date and self._last[1] == time:
            return self._last[2]
        exact = time.replace(",", ".")
        named = _MONTH_FIRST.fullmatch(date)
        date = f"{_MONTHS.index(named['month']) + 1:02d}-{int(named['day']):02d}" if named and named["month"] in _MONTHS else date
        found = rfc3339(f"{date.replace('/', '-')}T{exact}") if len(date) == 10 else self._guess(date, exact) if date else self._day(exact)
        self._last = (date, time, found)
        return found

    def _day(self, time: str) -> Instant | None:
        if self._near is None or not self._dated:
            return None
        near = self._near
        at = rfc3339(f"{near.date().isoformat()}T{time}")
        days = [] if at is None else [at + days * 86_400_000_000 for days in (-1, 0, 1)]
        return Instant(min(days, key=lambda at: abs(at - instant(near)))) if days else None

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
