"""A file system of its own with little room, where this machine lets a test mount one."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_PIECE: Final = 1 << 18


class SmallDisk:
    """`fill` leaves a given number of bytes free, `free` gives them back."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._ballast = folder / "ballast"

    def free_bytes(self) -> int:
        found = subprocess.run(["stat", "-f", "-c", "%a %S", str(self.folder)], capture_output=True, text=True, check=True)
        blocks, size = map(int, found.stdout.split())
        return blocks * size

    def fill(self, leaving: int) -> None:
        with self._ballast.open("ab", buffering=0) as file:
            while self.free_bytes() > leaving + _PIECE:  # others write meanwhile
                file.write(b"\0" * _PIECE)

    def free(self) -> None:
        self._ballast.unlink()


@contextmanager
def small_disk(folder: Path, megabytes: int) -> Iterator[SmallDisk | None]:
    """A mounted file system, unmounted at the end; None where mounting is not allowed."""
    folder.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={megabytes}m", "tmpfs", str(folder)], capture_output=True, check=False)
    if mounted.returncode != 0:
        yield None
        return
    try:
        yield SmallDisk(folder)
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)
