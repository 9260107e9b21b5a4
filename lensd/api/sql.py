"""`lensd sql` and `/api/v1/sql`: one SELECT of somebody's own over the public tables, behind the guard that runbooks have."""

from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Annotated, Any, Final

import msgspec
import pyarrow as pa
from lensd_collectors.rows import TABLES

from lensd.api.items import SqlAnswer, SqlColumn, text_of
from lensd.diagnosis.guard import check_select, fetched
from lensd.errors import UsageError
from lensd.store.interface import Cursor

MAX_ROWS: Final = 10_000
TIMEOUT_S: Final = 10.0
MOST_QUERY_BYTES: Final = 64 * 1024
PUBLIC: Final = frozenset(TABLES)


class Asked(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The body of a question; at most `limit` rows are answered, `more` says that there are others."""

    query: str
    limit: Annotated[int, msgspec.Meta(ge=1, le=MAX_ROWS)] = 1000


def asked(body: bytes) -> Asked:
    """Raises UsageError for a body that is no question."""
    if len(body) > MOST_QUERY_BYTES:
        raise UsageError(f"a query of {len(body):,} bytes is too long: at most {MOST_QUERY_BYTES:,}")
    try:
        return msgspec.json.decode(body, type=Asked)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise UsageError(f'the body is no query: {error}; write {{"query": "select ...", "limit": 100}}') from None


def answered(cursor: Cursor, question: Asked) -> SqlAnswer:
    """Columns and rows, every value as JSON has it. Raises SqlRefusedError, SqlLimitError."""
    check_select(cursor, question.query, PUBLIC)
    columns, rows = fetched(cursor, question.query, {}, lambda result: _rows(result, question.limit + 1), timeout_s=TIMEOUT_S)
    return SqlAnswer(
        columns=tuple(SqlColumn(name=name, type=kind) for name, kind in columns),
        items=tuple(tuple(map(_plain, row)) for row in rows[: question.limit]),
        more=len(rows) > question.limit,
    )


def table(cursor: Cursor, question: Asked) -> pa.Table:
    """The rows as Arrow, in the types that DuckDB gives them."""
    check_select(cursor, question.query, PUBLIC)
    _, found = fetched(cursor, question.query, {}, lambda result: _first(result, question.limit), timeout_s=TIMEOUT_S)
    return found


def _rows(result: Any, most: int) -> list[tuple[Any, ...]]:
    """DuckDB gives an instant with a zone to Python only where pytz is installed; Arrow needs nothing."""
    if any(str(kind) == "TIMESTAMP WITH TIME ZONE" for _, kind, *_ in result.description):
        return list(zip(*(column.to_pylist() for column in _first(result, most).columns), strict=True))
    found: list[tuple[Any, ...]] = result.fetchmany(most)
    return found


def _first(result: Any, most: int) -> pa.Table:
    reader = result.to_arrow_reader(most)
    batches: list[pa.RecordBatch] = []
    left = most
    while left > 0 and (batch := next(reader, None)) is not None:
        batches.append(batch.slice(0, left))
        left -= batches[-1].num_rows
    return pa.Table.from_batches(batches, reader.schema)


def _plain(value: Any) -> Any:
    """What JSON has a way to write; whole numbers that a reader would round, and all else it has none for, as text."""
    match value:
        case None | bool() | str():
            return value
        case int():
            return value if -(1 << 63) <= value < 1 << 64 else str(value)
        case float():
            return value if value - value == 0 else str(value)  # inf and nan
        case datetime():
            return text_of(value) if value.tzinfo is None else value.isoformat()
        case date():
            return value.isoformat()
        case Decimal():
            return float(value)
        case timedelta():
            return value.total_seconds()
        case bytes():
            return value.hex()
        case list() | tuple():
            return [_plain(item) for item in value]
        case dict():
            return {str(name): _plain(item) for name, item in value.items()}
    return str(value)
