"""What somebody measured of an engine under several versions and wrote down, a line each → `bench.result` events."""

import re
from typing import Final

import msgspec

from lensd_collectors.read.lines import rfc3339
from lensd_collectors.rows import Event, Row
from lensd_collectors.scrub import scrub

LONGEST: Final = 300  # characters
HEADED: Final = 40  # lines from the one that names the unit to the last row
_TPS: Final = r"(?:tok(?:en)?s? ?(?:/|per) ?s(?:ec(?:ond)?)?\b|t/s\b)"
_MS: Final = r"(?:ms ?(?:/|per|a) ?tok(?:en)?\b)"
_OF_PROMPTS: Final = re.compile(r"\b(?:prompts?|prefill|pp\d*|input|ttft|total|overall|aggregate|throughput)\b", re.IGNORECASE)
_UNIT: Final = re.compile(rf"(?P<tps>{_TPS})|(?P<ms>{_MS}|\bTPOT\b|\btime per (?:output )?token\b)", re.IGNORECASE)
_PACE: Final = re.compile(rf"(?<![\w.])(?:(?P<tps>\d+(?:\.\d+)?) ?{_TPS}|(?P<ms>\d+(?:\.\d+)?) ?{_MS})", re.IGNORECASE)
_AT: Final = re.compile(r"^\W*(?P<at>\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d)?(?=Z?\b))?)Z?")
_VERSION: Final = re.compile(r"(?<![\w.-])(?P<version>b\d{3,5}|v?\d{1,2}\.\d{1,2}\.\d{1,3}(?:[.-]?(?:post|rc|dev)\d+)?)(?![\w.])")
_ASIDE: Final = re.compile(r"\([^)]*\)|#.*$")
_NUMBER: Final = re.compile(r"(?<![\w.:/-])\d+(?:\.\d+)?(?![\w.:/-])")


class Measured:
    """Reads the lines of one file. A row has one version and one pace; where it has no unit, a line above names one."""

    def __init__(self, name: str, engine: str | None) -> None:
        self._name, self._engine = name, engine
        self._unit, self._headed = "", 0  # tps or ms, and the line that says so

    def read(self, line: str, number: int) -> list[Row] | None:
        """The result of a row; None for any other line, of which a heading's unit is kept."""
        if len(line) > LONGEST:
            return None
        stamp = _AT.match(line)
        said = _ASIDE.sub("", line[stamp.end() :] if stamp else line)
        versions = _VERSION.findall(said)
        if len(versions) != 1:
            self._heading(line, number, is_row=bool(versions))
            return None
        rest = _VERSION.sub("", said)
        pace = self._pace(rest, number)
        if pace is None or _OF_PROMPTS.search(rest):
            return None
        fields = {"sign": "noted", "version": versions[0], **pace}
        at = rfc3339(stamp["at"]) if stamp else None
        return [
            Event(
                seen_at=at,
                seq=number,
                engine=self._engine,
                name="bench.result",
                severity="info",
                fields=msgspec.json.encode(fields).decode(),
                line=scrub(line.strip()),
                src=f"{self._name}:{number}",
            )
        ]

    def _heading(self, line: str, number: int, *, is_row: bool) -> None:
        unit = _UNIT.search(line)
        if unit is not None and not is_row and not _OF_PROMPTS.search(line):
            self._unit, self._headed = "tps" if unit["tps"] else "ms", number

    def _pace(self, rest: str, number: int) -> dict[str, float] | None:
        told = list(_PACE.finditer(rest))
        if len(told) == 1:
            return {"generation_tps": float(told[0]["tps"])} if told[0]["tps"] else {"tpot_ms": float(told[0]["ms"])}
        figures = _NUMBER.findall(rest)
        if told or len(figures) != 1 or not self._unit or number - self._headed > HEADED:
            return None
        return {"generation_tps" if self._unit == "tps" else "tpot_ms": float(figures[0])}
