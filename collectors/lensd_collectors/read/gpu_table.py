"""Tables of GPUs, of processes and of the host's memory, as tools print them or as somebody keeps them → rows, a line at a time.

`nvidia-smi` (its default box, `-q`, `--query-gpu`, `--query-compute-apps`, `dmon`, `pmon`; looped, with units or without, with header or
with the command line in its stead), `ps`, `top`, `pidstat`, `kubectl top`, and what `process_table` reads; one after another in one file
too.
"""

import re
from collections.abc import Iterable, Iterator
from enum import StrEnum
from itertools import chain
from typing import Final

import msgspec

from lensd_collectors.dialects import GpuTable, load
from lensd_collectors.read.card_rows import CardRows
from lensd_collectors.read.card_states import event
from lensd_collectors.read.cells import instant_of
from lensd_collectors.read.delimited import BLANKS, DELIMITERS, Cells, Header
from lensd_collectors.read.process_table import HostTable
from lensd_collectors.read.prometheus import instant_in_name
from lensd_collectors.read.series import has_engine
from lensd_collectors.read.series import samples_of as series_of
from lensd_collectors.read.smi_box import SmiBox
from lensd_collectors.read.smi_query import CARD, HEAD, HEADS_OF_PROCESS, PROCESS, Block, SmiQuery, cells_of, is_kept, line_of
from lensd_collectors.read.strays import Strays
from lensd_collectors.rows import EngineSample, GpuSample, Instant, Point, Row

LONGEST_LINE: Final = 4096
QUERY: Final = "nvidia_query"
MOST_FORMS: Final = 100
_PAIR: Final = re.compile(r"([A-Za-z_][\w.]*)\s?=\s?([^\s=,;]+(?: [KMGT]i?B\b)?)[,;]?")
_QUERY: Final = re.compile(r"--query-(?:gpu|compute-apps)[= ](?P<names>[\w.,]+)")
_COMMAND: Final = re.compile(r"\s*(?:[$#>]|\S+@\S+[#$])\s*\S|\s*(?:sudo |watch |kubectl exec )?.*\bnvidia-smi(?:\s+-|\s*$)")
_LOST: Final = re.compile(
    r"Unable to determine the device handle for (?:[Gg][Pp][Uu] ?)?(?:\d{1,2}: )?(?P<pci>[0-9A-Fa-f]{4,8}:[0-9A-Fa-f:.]+): (?P<why>.+)"
)
_OF_PROCESS: Final = re.compile(
    r"(?:[\w.-]+[ _])?(?:pid|process|proc)[ _=]?\d+[ _.]+(?:gpu[ _.])?(?:mem(?:ory)?|(?:mem(?:ory)?[ _.])?used?|used?[ _.]mem(?:ory)?)"
    r"(?P<unit> *[\[(][^\])]*[\])]|[ _][mg]i?b)?",
    re.IGNORECASE,
)
_LISTED: Final = re.compile(r"GPU (?P<gpu>\d+): .+ \(UUID: (?P<uuid>GPU-[0-9a-f-]+)\)")  # nvidia-smi -L
_REPLICAS: Final = ("engine", "instance", "pod", "replica")  # whose the measures of a line are
_DATE_LINE: Final = re.compile(r"(?:#|---|===|\[|date:?|top -|Timestamp *:|Every [\d.]+s: .*?:)?\s*(?P<at>.+?)\s*(?:\]|---|===|up .*)?")
_UNITS: Final = re.compile(r"#\s*Idx\b.*|# *(?:YYYYMMDD|HH:MM:SS).*")
_GENERIC: Final = {"gpu", "uuid", "pci", "pid"}
_OTHERS: Final = {"device", "deviceid", "device_id"}  # who is measured, in tables of other makers' tools


class TableRows(msgspec.Struct, frozen=True, kw_only=True):
    rows: list[Row]
    unread_lines: int


def read_gpu_table(lines: Iterable[str], *, name: str, engine: str | None = None) -> TableRows:
    """All rows of a file of any length, also of log lines between its tables. An instant without a zone is taken as UTC, as in logs."""
    reader = TableReader(name, Strays(name, engine))
    reader.cards.called = []
    rows = [row for line in lines for row in reader.feed(line)] + reader.rest()
    reader.cards.settle()
    return TableRows(rows=rows, unread_lines=reader.unread)


def place_of(lines: Iterator[str], number: int, column: str) -> int:
    """The line of the figure behind `column` of the row that came from line `number`; `lines` are those from the one before it on."""
    before, here = next(lines, ""), next(lines, "")
    heads = () if CARD.fullmatch(here.rstrip()) or is_kept(here) else HEADS_OF_PROCESS if PROCESS.match(here) else None
    if heads is not None and (table := load()[QUERY].gpu) is not None:
        return line_of(chain(heads, [here], lines), number - len(heads), column, table) or number
    return number - 1 if column in SmiBox.ON_FIRST_LINE and SmiBox.is_first_line(before) else number


class Subject(StrEnum):
    CARDS = "cards"
    PROCESSES = "processes"


def subject_of(lines: Iterable[str]) -> Subject | None:
    """What the tables are about that the first lines of a text are, for the better part; None where they are something else."""
    reader = TableReader("")
    rows = [row for line in lines for row in reader.feed(line)] + reader.rest()
    if not rows or reader.unread > reader.read:
        return None
    samples = [row for row in rows if isinstance(row, GpuSample)]
    is_about_cards = any(row.gpu is not None or row.pid_used_bytes is not None or row.used_bytes is not None for row in samples)
    return Subject.CARDS if is_about_cards else Subject.PROCESSES


class TableReader:
    """Reads one file; `feed` gives the rows of each line. `read` and `unread` count the lines that are not blank."""

    def __init__(self, name: str, strays: Strays | None = None) -> None:
        self._name, self._strays, self._number = name, strays, 0
        self._header: Header | None = None
        self._headers: dict[tuple[str, ...], Header | None] = {}  # of lines that name each value
        self._query, self._box = SmiQuery(), SmiBox()
        self.cards, self._host = CardRows(name), HostTable(name)
        self._at: Instant | None = instant_in_name(name)
        self._kept: tuple[Header, bool] | None = None
        self.read = self.unread = 0

    def feed(self, line: str) -> list[Row]:
        self._number += 1
        text = line.strip().lstrip("\ufeff")
        if not text:
            return []
        blocks = self._query.take(line, self._number)
        ended = self._of_blocks(self._query.rest() if blocks is None else blocks)
        rows = [] if blocks is not None else self._rows(text[:LONGEST_LINE])
        if rows is None:
            self.unread += 1
        else:
            self.read += 1
        return ended + (rows or [])

    def rest(self) -> list[Row]:
        """The rows of what no line ended, once the last line is in."""
        return [*self._of_blocks(self._query.rest()), *self.cards.states.rest()]

    def _of_blocks(self, blocks: Iterable[Block]) -> list[Row]:
        rows: list[Row] = []
        for block in blocks:
            for table in _table(QUERY):
                cells = cells_of(block, table)
                called = block.entries.get("gpu.bus") or block.entries["gpu.minor_number"]
                rows += self.cards.rows(cells, block.line, f"GPU {called.value}", self._at) if cells else []
        return rows

    def _rows(self, text: str) -> list[Row] | None:
        if self._header is not None and (cells := self._header.read(text)):
            return [*self.cards.rows(cells, self._number, text, self._at), *self._of_engine(self._header, text)]
        box = self._box.read(text)
        if box is not None:
            return self.cards.rows(box, self._number, text, self._at) if box.labels else []
        if header := _header(text):
            self._header = header
            self.cards.states.restart()
            return []
        return self._other(text)

    def _of_engine(self, header: Header, text: str) -> list[Row]:
        """What a table that somebody keeps says of the engine and of answers in the same line."""
        if header.delimiter == BLANKS or not self._is_kept(header):
            return []
        record = dict(zip(header.written, header.split(text), strict=True))
        engine = next((cell for column, cell in record.items() if column.lower() in _REPLICAS and cell), None)
        rows = series_of(record, engine=engine, name=self._name, number=self._number, is_row=True)
        return [row for row in rows if isinstance(row, EngineSample | Point)]

    def _is_kept(self, header: Header) -> bool:
        if self._kept is None or self._kept[0] is not header:
            self._kept = header, "at" in header.labels and has_engine(header.written)
        return self._kept[1]

    def _other(self, text: str) -> list[Row] | None:
        date = _DATE_LINE.fullmatch(text)
        at = instant_of(date["at"], self._at) if date else None
        if at is not None:
            self._at = at
            return []
        host = self._host.read(text, self._number, self._at)
        if host is not None:
            return host
        if cells := self._pairs(text):
            return self.cards.rows(cells, self._number, text, self._at)
        if match := _LOST.search(text):
            state = "lost" if "lost" in match["why"].lower() else "failing"
            gpu = self.cards.index_of(match["pci"])
            return [event(self._name, gpu, state, at=self._at, number=self._number, line=text, pci=match["pci"])]
        if listed := _LISTED.fullmatch(text):
            return self.cards.rows(Cells({}, {"gpu": listed["gpu"], "uuid": listed["uuid"]}, []), self._number, text, self._at)
        if _UNITS.fullmatch(text) or HEAD.fullmatch(text) or _COMMAND.match(text):
            return []
        return self._strays.read(text, self._number, self._at) if self._strays else None

    def _pairs(self, text: str) -> Cells | None:
        """A line of `name=value` that somebody's own script writes, with an instant before them or without."""
        pairs = _PAIR.findall(text)
        rest = _PAIR.sub("", text).strip(" ,;|:-[]")
        if not pairs or (rest and instant_of(rest, self._at) is None):
            return None
        names = (*(name for name, _ in pairs), *(["timestamp"] if rest else []))
        if names not in self._headers and len(self._headers) < MOST_FORMS:
            self._headers[names] = _delimited(list(names), ";")
        header = self._headers.get(names)
        return header.read(";".join([*(value for _, value in pairs), *([rest] if rest else [])])) if header else None


def _header(text: str) -> Header | None:
    """The header that a line is, or that a command line of `nvidia-smi` asks for; None for any other line."""
    query = _QUERY.search(text)
    if query:
        return _known(query["names"].split(","), ",", _table("nvidia_smi"))
    for delimiter in DELIMITERS:
        names = [name.strip().strip('"') for name in text.split(delimiter)]
        if len(names) > 1 and all(name and not name[:1].isdigit() and len(name) <= 60 for name in names):
            return _delimited(names, delimiter)
    return _blanks(text.lstrip("#").split(), is_marked=text.startswith("#"))


def _of_one_process(names: list[str]) -> list[str]:
    """Names of columns, where one that names its process by number is what the card holds of it: `pid 812 used [MiB]`."""
    found = [_OF_PROCESS.fullmatch(name.strip()) for name in names]
    if sum(match is not None for match in found) != 1 or any(name.startswith("memory.used") for name in names):
        return names
    units = [None if match is None else (match["unit"] or "MiB").strip(" _[]()") for match in found]
    return [name if unit is None else f"memory.used [{unit}]" for name, unit in zip(names, units, strict=True)]


def _delimited(names: list[str], delimiter: str) -> Header | None:
    names = _of_one_process(names)
    first = _table("nvidia_smi") + _table("cards") * any(name.lower() in _OTHERS for name in names)
    if any(name.lower() in _GENERIC | {"index", "gpu_index", "gpu_uuid", "gpu_id"} for name in names):
        first += _table("tables")
    return _known(names, delimiter, first + _table("dcgm") + _table("processes"))


def _blanks(names: list[str], *, is_marked: bool) -> Header | None:
    lower = {name.lower() for name in names}
    if is_marked and "gpu" in lower:
        return _known(names, BLANKS, _table("nvidia_dmon"))
    if "pid" in lower or "memory(bytes)" in lower:
        return _known(names, BLANKS, _table("processes"))
    if names and names[0].lower() in ("time", "timestamp", "date", "ts") and len(names) > 1:
        return _known(names, BLANKS, _table("nvidia_smi") + _table("tables") * ("gpu" in lower) + _table("processes"))
    return None


def _known(names: list[str], delimiter: str, tables: tuple[GpuTable, ...]) -> Header | None:
    """A header of which a measure is known, and something that says of what or when it is."""
    header = Header(names, delimiter, tables)
    measured = header.columns
    return header if measured and (header.labels & {"gpu", "uuid", "pci", "pid", "at", "process"} or len(measured) > 1) else None


def _table(name: str) -> tuple[GpuTable, ...]:
    table = load()[name].gpu
    return (table,) if table is not None else ()
