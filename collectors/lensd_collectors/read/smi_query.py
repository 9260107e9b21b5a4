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

    def take(self, line: str, number: int) -> list[Block] | None:
        """The block that ends before this line, if one does; None for a line of no such print. `line` with its indentation."""
        line = line.rstrip("\r\n")
        if match := CARD.fullmatch(line):
            ended = self.rest()
            self._card, self._instance, self._headings = {"gpu.bus": Said(match["bus"], number)}, {}, [(0, "gpu")]
            self._block = Block(number, dict(self._card))
            return ended
        entry = _ENTRY.fullmatch(line) if self._block is not None else None
        return self._entry(entry, number) if entry else None

    def rest(self) -> list[Block]:
        """The block that is held, once nothing can follow it."""
        block, self._block = self._block, None
        return [block] if block is not None and len(block.entries) > len(self._card) else []

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
