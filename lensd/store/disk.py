"""The few things the journal and the undo records ask of a disk, so that a faulty one can stand in for it in tests."""

import contextlib
import os
from pathlib import Path
from typing import Protocol


class Disk(Protocol):
    """Every method raises OSError when it fails."""

    def make_folder(self, folder: Path) -> None: ...
    def names(self, folder: Path) -> list[str]: ...
    def create(self, path: Path) -> int:
        """A handle for appending to a file that must not exist yet."""
        ...

    def open(self, path: Path) -> int:
        """A handle for reading and writing in place."""
        ...

    def append(self, handle: int, data: bytes) -> None:
        """All of `data` at the end of the file; after an error any part of it may be there."""
        ...

    def read_at(self, handle: int, offset: int, size: int) -> bytes:
        """At most `size` bytes; fewer only at the end of the file."""
        ...

    def write_at(self, handle: int, offset: int, data: bytes) -> None:
        """All of `data` over what is there; after an error any part of it may be there."""
        ...

    def sync(self, handle: int) -> None:
        """What was written survives a crash once this returns."""
        ...

    def cut(self, handle: int, size: int) -> None: ...
    def close(self, handle: int) -> None: ...
    def sync_folder(self, folder: Path) -> None:
        """New and removed names survive a crash once this returns."""
        ...

    def size(self, path: Path) -> int: ...
    def read(self, path: Path, offset: int, size: int) -> bytes:
        """At most `size` bytes; fewer only at the end of the file."""
        ...

    def remove(self, path: Path) -> None: ...


class RealDisk:
    """The operating system's files, readable by their owner only."""

    def make_folder(self, folder: Path) -> None:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def names(self, folder: Path) -> list[str]:
        return sorted(os.listdir(folder))

    def create(self, path: Path) -> int:
        return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC, 0o600)

    def open(self, path: Path) -> int:
        return os.open(path, os.O_RDWR | os.O_CLOEXEC)

    def append(self, handle: int, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(handle, view) :]

    def read_at(self, handle: int, offset: int, size: int) -> bytes:
        parts: list[bytes] = []
        while size > 0 and (part := os.pread(handle, size, offset)):
            parts.append(part)
            size, offset = size - len(part), offset + len(part)
        return b"".join(parts)

    def write_at(self, handle: int, offset: int, data: bytes) -> None:
        view = memoryview(data)
        while view:
            written = os.pwrite(handle, view, offset)
            view, offset = view[written:], offset + written

    def sync(self, handle: int) -> None:
        os.fdatasync(handle)

    def cut(self, handle: int, size: int) -> None:
        os.ftruncate(handle, size)

    def close(self, handle: int) -> None:
        os.close(handle)

    def sync_folder(self, folder: Path) -> None:
        handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)

    def size(self, path: Path) -> int:
        return path.stat().st_size

    def read(self, path: Path, offset: int, size: int) -> bytes:
        with path.open("rb", buffering=0) as file:
            file.seek(offset)
            parts: list[bytes] = []
            while size > 0 and (part := file.read(size)):
                parts.append(part)
                size -= len(part)
        return b"".join(parts)

    def remove(self, path: Path) -> None:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()
