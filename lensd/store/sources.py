"""What the sources of a store record: whether they tell ids at all, and when each kind last told something of each engine."""

from typing import Any

from lensd_collectors import conventions as c

from lensd.store import queries
from lensd.store.interface import Cursor
from lensd.store.names import engine_names, external

_RECENT = """
with latest as (
  select least(greatest(
    coalesce((select max(seen_at) from engine_samples where seen_at <= make_timestamp($now)), make_timestamp(0)),
    coalesce((select max(seen_at) from events where seen_at <= make_timestamp($now)), make_timestamp(0)),
    coalesce((select max(started_at) from spans where started_at <= make_timestamp($now)), make_timestamp(0)),
    coalesce((select max(started_at) from requests where started_at <= make_timestamp($now)), make_timestamp(0))
  ), make_timestamp($now)) as last_at
), since as (select latest.last_at - to_hours($hours) as begin_at from latest)
"""
"""The hours before what was stored last: a store that nobody writes to any more is judged as it was."""

_RECORDED = f"""{_RECENT}
select exists (from requests where started_at >= (select begin_at from since))
    or exists (from spans where started_at >= (select begin_at from since)
               and (kind in ('server', 'client') or name = '{c.SPAN_VLLM_REQUEST}'))
    or exists (from events where (request_id is not null or name = '{c.EVENT_GATEWAY_ACT}') and seen_at >= (select begin_at from since))
    or exists (from http_exchanges where request_id is not null and seen_at >= (select begin_at from since))
"""

_LINKS = f"""{_RECENT}, seen as (
  select engine, 'scrape' as kind, seen_at as told_at from engine_samples where up and seen_at >= (select begin_at from since)
  union all
  select engine, case when name = '{c.EVENT_ENGINE_REQUEST}' then 'plugin' else 'log' end, seen_at from events
  where seen_at >= (select begin_at from since) and (name = '{c.EVENT_ENGINE_REQUEST}' or (name not like 'lensd.%' and line is not null))
  union all
  select engine, case when name = '{c.SPAN_VLLM_REQUEST}' then 'llm_request' when scope = '{c.SCOPE_VLLM}' then 'middleware'
                      when scope = '{c.SCOPE_GATEWAY}' then 'gateway' else 'client' end, started_at from spans
  where started_at >= (select begin_at from since)
    and (name = '{c.SPAN_VLLM_REQUEST}' or kind = 'server' and scope in ('{c.SCOPE_VLLM}', '{c.SCOPE_GATEWAY}')
         or scope = '{c.SCOPE_CLIENT}')
  union all
  select pid_engine, 'gpu', seen_at from gpu_samples where pid_engine is not null and seen_at >= (select begin_at from since)
)
select engine, kind, max(told_at) as last_at from seen group by all order by engine nulls last, kind
"""

_NOT_READ = f"""{_RECENT}, told as (
  select host, engine, attr(fields, '{c.SOURCE_NAME}') as source, attr(fields, '{c.SOURCE_STATE}') as state,
         attr(fields, '{c.SOURCE_REASON}') as reason, seen_at
  from events where name = '{c.EVENT_AGENT_SOURCE}' and seen_at >= (select begin_at from since)
)
select host, engine, source, arg_max(state, seen_at) as state, arg_max(reason, seen_at) as reason
from told group by all having arg_max(state, seen_at) <> 'followed' order by all
"""
HOURS = 24


def ids_recorded(cursor: Cursor, now: int) -> bool:
    """Whether any source has told of a request by an id in the day before what the store heard last. `now` in microseconds."""
    found = cursor.execute(_RECORDED, {"now": now, "hours": HOURS}).fetchone()
    return bool(found and found[0])


def named_in_log(cursor: Cursor, ident: str) -> bool:
    """Whether a log line named this request, which made no request of it: a line has no times."""
    bare = external(ident)
    names = [ident, bare, *engine_names(bare)]
    sql = "select exists (from events where request_id in (select unnest($names)) and line is not null)"
    found = cursor.execute(sql, {"names": names}).fetchone()
    return bool(found and found[0])


def engines(cursor: Cursor) -> list[str]:
    """The names of the engines that are scraped."""
    found = cursor.execute("select engine from engine_samples where engine is not null group by engine order by engine").fetchall()
    return [row[0] for row in found]


def links(cursor: Cursor, now: int) -> list[dict[str, Any]]:
    """Of each engine and kind of source (scrape, log, llm_request, plugin, middleware, gateway, client, gpu) the day's last instant."""
    return queries.rows(cursor, _LINKS, {"now": now, "hours": HOURS})


def not_read(cursor: Cursor, now: int) -> list[dict[str, Any]]:
    """What an agent would like to read and can't, with why: `host`, `engine`, `source`, `state`, `reason`."""
    return queries.rows(cursor, _NOT_READ, {"now": now, "hours": HOURS})
