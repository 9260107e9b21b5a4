"""What readers ask the store for: requests by any of their names, filtered lists, engine states."""

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

from lensd_collectors.rows import RequestRow, Row

from lensd.store.catalog import APPENDED_BITS, HELD, PLACES
from lensd.store.interface import Cursor

T = TypeVar("T", bound=Row)
_EPOCH = datetime(1970, 1, 1)
HOUR_US = 3_600_000_000
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


REVISIONS = 4
"""Of a request in one look: more than most have."""
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
    limit = max(1, min(limit, MAX_PAGE))
    below = _page_key(after) if after is not None else None
    items: list[dict[str, Any]] = []
    while len(items) <= limit:
        some, below = _look(cursor, wanted, below, REVISIONS * (limit + 1))
        items += some
        if below is None:
            break
    more, items = len(items) > limit, items[:limit]
    return Page(items, f"{_microseconds(items[-1]['started_at'])}-{items[-1]['request_key']}" if more else None)


_ORDER = "order by started_at desc, request_key desc"
_BELOW = "started_at <= make_timestamp($below_at) and (epoch_us(started_at), request_key) < ($below_at::bigint, $below_key::ubigint)"
_MINUTE_US = 60_000_000
_BACK_US = (*(_MINUTE_US * 30**power for power in range(4)), 1 << 62)
"""How far a list looks back, step by step: a minute, half an hour, ... and in the end all of the time."""


def _look(
    cursor: Cursor, wanted: RequestFilter, below: tuple[int, int] | None, most: int
) -> tuple[list[dict[str, Any]], tuple[int, int] | None]:
    """Requests of which the last revision is among the `most` newest revisions that fit; where to look on, None at the end.

    Not by the view: it looks for later revisions of all that fit before it chooses the newest.
    """
    condition, given = conditions(wanted)
    if below is not None:
        condition, given = f"{condition} and {_BELOW}", given | {"below_at": below[0], "below_key": below[1]}
    top = _last_start(cursor) if below is None else below[0]
    found = [] if top is None else _newest(cursor, condition, given, (wanted.since or 0, top), most)
    if not found:
        return [], None
    key, at = found[-1]
    items = last_revisions(cursor, found, condition, given)
    here = [item for item in items if (_microseconds(item["started_at"]), item["request_key"]) >= (at, key)]
    return here, (at, key) if len(found) == most else None


def _newest(cursor: Cursor, condition: str, given: dict[str, Any], within: tuple[int, int], most: int) -> list[tuple[int, int]]:
    """Key and start of the `most` newest revisions that fit, none of which began outside of `within`, step by step back: DuckDB passes
    over what began at another time, but it would look at all that is older before it has the newest."""
    begin, end = within
    found: list[tuple[int, int]] = []
    until = end
    for back in _BACK_US:
        since = max(begin, end - back)
        newest = (
            f"select request_key, epoch_us(started_at) from {HELD}.every_requests where {condition}"
            f" and started_at <= make_timestamp({until}) and started_at >= make_timestamp({since}) {_ORDER} limit {most - len(found)}"
        )
        found += cursor.execute(newest, given).fetchall()
        until = since - 1
        if len(found) == most or until < begin:
            break
    return found


def _last_start(cursor: Cursor) -> int | None:
    """When the newest of all requests began, or later; asked file by file, which DuckDB answers without a look at the rows."""
    places = cursor.execute(f"select place from {PLACES}").fetchall()
    each = " union all ".join(f"select max(started_at) as latest from {place}" for (place,) in places)
    found: list[tuple[int | None]] = cursor.execute(f"select epoch_us(max(latest)) from ({each})").fetchall()
    return found[0][0]


def conditions(wanted: RequestFilter) -> tuple[str, dict[str, Any]]:
    """The filter as a condition on `requests` and its parameters."""
    given = {name: value for name, value in wanted._asdict().items() if value is not None}
    return " and ".join(_FILTERS[name] for name in given) or "true", given


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


REQUEST_SERIES = {f"requests.{column}": column for column in ("ttft_ms", "tpot_ms", "total_ms", "queue_ms", "prefill_ms", "decode_ms")}
LEAST_STEP_US = 60_000_000


def request_series(cursor: Cursor, name: str, wanted: RequestFilter) -> list[dict[str, Any]]:
    """Percentiles (`p50`, `p95`, `p99`) a minute, or a thousandth of the filter's time where that is longer, of the `requests` begun in it.

    `name` is one of REQUEST_SERIES; the filter has both ends of the time. `sampled`: the part of the requests that was looked at.
    """
    column = REQUEST_SERIES[name]
    some = in_time(cursor, wanted)
    width = max(LEAST_STEP_US, (some.given["until"] - some.given["since"]) // 1000)
    return rows(
        cursor,
        f"""
        select seen_at, requests, q[1] as p50, q[2] as p95, q[3] as p99, {some.part}::double as sampled from (
          select time_bucket(to_microseconds({width}), started_at) as seen_at, count(*) as requests,
                 quantile_cont({column}, [0.5, 0.95, 0.99]) as q
          from {some.place} where {column} is not null group by all
        ) order by seen_at
        """,
        some.given,
    )


class InTime(NamedTuple):
    """Requests of a time in their last revision: a subquery, its parameters, and which part of them it gives."""

    place: str
    given: dict[str, Any]
    part: float


MOST_REVISIONS = 250_000
"""Of two or three revisions a request that leaves at least 50,000: their p99 has 98.9 to 99.1 % of all requests below it."""
_KEYS = 1 << 64
_MOST_TOLD = 1000  # keys in the text of a query
LAST_APPENDED = f"max(least(revision, {(1 << 63 - APPENDED_BITS) - 1}) * {1 << APPENDED_BITS} + appended) & {(1 << APPENDED_BITS) - 1}"
"""Of a group of revisions `appended` of the last: of the highest number, and of equal ones the one that was appended last. As one whole
number, which DuckDB compares four times as fast as a pair; of those beyond the 32,767th what was appended last stands."""


def in_time(cursor: Cursor, wanted: RequestFilter, most: int | None = MOST_REVISIONS, *, few: bool = False) -> InTime:
    """The requests of a filter that has both ends of its time, for sums and percentiles over many of them.

    `few`: the filter lets few of the time's requests through. Of more than `most` revisions a half, a quarter ... of the requests: keys
    are hashes, so those with small ones are as the others. Not by the view, which takes four times as long where most requests of the
    store are asked for.
    """
    condition, given = conditions(wanted)
    part = 1.0
    if most is not None:
        [(count,)] = cursor.execute(f"select count(*) from {HELD}.every_requests where {condition}", given).fetchall()
        while count * part > most:
            part /= 2
    chosen = "true" if part == 1.0 else f"request_key < {int(_KEYS * part)}"
    if few:
        told = f"select distinct request_key from {HELD}.every_requests where {condition}"
        keys = [str(key) for (key,) in cursor.execute(f"{told} limit {_MOST_TOLD + 1}", given).fetchall()]
        chosen = f"request_key in ({told if len(keys) > _MOST_TOLD else ', '.join(keys)})" if keys else "false"
    place = f"""(
      select * exclude (appended) from {HELD}.every_requests where withdrawn is not true and {condition} and {chosen} and appended in (
        select {LAST_APPENDED} from {HELD}.every_requests
        where started_at between make_timestamp($early) and make_timestamp($late) and {chosen} group by request_key)
    )"""
    return InTime(place, given | {"early": max(0, given["since"] - HOUR_US), "late": given["until"] + HOUR_US}, part)


_LAST = f"""
select * exclude (appended) from {HELD}.every_requests
where request_key in (select unnest($keys)) and started_at between make_timestamp($early) and make_timestamp($late)
qualify row_number() over (partition by request_key order by revision desc, appended desc) = 1
"""
"""The last revision of some requests. Not by the view: it looks for later revisions of every request there is before it chooses."""


_BOUNDS = f"""
select epoch_us(min(started_at)), epoch_us(max(started_at)) from (
  select started_at from {HELD}.every_requests
  where request_key in (select unnest($keys)) and started_at between make_timestamp($early) and make_timestamp($late)
  qualify row_number() over (partition by request_key order by revision desc, appended desc) = 1
)
"""


def last_revisions(
    cursor: Cursor, found: Sequence[tuple[int, int]], condition: str, given: Mapping[str, Any] = MappingProxyType({})
) -> list[dict[str, Any]]:
    """The last revision of those of these requests (key and start of any revision, in microseconds) in which the condition holds, newest
    first. A later revision may tell of an earlier start, but not by more than an hour."""
    starts, keys = [at for _, at in found], list({key for key, _ in found})
    around = {"keys": keys, "early": max(0, min(starts) - HOUR_US), "late": max(starts) + HOUR_US}
    [(early, late)] = cursor.execute(_BOUNDS, around).fetchall()
    last = {"keys": keys, "early": early, "late": late}
    return rows(cursor, f"from ({_LAST}) where withdrawn is not true and ({condition}) {_ORDER}", {**given, **last})


def last_requests(cursor: Cursor, keys: Sequence[int], since: int, until: int) -> list[RequestRow]:
    """The last revision of those of these requests that the store has; all began in `since..until` (microseconds since the epoch)."""
    return structs(cursor, RequestRow, _LAST, {"keys": list(keys), "early": max(0, since), "late": until})


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
