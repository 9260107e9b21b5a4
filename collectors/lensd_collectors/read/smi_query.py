"""What `nvidia-smi -q` prints, whole or a part of it (`-d PERFORMANCE`): cells of a card, then of each of its processes.

A card's figures stand under headings, told by how far lines are indented; they are whole only when something else begins.
"""

import re
from collections.abc import Iterable
from itertools import islice
from typing import Final, NamedTuple

from lensd_collectors.dialects import GpuTable
from lensd_collectors.read.delimited import Cells, Header

CARD: Final = re.compile(r"GPU (?P<bus>[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d)\s*")
PROCESS: Final = re.compile(r"\s+Process ID\s*:")
HEADS_OF_PROCESS: Final = ("GPU 00000000:00:00.0", "    Processes")  # what stands above the block of a process, of whichever card
HEAD: Final = re.compile(r"=+NVSMI LOG=+|(?:Driver Version|CUDA Version|Attached GPUs)\s*:.*")
MOST_ENTRIES: Final = 1000
MOST_LINES: Final = 2000  # of a block
_ENTRY: Final = re.compile(r"(?P<indent> {4,})(?P<name>\S[^:]*?)\s*(?::\s(?P<value>.*?))?\s*")
_LOOSE: Final = {  # what says by itself what it is of, where somebody kept these lines and not their headings
    **{why: f"clocks_event_reasons.{why}" for why in ("sw_power_cap", "hw_slowdown", "sw_thermal_slowdown", "applications_clocks_setting")},
    **{why: f"hw_slowdown.{why}" for why in ("hw_thermal_slowdown", "hw_power_brake_slowdown")},
    **{what: f"temperature.{what}" for what in ("gpu_current_temp", "gpu_slowdown_temp")},
    **{what: f"gpu_power_readings.{what}" for what in ("power_draw", "average_power_draw", "current_power_limit", "default_power_limit")},
    "instantaneous_power_draw": "gpu_power_readings.instantaneous_power_draw",
    "enforced_power_limit": "power_readings.enforced_power_limit",
    "sm": "clocks.sm",
    "gpu": "utilization.gpu",
}
_FASTEST: Final = "max_clocks.sm"
_LOOSE_ENTRY: Final = re.compile(r"\s*(?P<name>[A-Z][A-Za-z ]{1,40}?)\s*: (?P<value>Active|Not Active|[\d.]+ (?:W|MHz|C|%))\s*")
_PROCESS: Final = "processes.process_id"
_INSTANCE: Final = ("processes.gpu_instance_id", "processes.compute_instance_id")
_OF_CARD: Final = ("gpu.bus", "gpu.minor_number", "gpu.gpu_uuid")


class Said(NamedTuple):
    value: str
    line: int


class Block(NamedTuple):
    """What is said of one card or process, by heading and name; it begins at `line`."""

    line: int
    entries: dict[str, Said]


class SmiQuery:
    """Takes the lines of such a print and gives the blocks of it as they become whole."""

    def __init__(self) -> None:
        self._block: Block | None = None
        self._card: dict[str, Said] = {}
        self._instance: dict[str, Said] = {}
        self._headings: list[tuple[int, str]] = []
        self._is_loose = False
        self._listed = 0

    def take(self, line: str, number: int) -> list[Block] | None:
        """The block that ends before this line, if one does; None for a line of no such print. `line` with its indentation."""
        line = line.rstrip("\r\n")
        if match := CARD.fullmatch(line):
            ended = self.rest()
            self._card, self._instance, self._headings = {"gpu.bus": Said(match["bus"], number)}, {}, [(0, "gpu")]
            self._block = Block(number, dict(self._card))
            return ended
        if self._block is None or self._is_loose:
            return self._kept(line, number)
        entry = _ENTRY.fullmatch(line)
        return self._entry(entry, number) if entry else None

    def rest(self) -> list[Block]:
        """The block that is held, once nothing can follow it."""
        block, self._block, self._is_loose = self._block, None, False
        return [block] if block is not None and len(block.entries) > len(self._card) else []

    def _kept(self, line: str, number: int) -> list[Block] | None:
        """A line that somebody kept of a print; one that says anew what was said is of the next card."""
        match = _LOOSE_ENTRY.fullmatch(line)
        name = _LOOSE.get(re.sub(r"\W+", "_", match["name"].lower())) if match else None
        if match is None or name is None or name.startswith("utilization") != match["value"].endswith("%"):
            return None
        said, ended = Said(match["value"], number), list[Block]()
        if self._block is not None and name == "clocks.sm" and name in self._block.entries and _FASTEST not in self._block.entries:
            name = _FASTEST
        if self._block is not None and name in self._block.entries:
            ended, self._listed = self.rest(), self._listed + 1
        if self._block is None:
            self._card, self._is_loose = {"gpu.minor_number": Said(str(self._listed), number)}, True
            self._block = Block(number, dict(self._card))
        self._block.entries[name] = said
        return ended

    def _entry(self, entry: re.Match[str], number: int) -> list[Block]:
        indent, value = len(entry["indent"]), entry["value"]
        own = re.sub(r"\W+", "_", entry["name"].lower()).strip("_")
        while len(self._headings) > 1 and self._headings[-1][0] >= indent:
            self._headings.pop()
        name = f"{self._headings[-1][1]}.{own}"
        self._headings.append((indent, own))
        if value is None:
            return []
        said = Said(value, number)
        if name in _INSTANCE:  # of the process whose number comes next
            self._instance[name] = said
            return []
        ended: list[Block] = []
        if name == _PROCESS:
            ended = self.rest()
            self._block = Block(number, {**self._card, **self._instance})
        if name in _OF_CARD:
            self._card[name] = said
        if self._block is not None and len(self._block.entries) < MOST_ENTRIES:
            self._block.entries[name] = said
        return ended


def cells_of(block: Block, table: GpuTable) -> Cells | None:
    """None for a block that says nothing of what is known."""
    values = (re.sub(r"[;\"]", " ", said.value) for said in block.entries.values())
    return Header(list(block.entries), ";", (table,)).read(";".join(values))


def line_of(lines: Iterable[str], number: int, column: str, table: GpuTable) -> int | None:
    """The line of the figure behind `column` in the block that begins at line `number`; `lines` are those from there on."""
    query = SmiQuery()
    wanted = [name for source in table.columns.get(column, ()) for name in source.names]
    wanted += [name for names in table.reasons.values() for name in names] if column == "throttle" else []
    for at, line in enumerate((*islice(lines, MOST_LINES), "."), number):
        if not line.strip():
            continue
        blocks = query.take(line, at)
        for block in query.rest() if blocks is None else blocks:
            found = [block.entries[name] for name in wanted if name in block.entries]
            return max(found, key=lambda said: said.value.lower() == "active").line if found else None
    return None


def is_kept(line: str) -> bool:
    """Whether somebody kept this line of a print without the headings above it."""
    return SmiQuery().take(line, 1) is not None and CARD.fullmatch(line.rstrip()) is None
