"""A stream of events as somebody recorded it: how many pieces, when the first, the longest silence; what the pieces say of the answer."""

import re
from typing import Final

from lensd_collectors.read.answer_body import Answer, decoded
from lensd_collectors.rows import HttpExchange

EVENT: Final = re.compile(
    r"^(?:[\[(]?(?:\+ ?)?(?:(?P<h>\d\d):(?P<m>\d\d):)?(?P<s>\d+(?:\.\d+)?) ?(?P<ms>ms)?s?[\])]?[\s|]+)?(?:[<>] )?data: ?(?P<data>.*)$"
)
CHUNK: Final = re.compile(
    r"^\s*(?:chunk|read|event|piece|delta) +#?(?P<number>\d+)[ :]+(?:at |\+ *|t= ?)?(?P<at>\d+(?:\.\d+)?) ?(?P<unit>ms|s)\b"
    r"(?:.*?\b(?:bytes|size)[=: ]+(?P<bytes>\d+))?",
    re.IGNORECASE,
)
TIMED: Final = re.compile(  # the time first
    r"^\s*\[?(?:\+|(?:t|at|time) ?[=:] ?\+?)?(?P<at>\d+\.\d+) ?(?P<unit>ms|s)?\]?[ :|]+"
    r"(?:(?:chunk|read|recv|got|received|data)[ :]+(?P<size>\d+) ?(?:bytes|B)\b|(?:chunk|read|recv|event|piece|delta) +#?(?P<number>\d+)\b"
    r"|(?:n|events?|chunks?|reads?|deltas?|pieces?|data_lines|frames?) ?= ?\d+\b|\d+ (?:events?|chunks?|deltas?|pieces?|frames?)\b)"
    r"(?:.*?\b(?:bytes|size)[=: ]+(?P<bytes>\d+))?",
    re.IGNORECASE,
)
HEADER: Final = re.compile(
    r"^#?\s*(?:read|chunk|n|no|event|#)\b.*?\b(?:(?P<time>t_s|t_ms|time_s|time_ms|at_s|at_ms|elapsed_s|elapsed_ms)\b"
    r"|(?P<unit>(?:t|time|at|elapsed) ?[\[(]m?s[\])]))",
    re.IGNORECASE,
)
_UNIT: Final = re.compile(r"(?<=\w) ?[\[(](m?s)[\])]", re.IGNORECASE)  # of a column, as `t[s]`
SUMMARY: Final = re.compile(
    r"^#?\s*(?=.*\b(?:n_?)?(?:chunks|events|deltas|reads|pieces)\b\W{0,3}\d)(?=.*\b(?:first|ttft|ttfb)\b)", re.IGNORECASE
)
CUT: Final = re.compile(r"^#?\s*(?:[\[(<]?\s*(?:\.\.\.|…)|[\[(<]?(?:cut|snip|omitted)\b)", re.IGNORECASE)
_ROW: Final = re.compile(r"^\s*\d+(?:[\s,;|]+(?:\d+(?:\.\d+)?|-))+\s*$")


class Stream:
    """Of one answer; memory is bounded by what `Answer` keeps."""

    def __init__(self, *, is_whole: bool = True) -> None:
        self.is_whole = is_whole  # else it is known from somewhere on, as what `tail` leaves
        self.answer = Answer()
        self.chunks = 0
        self.is_done = self.is_cut = False
        self.bytes = 0
        self._first: float | None = None
        self._last: float | None = None
        self._gap = 0.0
        self.is_longest = False  # the silence before the last piece, of all so far
        self._is_clock = False
        self._cut = False  # pieces were left out here
        self._numbers: tuple[int, int] | None = None  # of the first and the last piece, where they have one

    def cut(self) -> None:
        """Somebody left out pieces at this place."""
        self._cut = True
        self.is_cut = True

    def event(self, match: re.Match[str]) -> None:
        data = match["data"].strip()
        if match["s"]:
            whole = (int(match["h"] or 0) * 60 + int(match["m"] or 0)) * 60_000
            self._at(whole + float(match["s"]) * (1 if match["ms"] else 1000), is_clock=match["h"] is not None)
        if data == "[DONE]":
            self.is_done = True
            return
        document = decoded(data)
        if document is not None:
            self.chunks += 1
            self.answer.take(document)

    def chunk(self, at_ms: float, size: int | None, number: int | None = None) -> None:
        self.chunks += 1
        if number is not None:
            if self._numbers is not None and number > self._numbers[1] + 1:
                self.cut()
            self._numbers = (self._numbers[0] if self._numbers else number), number
        self.bytes += size or 0
        self._at(at_ms, is_clock=False)

    def is_before(self, at_ms: float) -> bool:
        """Whether a piece at this time belongs to another stream, which was recorded below this one."""
        return self._last is not None and not self._is_clock and at_ms < self._last

    def _at(self, at_ms: float, *, is_clock: bool) -> None:
        gap = at_ms - self._last if self._last is not None and not self._cut else 0.0
        self.is_longest = gap > self._gap
        if self._last is not None:
            self._gap = max(self._gap, gap)
        elif not is_clock and self.is_whole:
            self._first = at_ms
        self._last, self._cut, self._is_clock = at_ms, False, is_clock

    def into(self, row: HttpExchange) -> None:
        row.streaming = True
        row.status = row.status or 200  # pieces come with no other
        if self._numbers is not None:
            row.chunks = self._numbers[1] - self._numbers[0] + 1
        elif not self.is_cut and self.is_whole:
            row.chunks = self.chunks or row.chunks
        if self.answer.is_one or self.is_done:
            row.done_seen = self.is_done if row.done_seen is None else row.done_seen
        row.bytes = row.bytes or (self.bytes if not self.is_cut else 0) or None
        if self._last is not None:
            row.max_gap_ms = row.max_gap_ms or round(self._gap, 3)
            if self._first is not None:
                row.ttfb_ms = row.ttfb_ms if row.ttfb_ms is not None else round(self._first, 3)
            if not self._is_clock:
                row.duration_ms = row.duration_ms if row.duration_ms is not None else round(self._last, 3)
        if self.answer.is_one:
            self.answer.into(row)


class ReadTable:
    """A table of reads below a header that names the time and, perhaps, the bytes."""

    def __init__(self, header: str) -> None:
        names = re.split(r"[\s,;|]+", _UNIT.sub(r"_\1", header).lstrip("# ").strip())
        lower = [name.lower() for name in names]
        self._time = next(place for place, name in enumerate(lower) if re.fullmatch(r"(?:t|time|at|elapsed)_m?s", name))
        self._factor = 1.0 if lower[self._time].endswith("_ms") else 1000.0
        self._bytes = next((place for place, name in enumerate(lower) if name in ("bytes", "size")), None)
        self._width = len(names)

    def read(self, line: str) -> tuple[float, int | None, int | None] | None:
        """Milliseconds, bytes and number of a line; None for a line that is none of the table."""
        if not _ROW.match(line):
            return None
        cells = re.split(r"[\s,;|]+", line.strip())
        if len(cells) != self._width or cells[self._time] == "-":
            return None
        size = cells[self._bytes] if self._bytes is not None else ""
        number = int(cells[0]) if self._time > 0 and cells[0].isdigit() else None
        return float(cells[self._time]) * self._factor, int(size) if size.isdigit() else None, number
