"""A process group of the bench: started on its core, what it has used, ended whatever happens."""

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

TICKS_A_SECOND: Final = os.sysconf("SC_CLK_TCK")
PAGE: Final = os.sysconf("SC_PAGE_SIZE")
GRACE_S: Final = 8.0

# Fields of /proc/PID/stat after the command's name, see proc(5).
_GROUP, _USER_TICKS, _SYSTEM_TICKS, _RESIDENT = 2, 11, 12, 21


class BenchError(Exception):
    """Something cannot be measured; one line that says what and why."""


class Group:
    """A process and all it starts, on one core or, with None, wherever there is room."""

    def __init__(self, name: str, command: Sequence[str], core: int | None, log: Path, *, cwd: Path | None = None,
                 env: Mapping[str, str] | None = None, talks: bool = False) -> None:  # fmt: skip
        self.name, self._log = name, log
        pipe = subprocess.PIPE if talks else None
        with log.open("wb") as said:
            self.process = subprocess.Popen(
                command, stdin=pipe or subprocess.DEVNULL, stdout=pipe or said, stderr=said, cwd=cwd, env=env, process_group=0,
                preexec_fn=None if core is None else lambda: os.sched_setaffinity(0, {core}),  # inherited by all it starts
            )  # fmt: skip

    def check(self) -> None:
        """Raises BenchError with its last words where it has ended."""
        if self.process.poll() is not None:
            raise BenchError(f"{self.name} ended with {self.process.returncode}: {self.last_words()}")

    def last_words(self) -> str:
        lines = [line.strip() for line in self._log.read_text(errors="replace").splitlines() if line.strip()]
        return lines[-1] if lines else "without a word"

    def cpu_us(self) -> float:
        """Processor time of all its threads so far, in microseconds."""
        return sum(int(stat[_USER_TICKS]) + int(stat[_SYSTEM_TICKS]) for stat in self._stats()) * 1e6 / TICKS_A_SECOND

    def resident_bytes(self) -> int:
        return sum(int(stat[_RESIDENT]) * PAGE for stat in self._stats())

    def end(self) -> None:
        if self.process.stdin is not None:
            self.process.stdin.close()
        self._signal(signal.SIGTERM)
        try:
            self.process.wait(GRACE_S)
        except subprocess.TimeoutExpired:
            pass
        finally:
            self._signal(signal.SIGKILL)  # also to what it left behind in its group
            self.process.wait()

    def _signal(self, number: int) -> None:
        try:
            os.killpg(self.process.pid, number)
        except ProcessLookupError:
            return

    def _stats(self) -> Iterator[list[str]]:
        for place in Path("/proc").iterdir():
            if place.name.isdigit():
                try:
                    stat = (place / "stat").read_text().rpartition(")")[2].split()
                except OSError:  # ended meanwhile
                    continue
                if int(stat[_GROUP]) == self.process.pid:
                    yield stat
