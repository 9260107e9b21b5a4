"""What in a folder speaks against calling it well, though every request in it was served.

A negative is said of requests; a folder holds more than them. Each doubt is one thing somebody can look at.
"""

from typing import Final

from lensd.store.interface import Cursor

MOST: Final = 3  # places named of one doubt

_DOUBTS: Final = (
    ("errors are logged", "select src from events where severity in ('error', 'critical') and src is not null order by seen_at, seq"),
    ("calls were answered with an error", "select src from http_exchanges where status >= 400 or error_code is not null order by seen_at"),
    ("requests wait", "select src from engine_samples where waiting > 0 order by seen_at, seq"),
    (
        "the KV cache is held with nobody there",
        "select src from engine_samples where running = 0 and waiting = 0 and kv_usage > 0.05 order by seen_at, seq",
    ),
    ("the engine does not answer", "select src from engine_samples where up = false order by seen_at, seq"),
    (
        "the engine makes no tokens though requests run",
        """select src from (
             select src, running, coalesce(prompt_tokens_total, 0) + generation_tokens_total as made, seen_at,
                    lag(coalesce(prompt_tokens_total, 0) + generation_tokens_total) over one as before, lag(running) over one as ran
             from engine_samples where generation_tokens_total is not null window one as (partition by engine, model order by seen_at, seq))
           where running > 0 and ran > 0 and made = before order by seen_at""",
    ),
    (
        "the engine makes no tokens though requests run",
        """select e.src from engine_samples e join points p on p.src = e.src
           where e.running > 0 and e.src is not null group by e.src having max(p.value) filter (p.name like '%throughput%') = 0""",
    ),
    (
        "running requests are thrown out",
        """select arg_max(src, preemptions_total) from engine_samples where preemptions_total is not null
           group by engine, model having max(preemptions_total) > min(preemptions_total)""",
    ),
)


def doubts(cursor: Cursor) -> tuple[str, ...]:
    """Each doubt with where it stands, in words."""
    found: dict[str, list[str]] = {}
    for what, sql in _DOUBTS:
        places = [str(row[0]) for row in cursor.execute(f"{sql} limit {MOST}").fetchall()]
        if places:
            found.setdefault(what, []).extend(places)
    return tuple(f"{what} ({', '.join(places[:MOST])})" for what, places in found.items())
