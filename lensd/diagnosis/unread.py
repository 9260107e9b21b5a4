"""Lines of a folder that no reader understood and that speak of a failure, or tell times: they stand against calling it well."""

import re
from collections.abc import Iterator
from itertools import islice
from typing import Final

from lensd_collectors.read.recognise import FileRows, Kind

from lensd.diagnosis.folder import Folder

MOST: Final = 3  # places
MOST_FILES: Final = 50
_LONGEST: Final = 600  # characters of a line that are looked at
LEAST_MEASURED: Final = 2  # lines of times in a file, from which on it is a measurement
_KINDS: Final = frozenset({Kind.NOTES, Kind.HTTP_EXCHANGE, Kind.CALLS, Kind.ACCESS_LOG, Kind.BENCHMARK, Kind.UNKNOWN})
_WORDS: Final = re.compile(
    r"HTTP/\d(?:\.\d)?\"? [45]\d\d\b|\b[Ss]tatus(?:[_ ]?code)?\"?[ =:]{1,3}\"?[45]\d\d\b"
    r"|(?:->|=>|→|:) ?[45]\d\d (?=[A-Z(]|after|in\b|$)"
    r"|\b(?:50[0234]|52\d|429|40[138]|422) (?:Internal|Bad G|Service|Gateway|Too Many|Unauthorized|Forbidden|Request Time|Unprocessable)"
    r"|\b[A-Z]\w*(?:Error|Exception)\b(?!s)|\bTraceback\b|\bERROR\b|\bFATAL\b|\bPANIC\b"
    r"|\btimed[ -]out\b|\btimeouts? (?:after|exceeded|reached|waiting|awaiting|again)\b"
    r"|\b(?:connection|socket|stream) (?:was )?(?:refused|reset|closed|lost|cut)"
    r"|\brefused to connect|\bOOM-?[Kk]illed|\boom-kill|\bsegfault|\bpanic:"
    r"|\b(?:was|were|got|been) (?:killed|evicted|cut off|refused|rejected)"
    r"|^\W*(?:failed|FAILED)\s"
    r"|\b(?:request|call|job|page|item|chat|upload|answer)s? failed|\bcrash(?:ed|es)\b|\bhung\b|\bstuck\b|\bfrozen\b"
)
_NOT: Final = re.compile(
    r"\b(?:no|zero|without|never|none|not|n't|neither|0|nothing|nobody)\b[^.;,:]{0,40}$|(?:AbortError|CancelledError|Cancell?ation\w*|KeyboardInterrupt|BrokenPipe\w*)$",
    re.IGNORECASE,
)
_OF_ALERT: Final = re.compile(
    r"\"alertname\"|^\W*(?:rule|expr|alert|query|matches|summary|description|title|subject|alarm(?:regel)?|regel|règle|regla)\b"
    r"|(?:告警|报警|警报)规则|(?:=~|\|[=~]) ?[\"'`]",
    re.IGNORECASE,
)
_AFTER: Final = re.compile(
    r"^[^.;,\d]{0,24}(?:[=:]|\bis\b|\bwas\b|\bwere\b) *(?:0\b(?![.\d])|none\b|no$|null\b|false\b|-$)|^s?[_.-]\w|^\w*\(\)", re.IGNORECASE
)
_TIME: Final = re.compile(r"(?<![\w.-])\d[\d,]*(?:\.\d+)? ?(?:ms|s|sec|seconds|tok(?:en)?s?/s|t/s)\b(?![-/])")


def lines_alarming(folder: Folder) -> tuple[str, ...]:
    """Places (`file:line`) of the first of them. Files that a machine wrote in a known form are left out: what they say was read."""
    found: list[str] = []
    for name, file in _files(folder):
        found += (src for src, line in _unread(folder, name, file) if speaks_of_failure(line))
        if len(found) >= MOST:
            break
    return tuple(found[:MOST])


def times_unread(folder: Folder) -> tuple[str, ...]:
    """Places of the first lines of somebody's measurements, two times or more in each, in files where no such line was understood."""
    found: list[str] = []
    for name, file in _files(folder):
        told = [src for src, line in _unread(folder, name, file) if len(_TIME.findall(line)) > 1]
        found += told if len(told) >= LEAST_MEASURED else ()
    return tuple(found[:MOST])


def speaks_of_failure(line: str) -> bool:
    """Whether a line says that something failed; not where it says that nothing did, nor where it names a setting."""
    line = line[:_LONGEST]
    if _OF_ALERT.search(line):
        return False
    return any(
        not _NOT.search(line[: match.start()] if match[0][:1].islower() else line[: match.end()]) and not _AFTER.match(line[match.end() :])
        for match in _WORDS.finditer(line)
    )


def _files(folder: Folder) -> Iterator[tuple[str, FileRows]]:
    some = ((name, file) for name, file in folder.files.items() if file.kind in _KINDS and file.unread_lines)
    return islice(some, MOST_FILES)


def _unread(folder: Folder, name: str, file: FileRows) -> Iterator[tuple[str, str]]:
    """The lines that gave no row, each with its place; not the parts of an answer that was read."""
    for src, line in folder.untold(name):
        if file.kind is not Kind.HTTP_EXCHANGE or line[:1] not in ' \t{}[]"<':
            yield src, line[:_LONGEST]
