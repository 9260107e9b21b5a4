"""What somebody handed over: every file of it read, whatever it is, and named by its place in the folder."""

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Final, NamedTuple

import msgspec
from lensd_collectors.read.recognise import HEAD_BYTES, FileRows, Kind, read, recognise
from lensd_collectors.rows import ConfigFact, EngineSample, Event, HttpExchange, Instant, Point, Row

from lensd.diagnosis.apart import name_apart
from lensd.diagnosis.clocks import instants_of, move_to_their_zone
from lensd.diagnosis.find import Found, Intake, find
from lensd.records import FileRead

LOGS: Final = (Kind.ENGINE_LOG, Kind.ACCESS_LOG)
PAPERS: Final = (Kind.NOTES, Kind.FLAGS)
MOST_UNREAD: Final = 4  # lines without a row to one with
TIMED_LINES: Final = 3
MOST_LOOKED_AT: Final = 1 << 20  # bytes of a file whose lines without a row are looked at
LONGEST_NOTES: Final = 40  # lines; longer text that nothing was taken from may be a log of an unknown kind
LIFE: Final = frozenset({"engine.started", "engine.ready", "engine.stopping", "engine.stopped", "engine.dead", "engine.start_failed"})
_TIMED: Final = re.compile(rb"^\W{0,2}(?:\d{4}-\d\d-\d\d[T ]|[A-Z][a-z]{2} [ \d]\d )?\d\d:\d\d:\d\d\S* +\S", re.MULTILINE)
_FIRST_RANK: Final = "dp0"
_RANK: Final = re.compile(r"dp\d+")
_ROTATED: Final = re.compile(r"(?:[._-]\d{4}-?\d\d-?\d\d(?:[T_-]?[\d:-]{2,8})?|\.\d{1,3}|\.log|\.txt|\.out|\.old|\.gz|\.xz|\.bz2|\.zst)+$")


class Folder(NamedTuple):
    """`files`: rows by file name; `places`: where each lies; `lines`: how many a log has, as far as its rows tell; `refused`: why not."""

    files: Mapping[str, FileRows]
    places: Mapping[str, Path]
    lines: Mapping[str, int]
    refused: Mapping[str, str]

    @property
    def read_as(self) -> tuple[FileRead, ...]:
        known = [
            FileRead(path=name, kind=_kind(file), records=file.records, unread_lines=file.unread_lines) for name, file in self.files.items()
        ]
        return (*known, *(FileRead(path=name, kind=f"unreadable: {why}", records=0, unread_lines=0) for name, why in self.refused.items()))

    @property
    def not_understood(self) -> tuple[str, ...]:
        """Files that hold something and gave nothing, or logs that gave next to nothing, save what somebody wrote by hand."""
        little = [(name, file) for name, file in self.files.items() if file.unread_lines > MOST_UNREAD * file.records]
        return (*(name for name, file in little if not self._is_written(name, file)), *self.refused)

    def untold(self, name: str) -> Iterator[tuple[str, str]]:
        """Places (`file:line`) and texts of the lines of a file, in its first megabyte, that no row was made of."""
        known = {getattr(row, "src", None) for some in self.files[name].rows.values() for row in some}
        try:
            with self.places[name].open("rb") as file:
                lines = file.read(MOST_LOOKED_AT).decode("utf-8", "replace").split("\n")
        except OSError:  # gone since it was read
            return
        yield from ((src, line) for number, line in enumerate(lines, 1) if (src := f"{name}:{number}") not in known)

    def _is_written(self, name: str, file: FileRows) -> bool:
        """Whether a person wrote it: notes, settings, a ticket that speaks of an engine; a log has the time on its lines."""
        if file.kind not in PAPERS and (file.records or file.kind not in LOGS):
            return bool(file.records)
        place = self.places[name]
        return file.unread_lines <= LONGEST_NOTES and not is_log(place) and (bool(file.records) or not is_record(place))


def is_record(place: Path) -> bool:
    """Whether what somebody wrote down is a record of something: a table, or a command with what it printed."""
    with place.open(encoding="utf-8", errors="replace") as file:
        lines = [line for line in file.read(HEAD_BYTES).splitlines() if line.strip() and not line.startswith("#")]
    commas = [line.count(",") for line in lines]
    return any(line.startswith("$ ") for line in lines) or (len(lines) > 2 and commas[0] > 1 and set(commas) == {commas[0]})


def read_folder(paths: Sequence[Path], intake: Intake | None = None) -> Folder:
    """Every file below the paths. Raises UnreadableError for a path that is not there, and for too many files."""
    intake = intake or Intake()
    return read_found(find(paths, intake), intake)


def read_found(found: Found, intake: Intake) -> Folder:
    """Every file that was found."""
    files, refused = found
    kinds = {name: kind for name, path in files.items() if (kind := _recognised(path, name, refused)) is not None}
    dated = _read([name for name, kind in kinds.items() if kind not in LOGS], files, refused, None, intake.told)
    near = _last(dated)
    logs = _read([name for name, kind in kinds.items() if kind in LOGS], files, refused, near, intake.told)
    every = dated | logs
    if (day := near or _last(logs)) is not None:  # an hour without a date can be told by the date of something else
        undated = [name for name, file in dated.items() if file.rows and _last({name: file}) is None]
        undated += [name for name, file in logs.items() if near is None and file.rows and _last({name: file}) is None]
        again = _read(undated, files, refused, day, intake.told)
        every |= again
        logs = {name: every[name] for name in logs}
    move_to_their_zone(every, files)
    _name_engines(logs)
    name_apart(logs, every, files)
    _name_ranks(every)
    lines = {name: max(map(_line, chain.from_iterable(file.rows.values())), default=0) for name, file in logs.items()}
    return Folder({name: every[name] for name in files if name in every}, files, lines, refused)


def _last(files: Mapping[str, FileRows]) -> Instant | None:
    return max((Instant(at) for file in files.values() for some in file.rows.values() for at in instants_of(some)), default=None)


def _recognised(path: Path, name: str, refused: dict[str, str]) -> Kind | None:
    try:
        with path.open("rb") as file:
            return recognise(path, file.read(HEAD_BYTES))
    except OSError as error:
        refused[name] = str(error.strerror)
        return None


def _read(
    names: Sequence[str], files: Mapping[str, Path], refused: dict[str, str], reference: Instant | None, told: Callable[[str], None]
) -> dict[str, FileRows]:
    done: dict[str, FileRows] = {}
    for name in names:
        told(f"reading {name}")
        try:
            done[name] = read(files[name], name=name, reference_us=reference)
        except OSError as error:  # it may be gone since it was found
            refused[name] = str(error.strerror)
    return done


def is_log(path: Path) -> bool:
    """Whether several lines of the file begin with the time; False for one that is gone."""
    try:
        with path.open("rb") as file:
            return len(_TIMED.findall(file.read(HEAD_BYTES))) >= TIMED_LINES
    except OSError:
        return False


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


def _name_ranks(every: Mapping[str, FileRows]) -> None:
    """Where others of its ranks are named, the first of an engine is one of them too; what is set for no rank is set for each."""
    ranks = {row.engine for file in every.values() for row in file.rows.get("engine_samples", ()) if isinstance(row, EngineSample)}
    named = sorted(rank for rank in ranks if rank is not None)
    if not named or None not in ranks or not all(map(_RANK.fullmatch, named)):
        return
    for file in every.values():
        for row in (*file.rows.get("engine_samples", ()), *file.rows.get("points", ())):
            if isinstance(row, EngineSample | Point) and row.engine is None:
                row.engine = _FIRST_RANK
        facts = file.rows.get("config_facts", [])
        facts += [
            msgspec.structs.replace(row, subject=rank)
            for row in list(facts)
            if isinstance(row, ConfigFact) and row.subject is None
            for rank in (_FIRST_RANK, *named)
        ]


def _line(row: Row) -> int:
    """0 where its source is no line."""
    number = (getattr(row, "src", None) or "").rpartition(":")[2]
    return int(number) if number.isdigit() else 0


def _kind(file: FileRows) -> str:
    return f"{file.dialect} log" if file.dialect and file.kind is Kind.ENGINE_LOG else file.kind.value.replace("_", " ")
