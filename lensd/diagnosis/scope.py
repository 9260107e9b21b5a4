"""What a set of rules is judged on: which requests, which time, which engine; and the views that hold rules to it.

Made on the evaluating cursor alone, as temporary objects that go before the public ones of the same name:
`subjects`, a table of the request rows to judge, and, where the scope names an engine or wants undated rows in, a view over
each table concerned.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Final

from lensd_collectors.rows import TABLES

from lensd.records import Record
from lensd.store.catalog import HELD
from lensd.store.interface import Cursor

SUBJECTS: Final = "subjects"
PUBLIC: Final = frozenset({*TABLES, SUBJECTS})
BEFORE: Final = timedelta(minutes=10)
AFTER: Final = timedelta(seconds=60)
EPOCH: Final = datetime(1970, 1, 1)
DECIDED: Final = ("requests", "findings", "incidents", "deliveries")
TIMED: Final = ("engine_samples", "gpu_samples", "points", "events", "http_exchanges")
BY_ENGINE: Final = tuple(name for name, row in TABLES.items() if "engine" in row.__struct_fields__ and name not in DECIDED)
BY_MODEL: Final = ("engine_samples", "http_exchanges")


class Scope(Record, frozen=True, kw_only=True):
    """Requests by key, by an SQL condition over `requests`, or none (window rules only); instants in microseconds since the epoch.

    `from_us` None: each window rule looks back its own `window` from `to_us`, as at a tick. Request rules get the time of
    their subjects, 10 min before the first begins to 60 s after the last ends. `engine`, else `models`, keeps rows of others
    out; rows that do not say are kept. `undated`: rows without an instant count, one microsecond apart in the order of `seq`.
    """

    to_us: int
    from_us: int | None = None
    keys: tuple[int, ...] | None = None
    where: str | None = None
    engine: str | None = None
    models: tuple[str, ...] = ()
    gpu: str | None = None
    undated: bool = False


def instant(us: int) -> datetime:
    """A naive UTC datetime, as DuckDB's TIMESTAMP takes it."""
    return EPOCH + timedelta(microseconds=us)


def microseconds(at: datetime) -> int:
    return (at - EPOCH) // timedelta(microseconds=1)


@contextmanager
def bound(cursor: Cursor, scope: Scope) -> Iterator[None]:
    """Within it the cursor sees `subjects` and the scope's rows only."""
    places = _places(cursor)
    _make_subjects(cursor, scope, places["requests"])
    shadowed = []
    try:
        for table in TABLES:
            body = _shadow(table, places[table], scope)
            if body:
                cursor.execute(f"create or replace temp view {table} as {body}")
                shadowed.append(table)
        yield
    finally:
        for table in shadowed:
            cursor.execute(f"drop view temp.{table}")
        cursor.execute(f"drop table temp.{SUBJECTS}")


def _places(cursor: Cursor) -> Mapping[str, str]:
    """Qualified name of each public table, since the views that go before them have their plain names."""
    rows = cursor.execute(
        "select table_name, table_catalog, table_schema from information_schema.tables where table_catalog not in ('temp', 'system')"
        " and list_contains($names, table_name) order by table_catalog = current_database(), table_schema = current_schema()",
        {"names": list(TABLES)},
    ).fetchall()
    return {name: f'"{catalog}"."{schema}"."{name}"' for name, catalog, schema in rows}


def _make_subjects(cursor: Cursor, scope: Scope, requests: str) -> None:
    """A request without an id of its own goes by the engine's id for it, else its trace, else its key.

    Ids repeat: several of one id, chosen by key, are told apart by their keys.
    """
    if scope.keys is None and scope.where is None:
        chosen = "false"
    else:
        parts = [f"({scope.where})"] if scope.where is not None else []
        if scope.keys is not None:
            parts.append(f"request_key in ({', '.join(str(int(key)) for key in scope.keys) or 'null'})")
        chosen = " and ".join(parts)
    if scope.where is None and scope.keys is not None and scope.from_us is not None:
        requests = _last_of(chosen, scope.from_us, scope.to_us)
    name = "coalesce(request_id, engine_request_id, trace_id, request_key::varchar)"
    order = ""
    if scope.keys is not None:
        order = " order by started_at, request_key"
        name = f"if(count(*) over (partition by {name}) > 1, {name} || '#' || request_key, {name})"
    cursor.execute(
        f"create or replace temp table {SUBJECTS} as select * replace ({name} as request_id) from {requests} where {chosen}{order}"
    )


def _last_of(chosen: str, from_us: int, to_us: int) -> str:
    """The chosen requests in their last revision. Not by the view: it looks for later revisions of every request there is first."""
    return (
        f"(select * exclude (appended) from {HELD}.every_requests where {chosen}"
        f" and started_at between make_timestamp({int(from_us)}) and make_timestamp({int(to_us)})"
        " qualify row_number() over (partition by request_key order by revision desc, appended desc) = 1)"
    )


def _shadow(table: str, place: str, scope: Scope) -> str | None:
    """The SELECT that goes before a table, None where the scope does not narrow it."""
    conditions = []
    if scope.engine is not None and table in BY_ENGINE:
        conditions.append(f"(engine is null or engine = {_text(scope.engine)})")
    if scope.engine is not None and table == "config_facts":
        others = f"select engine from {place.replace('config_facts', 'engine_samples')} where engine is not null"
        conditions.append(f"(subject is null or subject = {_text(scope.engine)} or subject not in ({others}))")
    if scope.engine is None and scope.models and table in BY_MODEL:
        conditions.append(f"(model is null or model in ({', '.join(map(_text, scope.models))}))")
    if scope.gpu is not None and table == "gpu_samples":
        conditions.append(f"(gpu is null or gpu = {_text(scope.gpu)})")
    undated = scope.undated and table in TIMED
    if not conditions and not undated:
        return None
    columns = "*"
    if undated:
        order = "coalesce(seq, 0)" if "seq" in TABLES[table].__struct_fields__ else "0"
        start = scope.from_us if scope.from_us is not None else scope.to_us
        columns = f"* replace (coalesce(seen_at, make_timestamp({int(start)} + {order})) as seen_at)"
    return f"select {columns} from {place} where {' and '.join(conditions) or 'true'}"


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
