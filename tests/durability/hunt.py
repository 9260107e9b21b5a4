"""Kills the prey inside a phase, which its own words prove, and counts what is left of what it had acknowledged."""

import random
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from killed import decode

from lensd.store.folder import FolderStore
from lensd.store.journal import Scan
from lensd.store.undo import SUFFIX
from lensd.store.writer import replay

PREY: Final = Path(__file__).with_name("prey.py")
PHASES: Final = ("append", "commit", "checkpoint", "roll_over", "replay")
MOST_BEFORE: Final = {
    "append": 40,
    "commit": 4,
    "checkpoint": 2,
    "roll_over": 3,
    "replay": 1,
}  # phases of the kind that are let pass at most
BACKLOG: Final = 160  # records that a replay has to store at least
FOLDER_KILLS: Final = 20  # then a new folder, so that opening and counting stay quick
PATIENCE_S: Final = 60.0


@dataclass
class Hunt:
    """What has been killed where, and the acknowledged numbers of each folder."""

    chance: random.Random
    kills: Counter[str] = field(default_factory=Counter)  # by the phase that was meant and was open
    missed: Counter[str] = field(default_factory=Counter)  # by the phase that was meant and had just ended
    cut_short: int = 0  # kills that left the undo record of a checkpoint
    acknowledged: int = 0
    lost: list[int] = field(default_factory=list)
    doubled: list[int] = field(default_factory=list)
    seconds: dict[str, list[float]] = field(default_factory=lambda: defaultdict(lambda: [0.001]))  # how long phases took

    @property
    def total(self) -> int:
        return self.kills.total() + self.missed.total()

    def figures(self) -> str:
        inside = ", ".join(f"{phase} {self.kills[phase]}" for phase in PHASES)
        return (
            f"{self.total} kills -9, inside: {inside}; between phases: {self.missed.total()}; undo records left: {self.cut_short}; "
            f"acknowledged {self.acknowledged}, lost {len(self.lost)}, doubled {len(self.doubled)}"
        )


class Folder:
    """One store that lives through many kills."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.acknowledged: list[int] = []
        self.next = 0

    def count(self) -> Counter[int]:
        """How often each number is in the store and the journal, as a reader without a daemon sees it."""
        store = FolderStore(self.path / "store", read_only=True)
        try:
            bad: list[object] = []
            replay(store, Scan(self.path / "journal", store.position()), decode, lambda record, error: bad.append(error))
            assert not bad
            with store.cursor() as cursor:
                return Counter(int(name) for (name,) in cursor.execute("SELECT name FROM spans").fetchall())
        finally:
            store.close()


def hunt(found: Hunt, folder: Folder, phase: str) -> None:
    """One kill inside `phase` and one count afterwards."""
    if phase == "replay":
        with _running(folder, "feed") as prey:
            found.acknowledged += _until_fed(prey, folder)
    with _running(folder, "write") as prey:
        is_inside = _kill_inside(found, prey, folder, phase)
    (found.kills if is_inside else found.missed)[phase] += 1
    found.cut_short += any((folder.path / "store").glob(f"*{SUFFIX}"))
    there = folder.count()
    found.lost += [number for number in folder.acknowledged if not there[number]]
    found.doubled += [number for number, times in there.items() if times > 1]
    folder.next = max(there, default=folder.next) + 1000


def _kill_inside(found: Hunt, prey: "subprocess.Popen[bytes]", folder: Folder, phase: str) -> bool:
    """Whether the phase had begun and not ended when the process died."""
    passes, began, before = found.chance.randrange(MOST_BEFORE[phase]), 0.0, len(folder.acknowledged)
    for line in _lines(prey):
        if line == f"+{phase}":
            began = time.monotonic()
            if passes == 0:
                break
            passes -= 1
        elif line == f"-{phase}":
            found.seconds[phase].append(time.monotonic() - began)
        elif line.isdigit():
            folder.acknowledged.append(int(line))
    # Where inside the phase is left to chance; that it was inside is read from what the process still said.
    times = sorted(found.seconds[phase])
    time.sleep(found.chance.random() * times[len(times) // 2])
    prey.kill()
    is_inside = True
    for line in _lines(prey):
        if line == f"-{phase}":
            is_inside = False
        elif line == f"+{phase}":
            is_inside = True
        elif line.isdigit():
            folder.acknowledged.append(int(line))
    found.acknowledged += len(folder.acknowledged) - before
    return is_inside


def _until_fed(prey: "subprocess.Popen[bytes]", folder: Folder) -> int:
    """Let it acknowledge a backlog, then kill it; how many it acknowledged."""
    fed = 0
    for line in _lines(prey):
        if line.isdigit():
            folder.acknowledged.append(int(line))
            fed += 1
        if fed == BACKLOG:
            prey.kill()
    folder.next = max(folder.acknowledged) + 1000
    return fed


def _lines(prey: "subprocess.Popen[bytes]") -> Iterator[str]:
    assert prey.stdout is not None
    while line := prey.stdout.readline():
        yield line.decode().strip()


@contextmanager
def _running(folder: Folder, mode: str) -> Iterator["subprocess.Popen[bytes]"]:
    folder.path.mkdir(exist_ok=True)
    command = [sys.executable, str(PREY), str(folder.path), str(folder.next), mode]
    with (folder.path / "prey.log").open("ab") as log, subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log) as prey:
        try:
            yield prey
        finally:
            prey.kill()
            assert prey.wait(PATIENCE_S) == -9, (folder.path / "prey.log").read_text()[-2000:]
