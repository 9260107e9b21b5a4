"""Log of a Kubernetes container as the kubelet keeps it on its node: each instance has a file, and the next one follows it."""

import os
import re
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, NamedTuple

from lensd_collectors.host.line import Line, Standing, State
from lensd_collectors.host.tail import Tail

ROOT: Final = Path("/var/log/pods")
LOOK_EVERY_S: Final = 1.0
PREVIOUS_BYTES: Final = 256 * 1024  # of the log of the instance that ended before the present one
MOST_INSTANCES: Final = 16  # that are caught up with
_FILE: Final = re.compile(r"(\d+)\.log")


class Container(NamedTuple):
    namespace: str
    pod: str
    name: str

    def __str__(self) -> str:
        return f"pod:{self.namespace}/{self.pod}/{self.name}"


class _Instance(NamedTuple):
    changed_ns: int  # of the pod's newest log: a pod made anew under the same name has another folder
    folder: str
    number: int

    @property
    def path(self) -> Path:
        return Path(self.folder) / f"{self.number}.log"


class PodLog:
    """The lines of instance after instance. Where the container was started again before we came, the end of the log of the
    instance before is given first: that is where it says what it died of."""

    def __init__(self, container: Container, max_lines_per_s: int, clock_s: Callable[[], float], *, root: Path = ROOT) -> None:
        self._container, self._rate, self._clock_s, self._root = container, max_lines_per_s, clock_s, root
        self._tail: Tail | None = None
        self._now: Path | None = None  # the present instance's log
        self._next: deque[tuple[Path, Tail]] = deque()
        self._looked_at = clock_s() - LOOK_EVERY_S
        self._standing = Standing(State.MISSING)
        self._look(first=True)

    @property
    def standing(self) -> Standing:
        return self._tail.standing if self._tail is not None else self._standing

    @property
    def file(self) -> Path | None:
        return self._next[-1][0] if self._next else self._now

    def poll(self) -> Iterator[Line]:
        if self._clock_s() - self._looked_at >= LOOK_EVERY_S:
            self._look(first=False)
        for _ in range(1 + len(self._next)):
            if self._tail is not None:
                given = 0
                for line in self._tail.poll():
                    given += 1
                    yield self._named(line)
                if given or not self._next:
                    return  # the next one's turn comes when this one has no more
                for line in self._tail.finish():
                    yield self._named(line)
                self._tail.close()
                self._tail = None
            if not self._next:
                return
            self._now, self._tail = self._next.popleft()

    def close(self) -> None:
        for tail in (self._tail, *(each for _, each in self._next)):
            if tail is not None:
                tail.close()

    def _open(self, path: Path, back_bytes: int | None) -> None:
        self._next.append((path, Tail(path, self._rate, self._clock_s, back_bytes=back_bytes)))

    def _named(self, line: Line) -> Line:
        return Line(line.text, line.number, str(self._now))

    def _look(self, *, first: bool) -> None:
        self._looked_at = self._clock_s()
        instances = self._instances()
        if not instances:
            return
        newest = instances[-1]
        known = self._next[-1][0] if self._next else self._now
        if known == newest.path:
            return
        own = [each for each in instances if each.folder == newest.folder]
        if first:
            for each in own[-2:-1]:
                self._open(each.path, PREVIOUS_BYTES)
            self._open(newest.path, 0)
            return
        for each in own[-MOST_INSTANCES:]:
            if known is None or str(known.parent) != each.folder or each.number > _number(known):
                self._open(each.path, None)

    def _instances(self) -> list[_Instance]:
        """Oldest first; empty where there is none or none can be seen, which `standing` then says."""
        found: list[_Instance] = []
        where = f"no log of {self._container} below {self._root}"
        try:
            pods = [each for each in os.scandir(self._root) if each.name.startswith(f"{self._container.namespace}_{self._container.pod}_")]
            for pod in pods:
                found += _of(Path(pod.path) / self._container.name)
            self._standing = Standing(State.MISSING, where)
        except PermissionError as error:
            self._standing = Standing(State.DENIED, f"{error.filename}: permission denied")
        except OSError:
            self._standing = Standing(State.MISSING, where)
        return sorted(found)


def _of(folder: Path) -> list[_Instance]:
    try:
        files = [(int(match[1]), each.stat().st_mtime_ns) for each in os.scandir(folder) if (match := _FILE.fullmatch(each.name))]
    except FileNotFoundError:
        return []
    newest = max((changed for _, changed in files), default=0)
    return [_Instance(newest, str(folder), number) for number, _ in files]


def _number(path: Path) -> int:
    match = _FILE.fullmatch(path.name)
    return int(match[1]) if match else -1
