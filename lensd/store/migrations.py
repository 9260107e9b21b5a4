"""Brings a store of an earlier schema version to the present one, and keeps what it was as a backup.

A migration is applied to a copy of each file; the files as they were become the backup. So a migration that fails or is killed
leaves the old store, and a new version of a table is one entry in MIGRATIONS.
"""

import importlib.metadata
import logging
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import duckdb

from lensd.store import damage, marker, swap
from lensd.store.catalog import HELD, Catalog, store_errors
from lensd.store.schema import SCHEMA_VERSION

log = logging.getLogger(__name__)

Run = Callable[..., Any]
"""`execute` of a connection to which the file is attached."""

_MAIN: Final = "main.duckdb"
_RECORD: Final = "CREATE TABLE IF NOT EXISTS {name}.migrations (name VARCHAR, version BIGINT, migrated_at TIMESTAMP, lensd VARCHAR)"


class Migration(NamedTuple):
    """One step. `apply(run, database)` changes one attached file, whichever it is, in a transaction that is open."""

    version: int
    name: str
    apply: Callable[[Run, str], None]


class Applied(NamedTuple):
    """A migration that a store has been through; `at` in microseconds."""

    name: str
    version: int
    at: int
    lensd: str


def add_columns(run: Run, database: str) -> None:
    """Columns that the schema has gained since the file was made; old rows have null in them."""
    missing = run(
        "SELECT held.table_name, held.column_name, held.data_type FROM duckdb_columns() held"
        " JOIN duckdb_tables() mine ON mine.database_name = $name AND mine.table_name = held.table_name"
        " WHERE held.database_name || '.' || held.schema_name = $held AND NOT EXISTS (SELECT 1 FROM duckdb_columns() had"
        " WHERE had.database_name = $name AND had.table_name = held.table_name AND had.column_name = held.column_name)"
        " ORDER BY held.table_name, held.column_index",
        {"name": database, "held": HELD},
    ).fetchall()
    for table, column, kind in missing:
        run(f"ALTER TABLE {database}.{table} ADD COLUMN {column} {kind}")


MIGRATIONS: Final = (Migration(2, "columns-of-version-2", add_columns),)
"""In order. Whoever changes a table in schema.sql raises SCHEMA_VERSION and adds one here; `add_columns` does for new columns."""


def migrate(
    folder: Path,
    found: int,
    clock: Callable[[], float] = time.time,
    *,
    free: swap.Free = swap.free_bytes,
    migrations: Sequence[Migration] = MIGRATIONS,
    target: int = SCHEMA_VERSION,
) -> None:
    """Bring the store from schema version `found` to `target`; `backup-v<found>-<instant>` in its folder is what it was.

    Raises StoreBusyError, and StoreFailedError also where the copies do not fit on the disk; the store is then as it was.
    """
    doing = f"migrate store {folder} from schema version {found} to {target}"
    steps = [step for step in migrations if found < step.version <= target]
    with store_errors(doing), swap.alone(folder, doing):
        present = swap.content(folder)
        databases = [path for path in present if path.name.endswith((".duckdb", ".duckdb.wal"))]
        need = swap.size_of(databases)
        log.info("%s: copying %d bytes first", doing, need)
        made = swap.begin(folder, need, doing, free)
        for path in present:
            if path.name != marker.NAME:
                swap.copy_in(path, made / path.name)
        _apply_all(made, steps, clock())
        marker.write_version(made, target)
        swap.same_age(folder / marker.NAME, made / marker.NAME)
        backup = swap.commit(folder, found, clock)
    log.info("%s: done; what it was is kept in %s", doing, folder / backup)


def applied(run: Run, database: str) -> list[Applied]:
    """The migrations that the store of this main file has been through, oldest first."""
    has = run("SELECT count(*) FROM duckdb_tables() WHERE database_name = ? AND table_name = 'migrations'", [database]).fetchone()
    if not has[0]:
        return []
    rows = run(f"SELECT name, version, epoch_us(migrated_at), lensd FROM {database}.migrations ORDER BY version, name").fetchall()
    return [Applied(*row) for row in rows]


def _apply_all(folder: Path, steps: Sequence[Migration], now: float) -> None:
    catalog = Catalog(folder)
    try:
        for file in sorted(folder.glob("*.duckdb")):
            _apply(catalog.connection.execute, file, steps, now)
    finally:
        catalog.close()


def _apply(run: Run, file: Path, steps: Sequence[Migration], now: float) -> None:
    place = str(file).replace("'", "''")
    try:
        run(f"ATTACH '{place}' AS migrating")
    except duckdb.Error as error:
        if file.name == _MAIN or not damage.is_damage(error):
            raise
        # The store opens without such a file, before and after.
        log.warning("%s is damaged and stays as it is: %s", file.name, damage.line_of(error))
        return
    run("BEGIN TRANSACTION")
    for step in steps:
        step.apply(run, "migrating")
    if file.name == _MAIN:
        run(_RECORD.format(name="migrating"))
        for step in steps:
            told = [step.name, step.version, int(now * 1e6), importlib.metadata.version("lensd")]
            run("INSERT INTO migrating.migrations VALUES (?, ?, make_timestamp(?), ?)", told)
    run("COMMIT")
    run("CHECKPOINT migrating")
    run("DETACH migrating")
