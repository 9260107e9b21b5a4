"""Where a process's output goes, told from /proc alone: a file, a unit's journal, a container's log, a terminal, a pipe.

Read from outside, as whoever asks may read it; nothing is opened but what /proc shows.
"""

import os
import re
import stat
from enum import StrEnum
from pathlib import Path
from typing import Final

import msgspec

PROC: Final = Path("/proc")
PODS: Final = Path("/var/log/pods")
_UNIT: Final = re.compile(r"/(?!user@)([^/]+\.service)(?=/|$)")
_CONTAINER: Final = re.compile(r"(?:^|[/:-])([0-9a-f]{64})(?:\.scope)?(?=/|$)", re.MULTILINE)
_POD: Final = re.compile(r"pod([0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12})")
_NAME_CHARS: Final = 12  # of a container's id, as docker shows it


class PlaceKind(StrEnum):
    FILE = "file"
    JOURNALD = "journald"
    DOCKER = "docker"
    POD = "pod"
    TERMINAL = "terminal"
    PIPE = "pipe"  # to another process, which may write it anywhere
    NOWHERE = "nowhere"  # /dev/null
    UNKNOWN = "unknown"


class Place(msgspec.Struct, frozen=True):
    """`spec` is what `log` of `[[agent.engines]]` takes for it, "" where it takes nothing; `why` then says why."""

    kind: PlaceKind
    spec: str = ""
    why: str = ""


def place_of(pid: int, proc: Path = PROC, pods: Path = PODS) -> Place:
    """Where standard output of the process goes, else standard error: the one that somebody can read."""
    found = [_of_stream(pid, number, proc, pods) for number in (1, 2)]
    return next((place for place in found if place.spec), found[0])


def _of_stream(pid: int, number: int, proc: Path, pods: Path) -> Place:
    link = proc / str(pid) / "fd" / str(number)
    try:
        target = os.readlink(link)
    except OSError as error:
        return Place(PlaceKind.UNKNOWN, why=f"/proc/{pid}/fd cannot be read here ({(error.strerror or 'no such process').lower()})")
    if target == "/dev/null":
        return Place(PlaceKind.NOWHERE, why="its output goes to /dev/null")
    if target.startswith(("/dev/pts/", "/dev/tty", "/dev/console")):
        return Place(PlaceKind.TERMINAL, why="its output goes to a terminal")
    if target.startswith(("pipe:", "socket:")):
        return _of_pipe(pid, target.startswith("socket:"), proc, pods)
    return _of_file(link, target)


def _of_file(link: Path, target: str) -> Place:
    """A file by its name, where that names the same file here: a container has names of its own."""
    try:
        named = os.stat(target)
        same, is_file = os.path.samestat(os.stat(link), named), stat.S_ISREG(named.st_mode)
    except OSError:
        same = is_file = False
    if not target.startswith("/") or not same:
        return Place(PlaceKind.FILE, why=f"its output goes to {target}, which is not to be had under that name here")
    if not is_file:
        return Place(PlaceKind.FILE, why=f"its output goes to {target}, which is no regular file")
    if not os.access(target, os.R_OK):
        return Place(PlaceKind.FILE, why=f"its output goes to {target}, which this user may not read")
    return Place(PlaceKind.FILE, spec=target)


def _of_pipe(pid: int, is_socket: bool, proc: Path, pods: Path) -> Place:
    """By the process's cgroup: container runtimes take output by a pipe, systemd by a socket."""
    try:
        groups = (proc / str(pid) / "cgroup").read_text(encoding="utf-8", errors="replace")
    except OSError:
        groups = ""
    container = _CONTAINER.search(groups)
    if pod := _POD.search(groups):
        return _of_pod(pod[1].replace("_", "-"), container[1] if container else "", pods)
    if container:
        return Place(PlaceKind.DOCKER, spec=f"docker:{container[1][:_NAME_CHARS]}")
    units = _UNIT.findall(groups)
    if is_socket and units:
        return Place(PlaceKind.JOURNALD, spec=f"journald:{units[-1]}")
    return Place(PlaceKind.PIPE, why="its output goes through a pipe to another process")


def _of_pod(uid: str, container: str, pods: Path) -> Place:
    """The pod whose folder of logs bears the uid; its container, where there is but one or one's log is named after its id."""
    try:
        folder = next(iter(sorted(pods.glob(f"*_*_{uid}"))), None)
        inside = sorted(each.name for each in folder.iterdir() if each.is_dir()) if folder is not None else []
    except OSError:
        folder, inside = None, []
    if folder is None:
        return Place(PlaceKind.POD, why=f"it runs in the pod {uid}, whose log is not under {pods} here")
    namespace, name, _ = folder.name.split("_", 2)
    named = [each for each in inside if container and _logs_of(folder / each, container)]
    chosen = (named or inside) if len(named or inside) == 1 else []
    if not chosen:
        return Place(PlaceKind.POD, why=f"it runs in the pod {namespace}/{name}, in one of {', '.join(inside) or 'no container'}")
    return Place(PlaceKind.POD, spec=f"pod:{namespace}/{name}/{chosen[0]}")


def _logs_of(folder: Path, container: str) -> bool:
    """Whether a log in the folder points at a file that bears the container's id."""
    try:
        return any(container in os.readlink(each) for each in folder.iterdir() if each.is_symlink())
    except OSError:
        return False
