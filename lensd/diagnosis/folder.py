"""What somebody handed over: every file of it read, whatever it is, and named by its place in the folder."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from lensd_collectors.read.recognise import HEAD_BYTES, FileRows, Kind, read, recognise
from lensd_collectors.rows import ConfigFact, EngineSample, Event, HttpExchange, Instant, Row

from lensd.errors import UnreadableError
from lensd.records import FileRead

MAX_FILES: Final = 2000
LOGS: Final = (Kind.ENGINE_LOG, Kind.ACCESS_LOG)
INSTANTS: Final = ("seen_at", "started_at", "ended_at")
LIFE: Final = frozenset({"engine.started", "engine.ready", "engine.stopping", "engine.stopped", "engine.dead", "engine.start_failed"})
_ROTATED: Final = re.compile(r"(?:[._-]\d{4}-?\d\d-?\d\d(?:[T_-]?[\d:-]{2,8})?|\.\d{1,3}|\.log|\.txt|\.out|\.old)+$")


class Folder(NamedTuple):
    """`root`: what names are relative to. `files`: rows by file name; `refused`: why a file was not read."""

    root: Path
    files: Mapping[str, FileRows]
    refused: Mapping[str, str]

    @property
    def read_as(self) -> tuple[FileRead, ...]:
        known = [
            FileRead(path=name, kind=_kind(file), records=file.records, unread_lines=file.unread_lines) for name, file in self.files.items()
        ]
        return (*known, *(FileRead(path=name, kind=f"unreadable: {why}", records=0, unread_lines=0) for name, why in self.refused.items()))

    @property
    def not_understood(self) -> tuple[str, ...]:
        """Files that hold something and gave nothing."""
        return (*(name for name, file in self.files.items() if not file.records and file.unread_lines), *self.refused)


def read_folder(paths: Sequence[Path]) -> Folder:
    """Every file below the paths. Raises UnreadableError for a path that is not there, and for too many files."""
    root, files, refused = _find(paths)
    kinds = {name: kind for name, path in files.items() if (kind := _recognised(path, name, refused)) is not None}
    dated = _read([name for name, kind in kinds.items() if kind not in LOGS], files, refused, None)
    instants = [at for file in dated.values() for some in file.rows.values() for at in instants_of(some)]
    logs = _read([name for name, kind in kinds.items() if kind in LOGS], files, refused, Instant(max(instants)) if instants else None)
    _name_engines(logs)
    every = dated | logs
    return Folder(root, {name: every[name] for name in files if name in every}, refused)


def instants_of(rows: Sequence[Row]) -> Iterator[int]:
    """Every instant that rows of one table say they are of."""
    for name in [name for name in INSTANTS if rows and name in rows[0].__struct_fields__]:
        yield from (at for row in rows if (at := getattr(row, name)) is not None)


def _find(paths: Sequence[Path]) -> tuple[Path, dict[str, Path], dict[str, str]]:
    for path in paths:
        if not path.exists():
            raise UnreadableError(f"no such file or folder: {path}")
    whole = len(paths) == 1 and paths[0].is_dir()
    root = paths[0] if whole else Path(os.path.commonpath([p.resolve().parent if p.is_file() else p.resolve() for p in paths]))
    inside = Path(os.path.realpath(root))
    found: dict[str, Path] = {}
    refused: dict[str, str] = {}
    for path in paths:
        for file in _below(path):
            place = Path(os.path.realpath(file))  # of a link to itself too, which resolve() refuses
            if not place.is_relative_to(inside):
                refused[os.path.relpath(file.absolute(), root.absolute())] = "a link out of the folder"
            elif place.is_file():
                found[str(place.relative_to(inside))] = file
            if len(found) + len(refused) > MAX_FILES:
                raise UnreadableError(f"more than the {MAX_FILES} files that are read at once: name a folder below {path}")
    return root, dict(sorted(found.items())), refused


def _below(path: Path) -> Iterator[Path]:
    """Files below a folder, links to folders left alone so that none is walked in a circle; a file is itself."""
    if not path.is_dir():
        yield path
        return
    for folder, below, names in os.walk(path):
        below.sort()
        yield from (Path(folder, name) for name in sorted(names))


def _recognised(path: Path, name: str, refused: dict[str, str]) -> Kind | None:
    try:
        with path.open("rb") as file:
            return recognise(path, file.read(HEAD_BYTES))
    except OSError as error:
        refused[name] = str(error.strerror)
        return None


def _read(names: Sequence[str], files: Mapping[str, Path], refused: dict[str, str], reference: Instant | None) -> dict[str, FileRows]:
    done: dict[str, FileRows] = {}
    for name in names:
        try:
            done[name] = read(files[name], name=name, reference_us=reference)
        except OSError as error:  # it may be gone since it was found
            refused[name] = str(error.strerror)
    return done


def _name_engines(logs: Mapping[str, FileRows]) -> None:
    """Where several logs tell an engine's life, each is its own engine: the stop of one says nothing of the death of another."""
    lives = {name for name, file in logs.items() if any(isinstance(row, Event) and row.name in LIFE for row in file.rows.get("events", ()))}
    engines = {name: _ROTATED.sub("", name) or name for name in lives}
    if len(set(engines.values())) < 2:
        return
    for name, engine in engines.items():
        for some in logs[name].rows.values():
            for row in some:
                if isinstance(row, Event | EngineSample | HttpExchange):
                    row.engine = engine if row.engine is None else f"{engine}/{row.engine}"
                elif isinstance(row, ConfigFact):
                    row.subject = engine


def _kind(file: FileRows) -> str:
    return f"{file.dialect} log" if file.dialect and file.kind is Kind.ENGINE_LOG else file.kind.value.replace("_", " ")
