"""Processor time of processes by the scheduler's own count, in nanoseconds; the ticks of /proc/PID/stat are 10 ms each."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NewType

from gateway.process import BenchError

Pid = NewType("Pid", int)
Threads = Mapping[tuple[Pid, str], int]
"""Nanoseconds that each thread has run so far."""


def threads(pids: Iterable[int]) -> Threads:
    """Of all threads of these processes. Raises BenchError where the kernel keeps no such count."""
    found: dict[tuple[Pid, str], int] = {}
    for pid in pids:
        for task in _tasks(pid):
            try:
                found[Pid(pid), task.name] = int((task / "schedstat").read_text().split()[0])
            except FileNotFoundError:
                if (task / "stat").exists():
                    raise BenchError("this kernel does not count processor time by thread (no /proc/PID/task/TID/schedstat)") from None
            except ProcessLookupError:  # ended meanwhile
                continue
    return found


def spent_us(before: Threads, after: Threads, pid: int | None = None) -> float:
    """Microseconds between two counts, of one process or of all; what a thread used that ended between them is not known."""
    return sum(ran - before.get(thread, 0) for thread, ran in after.items() if pid in (None, thread[0])) / 1000


def _tasks(pid: int) -> list[Path]:
    try:
        return list(Path(f"/proc/{pid}/task").iterdir())
    except (FileNotFoundError, ProcessLookupError):
        return []
