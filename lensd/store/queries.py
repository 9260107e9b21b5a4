"""What readers ask the store for: requests by any of their names, filtered lists, engine states."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any, NamedTuple, TypeVar

from lensd_collectors.rows import RequestRow, Row

from lensd.store.catalog import HELD
from lensd.store.interface import Cursor

T = TypeVar("T", bound=Row)
_EPOCH = datetime(1970, 1, 1)
MAX_MATCHES = 50
MAX_PAGE = 500
DEFAULT_PAGE = 100


_UNFINISHED = """
with told as (
  select trace_id, started_at as first_at, coalesce(ended_at, started_at) as last_at from spans where trace_id is not null
  union all
  select trace_id, seen_at, seen_at from events where trace_id is not null
), latest as (
  select max(last_at) as at from told where last_at <= make_timestamp($now)
)
select trace_id, epoch_us(min(started_at)) from requests where (not settled or label is null) and trace_id is not null group by all
union all
select trace_id, epoch_us(min(first_at)) from told, latest where last_at > latest.at - interval 1 minute group by all
"""


def unfinished_traces(cursor: Cursor, now: int) -> dict[str, int]:
    """Traces that an earlier run may not be done with, and when they began: requests open or not judged, and what was stored last.

    What an earlier run was killed over was stored within its last minute. In microseconds since the epoch.
    """
    found: dict[str, int] = {}
    for trace, since in cursor.execute(_UNFINISHED, {"now": now}).fetchall():
        found[trace] = min(since, found.get(trace, since))
    return found


class Page(NamedTuple):
    """Rows as dicts (instants as naive UTC datetimes) and the key of the next page."""

    items: list[dict[str, Any]]
    next: str | None


class RequestFilter(NamedTuple):
    """None: any. `since` and `until` in microseconds since the epoch, on the request's start."""

    key: str | None = None
    model: str | None = None
    engine: str | None = None
    status: int | None = None
    outcome: str | None = None
    label: str | None = None
    session: str | None = None
    since: int | None = None
    until: int | None = None


REPLY_PREFIXES = ("chatcmpl-", "cmpl-", "resp_", "embd-", "pooling-", "classify-", "score-")
"""What vLLM puts before a caller's X-Request-Id to make the id of its reply. A completion's engine id ends in its prompt's index."""
_ALIASES = "request_id = $id or trace_id = $id or span_id = $id or engine_request_id = $id or engine_request_id = $cmpl"
_MADE = "request_id in (select unnest($made)) or engine_request_id in (select unnest($made))"
_PREFIX = "starts_with(request_id, $id) or starts_with(trace_id, $id) or starts_with(engine_request_id, $id)"
_FILTERS = {
    "key": "key_id = $key",
    "model": "(model = $model or served_model = $model)",
    "engine": "engine = $engine",
    "status": "status = $status",
    "outcome": "outcome = $outcome",
    "label": "label = $label",
    "session": "session_id = $session",
    "since": "started_at >= make_timestamp($since)",
    "until": "started_at < make_timestamp($until)",
}


def find_requests(cursor: Cursor, ident: str) -> list[dict[str, Any]]:
    """Every request of that name, newest first: its id, the engine's id for it, its trace, its span, the ids that vLLM makes of the
    name where only vLLM saw it, else whatever starts with it.

    An engine's internal suffix (`-` and 8 hex digits) and a completion's prompt index are taken off.
    """
    bare = external(ident)
    asked: tuple[tuple[str, dict[str, Any]], ...] = (
        (_ALIASES, {"id": ident, "cmpl": f"{ident}-0"}),
        (_ALIASES, {"id": bare, "cmpl": f"{bare}-0"}),
        (_MADE, {"made": engine_names(ident)}),
        (_PREFIX, {"id": ident}),
    )
    for where, parameters in asked:
        found = rows(
            cursor, f"select * from requests where {where} order by started_at desc, request_key desc limit {MAX_MATCHES}", parameters
        )
        if found:
            return found
    return []


def external(ident: str) -> str:
    """An engine's id without the internal suffix, where it has one."""
    head, _, tail = ident.rpartition("-")
    internal = head and len(tail) == 8 and all(ch in "0123456789abcdef" for ch in tail)
    return head if internal else ident


def engine_names(ident: str) -> list[str]:
    """What an engine may call a request whose caller, or whose reply, says `ident`."""
    names = [f"{prefix}{ident}" for prefix in REPLY_PREFIXES]
    return [*names, *(f"{name}-0" for name in (*names, ident) if name.startswith("cmpl-"))]


_SESSION = f"""
with calls as (
  select *, row_number() over in_order as turn, prompt_tokens - lag(prompt_tokens ignore nulls) over in_order as grew_by
  from requests where session_id = $session window in_order as (order by started_at, request_key)
)
from calls order by turn desc limit {MAX_PAGE}
"""


def session_calls(cursor: Cursor, session_id: str) -> list[dict[str, Any]]:
    """A session's calls in order, the last of them where there are more than a page holds; `turn` counts from 1 and `grew_by` says
    how many prompt tokens more than the last turn that told its own."""
    return rows(cursor, _SESSION, {"session": session_id})[::-1]


def list_requests(cursor: Cursor, wanted: RequestFilter, limit: int = DEFAULT_PAGE, after: str | None = None) -> Page:
    """Requests newest first. `after` is the `next` of the page before."""
    given = {name: value for name, value in wanted._asdict().items() if value is not None}
    where = [_FILTERS[name] for name in given]
    if after is not None:
        at, key = _page_key(after)
        where.append("(epoch_us(started_at), request_key) < ($after_at::bigint, $after_key::ubigint)")
        given |= {"after_at": at, "after_key": key}
    limit = max(1, min(limit, MAX_PAGE))
    condition = " and ".join(where) or "true"
    order = "order by started_at desc, request_key desc"
    sql = f"select request_key, epoch_us(started_at) from requests where {condition} {order} limit {limit + 1}"
    found: list[tuple[int, int]] = cursor.execute(sql, given).fetchall()
    more, found = len(found) > limit, found[:limit]
    if not found:
        return Page([], None)
    last_key, last_at = found[-1]
    wanted_rows = {"keys": [key for key, _ in found], "since": last_at, "until": found[0][1]}
    items = rows(cursor, f"{_LAST} {order}", wanted_rows)
    return Page(items, f"{last_at}-{last_key}" if more else None)


def _page_key(text: str) -> tuple[int, int]:
    at, _, key = text.partition("-")
    if not (text.isascii() and at.isdigit() and key.isdigit() and int(at[:20]) < 1 << 63 and int(key[:21]) < 1 << 64):
        raise ValueError(f"{text!r} is not the `next` of a page")
    return int(at), int(key)


def engine_states(cursor: Cursor) -> list[dict[str, Any]]:
    """The last thing known of each engine."""
    return rows(
        cursor,
        """
        select engine, max(seen_at) as last_sample_at, arg_max(up, seen_at) filter (up is not null) as up,
               arg_max(running, seen_at) as running, arg_max(waiting, seen_at) as waiting, arg_max(kv_usage, seen_at) as kv_usage
        from engine_samples where seen_at > (select max(seen_at) - interval 1 day from engine_samples) group by engine order by engine
        """,
    )


SERIES = {
    f"{table}.{column}"
    for table, columns in {
        "engine_samples": ("running", "waiting", "kv_usage", "preemptions_total", "generation_tokens_total", "prompt_tokens_total"),
        "gpu_samples": ("used_bytes", "free_bytes", "util", "power_w", "temp_c"),
    }.items()
    for column in columns
}


class SeriesOf(NamedTuple):
    """Whose series; None: any. Engines have a name, GPUs a host and, on it, a number."""

    engine: str | None = None
    host: str | None = None
    gpu: str | None = None


def series(cursor: Cursor, name: str, of: SeriesOf, since: int, until: int) -> list[dict[str, Any]]:
    """One column over time, at most 1,000 points a series. `name` is one of SERIES; instants in microseconds since the epoch.

    Of a GPU, what its device says: the rows of its processes are not among it.
    """
    table, _, column = name.partition(".")
    assert name in SERIES
    by, condition = ("engine", "true") if table == "engine_samples" else ("host, gpu", "pid is null and gpu is not null")
    given = {each: value for each, value in of._asdict().items() if value is not None and each in by.split(", ")}
    if len(given) < sum(value is not None for value in of):
        return []  # an engine's samples have no GPU, a GPU's no engine
    where = " and ".join(f"{each} = ${each}" for each in given) or "true"
    width = max(1_000_000, (until - since) // 1000)
    return rows(
        cursor,
        f"""
        select time_bucket(to_microseconds({width}), seen_at) as seen_at, {by}, max({column}) as value
        from {table} where seen_at between make_timestamp($since) and make_timestamp($until) and {column} is not null
          and {condition} and {where}
        group by all order by 1
        """,
        {"since": since, "until": until, **given},
    )


_LAST = f"""
select * exclude (appended) from {HELD}.every_requests
where request_key in (select unnest($keys)) and started_at between make_timestamp($since) and make_timestamp($until)
qualify row_number() over (partition by request_key order by revision desc, appended desc) = 1
"""
"""The last revision of some requests. Not by the view: it looks for later revisions of every request there is before it chooses."""


def last_requests(cursor: Cursor, keys: Sequence[int], since: int, until: int) -> list[RequestRow]:
    """The last revision of those of these requests that the store has; all began in `since..until` (microseconds since the epoch)."""
    return structs(cursor, RequestRow, _LAST, {"keys": list(keys), "since": max(0, since), "until": until})


def structs(cursor: Cursor, kind: type[T], sql: str, parameters: dict[str, Any] | None = None) -> list[T]:
    """All rows as structs of `lensd_collectors.rows`, instants in microseconds since the epoch."""
    return [kind(**{k: _microseconds(v) for k, v in row.items()}) for row in rows(cursor, sql, parameters)]


def _microseconds(value: Any) -> Any:
    return (value - _EPOCH) // timedelta(microseconds=1) if isinstance(value, datetime) else value


def rows(cursor: Cursor, sql: str, parameters: dict[str, Any] | None = None) -> list[dict[str, Any]]:
    """All rows as dicts."""
    result = cursor.execute(sql, parameters or {})
    names = [d[0] for d in result.description]
    return [dict(zip(names, row, strict=True)) for row in result.fetchall()]
