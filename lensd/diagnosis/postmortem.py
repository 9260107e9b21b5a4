"""What there is to know of an out-of-memory, put together: numbers, the memory before, who was there, settings and what changed in them."""

import json
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final

import msgspec

from lensd.diagnosis.causes import rank
from lensd.diagnosis.evaluate import evaluate
from lensd.diagnosis.resolve import LiveCites, Resolver, resolve_line
from lensd.diagnosis.runbook import Runbook
from lensd.diagnosis.scope import Scope, instant, microseconds
from lensd.errors import EvidenceError
from lensd.records import Evidence, Finding, Incident, InFlight, MemoryReading, Phase, PostMortem, SettingChange, Trigger
from lensd.store.interface import Cursor
from lensd.store.queries import rows

EVENTS: Final = ("engine.oom", "engine.load_oom", "engine.kv_too_small", "engine.memory_short", "host.oom_kill")
PHASES: Final[Mapping[str, Phase]] = {
    "oom-model-load": "load",
    "oom-profiling-warmup": "profiling",
    "oom-runtime-activation-spike": "spike",
    "oom-fragmentation": "fragmentation",
    "host-ram-oom": "host_ram",
    "gpu-memory-held-by-other-process": "other_process",
    "kv-cache-too-small": "kv_cache",
}
"""The rule that names an out-of-memory says in which phase it came."""
CAPTURING: Final = ("engine.capturing", "engine.graphs")
AFTERWARDS_US: Final = 5_000_000  # a request that the failure ended is told a moment later, or its end a moment earlier
BEFORE_US: Final = 600_000_000
POINTS: Final = 120
RECENT_US: Final = 60_000_000
MOST_REQUESTS: Final = 100
SETTINGS: Final = ("flag", "effective", "measured", "derived")

_SAME: Final = "(engine is null or $engine is null or engine = $engine)"
_FAILURE: Final = f"""
select engine, host, seen_at, coalesce(seq, 0) as seq, name, fields, src from events
where name in (select unnest($names)) and seen_at between $from and $to and {_SAME}
order by name = 'host.oom_kill', attr(fields, 'want_bytes') is null, seen_at, seq limit 1
"""
_STARTED: Final = f"""
select max(begun_at) as started_at from (
  select seen_at as begun_at from events where name = 'engine.started' and seen_at <= $at and {_SAME}
  union all
  select start_at from engine_samples where start_at <= $at and seen_at between $at::timestamp - interval 1 hour and $at and {_SAME})
"""
_STAGE: Final = f"""
select arg_max(name, (seen_at, coalesce(seq, 0))) as name from events
where name in ('engine.loaded', 'engine.kv_memory', 'engine.kv_capacity', 'engine.capturing', 'engine.graphs', 'engine.ready')
  and (seen_at, coalesce(seq, 0)) < ($at, $seq) and {_SAME}
"""
_CARDS: Final = """
select host, gpu, bool_or(pid_engine is not distinct from $engine) as is_own from gpu_samples
where seen_at between $from and $at and gpu is not null and ($gpu is null or gpu = $gpu) and ($host is null or host is null or host = $host)
group by all
"""
_CURVE: Final = """
select time_bucket(to_microseconds($step), seen_at - interval 1 microsecond, $from::timestamp) as began,
       max(used_bytes) filter (pid is null) as used_bytes, min(free_bytes) filter (pid is null) as free_bytes,
       max(pid_used_bytes) filter (pid_engine is not distinct from $engine) as pid_used_bytes
from gpu_samples
where seen_at > $from and seen_at <= $at and gpu = $gpu and host is not distinct from $host
group by all order by began
"""
_RESIDENT: Final = """
select time_bucket(to_microseconds($step), seen_at - interval 1 microsecond, $from::timestamp) as began, max(rss_bytes) as rss_bytes
from gpu_samples
where seen_at > $from and seen_at <= $at and rss_bytes is not null and (pid_engine is not distinct from $engine)
group by all order by began
"""
_REQUESTS: Final = f"""
select coalesce(request_id, engine_request_id, trace_id) as request_id, prompt_tokens,
       epoch_us($at::timestamp) - epoch_us(started_at) as age_us,
       case when decode_state = 'failed' then 'decode' when prefill_state = 'failed' then 'prefill' when queue_state = 'failed' then 'queue'
            when streaming_state = 'failed' then 'streaming' end as stage
from requests
where started_at <= $at and started_at > $at::timestamp - interval 1 hour
  and (ended_at is null or ended_at >= $at::timestamp - to_microseconds($slack)) and {_SAME}
order by prompt_tokens desc nulls last, started_at desc limit $most
"""
_RECEIVED: Final = f"""
select request_id, epoch_us($at::timestamp) - epoch_us(seen_at) as age_us, attr(fields, 'prompt_logprobs') is not null as wants_logprobs
from events r
where name = 'request.received' and request_id is not null and seen_at > $at::timestamp - to_microseconds($recent)
  and (seen_at, coalesce(seq, 0)) < ($at, $seq) and {_SAME}
  and not exists (from events e where e.name in ('request.aborted', 'request.failed') and e.request_id = r.request_id and e.seen_at < $at)
order by seen_at desc, seq desc limit $most
"""
_FACTS: Final = """
select name,
       arg_max(struct_pack(v := value), (coalesce(seen_at, timestamp '1970-01-01'), coalesce(origin, 'flag') <> 'flag')).v as value
from config_facts
where ($engine is null or subject is null or subject = $engine) and coalesce(origin, 'flag') in (select unnest($origins))
  and (seen_at is null or seen_at <= $at)
group by name having value is not null order by name
"""
_CHANGED: Final = f"""
select fields from events
where name = 'lensd.config.changed' and seen_at <= $at and {_SAME}
  and seen_at >= coalesce($started::timestamp - interval 60 seconds, seen_at)
order by seen_at
"""


def of_findings(
    cursor: Cursor, runbooks: Mapping[str, Runbook], findings: Iterable[Finding], resolver: Resolver, *, from_us: int, to_us: int
) -> PostMortem | msgspec.UnsetType:
    """Of what these findings say, its line quoted; unset where none of them speaks of memory that ran out."""
    said = [finding for finding in findings if finding.label in PHASES]
    if not said:
        return msgspec.UNSET
    engine = next((finding.engine for finding in said if finding.engine is not None), None)
    found = post_mortem(cursor, runbooks, engine, from_us=from_us, to_us=to_us)
    return msgspec.UNSET if found is None else quoted(found, resolver)


def of_incident(cursor: Cursor, runbooks: Mapping[str, Runbook], incident: Incident) -> PostMortem:
    """Of a live incident in which memory ran out, or whose rule explains that. Raises EvidenceError for any other."""
    from_us, to_us = incident.opened_at - BEFORE_US, incident.last_seen_at + RECENT_US
    explained = {label for book in runbooks.values() if book.label == incident.label for label in book.explains}
    speaks = incident.label in PHASES or bool(explained & PHASES.keys())
    found = post_mortem(cursor, runbooks, incident.engine, from_us=from_us, to_us=to_us) if speaks else None
    if found is None:
        raise EvidenceError(f"incident {incident.incident_id} ({incident.label}) has no post-mortem: no memory ran out in its time")
    return quoted(found, LiveCites(cursor, from_us, to_us))


def quoted(found: PostMortem, resolver: Resolver) -> PostMortem:
    return msgspec.structs.replace(found, said=resolve_line(found.said, resolver))


def post_mortem(cursor: Cursor, runbooks: Mapping[str, Runbook], engine: str | None, *, from_us: int, to_us: int) -> PostMortem | None:
    """Of the failure in this time that tells most; None where memory did not run out. `engine` None: whichever.

    The line's quote is still to be resolved: `said.source` is a cite. Instants in microseconds since the epoch.
    """
    failure = _one(cursor, _FAILURE, names=list(EVENTS), engine=engine, **{"from": instant(from_us), "to": instant(to_us)})
    if failure is None:
        return None
    at, engine = failure["seen_at"], failure["engine"] or engine
    numbers = _numbers(failure["fields"])
    known: dict[str, Any] = {"engine": engine, "at": at}
    started = _one(cursor, _STARTED, **known)
    host, gpu = _card(cursor, failure, known)
    settings = {row["name"]: row["value"] for row in rows(cursor, _FACTS, {**known, "origins": list(SETTINGS)})}
    in_flight, trigger = _requests(cursor, known, failure["seq"])
    fits = settings.get("fits_max_model_len", "")
    return PostMortem(
        engine=engine,
        gpu=gpu,
        at=microseconds(at),
        started_at=microseconds(started["started_at"]) if started is not None and started["started_at"] is not None else None,
        phase=_phase(cursor, runbooks, known, failure["seq"], Scope(from_us=from_us, to_us=to_us, engine=engine)),
        said=Evidence(text=failure["name"], source=f"{failure['src']}#line" if failure["src"] else None),
        numbers=numbers,
        curve=_curve(cursor, known, host, gpu),
        in_flight=in_flight,
        trigger=trigger,
        settings=settings,
        changes=_changes(cursor, known, started["started_at"] if started is not None else None),
        fits=int(fits) if fits.isdigit() else None,
    )


def _phase(cursor: Cursor, runbooks: Mapping[str, Runbook], known: Mapping[str, Any], seq: int, scope: Scope) -> Phase:
    """By the rule that explains the others; graphs are captured at the end of what else counts as profiling."""
    books = {name: book for name, book in runbooks.items() if book.label in PHASES and book.scope == "window"}
    found = rank(evaluate(cursor, books, scope).findings, books)
    phase = PHASES[found[0].label] if found else "unknown"
    if phase == "profiling":
        last = _one(cursor, _STAGE, **known, seq=seq)
        return "capture" if last is not None and last["name"] in CAPTURING else phase
    return phase


def _numbers(fields: str | None) -> dict[str, int]:
    told = json.loads(fields or "{}")
    return {name: round(value) for name, value in told.items() if name.endswith("_bytes") and isinstance(value, int | float)}


def _card(cursor: Cursor, failure: Mapping[str, Any], known: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """Host and index of the card: that the line names, else the engine's own, else the only one."""
    named = json.loads(failure["fields"] or "{}").get("gpu")
    since = failure["seen_at"] - (instant(BEFORE_US) - instant(0))
    found = rows(cursor, _CARDS, {**known, "from": since, "gpu": named, "host": failure["host"]})
    own = [row for row in found if row["is_own"]] or found
    return (own[0]["host"], own[0]["gpu"]) if len(own) == 1 else (failure["host"], named)


def _curve(cursor: Cursor, known: Mapping[str, Any], host: str | None, gpu: str | None) -> tuple[MemoryReading, ...]:
    since = known["at"] - (instant(BEFORE_US) - instant(0))
    bounds = {**known, "from": since, "step": BEFORE_US // POINTS}
    found: dict[datetime, dict[str, Any]] = {}
    for row in rows(cursor, _CURVE, {**bounds, "gpu": gpu, "host": host}) if gpu is not None else []:
        found.setdefault(row["began"], {}).update(row)
    for row in rows(cursor, _RESIDENT, bounds):
        found.setdefault(row["began"], {}).update(row)
    columns = ("used_bytes", "free_bytes", "pid_used_bytes", "rss_bytes")
    return tuple(
        MemoryReading(at=microseconds(began), **{name: found[began].get(name) for name in columns})
        for began in sorted(found)
        if any(found[began].get(name) is not None for name in columns)
    )


def _requests(cursor: Cursor, known: Mapping[str, Any], seq: int) -> tuple[tuple[InFlight, ...] | None, Trigger | None]:
    """Those that were there by the requests' own records, else by the engine's log; None where neither knows of any."""
    told = rows(cursor, _REQUESTS, {**known, "slack": AFTERWARDS_US, "most": MOST_REQUESTS})
    received = rows(cursor, _RECEIVED, {**known, "seq": seq, "recent": RECENT_US, "most": MOST_REQUESTS})
    sure = [
        InFlight(request_id=row["request_id"], age_ms=row["age_us"] / 1000, prompt_tokens=row["prompt_tokens"], stage=row["stage"])
        for row in told
        if row["request_id"] is not None
    ]
    maybe = [InFlight(request_id=row["request_id"], age_ms=row["age_us"] / 1000, is_sure=False) for row in received] if not sure else []
    everyone = (*sure, *maybe)
    return everyone or None, _trigger(everyone, received)


def _trigger(in_flight: tuple[InFlight, ...], received: list[dict[str, Any]]) -> Trigger | None:
    """What a start does not measure with goes before a long prompt, and that before who came last."""
    asked = next((row["request_id"] for row in received if row["wants_logprobs"]), None)
    if asked is not None:
        return Trigger(request_id=asked, because="it asked for the log probabilities of its prompt")
    sized = [request for request in in_flight if request.prompt_tokens is not None]
    if sized:
        largest = max(sized, key=lambda request: request.prompt_tokens or 0)
        return Trigger(request_id=largest.request_id, because=f"its prompt was the largest, {largest.prompt_tokens} tokens")
    if received:
        return Trigger(request_id=received[0]["request_id"], because="it came last")
    return None


def _changes(cursor: Cursor, known: Mapping[str, Any], started_at: datetime | None) -> tuple[SettingChange, ...]:
    found: dict[str, SettingChange] = {}
    for row in rows(cursor, _CHANGED, {**known, "started": started_at}):
        for change in json.loads(row["fields"] or "{}").get("changes", ()):
            found.setdefault(change["name"], SettingChange(name=change["name"], was=change["was"], value=change["value"]))
    return tuple(found.values())


def _one(cursor: Cursor, sql: str, **parameters: Any) -> dict[str, Any] | None:
    return next(iter(rows(cursor, sql, parameters)), None)
