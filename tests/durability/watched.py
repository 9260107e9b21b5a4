"""What a process did to a folder, change by change, and the folder as a loss of power at any moment may leave it.

What a file's sync has not covered is kept, dropped or torn, each write for itself. Names are made and removed in order, as a file
system with a journal does it: some of the last may be missing, but not that of a file that was synced.
"""

import os
import random
import shutil
import struct
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

import pytest

HERE: Final = Path(__file__).resolve().parent
PIECE: Final = 512  # of a write, which is there or not
_CHANGE: Final = struct.Struct("<cIQQ")


class Change(NamedTuple):
    """`kind`: (w)rite, (t)runcate, (s)ync, (c)reate, (r)emove, re(n)ame to the name in `data`."""

    kind: str
    path: str
    offset: int
    data: bytes


def library(folder: Path) -> Path:
    """The shared library of watched.c; skips the test where nothing can make it."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler here")
    made = folder / "watched.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(made), str(HERE / "watched.c"), "-ldl", "-lpthread"], check=True)
    return made


def changes(log: Path) -> Iterator[Change]:
    raw, at = log.read_bytes(), 0
    while at < len(raw):
        kind, path_bytes, offset, size = _CHANGE.unpack_from(raw, at)
        at += _CHANGE.size + path_bytes
        path = raw[at - path_bytes : at].decode()
        data = raw[at : at + size] if kind in b"wn" else b""
        at += len(data)
        yield Change(kind.decode(), path, offset, data)


@dataclass
class _File:
    synced: bytearray = field(default_factory=bytearray)
    since: list[Change] = field(default_factory=list)


class Folder:
    """Follows changes with `take`; `lose_power` writes what may be left of them."""

    def __init__(self) -> None:
        self._names: dict[str, _File] = {}
        self._safe: dict[str, _File] = {}  # as of the last sync that covers names
        self._since: list[Change] = []  # of names
        self._made: dict[int, _File] = {}  # place in `_since` -> the file

    def start(self, source: Path) -> None:
        """What lies in `source` is there and safe."""
        for path in source.rglob("*"):
            if path.is_file():
                self._safe[str(path.relative_to(source))] = _File(bytearray(path.read_bytes()))
        self._names = dict(self._safe)

    def take(self, change: Change) -> None:
        if change.kind == "s":
            self._sync(change.path)
        elif change.kind in "wt":
            self._names[change.path].since.append(change)
        else:
            self._since.append(change)
            if change.kind == "c":
                self._made[len(self._since) - 1] = _File()
            self._move(self._names, change, len(self._since) - 1)

    def _move(self, names: dict[str, _File], change: Change, place: int) -> None:
        if change.kind == "c":
            names[change.path] = self._made[place]
        elif (file := names.pop(change.path, None)) is not None and change.kind == "n":
            names[change.data.decode()] = file

    def _sync(self, path: str) -> None:
        file = self._names.get(path)
        if file is not None:
            file.synced, file.since = self._written(file, lambda change: [(change.offset, change.data)]), []
        covers = max((place for place, made in self._made.items() if file is None or made is file), default=-1)
        until = len(self._since) if file is None else covers + 1
        for place in range(until):
            self._move(self._safe, self._since[place], place)
        self._since = self._since[until:]
        self._made = {place - until: made for place, made in self._made.items() if place >= until}

    @staticmethod
    def _written(file: _File, left) -> bytearray:  # type: ignore[no-untyped-def]
        data = bytearray(file.synced)
        for change in file.since:
            if change.kind == "t":
                if left(change):
                    data = data[: change.offset].ljust(change.offset, b"\0")
                continue
            for offset, piece in left(change):
                data = data.ljust(offset, b"\0")
                data[offset : offset + len(piece)] = piece
        return data

    def lose_power(self, target: Path, chance: random.Random) -> None:
        names = dict(self._safe)
        for place in range(chance.randint(0, len(self._since))):
            self._move(names, self._since[place], place)
        for path, file in names.items():
            (target / path).parent.mkdir(parents=True, exist_ok=True)
            (target / path).write_bytes(self._written(file, lambda change: _some(change, chance)))


def _some(change: Change, chance: random.Random) -> list[tuple[int, bytes]]:
    """The pieces of a write that reach the disk: all of them, none, the first ones, or any."""
    pieces = [(change.offset + at, change.data[at : at + PIECE]) for at in range(0, max(len(change.data), 1), PIECE)]
    match chance.randrange(4):
        case 0:
            return pieces
        case 1:
            return []
        case 2:
            return pieces[: chance.randint(0, len(pieces))]
        case _:
            return [piece for piece in pieces if chance.random() < 0.5]


def environ(library: Path, watched: Path, **more: str) -> dict[str, str]:
    """The environment of a process that is watched."""
    return os.environ | {"LD_PRELOAD": str(library), "WATCHED": str(watched.resolve())} | more
