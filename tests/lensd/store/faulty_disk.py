"""A disk that fails when told to, and keeps what was written but not synced apart."""

import errno
from pathlib import Path

from lensd.store.disk import RealDisk


class FaultyDisk(RealDisk):
    """`fail` names the methods that raise from now on; a failing append leaves half of its data behind."""

    def __init__(self) -> None:
        self.fail: set[str] = set()
        self.syncs = 0

    def _check(self, method: str) -> None:
        if method in self.fail:
            raise OSError(errno.ENOSPC, "no space left on device")

    def create(self, path: Path) -> int:
        self._check("create")
        return super().create(path)

    def append(self, handle: int, data: bytes) -> None:
        if "append" in self.fail:
            super().append(handle, data[: len(data) // 2])
        self._check("append")
        super().append(handle, data)

    def sync(self, handle: int) -> None:
        self._check("sync")
        self.syncs += 1
        super().sync(handle)

    def cut(self, handle: int, size: int) -> None:
        self._check("cut")
        super().cut(handle, size)
