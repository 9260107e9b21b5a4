"""The in-memory DuckDB instance that a store is seen through: settings that cannot be undone, macros, and the public tables as views."""

import contextlib
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import duckdb
from lensd_collectors.rows import TABLES

from lensd.errors import StoreBusyError, StoreError, StoreFailedError
from lensd.store.bodies import BODIES, create_bodies
from lensd.store.interface import Batch
from lensd.store.schema import REVISED, WITHDRAWN, create_tables, statements

HELD: Final = "memory.held"
"""Schema of the in-memory tables: all of a memory store, and the overlay of a read-only folder store."""

DELETED: Final = f"{HELD}.deleted"
"""View of what is known of requests that were deleted: a row a hash of a name."""

PLACES: Final = f"{HELD}.request_places"
"""View of where the rows of `requests` lie: the qualified tables of its view."""

FILTERS: Final = f"{HELD}.name_filters"
"""Filters by `lensd.store.name_filters`: a row a run of rows of a place; `file` is the number of the database as it is attached."""

APPENDED_BITS: Final = 48
"""Of the column `appended` of the views of every revision: the number of the place, and below it the id of the row."""

_ROWS_A_SOURCE_BITS: Final = 36
_FILTERS_TABLE: Final = (
    f"CREATE TABLE {FILTERS} (place VARCHAR, file BIGINT, low BIGINT, high BIGINT, early TIMESTAMP, late TIMESTAMP, bits BIT)"
)
_NO_CHECKPOINT: Final = "1000TB"
"""DuckDB never checkpoints by itself: see lensd.store.checkpoints."""


class Catalog:
    """One DuckDB instance. Files are attached to it by a store; readers get cursors of it and see views in its default schema.

    `folder` is the one place on disk that its SQL may touch, None for nowhere; `spill` lets big queries use disk there.
    `threads`: at most as many a query; None: one for each core.
    """

    def __init__(self, folder: Path | None, *, spill: bool = False, memory_limit: str = "2GiB", threads: int | None = None) -> None:
        # Set at connect: a later SET holds for that one connection and not for its cursors.
        self.connection = duckdb.connect(
            ":memory:",
            config={
                "python_enable_replacements": "false",
                "autoinstall_known_extensions": "false",
                "autoload_known_extensions": "false",
                "memory_limit": memory_limit,
                **({} if threads is None else {"threads": str(threads)}),
            },
        )
        self._lock = threading.Lock()
        self._cursors: set[duckdb.DuckDBPyConnection] = set()
        self._closed = False
        self._harden(folder, spill)
        self.connection.execute(f"CREATE SCHEMA {HELD}")
        for statement in (*create_tables(HELD, frozenset(TABLES)), create_bodies(HELD), _FILTERS_TABLE, *statements("macros.sql")):
            self.connection.execute(statement)
        self.show({})
        self._door = self.connection.cursor()  # makes the readers' cursors; never busy itself

    def _harden(self, folder: Path | None, spill: bool) -> None:
        temporary = str(folder / "spill") if folder and spill else ""
        self.connection.execute("PRAGMA disable_checkpoint_on_shutdown")  # nor where a file is detached
        for setting in (
            "TimeZone = 'UTC'",
            f"checkpoint_threshold = '{_NO_CHECKPOINT}'",
            f"temp_directory = {quoted(temporary)}",
            f"allowed_directories = [{quoted(str(folder)) if folder else ''}]",
            "enable_external_access = false",
            "lock_configuration = true",
        ):
            self.connection.execute(f"SET {setting}")

    def show(self, sources: Mapping[str, Sequence[str]], kept: str | None = None) -> None:
        """Make the public tables views over the held tables and, in this order, the places named in `sources`: qualified tables, or
        subqueries in brackets where a table is not one of REVISED. `kept`: the database that knows what was deleted.

        All views change at once. Raises duckdb.Error; they are then as they were.
        """
        self.connection.execute("BEGIN TRANSACTION")
        try:
            for table in TABLES:
                places = [f"{HELD}.{table}", *sources.get(table, ())]
                if table in REVISED:
                    self._show_last(table, REVISED[table], places)
                else:
                    union = " UNION ALL BY NAME ".join(f"SELECT * FROM {place}" for place in places)
                    self.connection.execute(f"CREATE OR REPLACE VIEW memory.main.{table} AS {union}")
            self._show_deleted(kept)
            listed = ", ".join(map(quoted, [f"{HELD}.requests", *sources.get("requests", ())]))
            self.connection.execute(f"CREATE OR REPLACE VIEW {PLACES} AS SELECT unnest([{listed}]) AS place")
            self.connection.execute("COMMIT")
        except BaseException:
            with contextlib.suppress(duckdb.Error):
                self.connection.execute("ROLLBACK")
            raise

    def _show_deleted(self, kept: str | None) -> None:
        known = f"SELECT name, deleted_at, day, rule FROM {kept}.deleted_names JOIN {kept}.deletions USING (number)"
        nothing = "SELECT 0::UBIGINT AS name, NULL::TIMESTAMP AS deleted_at, NULL::DATE AS day, '' AS rule WHERE false"
        self.connection.execute(f"CREATE OR REPLACE VIEW {DELETED} AS {known if kept else nothing}")

    def _show_last(self, table: str, key: str, places: Sequence[str]) -> None:
        # An anti join on a view, not a window, an aggregate or a CTE: those make DuckDB build every row there is before any filter.
        # Of equal revisions the row that was appended later stands.
        ordered = " UNION ALL BY NAME ".join(
            f"SELECT *, rowid + ({number}::BIGINT << {_ROWS_A_SOURCE_BITS}) AS appended FROM {place}"
            for number, place in enumerate([*places[1:], places[0]])
        )
        every = f"{HELD}.every_{table}"
        self.connection.execute(f"CREATE OR REPLACE VIEW {every} AS {ordered}")
        shown = f" AND this.{WITHDRAWN[table]} IS NOT TRUE" if table in WITHDRAWN else ""
        self.connection.execute(
            f"CREATE OR REPLACE VIEW memory.main.{table} AS SELECT this.* EXCLUDE (appended) FROM {every} this"
            f" WHERE NOT EXISTS (SELECT 1 FROM {every} newer WHERE newer.{key} = this.{key} AND (newer.revision > this.revision"
            f" OR newer.revision = this.revision AND newer.appended > this.appended)){shown}"
        )

    def insert(self, schema: str, batch: Batch, *after: str) -> None:
        """Add the batch's rows to `schema`'s tables and run the statements `after` them, all in one transaction."""
        run = self.connection.execute
        run("BEGIN TRANSACTION")
        try:
            for table, rows in batch.items():
                self.connection.register("incoming", rows)
                try:
                    run(f"INSERT INTO {schema}.{table} BY NAME SELECT * FROM incoming")
                finally:
                    self.connection.unregister("incoming")
            for statement in after:
                run(statement)
            run("COMMIT")
        except BaseException:
            with contextlib.suppress(duckdb.Error):
                run("ROLLBACK")
            raise

    def empty(self, schema: str) -> None:
        """Take all rows out of `schema`'s tables."""
        for table in (*TABLES, BODIES):
            self.connection.execute(f"DELETE FROM {schema}.{table}")

    @contextlib.contextmanager
    def cursor(self) -> Iterator[duckdb.DuckDBPyConnection]:
        with self._lock:
            if self._closed:
                raise StoreError("the store is closed")
            made = self._door.cursor()
            self._cursors.add(made)
        try:
            yield made
        finally:
            with self._lock:
                self._cursors.discard(made)
            made.close()

    def close(self) -> None:
        """Close every cursor too: DuckDB keeps files and locks until the last one is gone."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            for cursor in self._cursors:
                with contextlib.suppress(duckdb.Error):
                    cursor.interrupt()
                    cursor.close()
            self._door.close()
            self.connection.close()


@contextlib.contextmanager
def store_errors(doing: str) -> Iterator[None]:
    """DuckDB's and the system's errors inside as StoreError, in one line."""
    try:
        yield
    except duckdb.Error as error:
        text = str(error)
        holder = re.search(r"lock is held in .*?\(PID (\d+)\)", text)
        if holder:
            raise StoreBusyError(f"{doing}: the store belongs to process {holder[1]}, which has it open; ask its API or stop it") from error
        if "Could not set lock on file" in text or "Unique file handle conflict" in text:
            raise StoreBusyError(f"{doing}: the store is open elsewhere; ask its API or stop it") from error
        raise StoreFailedError(f"{doing}: {text.splitlines()[0][:300]}") from error
    except OSError as error:
        raise StoreFailedError(f"{doing}: {error}") from error


def quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
