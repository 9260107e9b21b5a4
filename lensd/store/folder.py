"""The store in a folder: main.duckdb, one day-YYYYMMDD.duckdb a UTC day, and store.json with the schema's version."""

import contextlib
import os
import re
import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import date, timedelta
from pathlib import Path
from typing import Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
from lensd_collectors.rows import TABLES

from lensd.errors import NoStoreError, StoreError, StoreVersionError
from lensd.store.catalog import HELD, Catalog, store_errors
from lensd.store.interface import Batch, Cursor
from lensd.store.schema import MAIN_TABLES, SCHEMA_VERSION, create_tables, instant_column

MAIN: Final = "main_file"
MAX_DAYS: Final = 400
"""Day files at most; rows of further days go to the nearest one, so that a sender's broken clock cannot fill the folder with files."""

_STORAGE_VERSION: Final = "v1.5.0"
_DAY_US: Final = 86_400_000_000
_EPOCH: Final = date(1970, 1, 1)
_DAY_FILE: Final = re.compile(r"day-(\d{8})\.duckdb")
_DAY_TABLES: Final = frozenset(TABLES) - MAIN_TABLES


class _Marker(msgspec.Struct):
    schema_version: int


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
        self._days: set[int] = set()  # since the epoch
        self._doing = f"open store {path}"
        with store_errors(self._doing):
            self._check_marker()
            self._catalog = Catalog(self.path, spill=not read_only, memory_limit=memory_limit)
        try:
            with store_errors(self._doing):
                self._attach_all()
        except BaseException:
            self._catalog.close()
            raise

    def append(self, batch: Batch, position: int | None = None) -> None:
        with self._lock, store_errors(f"append to store {self.path}"):
            if self._closed:
                raise StoreError("append rows: the store is closed")
            parts = self._split(batch)
            main = parts.pop(MAIN, {})
            for name in sorted(parts):
                self._append_to(name, parts[name], position)
            if main or position is not None:  # last: its progress says that every file is done
                self._append_to(MAIN, main, position)

    def position(self) -> int:
        return self._progress[MAIN]

    def reached(self) -> int:
        return max(self._progress.values())

    def cursor(self) -> AbstractContextManager[Cursor]:
        return self._catalog.cursor()

    def close(self) -> None:
        with self._lock:
            if not self._closed:
                self._closed = True
                self._catalog.close()

    def _check_marker(self) -> None:
        marker = self.path / "store.json"
        if not marker.exists():
            if self._read_only:
                raise NoStoreError(f"no store at {self.path}: start the daemon there once or name another folder")
            self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
            aside = self.path / "store.json.new"
            aside.write_bytes(msgspec.json.encode(_Marker(schema_version=SCHEMA_VERSION)))
            os.replace(aside, marker)
            return
        try:
            version = msgspec.json.decode(marker.read_bytes(), type=_Marker).schema_version
        except msgspec.DecodeError as error:
            raise StoreVersionError(f"open store {self.path}: store.json is damaged ({error})") from error
        if version > SCHEMA_VERSION:
            raise StoreVersionError(f"store {self.path} has schema version {version}, this lensd knows {SCHEMA_VERSION}: upgrade lensd")

    def _attach_all(self) -> None:
        if self._read_only and not (self.path / "main.duckdb").exists():
            raise NoStoreError(f"no store at {self.path}: main.duckdb is missing")
        self._attach(MAIN, self.path / "main.duckdb", MAIN_TABLES)
        for file in sorted(self.path.glob("day-*.duckdb")):
            if named := _DAY_FILE.fullmatch(file.name):
                with contextlib.suppress(ValueError):  # eight digits that are no date: not ours
                    day = (date.fromisoformat(named[1]) - _EPOCH).days
                    self._attach(_name(day), file, _DAY_TABLES)
                    self._days.add(day)
        self._show()

    def _attach(self, name: str, file: Path, tables: frozenset[str]) -> None:
        run = self._catalog.connection.execute
        if not self._read_only and not file.exists():
            self._make(file)
        mode = "READ_ONLY" if self._read_only else f"STORAGE_VERSION '{_STORAGE_VERSION}'"
        place = str(file).replace("'", "''")
        run(f"ATTACH '{place}' AS {name} ({mode})")
        if not self._read_only:
            run("BEGIN TRANSACTION")
            for statement in create_tables(name, tables):
                run(statement)
            run(f"CREATE TABLE IF NOT EXISTS {name}.progress (position UBIGINT)")
            run(f"INSERT INTO {name}.progress SELECT 0 WHERE NOT EXISTS (FROM {name}.progress)")
            run("COMMIT")
            self._add_columns(name)
        has = run("SELECT count(*) FROM duckdb_tables() WHERE database_name = ? AND table_name = 'progress'", [name]).fetchone()
        found = run(f"SELECT position FROM {name}.progress").fetchone() if has and has[0] else None
        self._progress[name] = found[0] if found else 0  # a file whose making was cut short holds nothing

    def _make(self, file: Path) -> None:
        """An empty database, made aside: one that a kill has cut short is no database, and would keep the whole store from opening."""
        run = self._catalog.connection.execute
        aside = file.with_name(f"{file.name}.new")
        for left in (aside, aside.with_name(f"{aside.name}.wal")):
            left.unlink(missing_ok=True)
        place = str(aside).replace("'", "''")
        run("DETACH DATABASE IF EXISTS made")  # of an attempt that failed
        run(f"ATTACH '{place}' AS made (STORAGE_VERSION '{_STORAGE_VERSION}')")
        run("CHECKPOINT made")
        run("DETACH made")
        os.replace(aside, file)

    def _add_columns(self, name: str) -> None:
        """Columns that the schema has gained since the file was made; old rows have null in them."""
        run = self._catalog.connection.execute
        missing = run(
            "SELECT held.table_name, held.column_name, held.data_type FROM duckdb_columns() held"
            " JOIN duckdb_tables() mine ON mine.database_name = $name AND mine.table_name = held.table_name"
            " WHERE held.database_name = 'memory' AND held.schema_name = 'held' AND NOT EXISTS (SELECT 1 FROM duckdb_columns() had"
            " WHERE had.database_name = $name AND had.table_name = held.table_name AND had.column_name = held.column_name)",
            {"name": name},
        ).fetchall()
        for table, column, kind in missing:
            run(f"ALTER TABLE {name}.{table} ADD COLUMN {column} {kind}")

    def _show(self) -> None:
        """Views over every attached file; a file only has the tables it was made with."""
        rows = self._catalog.connection.execute(
            "SELECT database_name, table_name FROM duckdb_tables() WHERE NOT internal AND database_name <> 'memory' ORDER BY 1"
        ).fetchall()
        sources: dict[str, list[str]] = {table: [] for table in TABLES}
        for name, table in rows:
            if name in self._progress and table in sources:
                sources[table].append(f"{name}.main.{table}")
        self._catalog.show(sources)

    def _append_to(self, name: str, batch: Batch, position: int | None) -> None:
        known = self._progress.get(name, 0)
        if position is not None and position <= known:
            return
        if self._read_only:
            self._catalog.insert(HELD, batch)
        else:
            if name not in self._progress:
                self._add_day(name)
            moved = () if position is None else (f"UPDATE {name}.progress SET position = {position}",)
            self._catalog.insert(f"{name}.main", batch, *moved)
        self._progress[name] = known if position is None else position

    def _add_day(self, name: str) -> None:
        self._attach(name, self.path / f"day-{name.removeprefix('day_')}.duckdb", _DAY_TABLES)
        self._days.add(_day(name))
        self._show()

    def _split(self, batch: Batch) -> dict[str, dict[str, pa.Table]]:
        """The batch's tables by the file their rows belong to."""
        parts: dict[str, dict[str, pa.Table]] = {}
        for table, rows in batch.items():
            if rows.num_rows == 0:
                continue
            if table in MAIN_TABLES:
                parts.setdefault(MAIN, {})[table] = rows
                continue
            days = self._days_of(table, rows)
            present = pc.unique(days).to_pylist()
            for day in present:
                some = rows if len(present) == 1 else rows.filter(pc.equal(days, day))
                mine = parts.setdefault(self._file_of(day, parts), {})
                mine[table] = pa.concat_tables([mine[table], some]) if table in mine else some
        return parts

    def _days_of(self, table: str, rows: pa.Table) -> pa.ChunkedArray:
        """Each row's day since the epoch; today where it has no instant."""
        today = int(self._clock() * 1e6) // _DAY_US
        column = instant_column(table)
        if column not in rows.column_names:
            return pa.chunked_array([pa.array([today] * rows.num_rows, pa.int64())])
        instants = rows.column(column).cast(pa.timestamp("us")).cast(pa.int64())
        return pc.fill_null(pc.divide(instants, _DAY_US), today)

    def _file_of(self, day: int, parts: dict[str, dict[str, pa.Table]]) -> str:
        days = {*self._days, *(_day(name) for name in parts if name != MAIN)}
        if day not in days and len(days) >= MAX_DAYS:
            day = min(days, key=lambda other: abs(other - day))
        return _name(max(day, 0))


def _name(day: int) -> str:
    return f"day_{(_EPOCH + timedelta(days=min(day, _MAX_DAY))):%Y%m%d}"


def _day(name: str) -> int:
    return (date.fromisoformat(name.removeprefix("day_")) - _EPOCH).days


_MAX_DAY: Final = (date(9999, 12, 31) - _EPOCH).days
