"""The kernel's own log, as far as it concerns GPUs and processes that it killed, with the engine whose process it names."""

import contextlib
import os
import re
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from lensd_collectors import conventions
from lensd_collectors.dialects import load
from lensd_collectors.export import Exporter
from lensd_collectors.host import procfs
from lensd_collectors.host.line import FOLLOWED, Line, Splitter, Standing, State, why
from lensd_collectors.otlp import Value
from lensd_collectors.scrub import scrub

PATH: Final = Path("/dev/kmsg")
KIND: Final = "kernel"  # the dialect that reads its lines
RECORD_BYTES: Final = 8192
MOST_RECORDS: Final = 1000  # in one poll
MOST_PIDS: Final = 4096
LOST: Final = Standing(State.FOLLOWED, "records were overwritten before they were read")
_RECORD: Final = re.compile(r"\d+,(?P<number>\d+),\d+,[^;]*;(?P<text>.*)$")
_PID: Final = re.compile(r"(?:Killed process |\bpid=)(\d+)")


class Kmsg:
    """Records that the kernel writes from now on. `lost` counts those it overwrote before they were read, or more."""

    def __init__(self, path: Path = PATH) -> None:
        self._path, self._fd, self._splitter = path, -1, Splitter()
        self._standing = Standing(State.MISSING)
        self.lost = 0
        self._open()

    @property
    def standing(self) -> Standing:
        return LOST if self.lost and self._standing is FOLLOWED else self._standing

    @property
    def file(self) -> Path | None:
        return None

    def poll(self) -> Iterator[Line]:
        for _ in range(MOST_RECORDS if self._fd >= 0 else 0):
            try:
                data = os.read(self._fd, RECORD_BYTES)
            except BlockingIOError:
                return
            except BrokenPipeError:  # overwritten: the next read gives the oldest that is left
                self.lost += 1
                continue
            except OSError as error:
                self._standing = why(error)
                self.close()
                return
            if not data:
                return
            for text in self._splitter.feed(data):
                record = _RECORD.match(text)  # what begins with a blank belongs to the record before: SUBSYSTEM=, DEVICE=
                if record:
                    yield Line(record["text"], int(record["number"]))

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def _open(self) -> None:
        try:
            self._fd = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except OSError as error:
            self._standing = why(error)
            return
        with contextlib.suppress(OSError):
            os.lseek(self._fd, 0, os.SEEK_END)
        self._standing = FOLLOWED


class Pids:
    """Which engine a process belongs or belonged to: the kernel names a process that is gone when its line is read."""

    def __init__(self, proc: Path = procfs.PROC) -> None:
        self._proc = proc
        self._engines: OrderedDict[int, str] = OrderedDict()
        self._started: dict[int, str] = {}  # of those that were seen to live: a pid is given anew to others

    def add(self, pid: int, engine: str) -> None:
        stat = procfs.stat(pid, self._proc)
        if stat is not None:
            self._started[pid] = stat.started
        self._engines[pid] = engine
        self._engines.move_to_end(pid)
        while len(self._engines) > MOST_PIDS:
            gone, _ = self._engines.popitem(last=False)
            self._started.pop(gone, None)

    def engine_of(self, pid: int) -> str | None:
        """The engine of a process that lives; None where the pid is another's by now."""
        engine = self._engines.get(pid)
        stat = procfs.stat(pid, self._proc) if engine is not None else None
        return engine if stat is not None and stat.started == self._started.get(pid) else None

    def living(self) -> list[tuple[int, str]]:
        """Those of all engines that live."""
        return [(pid, engine) for pid in list(self._engines) if (engine := self.engine_of(pid)) is not None]

    def engine_in(self, text: str) -> str | None:
        """The engine of the process that a kernel line names; None where it names none of ours."""
        match = _PID.search(text)
        return self._engines.get(int(match[1])) if match else None


class KernelFollower:
    """Sends the lines that the kernel dialect knows a meaning of, dated by their receipt: the kernel's own clock drifts by minutes."""

    def __init__(self, exporter: Exporter, source: Kmsg, pids: Pids, clock_ns: Callable[[], int]) -> None:
        self._exporter, self._source, self._pids, self._clock_ns = exporter, source, pids, clock_ns
        self._anchors = tuple(anchor for pattern in load()[KIND].events for anchor in pattern.anchors)

    def follow(self) -> None:
        for line in self._source.poll():
            if not any(anchor in line.text for anchor in self._anchors):
                continue
            attributes: dict[str, Value | None] = {
                conventions.ENGINE: self._pids.engine_in(line.text),
                conventions.ENGINE_KIND: KIND,
                conventions.LOG_FILE: str(PATH),
                conventions.LOG_LINE: line.number,
            }
            self._exporter.event(
                conventions.EVENT_ENGINE_LOG, at_ns=self._clock_ns(), attributes=attributes, severity="critical", body=scrub(line.text)
            )
