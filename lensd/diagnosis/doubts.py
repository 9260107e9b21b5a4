"""What in a folder speaks against calling it well, though no cause was found in it and every request in it was served.

A negative is said of requests; a folder holds more than them. Each doubt is one thing somebody can look at, with an id by which
a negative says that it has looked and found it harmless (`accounts_for` in a runbook's front matter).
"""

from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Final

from lensd_collectors.conventions import Outcome

from lensd.records import Record
from lensd.store.interface import Cursor

MOST: Final = 3  # places named of one doubt
UNREAD: Final = "files-unread"
UNSERVED: Final = "requests-unserved"
ALARMING: Final = "lines-alarming"
TIMES: Final = "times-unread"
COMPLAINT: Final = "somebody-complains"


class Doubt(Record, frozen=True, kw_only=True):
    """`what` in words; `places` as `file:line`, or ids of requests."""

    id: str
    what: str
    places: tuple[str, ...] = ()

    def __str__(self) -> str:
        return f"{self.what} ({', '.join(self.places[:MOST])})" if self.places else self.what


_WORDS: Final = MappingProxyType(
    {
        "errors-logged": "errors are logged",
        "calls-refused": "calls were answered with an error",
        "calls-failed": "calls failed",
        "callers-left": "callers left before their answer was whole",
        "requests-wait": "requests wait",
        "kv-held": "the KV cache is held with nobody there",
        "not-answering": "the engine does not answer",
        "no-tokens": "the engine makes no tokens though requests run",
        "preempting": "running requests are thrown out",
        "containers-ended": "containers were killed or ended badly",
        "devices-faulty": "a device reports faults",
        "devices-slow": "a busy device runs far below the clock that it had before, or that others have",
        "first-tokens-late": "first tokens come late",
        "tokens-slow": "tokens come slowly, or for some far more slowly than for others",
        "tokens-collapse": "generation falls far below what as many running requests had",
        "streams-silent": "streams were silent for seconds",
        "streams-collected": "a proxy is set to collect or compress what streams through it, and nobody measured behind it",
        "slower-than-before": "tokens come more slowly under one version than under another",
        "measured-slower": "somebody's benchmark is slower after something than before it",
        "prompts-read-anew": "first tokens come late, and of what was looked up in the prefix cache next to nothing was found",
        "answers-broken": "answers are not whole",
        "answers-endless": "an answer ran until a limit cut it, and nobody had set one",
        UNREAD: "files were not understood",
        ALARMING: "lines that were not understood speak of failures",
        TIMES: "somebody's measurements were not understood",
        COMPLAINT: "somebody noted that it was slow, stood still or was wrong",
        UNSERVED: "requests were not served",
        "stages-slow": "requests were served, but a stage took long",
    }
)
IDS: Final = frozenset(_WORDS)
"""What `accounts_for` may name."""


def _counted(classes: tuple[str, ...], share: float) -> str:
    """Rows of a table in which more than this share of the answers are of these classes; any, where the table doesn't count them all."""
    return f"""with told as (
             select src, seen_at, value, regexp_replace(src, ':\\d+$', '') as file, json_extract_string(labels, '$.class') as class,
                    json_extract_string(labels, '$.per') as per
             from points where name = 'lensd.http.answers'),
           steps as (
             select *, if(per = 'total', greatest(value - lag(value) over one, 0), value) as n from told
             window one as (partition by file, class, per order by seen_at, src)),
           asked as (select file, seen_at, per, max(n) as n from steps where class = 'all' group by all)
           select s.src from steps s left join asked a on a.file = s.file and a.seen_at = s.seen_at and a.per = s.per
           where s.class in ({", ".join(repr(one) for one in classes)}) and s.n > if(s.per = 'share', {share}, coalesce({share} * a.n, 0))
           order by s.seen_at"""


_DOUBTS: Final = (
    (
        "errors-logged",
        """select src from events where severity in ('error', 'critical') and src is not null
             and name not like 'container.%' and name not like 'host.%' and name not like 'gpu.%' order by seen_at, seq""",
    ),
    (  # a browser's icon and a scrape of a page that is not switched on are nobody's trouble
        "calls-refused",
        """select src from http_exchanges where status between 400 and 498 and status <> 460
             and not coalesce(method in ('GET', 'HEAD') and status in (404, 405)
                              and path in ('/', '/favicon.ico', '/robots.txt', '/metrics', '/docs', '/openapi.json', '/version'), false)
           order by seen_at""",
    ),
    ("calls-refused", "select src from events where name in ('http.unauthorized', 'gateway.refused') order by seen_at, seq"),
    (
        "calls-failed",
        """select src from http_exchanges where status >= 500 or (error_code is not null and coalesce(status, 0) < 400)
           order by seen_at""",
    ),
    ("callers-left", "select src from http_exchanges where status in (460, 499) order by seen_at"),
    ("requests-wait", "select src from engine_samples where waiting - coalesce(waiting_deferred, 0) > 0 order by seen_at, seq"),
    ("kv-held", "select src from engine_samples where running = 0 and waiting = 0 and kv_usage > 0.05 order by seen_at, seq"),
    ("not-answering", "select src from engine_samples where up = false order by seen_at, seq"),
    (
        "no-tokens",
        """select src from (
             select src, running, coalesce(prompt_tokens_total, 0) + generation_tokens_total as made, seen_at,
                    lag(coalesce(prompt_tokens_total, 0) + generation_tokens_total) over one as before, lag(running) over one as ran
             from engine_samples where generation_tokens_total is not null window one as (partition by engine, model order by seen_at, seq))
           where running > 0 and ran > 0 and made = before order by seen_at""",
    ),
    (
        "no-tokens",
        """select e.src from engine_samples e join points p on p.src = e.src
           where e.running > 0 and e.src is not null group by e.src having max(p.value) filter (p.name like '%throughput%') = 0""",
    ),
    (
        "preempting",
        """select src from (
             select src, seen_at, preemptions_total, lag(preemptions_total) over one as before
             from engine_samples where preemptions_total is not null window one as (partition by engine, model order by seen_at, seq))
           where preemptions_total > before order by seen_at""",
    ),
    (
        "containers-ended",
        """select src from events where severity in ('error', 'critical') and (name like 'container.%' or name like 'host.%')
             or name = 'host.oom_count' and try_cast(json_extract_string(fields, '$.kills') as int) > 0
           order by seen_at, seq""",
    ),
    (
        "devices-faulty",
        """select src from (select src, seen_at from events where severity in ('error', 'critical') and name like 'gpu.%'
             union all select src, seen_at from gpu_samples where xid > 0 or ecc > 0 or remap_failed) order by seen_at""",
    ),
    (
        "devices-slow",
        """select src from (
             select src, seen_at, sm_mhz, max(sm_mhz) over (partition by coalesce(total_bytes, 0)) as usual,
                    power_limit_w < 0.8 * power_default_w and throttle like '%sw_power_cap%' as cut
             from gpu_samples where pid is null and (util >= 0.7 or util is null and throttle <> ''))
           where sm_mhz < 0.75 * usual or cut order by seen_at""",
    ),
    (
        "first-tokens-late",
        """select src from (select src, started_at as seen_at, coalesce(ttft_ms, queue_ms + prefill_ms) as ms from requests
             union all select src, seen_at, ttfb_ms from http_exchanges where streaming)
           where ms > 10000 order by ms desc""",
    ),
    (  # of one path, for some far later than for others, and not because there was so much more to read
        "first-tokens-late",
        """select src from (select src, ttfb_ms, min(ttfb_ms) over one as best, ttfb_ms / nullif(prompt_tokens, 0) as each,
                    min(ttfb_ms / nullif(prompt_tokens, 0)) over one as best_each
             from http_exchanges where ttfb_ms is not null and coalesce(status, 200) = 200 and method is distinct from 'GET'
             window one as (partition by hop, path, model))
           where ttfb_ms > 2000 and ttfb_ms > 10 * best and coalesce(each > 3 * best_each, true) order by ttfb_ms desc""",
    ),
    ("calls-failed", _counted(("5xx", "failed"), 0.01)),
    ("calls-refused", _counted(("4xx",), 0.05)),
    (  # percentiles in a table
        "first-tokens-late",
        """select src from (
             select src, value, name, min(value) over (partition by name, regexp_replace(src, ':\\d+$', '')) as best
             from points where regexp_matches(name, '^lensd\\.latency\\.(ttft|queue)_'))
           where value > 10000 or value > 2000 and value > 5 * best order by value desc""",
    ),
    (
        "stages-slow",
        """select src from (
             select src, value, name, median(value) over (partition by name, regexp_replace(src, ':\\d+$', '')) as usual
             from points where name like 'lensd.latency.e2e\\_%' escape '\\')
           where value > 3 * usual and value > 2000 order by value desc""",
    ),
    (
        "tokens-slow",
        """select src from (
             select src, value, name, median(value) over (partition by name, regexp_replace(src, ':\\d+$', '')) as usual
             from points where name like 'lensd.latency.tpot\\_%' escape '\\')
           where value > 200 or value > 30 and value > 2.5 * usual order by value desc""",
    ),
    (
        "tokens-slow",
        """select src from (
             select src, tpot_ms, median(tpot_ms) over () as usual, min(tpot_ms) over () as best, count(tpot_ms) over () as answers from (
               select src, coalesce(tpot_ms, coalesce(decode_ms, total_ms - coalesce(ttft_ms, 0)) / nullif(completion_tokens - 1, 0))
                        as tpot_ms
               from requests where completion_tokens >= 20 or completion_tokens is null))
           where tpot_ms > 200 or tpot_ms > 30 and (answers >= 6 and tpot_ms > 2.5 * usual or answers >= 3 and tpot_ms > 5 * best)
           order by tpot_ms desc""",
    ),
    (
        "tokens-slow",
        """select arg_max(src, seen_at) from points
           where (name like '%inter_token_latency_seconds' or name like '%time_per_output_token_seconds') and counts is not null
           group by engine, model, name, labels having hist_quantile(arg_max(buckets, seen_at), arg_max(counts, seen_at), 0.95) > 0.2""",
    ),
    (
        "tokens-collapse",
        """select src from (
             select src, seen_at, generation_tps, median(generation_tps) over (partition by engine, model, round(running / 8)) as usual
             from engine_samples where running >= 8 and generation_tps is not null)
           where generation_tps < 0.25 * usual order by seen_at""",
    ),
    (
        "streams-silent",
        """select src from (select src, max_gap_ms from requests union all select src, max_gap_ms from http_exchanges)
           where max_gap_ms > 8000 order by max_gap_ms desc""",
    ),
    (
        "streams-collected",
        """select src from config_facts
           where (name = 'proxy_buffering' and value in ('on', 'true')
                  or name in ('proxy_compression', 'proxy_compression_by_type', 'proxy_compressed_types') and value not in ('off', 'false'))
             and not exists (from http_exchanges where hop = 'client' and coalesce(ttfb_ms, max_gap_ms, chunks) is not null)
           order by src""",
    ),
    (
        "slower-than-before",
        """with versions as (select count(distinct value) as known from config_facts where name = 'version'),
           means as (
             select src, seen_at, name, value / list_sum(counts) as mean from points
             where (name like '%time_per_output_token_seconds' or name like '%inter_token_latency_seconds') and list_sum(counts) >= 100)
           select arg_max(src, mean) from means, versions where known > 1 group by name having max(mean) > 1.15 * min(mean)""",
    ),
    (  # the same by the engine's own log, with as many running
        "slower-than-before",
        """with told as (select count(distinct version) as known from (
             select value as version from config_facts where name = 'version'
             union all select json_extract_string(fields, '$.version') from events where name in ('engine.started', 'engine.version'))),
           changed as (select count(*) as n from events where name = 'deploy.changed' and fields like '%"version"%'),
           starts as (select seen_at from events where name = 'engine.started' and seen_at is not null),
           lives as (
             select s.src, s.running, s.generation_tps / s.running as each, regexp_replace(s.src, ':\\d+$', '') as file,
                    (select count(*) from starts a where a.seen_at <= s.seen_at) as life
             from engine_samples s where s.running > 0 and s.generation_tps > 0 and s.src is not null),
           paces as (select file, life, median(each) as each, median(running) as running, arg_min(src, each) as src, count(*) as n
                     from lives group by all having n >= 2)
           select slow.src from told, changed, paces slow
           join paces fast on slow.each < 0.8 * fast.each and abs(slow.running - fast.running) <= 0.25 * fast.running
           where told.known > 1 or changed.n > 0""",
    ),
    (
        "measured-slower",
        """with sides as (select regexp_replace(src, ':\\d+$', '') as file, seq, json_extract_string(fields, '$.sign') as side from events
             where name = 'bench.of' and json_extract_string(fields, '$.sign') in ('before', 'after')),
           results as (
             select e.src, coalesce((select arg_max(s.side, s.seq) from sides s where s.file = e.file and s.seq < e.seq),
                                    lower(regexp_extract(e.file, '(?i)(?:^|[^a-z])(before|after)(?:[^a-z]|$)', 1))) as side,
                    coalesce(try_cast(json_extract_string(fields, '$.tpot_ms') as double),
                             1000 / nullif(try_cast(json_extract_string(fields, '$.generation_tps') as double), 0)) as ms
             from (select *, regexp_replace(src, ':\\d+$', '') as file from events where name = 'bench.result') e)
           select arg_max(src, ms) from results
           having median(ms) filter (side = 'after') > 1.2 * median(ms) filter (side = 'before')""",
    ),
    (
        "prompts-read-anew",
        """with looked as (
             select max(prefix_queries_total) - min(prefix_queries_total) as queries,
                    max(prefix_hits_total) - min(prefix_hits_total) as hits, arg_max(src, seen_at) as src
             from engine_samples where prefix_queries_total is not null and prefix_hits_total is not null group by engine, model),
           firsts as (
             select max(value) - min(value) as s, max(list_sum(counts)) - min(list_sum(counts)) as n from points
             where name like '%time_to_first_token_seconds' and counts is not null group by engine, model, name, labels)
           select src from looked, firsts where queries >= 20000 and hits <= 0.01 * queries and s >= 2 * n and n > 0""",
    ),
    (
        "answers-broken",
        """select src from (select src, seen_at from http_exchanges where json_broken or (status = 200 and done_seen = false)
             union all select src, seen_at from events where name in ('request.tool_parse_error', 'request.stream_error'))
           order by seen_at""",
    ),
    (
        "answers-endless",
        """select src from (select src, finish_reason, completion_tokens, max_tokens from requests
             union all select src, finish_reason, completion_tokens, max_tokens from http_exchanges)
           where finish_reason = 'length' and completion_tokens >= 2000 and max_tokens is null order by completion_tokens desc""",
    ),
)
_OF_OUTCOMES: Final[Mapping[str, str]] = MappingProxyType(
    {Outcome.REFUSED: "calls-refused", Outcome.CALLER_GONE: "callers-left", Outcome.OK: "stages-slow"}
)


def doubt(name: str, places: Iterable[str] = ()) -> Doubt:
    """One of the known ids with its words; raises KeyError for another."""
    return Doubt(id=name, what=_WORDS[name], places=tuple(places))


def doubts(cursor: Cursor) -> tuple[Doubt, ...]:
    """Each doubt that the rows give, with where it stands."""
    found: dict[str, list[str]] = {}
    for name, sql in _DOUBTS:
        places = [str(row[0]) for row in cursor.execute(f"{sql} limit {MOST}").fetchall()]
        if places:
            found.setdefault(name, []).extend(places)
    return tuple(doubt(name, places[:MOST]) for name, places in found.items())


def of_outcomes(outcomes: Mapping[str, str]) -> tuple[Doubt, ...]:
    """Doubts from requests that nothing says were served: request id to outcome."""
    found: dict[str, list[str]] = {}
    for request, outcome in outcomes.items():
        found.setdefault(_OF_OUTCOMES.get(outcome, UNSERVED), []).append(request)
    return tuple(doubt(name, places[:MOST]) for name, places in found.items())


def unanswered(given: Iterable[Doubt], accounted: Collection[str]) -> tuple[Doubt, ...]:
    """Those that no negative accounts for, the same doubt once."""
    left: dict[str, Doubt] = {}
    for one in given:
        if one.id not in accounted:
            left.setdefault(one.id, one)
    return tuple(left.values())
