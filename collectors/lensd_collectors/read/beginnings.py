"""The beginnings of prompts that somebody listed one below the other → `prompt.varies` events for what changes from one to the next."""

import re
from typing import Final

import msgspec

from lensd_collectors.rows import Event, Row
from lensd_collectors.scrub import scrub

LONGEST: Final = 1000  # characters
HEADED: Final = 40  # lines from the heading to the last row
FEWEST: Final = 3  # words of a row
ALIKE: Final = 0.5  # of the words of two rows, at least
_HEADING: Final = re.compile(
    r"^(?=.*\b(?:prompt|system|message|request|bod(?:y|ies))).*?(?:\b(?:first|leading) \d+ (?:bytes|char\w*|tokens|words)\b"
    r"|\b(?:beginning|head|start|prefix)(?:s|es)? of\b)",
    re.IGNORECASE,
)
_LABEL: Final = re.compile(
    r"^\W*(?:(?:\d{4}-\d\d-\d\d[T ])?\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?Z?"
    r"|(?:len(?:gth)?|size|bytes|tokens|turn|call|no\.?|req(?:uest)?)[ =:#]*\d[\d,]*|\d[\d,]*)"
    r"[\])]?(?:[\s:|,)-]+|$)",
    re.IGNORECASE,
)  # which row it is, and how long the prompt
_NAMED: Final = re.compile(r"^\W*(?P<name>[A-Za-z_][\w.-]*)[=:](?P<value>.+)$")
_NAME: Final = re.compile(r"^\W*(?P<name>[A-Za-z_][\w.-]*)[=:]$")


class Beginnings:
    """Reads the lines of one file; rows follow a heading that says what they are."""

    def __init__(self, name: str, engine: str | None) -> None:
        self._name, self._engine = name, engine
        self._headed: int | None = None
        self._before: list[str] = []

    def read(self, line: str, number: int) -> list[Row] | None:
        """What a row has otherwise than the one above; None for a line that is no such row."""
        if len(line) > LONGEST:
            return None
        if _HEADING.search(line):
            self._headed, self._before = number, []
            return None
        if self._headed is None or number - self._headed > HEADED:
            return None
        words = _words(line)
        before, self._before = self._before, words if len(words) >= FEWEST else self._before
        changed = _changed(before, words)
        if not changed:
            return None
        return [self._event(what, line, number) for what in dict.fromkeys(changed)]

    def _event(self, what: str, line: str, number: int) -> Event:
        fields = msgspec.json.encode({"sign": "listed", "what": what}).decode()
        src = f"{self._name}:{number}"
        return Event(
            seq=number, engine=self._engine, name="prompt.varies", severity="info", fields=fields, line=scrub(line.strip()), src=src
        )


def _words(line: str) -> list[str]:
    while label := _LABEL.match(line):
        line = line[label.end() :]
    return line.split()


def _changed(before: list[str], now: list[str]) -> list[str]:
    """Names of what differs between two rows that are alike otherwise; `text` for what has no name."""
    places = [at for at, (one, other) in enumerate(zip(before, now, strict=False)) if one != other]
    if len(before) != len(now) or len(places) > (1 - ALIKE) * len(now):
        return []
    return [_name_of(before, now, at) for at in places]


def _name_of(before: list[str], now: list[str], at: int) -> str:
    one, other = _NAMED.match(before[at]), _NAMED.match(now[at])
    if one is not None and other is not None and one["name"] == other["name"]:
        return one["name"]
    above = _NAME.match(now[at - 1]) if at else None
    return above["name"] if above is not None else "text"
