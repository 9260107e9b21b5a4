"""Archives and pipes that somebody handed over, as plain files: bounded in bytes, in members, in depth and in time.

What each is, is told by its first bytes. An archive that grows out of all proportion is refused as a whole; of one that is cut short
what came out of it stays.
"""

import bz2
import gzip
import io
import lzma
import os
import select
import shutil
import tarfile
import time
import zipfile
import zlib
from calendar import timegm
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Final, NamedTuple

import pyarrow as pa
from lensd_collectors.read.recognise import HEAD_BYTES, Kind, recognise

from lensd.memory.units import binary

MAX_BYTES: Final = 8 << 30
PATIENCE_S: Final = 60.0  # without a readable record, after which a pipe is not waited for any longer
MOST_UNREADABLE: Final = 16 << 20  # bytes of a pipe in which a readable record must show itself
MOST_MEMBERS: Final = 2000
DEEPEST: Final = 3  # archives in archives: a rotated log in a tarball in a zip
EXPANDS_FROM: Final = 64 << 20  # bytes below which nothing is called a bomb
EXPANDS_BY: Final = 250  # logs that repeat themselves shrink to a thirtieth, seldom to a hundredth
PIECE: Final = 1 << 20

_MAGIC: Final = {
    b"\x1f\x8b": "gz",
    b"BZh": "bz2",
    b"\xfd7zXZ\0": "xz",
    b"\x28\xb5\x2f\xfd": "zst",
    b"PK\x03\x04": "zip",
    b"PK\x05\x06": "zip",
}
_STREAMS: Final[Mapping[str, Callable[[Path], Any]]] = {
    "gz": gzip.open,
    "bz2": bz2.open,
    "xz": lzma.open,
    "zst": lambda path: io.BufferedReader(_Zstd(path)),
}
_DAMAGED: Final = (EOFError, zlib.error, lzma.LZMAError, tarfile.TarError, zipfile.BadZipFile, pa.ArrowException)


class TooLargeError(Exception):
    """More bytes or members than may be unpacked; the message says which."""


class Budget:
    """Bytes that may still be written or read, all files together."""

    def __init__(self, most: int = MAX_BYTES) -> None:
        self.most, self.left = most, most
        self.members = MOST_MEMBERS

    def take(self, count: int) -> None:
        self.left -= count
        if self.left < 0:
            raise TooLargeError(f"it is larger than --max-bytes {binary(self.most)} allows")

    def add_member(self) -> None:
        self.members -= 1
        if self.members < 0:
            raise TooLargeError(f"it holds more than the {MOST_MEMBERS} files that are read at once")


class Unpacked(NamedTuple):
    """`files` by their names in the archive; `refused`: why a member, or what is left of the archive (""), was not taken."""

    files: Mapping[str, Path]
    refused: Mapping[str, str]


def packing(head: bytes) -> str | None:
    """gz, bz2, xz, zst, zip or tar; None for what is no archive."""
    if head[257:262] == b"ustar":
        return "tar"
    return next((name for magic, name in _MAGIC.items() if head.startswith(magic)), None)


def is_packed(path: Path) -> bool:
    """Raises OSError."""
    with path.open("rb") as file:
        return packing(file.read(512)) is not None


def unpack(path: Path, place: Path, budget: Budget) -> Unpacked:
    """Everything in the archive at `path` as files below the folder `place`. Raises OSError only where `path` cannot be read."""
    files: dict[str, Path] = {}
    refused: dict[str, str] = {}
    grown = _Growth(path.stat().st_size, budget)
    try:
        for name, file in _unpack(path, place, grown, refused, DEEPEST):
            files[name] = file
    except TooLargeError as error:
        shutil.rmtree(place, ignore_errors=True)
        return Unpacked({}, {"": str(error)})
    except (*_DAMAGED, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the disk's, not the archive's
        refused[""] = f"a damaged archive ({_said(error)})"
    return Unpacked(files, refused)


class _Growth:
    """Watches what comes out of one archive: against the budget, and against the size it came in."""

    def __init__(self, packed: int, budget: Budget) -> None:
        self._packed, self._budget, self._out = packed, budget, 0

    def take(self, count: int) -> None:
        self._out += count
        if self._out > EXPANDS_FROM and self._out > EXPANDS_BY * self._packed:
            raise TooLargeError(f"it grows to more than {EXPANDS_BY} times its size, as no log does: unpack it by hand if it is one")
        self._budget.take(count)

    def add_member(self) -> None:
        self._budget.add_member()


def _unpack(path: Path, place: Path, grown: _Growth, refused: dict[str, str], depth: int) -> Iterator[tuple[str, Path]]:
    """Names and files; "" is the name of what a compressed single file holds."""
    with path.open("rb") as file:
        kind = packing(file.read(512))
    if kind == "zip":
        members = _zipped(path, refused)
    elif kind == "tar":
        members = _tarred(path, refused)
    else:
        assert kind is not None
        members = _compressed(path, kind)
    for name, modified, stream in members:
        grown.add_member()
        target = place / name if name else place.with_name(f"{place.name}.unpacked")
        try:
            _write(stream, target, grown)
        except _DAMAGED as error:
            if not target.is_file() or not target.stat().st_size:
                raise
            refused[name] = f"cut short ({_said(error)}): read as far as it goes"
        if modified is not None:
            os.utime(target, (modified, modified))
        if not is_packed(target):
            yield name, target
        elif depth <= 1:
            refused[name] = "an archive in an archive in an archive"
        else:
            for inner, file_ in _unpack(target, place / f"{name}.d" if name else place, grown, refused, depth - 1):
                yield "/".join(filter(None, (name, inner))), file_
            target.unlink()


def _write(stream: Any, target: Path, grown: _Growth) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    with stream, target.open("wb") as file:
        while piece := stream.read1(PIECE):  # not read(): it loses what it had when the end is missing
            grown.take(len(piece))
            file.write(piece)


def _compressed(path: Path, kind: str) -> Iterator[tuple[str, float | None, Any]]:
    yield "", path.stat().st_mtime, _STREAMS[kind](path)


def _zipped(path: Path, refused: dict[str, str]) -> Iterator[tuple[str, float | None, Any]]:
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            name = _plain(member.filename)
            if member.is_dir() or not name:
                continue
            if member.flag_bits & 0x1:
                refused[name] = "encrypted"
                continue
            try:
                yield name, float(timegm((*member.date_time, 0, 0, 0))), archive.open(member)
            except NotImplementedError:
                refused[name] = "packed in a way that is not known here"


def _tarred(path: Path, refused: dict[str, str]) -> Iterator[tuple[str, float | None, Any]]:
    with tarfile.open(path, "r:") as archive:
        for member in archive:
            name = _plain(member.name)
            if member.isdir() or not name:
                continue
            stream = archive.extractfile(member) if member.isreg() else None
            if stream is None:
                refused[name] = "a link or device in an archive"
                continue
            yield name, member.mtime, stream


def _plain(name: str) -> str:
    """The name below the archive, whatever it says of folders above it."""
    parts = [part for part in PurePosixPath(name.replace("\\", "/").replace("\0", "")).parts if part not in ("/", "..", ".")]
    return "/".join(part[:200] for part in parts)


def _said(error: BaseException) -> str:
    return " ".join(str(error).split())[:100].rstrip(".") or type(error).__name__


class _Zstd(io.RawIOBase):
    """What a zstd file holds, as a raw stream."""

    def __init__(self, path: Path) -> None:
        self._stream: Any = pa.input_stream(str(path), compression="zstd")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        piece = self._stream.read(len(buffer))
        buffer[: len(piece)] = piece
        return len(piece)

    def close(self) -> None:
        self._stream.close()
        super().close()


def spool(descriptor: int, place: Path, budget: Budget, told: Callable[[str], None], patience_s: float = PATIENCE_S) -> str:
    """Everything that comes from a pipe or device into the file `place`; why it was not read to its end, "" where it was.

    It stops where the budget ends, where nothing in the first 16 MiB is readable, and after `patience_s` without a readable record.
    """
    head, count, kind, heard = b"", 0, Kind.UNKNOWN, time.monotonic()
    with place.open("wb") as file:
        while True:
            left = heard + patience_s - time.monotonic()
            if left <= 0 or not select.select([descriptor], [], [], left)[0]:
                return f"nothing readable came for {patience_s:.0f} s"
            piece = os.read(descriptor, PIECE)
            if not piece:
                return ""
            if len(piece) > budget.left:
                file.write(piece[: budget.left])
                budget.left = 0
                return f"read no further than --max-bytes {binary(budget.most)} allows"
            budget.take(len(piece))
            file.write(piece)
            count += len(piece)
            told(f"reading standard input, {count / 1e6:,.0f} MB")
            if len(head) < HEAD_BYTES:
                head += piece[: HEAD_BYTES - len(head)]
                kind = recognise(place, head)
            if packing(head) is not None or kind not in (Kind.UNKNOWN, Kind.NOTES):
                if packing(head) is not None or (b"\n" in piece and b"\0" not in piece):
                    heard = time.monotonic()
            elif count >= MOST_UNREADABLE:
                return f"nothing in its first {binary(MOST_UNREADABLE)} is readable"
