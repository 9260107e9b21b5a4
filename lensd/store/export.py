"""The public tables as Parquet files, as readers see them."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pyarrow.parquet as pq
from lensd_collectors.rows import TABLES

from lensd.errors import UsageError
from lensd.store.interface import Cursor
from lensd.store.schema import MAIN_TABLES, instant_column

ROWS_A_BATCH: Final = 50_000
_DATED: Final = {"incidents": "opened_at", "deliveries": "attempted_at"}

Tell = Callable[[str, int], None]
"""Told a table and how many of its rows have been written so far."""


class Written(NamedTuple):
    table: str
    file: str
    rows: int
    bytes: int


class Span(NamedTuple):
    """Rows from `since` up to, not including, `until`; microseconds since the epoch, None: no bound."""

    since: int | None = None
    until: int | None = None


def dated_by(table: str) -> str:
    """The column that says when a row was."""
    return _DATED.get(table, instant_column(table))


def prepare(folder: Path, tables: tuple[str, ...]) -> tuple[str, ...]:
    """Make the folder; the tables to write. Raises UsageError for a folder that is not empty and for a table that is none."""
    for table in tables:
        if table not in TABLES:
            raise UsageError(f"--table {table}: no such table; there are {', '.join(TABLES)}")
    try:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise UsageError(f"export to {folder}: the folder is not empty; name a new one")
    except OSError as error:
        raise UsageError(f"export to {folder}: {(error.strerror or str(error)).lower()}; name a folder that can be written") from None
    return tables or tuple(TABLES)


def export(cursor: Cursor, folder: Path, tables: tuple[str, ...], span: Span = Span(), tell: Tell = lambda *_: None) -> Iterator[Written]:  # noqa: B008 - immutable
    """Write `<table>.parquet` for each table, in order of time; a file has its name only once it is whole.

    Rows without an instant are left out where `span` has a bound. Raises UsageError where the folder cannot be written.
    """
    for table in tables:
        yield _write(cursor, folder, table, span, tell)


def _write(cursor: Any, folder: Path, table: str, span: Span, tell: Tell) -> Written:
    at = dated_by(table)
    bounds = {"since": (span.since, ">="), "until": (span.until, "<")}
    given = {name: value for name, (value, _) in bounds.items() if value is not None}
    where = " AND ".join(f"{at} {bounds[name][1]} make_timestamp(${name})" for name in given)
    sql = f"SELECT * FROM {table}{f' WHERE {where}' if where else ''}" + (f" ORDER BY {at}" if table in MAIN_TABLES else "")
    target, rows = folder / f"{table}.parquet", 0
    aside = target.with_name(f"{target.name}.new")
    reader = cursor.execute(sql, given).to_arrow_reader(ROWS_A_BATCH)
    try:
        with pq.ParquetWriter(aside, reader.schema, compression="zstd") as writer:
            for batch in reader:
                writer.write_batch(batch)
                rows += batch.num_rows
                tell(table, rows)
        os.replace(aside, target)
    except OSError as error:
        raise UsageError(f"export to {folder}: {(error.strerror or str(error)).lower()}") from None
    return Written(table, target.name, rows, target.stat().st_size)
