"""The beginnings of prompts that somebody listed one below the other → `prompt.varies` events for what changes from one to the next."""

import re
from collections.abc import Mapping
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
_OF_BEGINNING: Final = re.compile(
    r"(?:^|_)(?:head|prefix|beginning|begins?|start|opening|first(?:_\w+)?|prompt|system(?:_prompt)?)$", re.IGNORECASE
)
_HASHED: Final = re.compile(r"(?:^|_)(?:sha\d*|md5|hash|digest|crc\d*|fingerprint)(?:_|$)", re.IGNORECASE)
_OF_REST: Final = re.compile(r"(?:^|_)(?:rest|tail|after|without|body|remainder|tools)(?:_|$)", re.IGNORECASE)
_OF_HEAD: Final = re.compile(
    r"(?:^|_)(?:head|prefix|first|start|begin\w*|block_?0|\d+k?|line_?1|prompt|whole|full|all)(?:_|$)", re.IGNORECASE
)
_NAMED: Final = re.compile(r"^\W*(?P<name>[A-Za-z_][\w.-]*)[=:](?P<value>.+)$")
_NAME: Final = re.compile(r"^\W*(?P<name>[A-Za-z_][\w.-]*)[=:]$")


class Beginnings:
    """Reads the lines of one file; rows follow a heading that says what they are."""

    def __init__(self, name: str, engine: str | None) -> None:
        self._name, self._engine = name, engine
        self._headed: int | None = None
        self._before: list[str] = []
        self._fields: dict[str, str] = {}

    def record(self, document: Mapping[str, object], line: str, number: int) -> list[Row]:
        """What the beginning of a prompt, or the hash of it, has otherwise than in the record before, the rest being alike."""
        now = {key: value for key, value in document.items() if isinstance(value, str) and len(value) <= LONGEST}
        before, self._fields = self._fields, now if _is_of_prompts(now) else self._fields
        for key in (key for key in now if key in before and _OF_BEGINNING.search(key) and len(now[key].split()) >= FEWEST):
            if changed := _changed(before[key].split(), now[key].split()):
                return [self._event(what, line, number) for what in dict.fromkeys(changed)]
        hashes = [key for key in now if key in before and _HASHED.search(key)]
        same = any(now[key] == before[key] for key in hashes if _OF_REST.search(key))
        other = any(now[key] != before[key] for key in hashes if _OF_HEAD.search(key) and not _OF_REST.search(key))
        return [self._event("text", line, number)] if same and other else []

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


def _is_of_prompts(fields: Mapping[str, str]) -> bool:
    return any(_OF_BEGINNING.search(key) or _HASHED.search(key) for key in fields)


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
