"""Whose the processes are that a driver names: their names, and which of our engines they belong to."""

from pathlib import Path
from typing import Final, NamedTuple

from lensd_collectors.host import procfs
from lensd_collectors.host.kmsg import Pids
from lensd_collectors.host.line import FOLLOWED, Standing, State

MOST_ANCESTORS: Final = 32
FOREIGN: Final = Standing(State.MISSING, "the driver gives PIDs of the host, which this container can't see: start it with the host's PIDs")
UNTOLD: Final = Standing(State.MISSING, "the driver does not tell which processes hold memory")


class Owner(NamedTuple):
    """What is known of a process; None: not known."""

    process: str | None = None
    engine: str | None = None


class _Known(NamedTuple):
    started: str
    owner: Owner


class Owners:
    """Looks up processes by the PIDs that a driver gives. A name is never guessed: another process may have that PID here."""

    def __init__(self, pids: Pids, proc: Path = procfs.PROC) -> None:
        self._pids, self._proc = pids, proc
        self._trusted = procfs.sees_hosts_pids(proc)
        self._known: dict[int, _Known] = {}

    def of(self, pid: int, *, again: bool) -> Owner:
        """Nothing known of a process that can't be seen from here; `again`: also where it was looked up before."""
        known = self._known.get(pid)
        if known is not None and not again:
            return known.owner
        stat = procfs.stat(pid, self._proc)
        if stat is None or not (self._trusted or procfs.holds_gpu(pid, self._proc)):
            known = _Known("", Owner())
        elif known is None or known.started != stat.started or known.owner.engine is None:
            known = _Known(stat.started, Owner(procfs.name(pid, self._proc), self._engine(pid)))
            if known.owner.engine is not None:
                self._pids.add(pid, known.owner.engine)
        self._known[pid] = known
        return known.owner

    def keep(self, pids: frozenset[int]) -> None:
        """Forgets all others."""
        self._known = {pid: known for pid, known in self._known.items() if pid in pids}

    def _engine(self, pid: int) -> str | None:
        """That of the process itself or the nearest of those it descends from: workers are children of what is watched."""
        for _ in range(MOST_ANCESTORS):
            engine = self._pids.engine_of(pid)
            if engine is not None:
                return engine
            stat = procfs.stat(pid, self._proc)
            if stat is None or stat.parent <= 1:
                return None
            pid = stat.parent
        return None


def standing(told: list[tuple[int, Owner]] | None) -> Standing:
    """How it is with the processes of all cards; None: no card tells any."""
    if told is None:
        return UNTOLD
    return FOREIGN if told and all(owner.process is None for _, owner in told) else FOLLOWED
