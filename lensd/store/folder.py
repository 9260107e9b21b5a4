"""The store in a folder: main.duckdb, files by UTC day, kept.duckdb with what outlives a day, and store.json with the schema's version."""

import contextlib
import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final, NamedTuple

import duckdb
import pyarrow as pa
from lensd_collectors.rows import TABLES

from lensd.errors import NoStoreError, StoreError, StoreVersionError
from lensd.store import damage, kept, marker, swap, torn_log
from lensd.store.bodies import BODIES, create_bodies, read_bodies
from lensd.store.catalog import HELD, Catalog, quoted, store_errors
from lensd.store.checkpoints import Checkpoints
from lensd.store.day_files import DAY_US, DayFile, Days, day_name, day_of, read_name, standing
from lensd.store.disk import RealDisk
from lensd.store.interface import Batch, Cursor
from lensd.store.migrations import migrate
from lensd.store.packing import made_of, remove, shown, size
from lensd.store.schema import MAIN_TABLES, SCHEMA_VERSION, STORAGE_VERSION, create_tables
from lensd.store.split import by_day

log = logging.getLogger(__name__)

MAIN: Final = "main_file"
MAX_DAYS: Final = 400
"""Days at most; rows of further days go to the nearest one, so that a sender's broken clock cannot fill the folder with files."""

_DAY_TABLES: Final = frozenset(TABLES) - MAIN_TABLES


class DayState(NamedTuple):
    """A day's files: their bytes, whether a packed one is among them, rows in the others, and when rows came last in this run."""

    bytes: int
    is_packed: bool
    loose_rows: int
    heard_at: float | None


class FolderStore:
    """Implements `Store`. One process writes; when none does, any number may read.

    With `read_only`, files stay as they are and appended rows are held in memory beside them: the overlay that shows what the
    journal holds and the files do not yet. Raises NoStoreError, StoreBusyError, StoreVersionError, StoreFailedError.
    """

    def __init__(self, path: Path, *, read_only: bool = False, clock: Callable[[], float] = time.time, memory_limit: str = "2GiB") -> None:
        self.path = path.resolve()
        self._read_only = read_only
        self._clock = clock
        self._lock = threading.Lock()
        self._closed = False
        self._progress: dict[str, int] = {}  # file -> journal position it holds everything up to
        self._days = Days()
        self._hidden: int | None = None  # the day whose kept rows are not shown yet, since its own files are
        self._heard: dict[int, float] = {}  # day -> when rows came to it last
        self._left_out: dict[str, str] = {}  # damaged file -> what is wrong with it
        self._opened = contextlib.ExitStack()  # closes what was opened, in turn
        self._doing = f"open store {path}"
        try:
            with store_errors(self._doing):
                self._check_marker()
                self._catalog = Catalog(self.path, spill=not read_only, memory_limit=memory_limit)
                self._checkpoints = Checkpoints(self._catalog.connection.execute)
                self._opened.callback(self._checkpoints.close)
                self._opened.callback(self._catalog.close)
                self._attach_all()
        except BaseException:
            self._opened.close()
            raise

    def append(self, batch: Batch, position: int | None = None, bodies: pa.Table | None = None) -> None:
        with self._lock, store_errors(f"append to store {self.path}"):
            if self._closed:
                raise StoreError("append rows: the store is closed")
            main = {table: rows for table, rows in batch.items() if table in MAIN_TABLES and rows.num_rows}
            rest = {table: rows for table, rows in batch.items() if table not in MAIN_TABLES}
            parts = by_day(rest, self._days, MAX_DAYS, int(self._clock() * 1e6) // DAY_US)
            if bodies is not None and position is not None:
                main[BODIES] = bodies
            for day in sorted(parts):
                self._append_to(day_name(day), parts[day], position)
            if main or position is not None:  # last: its progress says that every file is done
                self._append_to(MAIN, main, position)

    def position(self) -> int:
        return self._progress[MAIN]

    def reached(self) -> int:
        return max(self._progress.values())

    def bodies(self, since_us: int, most: int) -> Iterator[tuple[int, int]]:
        with store_errors(f"read bodies of store {self.path}"), self.cursor() as cursor:
            has = cursor.execute(
                "SELECT count(*) FROM duckdb_tables() WHERE database_name = ? AND table_name = ?", [MAIN, BODIES]
            ).fetchall()
            places = [f"{MAIN}.{BODIES}"] if has[0][0] else []  # a file that an older lensd made, opened to read
            yield from read_bodies(cursor, [f"{HELD}.{BODIES}", *places], since_us, most)

    def forget(self, before_us: int) -> None:
        with self._changing(f"forget bodies of store {self.path}"):
            self._catalog.connection.execute(f"DELETE FROM {MAIN}.{BODIES} WHERE received_at < make_timestamp(?)", [before_us])

    @property
    def left_out(self) -> dict[str, str]:
        """Damaged files that are not served, and what is wrong with each."""
        return dict(self._left_out)

    def cursor(self) -> AbstractContextManager[Cursor]:
        return self._catalog.cursor()

    def checkpoint(self) -> None:
        """Write what the logs of the files hold into the files. Raises StoreError; nothing is lost by that."""
        with self._changing(f"write the logs of store {self.path}"):
            for name in self._settled():
                self._checkpoints.write(name)

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            for name in self._settled():
                self._checkpoints.try_to_write(name)
            self._closed = True
            self._opened.close()

    def seal(self, day: int, *, hide: bool = False) -> tuple[DayFile, ...]:
        """The files of a day that is to be packed or deleted; rows that come from now on go to another one.

        `hide`: what is kept of the day is written meanwhile, and not shown before `replace`.
        """
        with self._changing(f"seal {day_name(day)}"):
            if hide:
                if kept.KEPT not in self._progress:
                    if kept.KEPT_FILE in self._left_out:
                        self._set_aside(self.path / kept.KEPT_FILE)
                    self._attach(kept.KEPT, self.path / kept.KEPT_FILE, kept.KEPT_TABLES)
                    kept.create_kept(self._catalog.connection.execute)
                self._hidden = day
                self._show()
            return self._days.seal(day)

    def unseal(self, files: tuple[DayFile, ...]) -> None:
        """Nothing came of it: they take rows again, where no later part does."""
        with self._lock:
            self._days.unseal(files)
            if self._hidden is not None and not self._closed:
                self._hidden = None
                self._show()

    def replace(self, files: tuple[DayFile, ...], made: DayFile | None) -> None:
        """Show, instead of these files, the packed one, or what is kept of them."""
        with self._changing(f"show {files[0].name} anew"):
            if made is not None:
                self._attach(made.name, self.path / made.file, _DAY_TABLES, fixed=True)
                self._days.add(made)
            self._days.retire(files)
            self._hidden = None
            self._show()

    def release(self) -> None:
        """Remove the files that were replaced. Best a while later: a statement that began before may be about to look their names up."""
        with self._changing("remove files that are no longer shown"):
            self._show()
            run = self._catalog.connection.execute
            gone = {file.file for file in self._days.retired}
            for file in self._days.retired:
                run(f"DETACH DATABASE IF EXISTS {file.name}")
                self._checkpoints.remove(file.name)
                self._progress.pop(file.name, None)
                remove(self.path / file.file)
            self._days.retired.clear()
            if gone and kept.KEPT in self._progress:
                kept.finish(run, gone)
            if kept.KEPT in self._settled():
                self._checkpoints.write_if_due(kept.KEPT)

    def days(self) -> dict[int, DayState]:
        """Each day that has files, counted since the epoch."""
        with self._changing("look at the days of the store"):
            return {day: self._state(day) for day in self._days}

    def other_bytes(self) -> int:
        """Bytes of the files that are of no day."""
        return sum(size(self.path / file) for file in ("main.duckdb", kept.KEPT_FILE))

    def progress_of(self, day: int) -> int:
        """The journal position up to which a day's files hold everything."""
        with self._lock:
            return self._known(day_name(day))

    def holds(self, file: DayFile) -> bool:
        with self._lock:
            return file in self._days.of(file.day)

    def _state(self, day: int) -> DayState:
        files = self._days.of(day)
        parts = [file.name for file in files if not file.packed]
        rows = self._catalog.connection.execute(
            "SELECT coalesce(sum(estimated_size), 0)::BIGINT FROM duckdb_tables() WHERE table_name <> 'progress'"
            " AND list_contains(?, database_name)",
            [parts],
        ).fetchone()
        return DayState(
            bytes=sum(size(self.path / file.file) for file in files),
            is_packed=any(file.packed for file in files),
            loose_rows=rows[0] if rows else 0,
            heard_at=self._heard.get(day),
        )

    def _settled(self) -> list[str]:
        """Files that nothing but this connection writes to; what is kept of a day is written by the one that deletes it."""
        return [name for name in self._checkpoints.names() if name != kept.KEPT or self._hidden is None]

    @contextlib.contextmanager
    def _changing(self, doing: str) -> Iterator[None]:
        """Alone with the files, of a store that is open for writing."""
        with self._lock, store_errors(doing):
            if self._closed or self._read_only:
                raise StoreError(f"{doing}: the store is {'closed' if self._closed else 'read-only'}")
            yield

    def _check_marker(self) -> None:
        swap.finish(self.path)
        version = marker.read_version(self.path)
        if version is None:
            if self._read_only:
                raise NoStoreError(f"no store at {self.path}: start the daemon there once or name another folder")
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            marker.write_version(self.path, SCHEMA_VERSION)
        elif version > SCHEMA_VERSION:
            raise StoreVersionError(f"store {self.path} has schema version {version}, this lensd knows {SCHEMA_VERSION}: upgrade lensd")
        elif version < SCHEMA_VERSION and not self._read_only:  # a reader sees null in columns that are not there yet
            migrate(self.path, version, self._clock)
        if not self._read_only:
            self._opened.enter_context(swap.held(self.path, SCHEMA_VERSION, self._doing))

    def _attach_all(self) -> None:
        if self._read_only and not (self.path / "main.duckdb").exists():
            raise NoStoreError(f"no store at {self.path}: main.duckdb is missing")
        self._attach(MAIN, self.path / "main.duckdb", MAIN_TABLES)
        doomed = self._attach_kept() if (self.path / kept.KEPT_FILE).exists() else set()
        found = {file for path in self.path.glob("day-*.duckdb") if (file := read_name(path.name)) and file.file not in doomed}
        while broken := [file for file in standing(found - {*self._attached()}) if not self._attach_or_leave_out(file)]:
            found -= {*broken}  # what a damaged packed file was made of may still be there
        if not self._read_only:
            self._tidy(found, doomed)
        self._show()

    def _attached(self) -> list[DayFile]:
        return [file for day in self._days for file in self._days.of(day)]

    def _attach_kept(self) -> set[str]:
        """Names of files whose deletion was decided: they are no longer of this store."""
        file = self.path / kept.KEPT_FILE
        run = self._catalog.connection.execute
        try:
            self._attach(kept.KEPT, file, kept.KEPT_TABLES)
            if not self._read_only:
                kept.create_kept(run)
            return kept.unfinished(run)
        except duckdb.Error as error:
            if not damage.is_damage(error):
                raise
            self._leave_out(kept.KEPT, file, error)
            return set()

    def _tidy(self, found: set[DayFile], doomed: set[str]) -> None:
        """Do what a kill has left undone: files that a packed one stands for, or that were being deleted, are removed."""
        for name in doomed:
            remove(self.path / name)
        if doomed:
            kept.finish(self._catalog.connection.execute, doomed)
        for aside in self.path.glob("day-*.duckdb.new"):
            remove(aside)
        held = self._attached()
        covered = {name for file in held if file.packed for name in made_of(self._catalog.connection.execute, file)}
        for file in found - {*held}:
            if file.file in covered:
                remove(self.path / file.file)
            else:  # damaged when the others were packed
                damage.set_aside(self.path / file.file)

    def _attach_or_leave_out(self, file: DayFile) -> bool:
        """Whether the day's file could be attached; a damaged one is left out and told once, and the others are served."""
        try:
            self._attach(file.name, self.path / file.file, _DAY_TABLES, fixed=file.packed)
        except duckdb.Error as error:
            if not damage.is_damage(error):
                raise
            self._leave_out(file.name, self.path / file.file, error)
            if file.packed and not self._read_only:  # its name says that other files do not count
                self._set_aside(self.path / file.file)
            return False
        self._days.add(file)
        return True

    def _leave_out(self, name: str, file: Path, error: duckdb.Error) -> None:
        for statement in ("ROLLBACK", f"DETACH DATABASE IF EXISTS {name}"):
            with contextlib.suppress(duckdb.Error):
                self._catalog.connection.execute(statement)
        self._checkpoints.remove(name)
        self._left_out[file.name] = damage.line_of(error)
        log.warning("%s is damaged and left out: %s", file, damage.line_of(error))

    def _set_aside(self, file: Path) -> None:
        self._left_out[damage.set_aside(file).name] = self._left_out.pop(file.name)

    def _attach(self, name: str, file: Path, tables: frozenset[str], *, fixed: bool = False) -> None:
        """`fixed`: a file that is never written again."""
        run = self._catalog.connection.execute
        fixed = fixed or self._read_only
        if not fixed and not file.exists():
            self._make(file)
        mode = "READ_ONLY" if fixed else f"STORAGE_VERSION '{STORAGE_VERSION}'"
        torn_log.attach(run, f"ATTACH {quoted(str(file))} AS {name} ({mode})", file)
        if not fixed:
            self._checkpoints.add(name, file)
            run("BEGIN TRANSACTION")
            for statement in create_tables(name, tables):
                run(statement)
            run(f"CREATE TABLE IF NOT EXISTS {name}.progress (position UBIGINT)")
            run(f"INSERT INTO {name}.progress SELECT 0 WHERE NOT EXISTS (FROM {name}.progress)")
            if name == MAIN:
                run(create_bodies(MAIN))
            run("COMMIT")
        has = run("SELECT count(*) FROM duckdb_tables() WHERE database_name = ? AND table_name = 'progress'", [name]).fetchone()
        found = run(f"SELECT position FROM {name}.progress").fetchone() if has and has[0] else None
        self._progress[name] = found[0] if found else 0  # a file whose making was cut short holds nothing

    def _make(self, file: Path) -> None:
        """An empty database, made aside: one that a kill has cut short is no database, and would keep the whole store from opening."""
        run = self._catalog.connection.execute
        aside = file.with_name(f"{file.name}.new")
        remove(aside)
        run("DETACH DATABASE IF EXISTS made")  # of an attempt that failed
        run(f"ATTACH {quoted(str(aside))} AS made (STORAGE_VERSION '{STORAGE_VERSION}')")
        run("CHECKPOINT made")
        run("DETACH made")
        os.replace(aside, file)
        RealDisk().sync_folder(self.path)

    def _show(self) -> None:
        """Views over every attached file; a file only has the tables it was made with."""
        run = self._catalog.connection.execute
        has = {*run("SELECT database_name, table_name FROM duckdb_tables() WHERE NOT internal AND database_name <> 'memory'").fetchall()}
        keeps, files = (kept.KEPT, "deletions") in has, self._attached()
        outlived = kept.places(self._hidden) if keeps else {}
        sources: dict[str, list[str]] = {}
        for table in TABLES:
            sources[table] = [f"{MAIN}.main.{table}"] if (MAIN, table) in has else []
            sources[table] += [outlived[table]] if (kept.KEPT, table) in has else []
            sources[table] += [shown(file, table) for file in files if (file.name, table) in has]
        self._catalog.show(sources, kept.KEPT if keeps else None)

    def _append_to(self, name: str, batch: Batch, position: int | None) -> None:
        known = self._known(name)
        if position is not None and position <= known:
            return
        if self._read_only:
            self._catalog.insert(HELD, batch)
        else:
            target = MAIN if name == MAIN else self._open_part(day_of(name)).name
            moved = () if position is None else (f"UPDATE {target}.progress SET position = {position}",)
            self._catalog.insert(f"{target}.main", batch, *moved)
        self._progress[name if self._read_only else target] = known if position is None else position
        if not self._read_only:
            self._checkpoints.write_if_due(target)  # the rows are stored, whatever comes of it

    def _known(self, name: str) -> int:
        """The position up to which a day's files together, or the main file, hold everything."""
        files = () if name == MAIN else self._days.of(day_of(name))
        return max([self._progress.get(name, 0), *(self._progress[file.name] for file in files)])

    def _open_part(self, day: int) -> DayFile:
        """The attached file that takes the day's rows."""
        self._heard[day] = self._clock()
        part = self._days.open_part(day)
        if part is None:
            part = self._days.next_part(day)
            if part.file in self._left_out:
                self._set_aside(self.path / part.file)
            self._attach(part.name, self.path / part.file, _DAY_TABLES)
            self._days.add(part)
            self._show()
        return part
