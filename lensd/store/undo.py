"""What a checkpoint of DuckDB writes over, kept beside the database file until the checkpoint is over: see docs/adr/022.

DuckDB 1.5 writes new metadata into free places of blocks that the file still stands on, and a block is torn by a kill inside its write.
So before a checkpoint the file's headers and all of its metadata blocks go into `<file>.undo`. The checkpoint is over once its header is
on the disk. Where it did not come so far, `settle` puts everything back; the log beside the file still holds what was to be written.

A record is `<magic><headers><number of blocks u32>`, a u64 a block for its id, the blocks, and the checksum of all of it, little endian.
"""

import hashlib
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from lensd.store.disk import Disk, RealDisk

SUFFIX: Final = ".undo"
BLOCK_BYTES: Final = 262_144
HEADER_BYTES: Final = 4_096
HEADERS_BYTES: Final = 3 * HEADER_BYTES
"""The main header, which is never written again, and two of which each checkpoint writes the older one."""

_MAGIC: Final = b"LENSDU1\n"
_COUNT: Final = struct.Struct("<I")
_ID_BYTES: Final = 8
_SUM_BYTES: Final = 16
_WORD: Final = struct.Struct("<Q")
_FACTOR: Final = 0xBF58476D1CE4E5B9
_SEED: Final = 5_381


def record_of(file: Path) -> Path:
    return file.with_name(f"{file.name}{SUFFIX}")


def files_with_record(folder: Path) -> list[Path]:
    """Database files that a checkpoint may have left unfinished."""
    return sorted(path.with_name(path.name.removesuffix(SUFFIX)) for path in folder.glob(f"*{SUFFIX}"))


def keep(file: Path, handle: int, blocks: Sequence[int], disk: Disk) -> None:
    """Write the record of a file whose metadata lies in `blocks`; it is on the disk once this returns.

    `handle` reads the file. Raises OSError, with no record left behind where that can still be had.
    """
    path, size = record_of(file), disk.size(file)
    there = [block for block in blocks if _offset(block) + BLOCK_BYTES <= size]
    disk.remove(path)  # of a checkpoint that is over
    record = disk.create(path)
    try:
        try:
            summed = hashlib.blake2b(digest_size=_SUM_BYTES)
            for piece in _pieces(handle, there, disk):
                summed.update(piece)
                disk.append(record, piece)
            disk.append(record, summed.digest())
            disk.sync(record)
        finally:
            disk.close(record)
        disk.sync_folder(path.parent)
    except OSError:
        disk.remove(path)
        raise


def drop(file: Path, disk: Disk) -> None:
    """Remove the record of a checkpoint that is over, or that has not begun."""
    disk.remove(record_of(file))
    disk.sync_folder(file.parent)


def settle(file: Path, disk: Disk | None = None) -> bool:
    """Whether a checkpoint of this file was cut short, which is taken back. Nobody else may have the file open.

    A kill inside leaves the record, so that the next call does it again. Raises OSError.
    """
    disk = disk or RealDisk()
    record, is_undone = _Record(record_of(file), disk), False
    try:
        if record.is_whole():
            handle = disk.open(file)
            try:
                is_undone = _is_cut_short(record.headers, disk.read_at(handle, 0, HEADERS_BYTES))
                for offset, piece in record.saved() if is_undone else ():
                    disk.write_at(handle, offset, piece)
                disk.sync(handle)  # also what the checkpoint wrote: from here on there is no way back
            finally:
                disk.close(handle)
    except FileNotFoundError:
        pass  # a record whose file is gone
    drop(file, disk)
    return is_undone


class _Record:
    """A record as it lies on the disk."""

    def __init__(self, path: Path, disk: Disk) -> None:
        self._path, self._disk = path, disk
        start = disk.read(path, 0, len(_MAGIC) + HEADERS_BYTES + _COUNT.size)
        self._has_start = len(start) == len(_MAGIC) + HEADERS_BYTES + _COUNT.size and start.startswith(_MAGIC)
        self.headers = start[len(_MAGIC) : len(_MAGIC) + HEADERS_BYTES]
        self._ids_at = len(start)
        self._count = _COUNT.unpack(start[-_COUNT.size :])[0] if self._has_start else 0
        self._blocks_at = self._ids_at + self._count * _ID_BYTES
        self._sum_at = self._blocks_at + self._count * BLOCK_BYTES

    def is_whole(self) -> bool:
        """A torn one was never followed by a checkpoint."""
        if not self._has_start or self._disk.size(self._path) != self._sum_at + _SUM_BYTES:
            return False
        summed = hashlib.blake2b(digest_size=_SUM_BYTES)
        for offset in range(0, self._sum_at, BLOCK_BYTES):
            summed.update(self._disk.read(self._path, offset, min(BLOCK_BYTES, self._sum_at - offset)))
        return summed.digest() == self._disk.read(self._path, self._sum_at, _SUM_BYTES)

    def saved(self) -> Iterator[tuple[int, bytes]]:
        """What was there before, and at which offset of the file; the headers last."""
        for place, (block,) in enumerate(_WORD.iter_unpack(self._disk.read(self._path, self._ids_at, self._count * _ID_BYTES))):
            yield _offset(block), self._disk.read(self._path, self._blocks_at + place * BLOCK_BYTES, BLOCK_BYTES)
        yield 0, self.headers


def _pieces(handle: int, blocks: Sequence[int], disk: Disk) -> Iterator[bytes]:
    yield _MAGIC
    yield disk.read_at(handle, 0, HEADERS_BYTES)
    yield _COUNT.pack(len(blocks))
    yield b"".join(map(_WORD.pack, blocks))
    for block in blocks:
        yield disk.read_at(handle, _offset(block), BLOCK_BYTES)


def _offset(block: int) -> int:
    return HEADERS_BYTES + block * BLOCK_BYTES


def _is_cut_short(before: bytes, now: bytes) -> bool:
    """No header was written, or one is torn. A file whose main header is another one is not what the record is of."""
    is_same_file = now[:HEADER_BYTES] == before[:HEADER_BYTES]
    return is_same_file and (
        now == before or not all(_is_sound(now[at : at + HEADER_BYTES]) for at in range(0, HEADERS_BYTES, HEADER_BYTES))
    )


def _is_sound(header: bytes) -> bool:
    """Whether a header's checksum holds, which DuckDB computes so."""
    (first, *words) = (word for (word,) in _WORD.iter_unpack(header))
    found = _SEED
    for word in words:
        found ^= word * _FACTOR & 0xFFFFFFFFFFFFFFFF
    return bool(first == found)
