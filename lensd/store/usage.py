"""What was used, where requests spend their time, and what was refused: requests of a time, added up."""

from typing import Any, Final

from lensd_collectors.conventions import Outcome, Stage

from lensd.store.interface import Cursor
from lensd.store.queries import MAX_PAGE, RequestFilter, in_time, rows

USED_BY: Final = {"key": "key_id", "model": "coalesce(served_model, model)", "session": "session_id"}
"""What usage can be added up by, and the SQL of it."""

ERRORS: Final = (Outcome.FAILED, Outcome.TIMED_OUT, Outcome.CUT, Outcome.LOST)
"""Outcomes that are nobody's but the server's."""

_ENDED_BADLY: Final = ", ".join(f"'{outcome.value}'" for outcome in ERRORS)


def usage(cursor: Cursor, by: str, since: int, until: int, limit: int = MAX_PAGE) -> list[dict[str, Any]]:
    """Requests that began in `since..until` (microseconds since the epoch) by one of USED_BY, those with most tokens first.

    Each row: `name` (None: not told), `requests`, `errors`, `refused`, `prompt_tokens`, `cached_tokens`, `completion_tokens`, and
    `ttft_p50_ms`, `ttft_p95_ms`, `tpot_p50_ms`, `tpot_p95_ms`, which are None where no request tells.
    """
    asked = in_time(cursor, RequestFilter(since=since, until=until), most=None)
    return rows(
        cursor,
        f"""
        select * exclude (ttft, tpot), ttft[1] as ttft_p50_ms, ttft[2] as ttft_p95_ms, tpot[1] as tpot_p50_ms, tpot[2] as tpot_p95_ms
        from (
          select {USED_BY[by]} as name, count(*) as requests,
                 count(*) filter (outcome in ({_ENDED_BADLY})) as errors, count(*) filter (outcome = '{Outcome.REFUSED}') as refused,
                 coalesce(sum(prompt_tokens), 0)::bigint as prompt_tokens, coalesce(sum(cached_tokens), 0)::bigint as cached_tokens,
                 coalesce(sum(completion_tokens), 0)::bigint as completion_tokens,
                 quantile_cont(ttft_ms, [0.5, 0.95]) as ttft, quantile_cont(tpot_ms, [0.5, 0.95]) as tpot
          from {asked.place} group by all
        ) order by prompt_tokens + completion_tokens desc, requests desc, name limit {max(1, min(limit, MAX_PAGE))}
        """,
        asked.given,
    )


def stages(cursor: Cursor, wanted: RequestFilter) -> list[dict[str, Any]]:
    """Of each stage, in order, how long requests were in it, and the whole of them as `total`.

    Each row: `stage`, `requests` that have a time in it, `p50_ms`, `p95_ms`, `p99_ms`, `share` of all requests' time that is its own
    (None of the total), and `sampled`, the part of the requests that was looked at.
    """
    asked = in_time(cursor, wanted)
    named = [*Stage, "total"]
    quantiles = ", ".join(f"quantile_cont({name}_ms, [0.5, 0.95, 0.99]) as {name}_q, count({name}_ms) as {name}_n" for name in named)
    own = ", ".join(f"sum({stage}_exclusive_ms) / nullif(sum(total_ms), 0) as {stage}_share" for stage in Stage)
    [found] = rows(cursor, f"select {quantiles}, {own} from {asked.place}", asked.given)
    return [
        {
            "stage": str(name),
            "requests": found[f"{name}_n"],
            **dict(zip(("p50_ms", "p95_ms", "p99_ms"), found[f"{name}_q"] or (None, None, None), strict=True)),
            "share": found.get(f"{name}_share"),
            "sampled": asked.part,
        }
        for name in named
    ]


def refusals(cursor: Cursor, wanted: RequestFilter, limit: int = MAX_PAGE) -> list[dict[str, Any]]:
    """Requests that were refused, alike ones together, the most frequent first.

    Each row: `decision`, `status`, `error_code`, `said_by`, `key_id`, `model`, `requests`, `first_at`, `last_at` and the `request_id`
    of the last one.
    """
    asked = in_time(cursor, wanted._replace(outcome=Outcome.REFUSED.value), most=None, few=True)
    return rows(
        cursor,
        f"""
        select decision, status, error_code, said_by, key_id, model, count(*) as requests, min(started_at) as first_at,
               max(started_at) as last_at, arg_max(coalesce(request_id, engine_request_id, trace_id), started_at) as request_id
        from {asked.place}
        group by decision, status, error_code, said_by, key_id, model
        order by requests desc, last_at desc limit {max(1, min(limit, MAX_PAGE))}
        """,
        asked.given,
    )
