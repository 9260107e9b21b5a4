"""When the rows of files are of; and files that write the time without a zone beside files that write it with one: whose clock was it?

Readers take a time without a zone for UTC. Where all files with a zone name the same offset, and only with that offset does a file
without one speak of the same time, it was written in that zone.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from lensd_collectors.read.recognise import FileRows
from lensd_collectors.rows import Instant, Row

LOOKED_AT: Final = 256 << 10  # bytes of a file in which the zone is looked for
APART_US: Final = 600_000_000  # two files less than this apart are of the same time as they stand
INSTANTS: Final = ("seen_at", "started_at", "ended_at")
MINUTE_US: Final = 60_000_000
_STAMP: Final = re.compile(r"(?<!\d)\d\d:\d\d:\d\d(?:[.,]\d+)?(?P<zone>Z\b| ?(?P<sign>[+-])(?P<hours>[01]\d):?(?P<minutes>[0-5]\d)\b)?")


class Span(NamedTuple):
    """First and last instant of a file's rows, microseconds since the epoch."""

    first: int
    last: int


def move_to_their_zone(files: Mapping[str, FileRows], places: Mapping[str, Path]) -> None:
    """Moves the rows of files without a zone to where the files with one put the same hours."""
    spans = {name: span for name, file in files.items() if (span := _span(file)) is not None}
    offsets = {name: frozenset(_offsets(places[name])) for name in spans}
    named = frozenset().union(*offsets.values()) - {0}
    known = [spans[name] for name, found in offsets.items() if found]
    if len(named) != 1:
        return
    (offset,) = named
    moved = -1
    while len(known) > moved:  # one that was moved may span the time of the next
        moved = len(known)
        known += [_moved(files[name], spans.pop(name), -offset) for name in _apart(spans, offsets, known, offset)]


def _apart(spans: Mapping[str, Span], offsets: Mapping[str, frozenset[int]], known: Sequence[Span], offset: int) -> list[str]:
    """Files without a zone that are of the time of the others only if they were written in that zone."""
    return [
        name
        for name, span in spans.items()
        if not offsets[name] and _least(span, known) > APART_US and not _least(Span(span.first - offset, span.last - offset), known)
    ]


def _least(span: Span, others: Sequence[Span]) -> int:
    """How far it is from the nearest of them, microseconds."""
    return min(max(span.first - other.last, other.first - span.last, 0) for other in others)


def _offsets(place: Path) -> Iterator[int]:
    """Microseconds ahead of UTC of each time in the file that names a zone."""
    try:
        with place.open("rb") as file:
            text = file.read(LOOKED_AT).decode("utf-8", "replace")
    except OSError:  # gone since it was read
        return
    for stamp in _STAMP.finditer(text):
        if stamp["sign"]:
            yield (-1 if stamp["sign"] == "-" else 1) * (int(stamp["hours"]) * 60 + int(stamp["minutes"])) * MINUTE_US
        elif stamp["zone"]:
            yield 0


def instants_of(rows: Sequence[Row]) -> Iterator[int]:
    """Every instant that rows of one table say they are of."""
    for name in _columns(rows):
        yield from (at for row in rows if (at := getattr(row, name)) is not None)


def _columns(rows: Sequence[Row]) -> list[str]:
    return [name for name in INSTANTS if rows and name in rows[0].__struct_fields__]


def _span(file: FileRows) -> Span | None:
    instants = [at for some in file.rows.values() for at in instants_of(some)]
    return Span(min(instants), max(instants)) if instants else None


def _moved(file: FileRows, span: Span, by_us: int) -> Span:
    """Moves the file's rows; where they lie then."""
    for some in file.rows.values():
        for name in _columns(some):
            for row in some:
                if (at := getattr(row, name)) is not None:
                    setattr(row, name, Instant(at + by_us))
    return Span(span.first + by_us, span.last + by_us)
