"""Reads everything that a store's folder holds and says what of it is damaged and what can be saved."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

import duckdb
import msgspec
from lensd_collectors.rows import TABLES

from lensd.errors import NoStoreError, StoreError, StoreFailedError
from lensd.store import damage, marker, swap
from lensd.store.backups import Backup, backups
from lensd.store.catalog import store_errors
from lensd.store.folder import MAIN, FolderStore
from lensd.store.migrations import Applied, applied
from lensd.store.segments import Scan, position_of
from lensd.store.segments import numbers as segment_numbers

_MEMORY: Final = "1GiB"

Tell = Callable[[str], None]
"""Told what is being looked at, before it is."""


class TableCheck(msgspec.Struct, frozen=True, kw_only=True):
    """A table of a file, or a view over all files. `rows` is None where it cannot be read; `error` says why."""

    table: str
    rows: int | None = None
    error: str | None = None


class FileCheck(msgspec.Struct, frozen=True, kw_only=True):
    """A database file. `error`: it does not open at all."""

    file: str
    bytes: int
    tables: tuple[TableCheck, ...] = ()
    error: str | None = None

    @property
    def is_sound(self) -> bool:
        return self.error is None and all(table.error is None for table in self.tables)


class JournalCheck(msgspec.Struct, frozen=True, kw_only=True):
    """`undrained`: records that the files do not hold yet. A torn end is what a crash leaves, and no damage."""

    segments: int = 0
    bytes: int = 0
    records: int = 0
    undrained: int = 0
    torn: int = 0
    damaged: tuple[str, ...] = ()


class StoreCheck(msgspec.Struct, frozen=True, kw_only=True):
    """All that was found. `views` are what readers see, `error` why they see nothing."""

    schema_version: int = 1  # of this document
    store: str
    store_schema_version: int | None
    files: tuple[FileCheck, ...]
    journal: JournalCheck
    views: tuple[TableCheck, ...]
    error: str | None
    migrations: tuple[dict[str, Any], ...]
    backups: tuple[Backup, ...]

    @property
    def is_sound(self) -> bool:
        views = all(view.error is None for view in self.views)
        return self.error is None and views and not self.journal.damaged and all(file.is_sound for file in self.files)


def check(folder: Path, tell: Tell = lambda _: None) -> StoreCheck:
    """Reads every block of every file, every segment of the journal and every view; changes nothing that an opening does not.

    Raises NoStoreError where there is none, StoreBusyError while a daemon has it open.
    """
    folder = folder.resolve()
    swap.finish(folder)
    version = marker.read_version(folder)
    if version is None:
        raise NoStoreError(f"no store at {folder}: start the daemon there once or name another folder")
    doing = f"check store {folder}"
    with store_errors(doing), swap.alone(folder, doing):
        files = tuple(_told(tell, path) for path in _databases(folder))
    views, error, position, migrations = _opened(folder, tell)
    tell("journal")
    return StoreCheck(
        store=str(folder),
        store_schema_version=version,
        files=files,
        journal=_journal(folder / swap.JOURNAL, position),
        views=views,
        error=error,
        migrations=tuple(step._asdict() for step in migrations),
        backups=tuple(backups(folder)),
    )


def check_file(path: Path) -> FileCheck:
    """One database file by itself, so that what is wrong with it touches no other."""
    size = path.stat().st_size
    connection = duckdb.connect(":memory:", config={"memory_limit": _MEMORY, "autoload_known_extensions": "false"})
    try:
        place = str(path).replace("'", "''")
        connection.execute(f"ATTACH '{place}' AS checked (READ_ONLY)")
        names = connection.execute(
            "SELECT table_name FROM duckdb_tables() WHERE database_name = 'checked' AND NOT internal ORDER BY table_name"
        ).fetchall()
        tables = tuple(_read_all(connection.execute, f"checked.main.{name}", name) for (name,) in names)
        return FileCheck(file=path.name, bytes=size, tables=tables)
    except duckdb.Error as error:
        if not damage.is_damage(error):
            raise
        return FileCheck(file=path.name, bytes=size, error=damage.line_of(error))
    finally:
        connection.close()


def _databases(folder: Path) -> list[Path]:
    """Also those that were set aside because they did not open."""
    return sorted(path for path in (*folder.glob("*.duckdb"), *folder.glob(f"*{damage.SUFFIX}*")) if path.suffix != ".wal")


def _told(tell: Tell, path: Path) -> FileCheck:
    tell(path.name)
    return check_file(path)


def _read_all(run: Callable[[str], Any], place: str, name: str) -> TableCheck:
    """Every value is hashed, so that every block is read and its checksum compared."""
    try:
        found = run(f"SELECT count(*), bit_xor(hash(COLUMNS(*)::VARCHAR)) FROM {place}").fetchone()
    except duckdb.Error as error:
        return TableCheck(table=name, error=damage.line_of(error))
    return TableCheck(table=name, rows=found[0])


def _opened(folder: Path, tell: Tell) -> tuple[tuple[TableCheck, ...], str | None, int, list[Applied]]:
    """What readers see; nothing where the store as a whole does not open."""
    try:
        store = FolderStore(folder, read_only=True)
    except StoreFailedError as error:
        return (), str(error), 0, []
    try:
        with store.cursor() as cursor:
            views = tuple(_view(store, tell, table) for table in TABLES)
            return views, None, store.position(), applied(cursor.execute, MAIN)
    finally:
        store.close()


def _view(store: FolderStore, tell: Tell, table: str) -> TableCheck:
    tell(f"view {table}")
    try:
        with store.cursor() as cursor, store_errors("read"):
            [(rows,)] = cursor.execute(f"SELECT count(*) FROM {table}").fetchall()
    except StoreError as error:
        return TableCheck(table=table, error=str(error))
    return TableCheck(table=table, rows=rows)


def _journal(folder: Path, position: int) -> JournalCheck:
    if not folder.is_dir():
        return JournalCheck()
    files = segment_numbers([path.name for path in folder.iterdir()])
    scan, records, undrained = Scan(folder, position_of(0, 0)), 0, 0
    for record in scan:
        records += 1
        undrained += record.position > position
    return JournalCheck(
        segments=len(files),
        bytes=swap.size_of(list(folder.glob("*.journal"))),
        records=records,
        undrained=undrained,
        torn=scan.torn,
        damaged=tuple(map(str, scan.damaged)),
    )


def lines(found: StoreCheck) -> Iterator[str]:
    """What was found, for people: what is sound in a line each, then what is not and what to do."""
    rows = sum(view.rows or 0 for view in found.views)
    journal = found.journal
    yield f"store {found.store}, schema version {found.store_schema_version}"
    for file in found.files:
        yield _file_line(file)
    undrained = f", {journal.undrained} of them not in the files yet" if journal.undrained else ""
    yield f"ok       journal: {journal.segments} segments, {journal.records} records{undrained}"
    for place in journal.damaged:
        yield f"damaged  journal: {place}"
    for view in found.views:
        if view.error is not None:
            yield f"damaged  view {view.table}: {view.error}"
    if found.error is not None:
        yield f"damaged  the store does not open: {found.error}"
    else:
        yield f"ok       {len(found.views)} views, {rows} rows"
    for backup in found.backups:
        yield f"backup   {backup.name}, {_size(backup.bytes)}"


def _file_line(file: FileCheck) -> str:
    if file.error is not None:
        then = "put a backup back, see lensd store restore" if file.file == "main.duckdb" else "the store is served without it"
        return f"damaged  {file.file}: {file.error}; nothing of it can be read: {then}"
    readable = [table for table in file.tables if table.error is None]
    rows = sum(table.rows or 0 for table in readable)
    if file.is_sound:
        return f"ok       {file.file}: {_size(file.bytes)}, {len(readable)} tables, {rows} rows"
    broken = ", ".join(table.table for table in file.tables if table.error is not None)
    return (
        f"damaged  {file.file}: cannot read {broken}; {len(readable)} of {len(file.tables)} tables with {rows} rows can be read: "
        "export them, then move the file out of the folder"
    )


def _size(size: int) -> str:
    return f"{size / 1e6:.1f} MB"
