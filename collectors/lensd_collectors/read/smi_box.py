"""The box that `nvidia-smi` prints by default → cells by columns of `gpu_samples`: cards, instances of divided cards, processes.

Source of the form: output of drivers 418 to 580. A card has two lines or three; its figures stand on the second.
"""

import re
from typing import Final

from lensd_collectors.read.cells import fault, is_none, quantity, scale
from lensd_collectors.read.delimited import Cells
from lensd_collectors.read.gpu_columns import Cell, typed

_NOT_FRAME: Final = re.compile(r"\|\s*(?:\d|N/A\s+(?:\d|N/A)|ERR!)")
_CARD: Final = re.compile(
    r"\|\s*(?P<gpu>\d+)\s+(?P<card>\S.*?)\s+(?:On|Off|N/A)\s*\|"
    r"\s*(?P<pci>[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d)\s+(?:On|Off|N/A)\s*\|\s*(?P<ecc>[^|]*?)\s*\|"
)
_FIGURES: Final = re.compile(
    r"\|\s*(?:\d+%|N/A|ERR!)\s*(?P<temp>\d+C|N/A|ERR!)\s*(?:P\d+|N/A|ERR!)\s*"
    r"(?P<power>[\d.]+W|N/A|ERR!|Unknown Error)\s*/\s*(?P<limit>[\d.]+W|N/A|ERR!)\s*\|"
    r"\s*(?:(?P<used>\d+ ?MiB)\s*/\s*(?P<total>\d+ ?MiB)|(?P<instead>[^|]*?))\s*\|\s*(?P<util>\d+ ?%|N/A|ERR!)"
)
_INSTANCE: Final = re.compile(
    r"\|\s*(?P<gpu>\d+)\s+(?P<instance>\d+)\s+(?P<compute>\d+)\s+\d+\s*\|\s*(?P<used>\d+ ?MiB)\s*/\s*(?P<total>\d+ ?MiB)\s*\|"
)
_PROCESS: Final = re.compile(
    r"\|\s*(?P<gpu>\d+)\s+(?:(?P<instance>\d+|N/A)\s+(?P<compute>\d+|N/A)\s+)?"
    r"(?P<pid>\d+)\s+[CGM+]+\s+(?P<process>\S.*?)\s+(?P<used>\d+ ?MiB|N/A)\s*\|"
)
_MEASURES: Final = {
    "used_bytes": "used",
    "total_bytes": "total",
    "util": "util",
    "temp_c": "temp",
    "power_w": "power",
    "power_limit_w": "limit",
}
NOTHING: Final = Cells({}, {}, [])


class SmiBox:
    """Reads the lines of boxes, one after another."""

    ON_FIRST_LINE: Final = ("ecc",)  # columns whose figure stands on the line before the others

    def __init__(self) -> None:
        self._card: dict[str, str] = {}

    def read(self, line: str) -> Cells | None:
        """What a line says of a card or process, nothing (empty) for one of the frame; None for a line of no box."""
        text = line.strip()
        if text[:1] not in ("|", "+"):
            return None
        if match := _CARD.match(text):
            self._card = match.groupdict()
            return NOTHING
        if match := _FIGURES.match(text):
            return self._figures(match)
        if match := _INSTANCE.match(text):
            labels = {what: match[what] for what in ("gpu", "instance", "compute")}
            return Cells(_measured(match.groupdict(), ("used_bytes", "total_bytes")), labels, [])
        if match := _PROCESS.match(text):
            labels = {what: match[what] or "" for what in ("gpu", "instance", "compute", "pid", "process")}
            used = _measured({"used": match["used"]}, ("used_bytes",)).get("used_bytes")
            return Cells({} if used is None else {"pid_used_bytes": used}, labels, [])
        return None if _NOT_FRAME.match(text) else NOTHING

    @staticmethod
    def is_first_line(line: str) -> bool:
        """Whether a line is the first of a card's."""
        return _CARD.match(line.strip()) is not None

    def _figures(self, match: re.Match[str]) -> Cells | None:
        if not self._card:
            return None
        card, self._card = self._card, {}
        values = _measured(match.groupdict(), tuple(_MEASURES))
        ecc = quantity(card["ecc"])
        if ecc is not None:
            values["ecc"] = typed("ecc", ecc.number)
        instead = match["instead"]
        said = [card["ecc"], *(match[group] for group in ("temp", "power", "limit", "util")), *([instead] if instead else [])]
        return Cells(values, {"gpu": card["gpu"], "pci": card["pci"]}, [state for cell in said if cell and (state := fault(cell))])


def _measured(groups: dict[str, str | None], columns: tuple[str, ...]) -> dict[str, Cell]:
    values: dict[str, Cell] = {}
    for column in columns:
        text = groups.get(_MEASURES[column])
        found = None if text is None or is_none(text) else quantity(text)
        if found is not None:
            values[column] = typed(column, found.number * (scale(found.unit, decimal=False) or 1))
    return values
