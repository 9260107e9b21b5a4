"""Whether an engine's process and its children live: one event when each is first seen and one when it goes."""

import logging
import os
import socket
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final
from urllib.parse import urlsplit

import psutil

from lensd_collectors import conventions
from lensd_collectors.export import Exporter
from lensd_collectors.host.engine import Engine
from lensd_collectors.host.kmsg import Pids
from lensd_collectors.host.lifecycle import LifeWatch
from lensd_collectors.host.line import FOLLOWED, Standing, State

log = logging.getLogger("lensd.agent")

TOLD_WITHIN_S: Final = 2.0  # who runs an engine is waited for to say how it ended

CHILDREN: Final[dict[str, str]] = {"vllm": "VLLM::"}
"""How the titles of the children that an engine can't live without begin, by its kind; others' children are not watched."""

RUNNING, EXITED = "running", "exited"
EXECUTABLE_NAME: Final = "process.executable.name"
CREATED_AT: Final = "process.creation.time"
WILDCARDS: Final = frozenset({"0.0.0.0", "::", ""})


def is_local(host: str) -> bool:
    """True if the name or address is this host's; False where that can't be told."""
    if host in ("localhost", "::1") or host.startswith("127."):
        return True
    own = {address.address.partition("%")[0] for addresses in psutil.net_if_addrs().values() for address in addresses}
    try:
        return any(info[4][0] in own for info in socket.getaddrinfo(host, None))
    except OSError:
        return False


def listener(host: str, port: int) -> psutil.Process | None:
    """The process that listens on the port, the parent where several share the socket; None where none can be seen."""
    try:
        connections = psutil.net_connections("tcp")
    except (psutil.Error, OSError):
        return None
    listening = [
        (each.laddr.ip, each.pid) for each in connections if each.status == psutil.CONN_LISTEN and each.laddr and each.laddr.port == port
    ]
    owned = [(address, pid) for address, pid in listening if pid]
    pids = {pid for address, pid in owned if address == host} or {pid for address, pid in owned if _may_be(address, host)}
    found = [process for process in map(_process, sorted(pids)) if process is not None]
    for process in found:
        try:
            if process.ppid() not in pids:
                return process
        except psutil.Error:
            continue
    return found[0] if found else None


def _may_be(address: str, host: str) -> bool:
    return address in WILDCARDS or (host == "localhost" and (address == "::1" or address.startswith("127.")))


def _process(pid: int) -> psutil.Process | None:
    try:
        return psutil.Process(pid)
    except psutil.Error:
        return None


def exit_code(pid: int) -> int | None:
    """Exit status of an ended process whose end nobody has collected yet, negative for a signal; None where it can't be known.

    The end is looked at and left for the parent to collect.
    """
    try:
        ended = os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except OSError:
        return _zombie_code(pid)
    if ended is None:
        return None
    return ended.si_status if ended.si_code == os.CLD_EXITED else -ended.si_status


def _zombie_code(pid: int) -> int | None:
    """The wait status that the kernel shows of another's zombie; 0 is also shown to those who may not see it, so it says nothing."""
    try:
        with open(f"/proc/{pid}/stat", encoding="utf-8", errors="replace") as file:
            fields = file.read().rpartition(")")[2].split()
    except OSError:
        return None
    if len(fields) < 50 or fields[0] not in ("Z", "X") or not fields[49].isdigit() or fields[49] == "0":
        return None
    return os.waitstatus_to_exitcode(int(fields[49]))


class _Watched:
    """A process that has been announced."""

    def __init__(self, process: psutil.Process, name: str) -> None:
        self.process, self.name = process, name

    def gone(self) -> bool:
        """True also for a zombie, and for another process that got the pid."""
        try:
            return not self.process.is_running() or self.process.status() == psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return True
        except psutil.Error:
            return False


class ProcessWatch:
    """Watches one engine's process; call `look` often (what is known is cheap) with `search` now and then (what is not is not).

    `life`: who runs the engine, and knows its exit status where we may not see it: an end that they tell is theirs alone to tell.
    """

    def __init__(
        self,
        engine: Engine,
        exporter: Exporter,
        clock_ns: Callable[[], int],
        *,
        life: LifeWatch | None = None,
        pids: Pids | None = None,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine, self._exporter, self._clock_ns, self._clock_s = engine, exporter, clock_ns, clock_s
        self._life, self._pids = life, pids
        self._ended: tuple[_Watched, int, float] | None = None  # gone, ends that had been told before, when to tell it ourselves
        self._ends_told = 0
        self.standing = FOLLOWED
        self._main: _Watched | None = None
        self._children: dict[int, _Watched] = {}
        self._pid_given = engine.pid
        self._host = urlsplit(engine.url).hostname or engine.host
        self._local = bool(engine.pid) or is_local(self._host)
        self._told = False

    def search(self) -> None:
        """Finds the process, and children that have come since."""
        if not self._local:
            self._missing("runs on another host", f"engine {self._engine.name} runs on another host: its process is not watched")
            return
        if self._main is None:
            self._find_main()
        prefix = CHILDREN.get(self._engine.kind)
        if self._main is None or prefix is None:
            return
        try:
            children = self._main.process.children(recursive=True)
        except psutil.Error:
            return
        for child in children:
            name = _title(child)
            if child.pid not in self._children and name.startswith(prefix):
                self._children[child.pid] = self._announce(child, name)

    def look(self) -> None:
        """Says which of the known processes have gone, children before the engine itself."""
        for pid, child in list(self._children.items()):
            if child.gone():
                del self._children[pid]
                self._say(child, EXITED)
        if self._main is not None and self._main.gone():
            ended, self._main = self._main, None
            if self._life is None or self._life.standing is not FOLLOWED:
                self._say(ended, EXITED)
            else:
                self._ended = ended, self._ends_told, self._clock_s() + TOLD_WITHIN_S
        if self._ended is not None and self._life is not None:
            self._ask_how(self._life, *self._ended)

    def _ask_how(self, life: LifeWatch, ended: _Watched, told_before: int, until_s: float) -> None:
        """Leaves it to who runs the engine to tell its end, who is asked at each look until they do; tells it ourselves after a while."""
        if life.ends == told_before:
            life.poll()
        if life.ends > told_before:
            self._ended, self._ends_told = None, life.ends
        elif self._clock_s() >= until_s or life.standing is not FOLLOWED:
            self._ended = None
            self._say(ended, EXITED)

    def _find_main(self) -> None:
        process = _process(self._pid_given) if self._pid_given else listener(self._host, self._engine.port)
        self._pid_given = 0  # a restarted engine has another: it is found by its port
        if process is None:
            reason = f"no process that this user can see listens on port {self._engine.port}"
            self._missing(reason, f"{reason}: engine {self._engine.name} is not watched yet")
            return
        watched = _Watched(process, _title(process))
        if not watched.gone():
            self._main = self._announce(process, watched.name)
            self.standing = FOLLOWED
            self._ends_told = self._life.ends if self._life is not None else 0

    def _announce(self, process: psutil.Process, name: str) -> _Watched:
        watched = _Watched(process, name)
        if self._pids is not None:
            self._pids.add(process.pid, self._engine.name)
        self._say(watched, RUNNING)
        return watched

    def _say(self, watched: _Watched, state: str) -> None:
        process = watched.process
        created = datetime.fromtimestamp(process.create_time(), UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        attributes = {
            **self._engine.attributes,
            conventions.PROCESS_PID: process.pid,
            conventions.PROCESS_STATE: state,
            conventions.PROCESS_EXIT: exit_code(process.pid) if state == EXITED else None,
            EXECUTABLE_NAME: watched.name,
            CREATED_AT: created,
        }
        severity = "info" if state == RUNNING else "warning"
        self._exporter.event(conventions.EVENT_ENGINE_PROCESS, at_ns=self._clock_ns(), attributes=attributes, severity=severity)

    def _missing(self, reason: str, text: str) -> None:
        self.standing = Standing(State.MISSING, reason)
        if not self._told:
            log.info(text)
            self._told = True


def _title(process: psutil.Process) -> str:
    """The title a process gave itself, else the name of what it runs; "" where it can't be seen."""
    try:
        command = process.cmdline()
        title = command[0] if command else ""
        return title.partition(" ")[0] if title.startswith("VLLM::") else process.name()
    except psutil.Error:
        return ""
