"""What /proc tells of processes and of the host's memory; None wherever it tells nothing to this user."""

import os
from pathlib import Path
from typing import Final, NamedTuple

PROC: Final = Path("/proc")
PAGE_BYTES: Final = os.sysconf("SC_PAGE_SIZE")
COMM_CHARS: Final = 15  # of a process's name are kept by the kernel
_HOSTS_PIDS: Final = "pid:[4026531836]"  # the first PID namespace has this inode in every kernel: PROC_PID_INIT_INO, linux/proc_ns.h


class Stat(NamedTuple):
    parent: int
    started: str  # ticks since boot: tells a process from a later one that got its pid


class HostMemory(NamedTuple):
    total_bytes: int
    available_bytes: int  # what can be had without swapping


def stat(pid: int, proc: Path = PROC) -> Stat | None:
    try:
        fields = _read(f"{proc}/{pid}/stat").rpartition(")")[2].split()
    except OSError:
        return None
    return Stat(int(fields[1]), fields[19]) if len(fields) > 19 and fields[0] not in ("Z", "X") else None


def name(pid: int, proc: Path = PROC) -> str | None:
    """A process's name, without path and arguments: what it calls itself, where the kernel kept only the beginning."""
    try:
        comm = _read(f"{proc}/{pid}/comm").strip()
        if len(comm) < COMM_CHARS:
            return comm or None
        first = _read(f"{proc}/{pid}/cmdline").partition("\0")[0]
    except OSError:
        return None
    whole = first.partition(" ")[0].rpartition("/")[2]
    return whole if whole.startswith(comm) else comm


def resident_bytes(pid: int, proc: Path = PROC) -> int | None:
    try:
        return int(_read(f"{proc}/{pid}/statm").split()[1]) * PAGE_BYTES
    except (OSError, IndexError, ValueError):
        return None


def host_memory(proc: Path = PROC) -> HostMemory | None:
    found: dict[str, int] = {}
    try:
        for line in _read(f"{proc}/meminfo").splitlines():
            key, _, rest = line.partition(":")
            if key in ("MemTotal", "MemAvailable"):
                found[key] = int(rest.split()[0]) * 1024
    except (OSError, IndexError, ValueError):
        return None
    return HostMemory(found["MemTotal"], found["MemAvailable"]) if len(found) == 2 else None


def sees_hosts_pids(proc: Path = PROC) -> bool:
    """False inside a container that has PIDs of its own: a driver's PIDs are then those of other processes."""
    try:
        return os.readlink(f"{proc}/self/ns/pid") == _HOSTS_PIDS
    except OSError:
        return False


def holds_gpu(pid: int, proc: Path = PROC) -> bool:
    """Whether a process is seen to have an NVIDIA device open; False also where its files can't be seen."""
    try:
        with os.scandir(f"{proc}/{pid}/fd") as entries:
            return any(_target(entry.path).startswith("/dev/nvidia") for entry in entries)
    except OSError:
        return False


def _read(path: str) -> str:
    with open(path, encoding="utf-8", errors="replace") as file:
        return file.read()


def _target(path: str) -> str:
    try:
        return os.readlink(path)
    except OSError:
        return ""
