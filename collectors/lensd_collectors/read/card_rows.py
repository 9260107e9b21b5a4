"""What a line of a table says of a card, of a process on it or of one on the host → rows of `gpu_samples`, and how the card fares."""

import re
from typing import Any, Final, NamedTuple

from lensd_collectors.read.card_states import TOGETHER_US, CardStates
from lensd_collectors.read.cells import instant_of, is_none, quantity
from lensd_collectors.read.delimited import Cells
from lensd_collectors.read.gpu_columns import card, mig
from lensd_collectors.rows import GpuSample, Instant, Row

OF_PROCESS: Final = ("pid_used_bytes", "rss_bytes", "cpu_share")
LIMIT: Final = {"total_bytes"}  # beside a resident set: what of it there may be
MOST_SUBJECTS: Final = 4096
MOST_LISTED: Final = 32  # cards of a host; more is a loop that goes faster than its listings can be told apart
_INDEX: Final = re.compile(r"(?:gpu|nvidia)?[ :#_-]*(\d+)", re.IGNORECASE)


class Subject(NamedTuple):
    """What a line is about."""

    host: str | None
    gpu: str | None
    mig: str | None
    pid: int | None
    process: str | None
    card: str | None


class CardRows:
    """Rows of one file. A card is called by its index, where any line before said which index its UUID or bus address has."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._index: dict[str, str] = {}
        self._last: tuple[str, Instant | None] = ("", None)
        self._listed: tuple[Instant | None, int] = (None, 0)
        self._subjects: dict[tuple[str, ...], Subject] = {}
        self.states = CardStates(name)
        self.called: list[tuple[GpuSample, str]] | None = None  # rows of cards and what these are called, where a whole file is read

    def settle(self) -> None:
        """Where one index has cards of two names, several hosts' tables were put together, and each name is a host's."""
        names: dict[str | None, set[str]] = {}
        for row, name in self.called or ():
            names.setdefault(row.gpu, set()).add(name)
        for row, name in self.called or () if any(len(some) > 1 for some in names.values()) else ():
            row.host = name

    def rows(self, cells: Cells, number: int, line: str, at: Instant | None = None) -> list[Row]:
        """The rows of one line; `at` holds where the line has no instant of its own."""
        at = self._instant(cells.labels.get("at"), at)
        host, gpu, mig, pid, process, called = self._subject(cells.labels)
        src = f"{self._name}:{number}"
        mine: dict[str, Any] = {column: cells.values[column] for column in OF_PROCESS if column in cells.values}
        if pid is not None:
            if gpu is None and not mine and "used_bytes" in cells.values:
                # what a line about a process says of a card is what it holds of it
                mine["pid_used_bytes"] = cells.values["used_bytes"]
            is_told = bool(mine) or gpu is not None
            return [GpuSample(seen_at=at, seq=number, host=host, gpu=gpu, mig=mig, pid=pid, process=process, src=src, **mine)] * is_told
        mine.pop("pid_used_bytes", None)
        device: dict[str, Any] = {column: value for column, value in cells.values.items() if column not in OF_PROCESS}
        if gpu is None and "rss_bytes" in mine and "total_bytes" in device:  # of a table that names no card it is the process's limit
            mine["total_bytes"] = device.pop("total_bytes")
        if gpu is None and device.keys() - LIMIT and at is not None:
            gpu = self._nth(at)
        if mine and gpu is None and device.keys() <= LIMIT:
            return [GpuSample(seen_at=at, seq=number, host=host, process=process, src=src, **mine, **device)]
        rows: list[Row] = []
        if device or gpu is not None:  # one that tells nothing is listed all the same
            rows.append(sample := GpuSample(seen_at=at, seq=number, host=host, gpu=gpu, mig=mig, src=src, **device))
            if self.called is not None and called is not None and host is None:
                self.called.append((sample, called))
        if mine:
            rows.append(GpuSample(seen_at=at, seq=number, host=host, process=process, src=src, **mine))
        if gpu is not None:
            rows += self.states.saw(gpu, cells.faults, at=at, number=number, line=line)
        return rows

    def index_of(self, other: str) -> str | None:
        """The index of the card with this UUID or bus address, where a line has said it."""
        return self._index.get(other.lower())

    def _subject(self, labels: dict[str, str]) -> Subject:
        key = tuple(text for what, text in labels.items() if what != "at")
        found = self._subjects.get(key)
        if found is None:
            if len(self._subjects) >= MOST_SUBJECTS:
                self._subjects.clear()
            said = {what: text.strip() for what, text in labels.items() if not is_none(text)}
            instance, compute = said.get("instance"), said.get("compute")
            gpu = card(self._called(said), instance, compute)
            process = _pid(said.get("pid")), program(said.get("process"))
            found = Subject(said.get("host"), gpu, mig(instance, compute), *process, said.get("card"))
            self._subjects[key] = found
        return found

    def _called(self, said: dict[str, str]) -> str | None:
        index, *others = (said.get(what) for what in ("gpu", "uuid", "pci"))
        named = [other for other in others if other]
        if index is None:
            return next((known for other in named if (known := self.index_of(other))), named[0] if named else None)
        match = _INDEX.fullmatch(index)
        index = match[1] if match else self.index_of(index) or index
        if named:
            self._index |= {other.lower(): index for other in named}
            self._subjects.clear()  # of lines that have no index, some are known now
        return index

    def _nth(self, at: Instant) -> str | None:
        """A card of a table that says of none which it is: by its place among those listed at one instant."""
        last, place = self._listed
        place = place + 1 if last is not None and abs(at - last) < TOGETHER_US else 0
        self._listed = at, place
        return f"#{place}" if place < MOST_LISTED else None

    def _instant(self, text: str | None, otherwise: Instant | None) -> Instant | None:
        if text is None:
            return otherwise
        if text != self._last[0]:  # all cards of a host at one instant
            self._last = text, otherwise if is_none(text) else instant_of(text, otherwise)
        return self._last[1]


def program(text: str | None) -> str | None:
    """A process's name without path and arguments.

    >>> program("/usr/bin/python3 -m vllm.entrypoints"), program("VLLM::EngineCore"), program("[Not Found]")
    ('python3', 'VLLM::EngineCore', None)
    """
    if text is None or is_none(text):
        return None
    return text.split()[0].rpartition("/")[2] or None


def _pid(text: str | None) -> int | None:
    found = quantity(text) if text is not None else None
    return round(found.number) if found else None
