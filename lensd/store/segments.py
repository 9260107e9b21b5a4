"""What a journal's files hold: records with length and checksum in numbered segments, read in order without the writer's help.

A segment is an 8 byte header and records. A record is a frame `<payload length u32><payload crc32 u32><kind u8><received_at_us i64>
<crc32 of the frame so far u32>`, little endian, and the payload. The frame has its own checksum so that a wrong length is known for
damage and not taken for a torn end. A record's position is its segment's number in the upper and the offset of its end in the lower
32 bits, so positions grow and 0 stands before everything.
"""

import struct
import zlib
from collections.abc import Iterator
from enum import IntEnum
from pathlib import Path
from typing import Final, NamedTuple

from lensd.store.disk import Disk, RealDisk

HEADER: Final = b"LENSDJ1\n"
MAX_RECORD_BYTES: Final = 256 * 1024 * 1024
_FRAME: Final = struct.Struct("<IIBq")
_SUM: Final = struct.Struct("<I")
_FRAME_BYTES: Final = _FRAME.size + _SUM.size
_CHUNK: Final = 1 << 20


class Signal(IntEnum):
    """What an OTLP body holds; the number is what the journal stores."""

    TRACES = 1
    METRICS = 2
    LOGS = 3


class Record(NamedTuple):
    position: int
    kind: Signal
    received_at_us: int
    payload: bytes


class Damage(NamedTuple):
    """Why the rest of a segment was left out."""

    segment: str
    offset: int
    reason: str  # header, frame, payload, kind

    def __str__(self) -> str:
        return f"{self.segment}:{self.offset}: damaged ({self.reason}); the rest of this segment is left out"


def position_of(number: int, offset: int) -> int:
    return number << 32 | offset


def segment_of(position: int) -> int:
    return position >> 32


def name_of(number: int) -> str:
    return f"{number:08x}.journal"


def numbers(names: list[str]) -> list[int]:
    """Segment numbers among a folder's names, in order."""
    found = []
    for name in names:
        stem, dot, suffix = name.partition(".")
        if dot and suffix == "journal" and len(stem) == 8 and set(stem) <= set("0123456789abcdef"):
            found.append(int(stem, 16))
    return sorted(found)


def framed(kind: Signal, received_at_us: int, payload: bytes) -> bytes:
    """A record's bytes as they stand in a segment."""
    frame = _FRAME.pack(len(payload), zlib.crc32(payload), kind, received_at_us)
    return b"".join((frame, _SUM.pack(zlib.crc32(frame)), payload))


class Scan:
    """Records of a journal folder after a position; a torn end is no error, damage is kept in `damaged`.

    `end` is the position to stop at (the writer's last sync), None for as far as the files go.
    """

    def __init__(self, folder: Path, after: int = 0, *, end: int | None = None, disk: Disk | None = None) -> None:
        self._folder, self._after, self._end = folder, after, end
        self._disk = disk or RealDisk()
        self.damaged: list[Damage] = []
        self.torn = 0  # segments that end inside a record, as a crash leaves them

    def __iter__(self) -> Iterator[Record]:
        try:
            found = numbers(self._disk.names(self._folder))
        except FileNotFoundError:
            return
        for number in found:
            if number < segment_of(self._after) or (self._end is not None and number > segment_of(self._end)):
                continue
            # A segment that is not the last one may end torn too: a crashed writer leaves it so and begins a new one.
            try:
                yield from self._segment(number)
            except FileNotFoundError:
                continue  # drained and removed meanwhile

    def _segment(self, number: int) -> Iterator[Record]:
        path = self._folder / name_of(number)
        offset = self._after & 0xFFFFFFFF if number == segment_of(self._after) else 0
        limit = self._disk.size(path)
        if self._end is not None and number == segment_of(self._end):
            limit = min(limit, self._end & 0xFFFFFFFF)
        if offset < len(HEADER):
            if limit < len(HEADER):
                self.torn += 1
                return
            if self._disk.read(path, 0, len(HEADER)) != HEADER:
                return self._note(number, 0, "header")
            offset = len(HEADER)
        held, held_at = b"", offset  # a piece of the file and where it begins
        while offset < limit:
            if offset + _FRAME_BYTES > held_at + len(held):
                held, held_at = self._disk.read(path, offset, min(_CHUNK, limit - offset)), offset
            at = offset - held_at
            if len(held) - at < _FRAME_BYTES:
                break
            length, payload_sum, kind, received_at = _FRAME.unpack_from(held, at)
            if zlib.crc32(held[at : at + _FRAME.size]) != _SUM.unpack_from(held, at + _FRAME.size)[0]:
                return self._note(number, offset, "frame")
            start, stop = offset + _FRAME_BYTES, offset + _FRAME_BYTES + length
            if stop > limit:
                break
            if stop > held_at + len(held):
                held, held_at = self._disk.read(path, offset, max(_CHUNK, stop - offset)), offset
            payload = held[start - held_at : stop - held_at]
            if zlib.crc32(payload) != payload_sum:
                return self._note(number, offset, "payload")
            if kind not in _KINDS:
                return self._note(number, offset, "kind")
            yield Record(position_of(number, stop), _KINDS[kind], received_at, payload)
            offset = stop
        self.torn += offset < limit

    def _note(self, number: int, offset: int, reason: str) -> None:
        self.damaged.append(Damage(name_of(number), offset, reason))


_KINDS: Final = {int(signal): signal for signal in Signal}
