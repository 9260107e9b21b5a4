"""What outlives a deleted day, in kept.duckdb: rows that incidents stand on, and hashes of the names of the requests that are gone.

Both are written in one transaction with a record of the deletion, before any file is touched. A record that is not `done` names the
files that are still to be removed: whoever opens the store next removes them, or leaves them out where it only reads.
"""

from collections.abc import Collection, Sequence
from datetime import UTC, datetime
from typing import Any, Final, NamedTuple

from lensd_collectors.rows import TABLES

from lensd.store.catalog import DELETED
from lensd.store.day_files import DAY_US, DayFile, date_of
from lensd.store.interface import Cursor
from lensd.store.names import engine_names, external
from lensd.store.packing import Run
from lensd.store.pins import copies, find_pinned
from lensd.store.schema import MAIN_TABLES, instant_column

KEPT: Final = "kept_file"
KEPT_FILE: Final = "kept.duckdb"
KEPT_TABLES: Final = frozenset(TABLES) - MAIN_TABLES
MAX_NAMES: Final = 10_000_000
"""Hashes at most; those of the oldest deletion go first. 8 bytes each."""
_NAMES_DAYS: Final = 90
"""And for at most so long."""

_TABLES: Final = (
    "deletions (number BIGINT, deleted_at TIMESTAMP, day DATE, rule VARCHAR, files VARCHAR[], done BOOLEAN)",
    "deleted_names (name UBIGINT, number BIGINT)",
)
_HASH: Final = "md5_number_lower({name})"
_NAMES: Final = f"""
INSERT INTO {KEPT}.deleted_names
SELECT DISTINCT {_HASH.format(name="name")} AS name, $number AS number
FROM (SELECT unnest([request_id, trace_id, engine_request_id]) AS name FROM ({{requests}})) WHERE name IS NOT NULL ORDER BY name LIMIT $most
"""


class Deletion(NamedTuple):
    """What is deleted: a day's files, and why."""

    day: int  # since the epoch
    files: Sequence[DayFile]
    rule: str  # as its setting is written
    at: int  # microseconds since the epoch


class Deleted(NamedTuple):
    """When a request was deleted, with which day, and by which rule."""

    at: datetime  # UTC
    day: str
    rule: str

    def __str__(self) -> str:
        return f"deleted at {self.at:%Y-%m-%dT%H:%MZ} with the whole day {self.day}, by {self.rule}"


def deleted(cursor: Cursor, name: str) -> Deleted | None:
    """What became of the request that once had this name: its id, the engine's, its trace; None where nothing is known of it."""
    names = [name, bare := external(name), f"{name}-0", f"{bare}-0", *engine_names(name)]
    hashes = cursor.execute(f"SELECT DISTINCT {_HASH.format(name='unnest(?)')}", [names]).fetchall()
    wanted = ", ".join(str(number) for (number,) in hashes)
    # Two steps: numbers that stand in the query let DuckDB pass over what cannot hold them.
    sql = f"SELECT deleted_at, day, rule FROM {DELETED} WHERE name IN ({wanted}) ORDER BY deleted_at DESC LIMIT 1"
    found = cursor.execute(sql).fetchall()
    return Deleted(found[0][0].replace(tzinfo=UTC), str(found[0][1]), found[0][2]) if found else None


def create_kept(run: Run) -> None:
    """The tables that are no public ones; those are made as in any other file."""
    run("BEGIN TRANSACTION")
    for table in _TABLES:
        run(f"CREATE TABLE IF NOT EXISTS {KEPT}.{table}")
    run("COMMIT")


def unfinished(run: Run) -> set[str]:
    """Names of files whose deletion was decided and may not have come to its end."""
    return {name for (name,) in run(f"SELECT unnest(files) FROM {KEPT}.deletions WHERE NOT done").fetchall()}


def finish(run: Run, removed: Collection[str]) -> None:
    """These files are gone: the deletions that were to remove nothing else are done."""
    run(f"UPDATE {KEPT}.deletions SET done = true WHERE NOT done AND list_has_all(?, files)", [sorted(removed)])


def keep(run: Run, deletion: Deletion, days: int, most_names: int = MAX_NAMES) -> None:
    """Write what outlives these files, in one transaction with the record of their deletion. `days`: for how long such rows are kept."""
    oldest = deletion.at - days * DAY_US
    files = [file.file for file in deletion.files]
    if _one(run, f"SELECT count(*) FROM {KEPT}.deletions WHERE NOT done AND list_has_all(files, ?)", [files]):
        return  # kept by an attempt that came no further
    find_pinned(run, deletion.day, oldest)
    run("BEGIN TRANSACTION")
    try:
        _expire(run, oldest, deletion.at - _NAMES_DAYS * DAY_US)
        for table, select in copies(deletion.day, deletion.files).items():
            run(f"INSERT INTO {KEPT}.{table} BY NAME {select}")
        _note(run, deletion, most_names)
        run("COMMIT")
    except BaseException:
        run("ROLLBACK")
        raise


def places(hidden: int | None) -> dict[str, str]:
    """What the views show of it, by table; nothing of the day `hidden`, whose own files are still shown.

    Requests are shown whole: a view of last revisions shows none of them twice.
    """
    found = {table: f"{KEPT}.main.{table}" for table in KEPT_TABLES}
    if hidden is not None:
        begin, end = (f"make_timestamp({at * DAY_US})" for at in (hidden, hidden + 1))
        for table in KEPT_TABLES - {"requests"}:
            column = instant_column(table)
            found[table] = f"(SELECT * FROM {KEPT}.main.{table} WHERE {column} < {begin} OR {column} >= {end})"
    return found


def _note(run: Run, deletion: Deletion, most: int) -> None:
    number = _one(run, f"SELECT coalesce(max(number), 0) + 1 FROM {KEPT}.deletions")
    run(
        f"INSERT INTO {KEPT}.deletions VALUES (?, make_timestamp(?), ?, ?, ?, false)",
        [number, deletion.at, date_of(deletion.day), deletion.rule, [file.file for file in deletion.files]],
    )
    each = [f"SELECT request_id, trace_id, engine_request_id FROM {file.name}.main.requests" for file in deletion.files]
    run(_NAMES.format(requests=" UNION ALL ".join(each)), {"number": number, "most": most})
    while _one(run, f"SELECT count(*) FROM {KEPT}.deleted_names") > most:
        run(f"DELETE FROM {KEPT}.deleted_names WHERE number = (SELECT min(number) FROM {KEPT}.deleted_names)")


def _expire(run: Run, oldest: int, oldest_name: int) -> None:
    for table in KEPT_TABLES:
        run(f"DELETE FROM {KEPT}.{table} WHERE {instant_column(table)} < make_timestamp(?)", [oldest])
    run(
        f"DELETE FROM {KEPT}.deleted_names WHERE number IN (SELECT number FROM {KEPT}.deletions WHERE deleted_at < make_timestamp(?))",
        [oldest_name],
    )


def _one(run: Run, sql: str, parameters: Sequence[Any] = ()) -> Any:
    return run(sql, list(parameters)).fetchone()[0]
