"""What somebody named, as files by their names: folders walked, archives unpacked, pipes kept in a scratch folder."""

import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Final, NamedTuple, Self

from lensd.diagnosis.unpack import MAX_BYTES, Budget, TooLargeError, is_packed, spool, unpack
from lensd.errors import UnreadableError

MAX_FILES: Final = 2000
STANDARD_INPUT: Final = Path("-")
REST: Final = " (the rest)"
"""After the name of what was read in part only."""


class Found(NamedTuple):
    """Files by name, each name relative to what was handed over; `refused`: why something was not taken, by its name."""

    files: dict[str, Path]
    refused: dict[str, str]


class Intake:
    """How much may be read, where unpacked files lie until it is left, and who hears what is being done."""

    def __init__(self, max_bytes: int = MAX_BYTES, told: Callable[[str], None] = lambda _: None) -> None:
        self.budget, self.told = Budget(max_bytes), told
        self._scratch: tempfile.TemporaryDirectory[str] | None = None

    @property
    def scratch(self) -> Path:
        """Made when it is first asked for."""
        if self._scratch is None:
            self._scratch = tempfile.TemporaryDirectory(prefix="lensd-triage-")
        return Path(self._scratch.name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._scratch is not None:
            self._scratch.cleanup()


def find(paths: Sequence[Path], intake: Intake) -> Found:
    """Every file below the paths. Raises UnreadableError for a path that is not there, and for too many files."""
    for path in paths:
        if path != STANDARD_INPUT and not path.exists():
            raise UnreadableError(f"no such file or folder: {path}")
    alone = len(paths) == 1 and not paths[0].is_dir()
    finder = _Finder(intake, alone)
    for path in paths:
        if path.is_dir() or (path.is_file() and not alone):
            finder.walk(path, _root(paths))
        else:
            finder.take(*finder.one(path))
    return Found(dict(sorted(finder.files.items())), finder.refused)


def _root(paths: Sequence[Path]) -> Path:
    """What names are relative to."""
    if len(paths) == 1:
        return paths[0]
    places = [path.resolve() for path in paths if path.is_dir() or path.is_file()]
    return Path(os.path.commonpath([place.parent if place.is_file() else place for place in places]))


class _Finder:
    """Gathers. `alone`: one file was named, and if it is an archive its files go by their own names in it."""

    def __init__(self, intake: Intake, alone: bool) -> None:
        self.files: dict[str, Path] = {}
        self.refused: dict[str, str] = {}
        self._intake, self._alone = intake, alone

    def walk(self, path: Path, root: Path) -> None:
        inside = Path(os.path.realpath(root))
        for file in _below(path):
            place = Path(os.path.realpath(file))  # of a link to itself too, which resolve() refuses
            if not place.is_relative_to(inside):
                self.refused[os.path.relpath(file.absolute(), root.absolute())] = "a link out of the folder"
            elif place.is_file():
                self.take(str(place.relative_to(inside)), place)
            elif place.exists():
                self.refused[str(place.relative_to(inside))] = "a pipe or device"
            if len(self.files) + len(self.refused) > MAX_FILES:
                raise UnreadableError(f"more than the {MAX_FILES} files that are read at once: name a folder below {path}")

    def one(self, path: Path) -> tuple[str, Path | None]:
        """A file by its own name; of a pipe, a device or standard input what comes from it, None where nothing does."""
        if path.is_file():
            place = Path(os.path.realpath(path))
            return place.name, place
        name = "standard input" if path == STANDARD_INPUT else str(path)
        file = self._intake.scratch / f"pipe-{len(self.files)}"
        try:
            descriptor = 0 if path == STANDARD_INPUT else os.open(path, os.O_RDONLY)
            why = spool(descriptor, file, self._intake.budget, self._intake.told)
        except OSError as error:
            self.refused[name] = str(error.strerror)
            return name, None
        if why:
            self.refused[f"{name}{REST}"] = why
        return name, file

    def take(self, name: str, file: Path | None) -> None:
        """Add a file, or what an archive holds."""
        if file is None:
            return
        try:
            if is_packed(file):
                self._unpack(name, file)
                return
            if file.parent != self._intake.scratch:  # what came through a pipe was counted as it came
                self._intake.budget.take(file.stat().st_size)
            self.files[name] = file
        except TooLargeError as error:
            self.refused[name] = str(error)
        except OSError as error:
            self.refused[name] = str(error.strerror)

    def _unpack(self, name: str, file: Path) -> None:
        self._intake.told(f"unpacking {name}")
        unpacked = unpack(file, self._intake.scratch / "unpacked" / name.replace("/", "-"), self._intake.budget)

        def named(member: str) -> str:
            return member if self._alone and member else "/".join(filter(None, (name, member)))

        for member, place in unpacked.files.items():
            self.files[named(member)] = place
        for member, why in unpacked.refused.items():
            self.refused[f"{named(member)}{REST}" if named(member) in self.files else named(member)] = why


def _below(path: Path) -> Iterator[Path]:
    """Files below a folder, links to folders left alone so that none is walked in a circle; a file is itself."""
    if not path.is_dir():
        yield path
        return
    for folder, below, names in os.walk(path):
        below.sort()
        yield from (Path(folder, name) for name in sorted(names))
