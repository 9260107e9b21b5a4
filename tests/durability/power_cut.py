"""A disk in memory whose power fails: what was synced is there, of everything else any part is there, torn, or gone."""

import errno
import random
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

SECTOR: Final = 16  # small, so that a record spans several
PAGE: Final = 4096  # what a large write is torn into


@dataclass
class File:
    """`synced`: how many bytes are safe; `named`: whether the folder's entry is."""

    data: bytearray = field(default_factory=bytearray)
    synced: int = 0
    is_named: bool = False


class SimulatedDisk:
    """Implements `Disk`; once its power has failed (see `fail_after`) every operation raises OSError.

    Not safe: bytes appended or written over since the file's last sync, a cut since then, names made or removed since the folder's
    last sync.
    """

    def __init__(self) -> None:
        self.files: dict[Path, File] = {}
        self.removed: dict[Path, File] = {}  # since the folder's last sync
        self.cuts: dict[Path, bytearray] = {}  # what a file held before it was cut
        self.overwritten: dict[Path, list[tuple[int, bytes, bytes]]] = {}  # since its last sync: where, what was there, what is
        self._left: int | None = None  # operations until the power fails
        self._handles: dict[int, Path] = {}
        self._lock = threading.Lock()

    def fail_after(self, operations: int) -> None:
        self._left = operations

    def survivors(self, chance: random.Random) -> "SimulatedDisk":
        """The disk as the next start finds it."""
        left = SimulatedDisk()
        for path, file in self.files.items():
            if file.is_named or chance.random() < 0.5:
                left.files[path] = self._survivor(path, file, chance)
        for path, file in self.removed.items():
            if path not in left.files and chance.random() < 0.5:
                left.files[path] = File(bytearray(file.data[: file.synced]), file.synced, True)
        return left

    def _survivor(self, path: Path, file: File, chance: random.Random) -> File:
        data = self.cuts[path] if path in self.cuts and chance.random() < 0.5 else file.data
        kept, size = bytearray(data[: file.synced]), chance.randint(file.synced, max(file.synced, len(data)))
        for start in range(file.synced, size, SECTOR):
            sector = data[start : min(start + SECTOR, size)]
            state = chance.choice(("kept", "zero", "old", "kept"))
            kept += {"kept": sector, "zero": bytes(len(sector)), "old": chance.randbytes(len(sector))}[state]
        self._lose_overwritten(path, kept, chance)
        return File(kept, len(kept), True)

    def _lose_overwritten(self, path: Path, kept: bytearray, chance: random.Random) -> None:
        """Of each write any part may be lost; of what was written twice, the second may be there without the first."""
        for offset, before, _ in reversed(self.overwritten.get(path, [])):
            kept[offset : offset + len(before)] = before
        for offset, _, after in self.overwritten.get(path, []):
            share, piece = chance.choice((0.0, 0.5, 0.9, 1.0)), SECTOR if len(after) <= PAGE else PAGE
            for at in range(0, len(after), piece):
                if chance.random() < share:
                    kept[offset + at : offset + at + piece] = after[at : at + piece]

    def _step(self) -> None:
        if self._left is None:
            return
        self._left -= 1
        if self._left < 0:
            raise OSError(errno.EIO, "the power is gone")

    def make_folder(self, folder: Path) -> None:
        with self._lock:
            self._step()

    def names(self, folder: Path) -> list[str]:
        with self._lock:
            self._step()
            return sorted(path.name for path in self.files)

    def create(self, path: Path) -> int:
        with self._lock:
            self._step()
            if path in self.files:
                raise FileExistsError(path)
            self.files[path] = File()
            handle = len(self._handles)
            self._handles[handle] = path
            return handle

    def open(self, path: Path) -> int:
        with self._lock:
            self._step()
            self._at(path)
            handle = len(self._handles)
            self._handles[handle] = path
            return handle

    def read_at(self, handle: int, offset: int, size: int) -> bytes:
        return self.read(self._handles[handle], offset, size)

    def write_at(self, handle: int, offset: int, data: bytes) -> None:
        with self._lock:
            path = self._handles[handle]
            try:
                self._step()
            except OSError:
                self._write_over(path, offset, data[: len(data) // 2])  # it was being written
                raise
            self._write_over(path, offset, data)

    def _write_over(self, path: Path, offset: int, data: bytes) -> None:
        file = self._at(path)
        self.overwritten.setdefault(path, []).append((offset, bytes(file.data[offset : offset + len(data)]), data))
        file.data[offset : offset + len(data)] = data

    def append(self, handle: int, data: bytes) -> None:
        with self._lock:
            file = self.files[self._handles[handle]]
            try:
                self._step()
            except OSError:
                file.data += data[: len(data) // 2]  # it was being written
                raise
            file.data += data

    def sync(self, handle: int) -> None:
        with self._lock:
            self._step()
            path = self._handles[handle]
            self.files[path].synced = len(self.files[path].data)
            self.cuts.pop(path, None)
            self.overwritten.pop(path, None)

    def cut(self, handle: int, size: int) -> None:
        with self._lock:
            self._step()
            path = self._handles[handle]
            self.cuts.setdefault(path, bytearray(self.files[path].data))
            del self.files[path].data[size:]
            self.files[path].synced = min(self.files[path].synced, size)

    def close(self, handle: int) -> None:
        with self._lock:
            self._step()

    def sync_folder(self, folder: Path) -> None:
        with self._lock:
            self._step()
            for file in self.files.values():
                file.is_named = True
            self.removed.clear()

    def size(self, path: Path) -> int:
        with self._lock:
            self._step()
            return len(self._at(path).data)

    def read(self, path: Path, offset: int, size: int) -> bytes:
        with self._lock:
            self._step()
            return bytes(self._at(path).data[offset : offset + size])

    def remove(self, path: Path) -> None:
        with self._lock:
            self._step()
            if (file := self.files.pop(path, None)) and file.is_named:
                self.removed[path] = file

    def _at(self, path: Path) -> File:
        if path not in self.files:
            raise FileNotFoundError(path)
        return self.files[path]
