"""One database of a day's files: sorted by time, attributes as VARIANT, requests in their last revision only."""

import contextlib
import os
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import duckdb
from lensd_collectors.rows import TABLES

from lensd.errors import StoreFailedError
from lensd.store.catalog import HELD, quoted
from lensd.store.day_files import DAY_US, DayFile, date_of
from lensd.store.schema import MAIN_TABLES, REVISED, STORAGE_VERSION, instant_column

Run = Callable[..., Any]
"""`execute` of a cursor of the store's catalogue."""
Step = Callable[[str], None]
"""Told the name of each step once it is done; what it raises ends the work there."""

ROWS_AT_ONCE: Final = 400_000
"""Rows sorted together, so that a day of any size is packed in bounded memory."""
_PACKED_SPANS: Final = (
    "(SELECT * EXCLUDE (attributes_text, is_src_own) REPLACE (CASE WHEN attributes IS NULL THEN attributes_text"
    " ELSE CAST(CAST(attributes AS JSON) AS VARCHAR) END AS attributes, CASE WHEN is_src_own THEN 'span:' || span_id ELSE src END AS src)"
    " FROM {place})"
)
"""Packed spans as they were: columns that a query does not ask for are not made."""

_DATABASE: Final = "packing"
_VARIANT: Final = "CAST(CAST(attributes AS JSON) AS VARIANT)"
_ROUND_TRIPS: Final = (
    f"CASE WHEN starts_with(attributes, '{{{{') AND json_valid(attributes) THEN CAST(CAST({_VARIANT} AS JSON) AS VARCHAR) = attributes END"
)
_SPLIT_SPANS: Final = (
    f"SELECT * EXCLUDE (is_exact) REPLACE (CASE WHEN is_exact THEN {_VARIANT} END AS attributes,"
    " CASE WHEN NOT is_src_own THEN src END AS src), CASE WHEN is_exact THEN NULL ELSE attributes END AS attributes_text"
    f" FROM (SELECT *, {_ROUND_TRIPS} AS is_exact, coalesce(src = 'span:' || span_id, false) AS is_src_own FROM {{place}})"
)
"""What a VARIANT would not give back to the letter (numbers of 30 digits, other spellings) stays as text; a `src` that only names its
own span is not written."""
_LAST: Final = (
    "SELECT * EXCLUDE (appended) FROM ({every}) WHERE {key} IS NULL OR revision IS NULL OR appended IN (SELECT last.appended FROM"
    " (SELECT max({{'revision': revision, 'appended': appended}}) AS last FROM ({every}) WHERE {key} IS NOT NULL AND revision IS NOT NULL"
    " GROUP BY {key}))"
)


def pack(run: Run, files: Sequence[DayFile], aside: Path, position: int, step: Step) -> None:
    """Write the rows of attached files, in the order in which they came, to a new database at `aside`, and to the disk."""
    run(f"DETACH DATABASE IF EXISTS {_DATABASE}")  # of an attempt that failed
    run(f"ATTACH {quoted(str(aside))} AS {_DATABASE} (STORAGE_VERSION '{STORAGE_VERSION}')")
    try:
        for table in sorted(frozenset(TABLES) - MAIN_TABLES):
            _pack_table(run, table, [file for file in files if _has(run, file, table)], step)
        run(f"CREATE TABLE {_DATABASE}.progress AS SELECT {position}::UBIGINT AS position")
        run(f"CREATE TABLE {_DATABASE}.made_of AS SELECT unnest(?) AS file", [[file.file for file in files]])
        run(f"CHECKPOINT {_DATABASE}")
    except BaseException:
        with contextlib.suppress(duckdb.Error):
            run(f"DETACH {_DATABASE}")
        raise
    run(f"DETACH {_DATABASE}")
    handle = os.open(aside, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def shown(file: DayFile, table: str) -> str:
    """A table of an attached file as the views show it."""
    place = f"{file.name}.main.{table}"
    return _PACKED_SPANS.format(place=place) if file.packed and table == "spans" else place


def made_of(run: Run, file: DayFile) -> set[str]:
    """Names of the files that a packed one was made of."""
    return {name for (name,) in run(f"SELECT file FROM {file.name}.made_of").fetchall()}


def remove(file: Path) -> None:
    """A database file and, first, its log: a log without its file would be taken for that of the next file of the name."""
    for each in (file.with_name(f"{file.name}.wal"), file):
        each.unlink(missing_ok=True)


def size(file: Path) -> int:
    """Bytes of a database file and its log."""
    return sum(each.stat().st_size for each in (file, file.with_name(f"{file.name}.wal")) if each.exists())


def _pack_table(run: Run, table: str, files: Sequence[DayFile], step: Step) -> None:
    target, empty = f"{_DATABASE}.main.{table}", f"FROM {HELD}.{table} LIMIT 0"
    if table == "spans":
        more = "NULL::VARCHAR AS attributes_text, NULL::BOOLEAN AS is_src_own"
        run(f"CREATE TABLE {target} AS SELECT * REPLACE (NULL::VARIANT AS attributes), {more} {empty}")
    else:
        run(f"CREATE TABLE {target} AS {empty}")
    if not files:
        return
    every, count = _rows_of(table, files), _count(run, [f"{file.name}.main.{table}" for file in files])
    for condition in _slices(table, files[0].day, count):
        run(f"INSERT INTO {target} BY NAME SELECT * FROM ({every}) WHERE {condition} ORDER BY {instant_column(table)}")
        step(table)
    if table not in REVISED and (found := _count(run, [target])) != count:
        raise StoreFailedError(f"pack {date_of(files[0].day)}: {found} of {count} rows of {table} were written; nothing is changed")


def _rows_of(table: str, files: Sequence[DayFile]) -> str:
    places = [f"{file.name}.main.{table}" for file in files]
    if table == "spans":
        each = [
            f"SELECT * FROM {place}" if file.packed else _SPLIT_SPANS.format(place=place) for place, file in zip(places, files, strict=True)
        ]
    elif table in REVISED:
        each = [f"SELECT *, rowid + ({number}::BIGINT << 48) AS appended FROM {place}" for number, place in enumerate(places)]
        return _LAST.format(every=" UNION ALL BY NAME ".join(each), key=REVISED[table])
    else:
        each = [f"SELECT * FROM {place}" for place in places]
    return " UNION ALL BY NAME ".join(each)


def _slices(table: str, day: int, count: int) -> list[str]:
    """Conditions that part a day's rows by time, as many in each as are sorted at once; the last takes what has no instant."""
    number = 1 + count // ROWS_AT_ONCE
    if number == 1:
        return ["true"]
    column, begin = instant_column(table), day * DAY_US
    edges = [f"make_timestamp({begin + DAY_US * place // number})" for place in range(1, number)]
    inner = [f"{column} >= {low} AND {column} < {high}" for low, high in pairwise(edges)]
    return [f"{column} < {edges[0]}", *inner, f"({column} >= {edges[-1]} OR {column} IS NULL)"]


def _has(run: Run, file: DayFile, table: str) -> bool:
    found = run("SELECT count(*) FROM duckdb_tables() WHERE database_name = ? AND table_name = ?", [file.name, table]).fetchone()
    return bool(found[0])


def _count(run: Run, places: Sequence[str]) -> int:
    return sum(int(run(f"SELECT count(*) FROM {place}").fetchone()[0]) for place in places)
