"""Names, durations and instants as people say them, in reports and on the command line."""

import re
from typing import Final

NAMES: Final = {"auth_routing": "auth/routing"}

TABLES: Final = {
    # whose evidence a table holds, as people call it; columns with a name of their own are in COLUMNS
    "subjects": "",
    "requests": "",
    "engine_samples": "in the engine's metrics",
    "gpu_samples": "in the GPU's samples",
    "events": "in the engine's log or process events",
    "http_exchanges": "in the HTTP exchanges",
    "config_facts": "in the engine's settings",
    "spans": "in the spans",
    "points": "in the metrics",
}
COLUMNS: Final = {
    "subjects.client_timeout_ms": "the caller's own time limit",
    "subjects.queue_ms": "the time in queue",
    "subjects.prefill_ms": "the prefill time",
    "subjects.decode_ms": "the decode time",
    "subjects.total_ms": "the total time",
    "subjects.ttft_ms": "the time to the first token",
    "subjects.tpot_ms": "the time per token",
    "subjects.status": "the HTTP status",
    "subjects.outcome": "the outcome",
    "subjects.decision": "the decision of gateway or engine",
    "subjects.finish_reason": "the finish reason",
    "engine_samples.up": "scrapes of the engine's /metrics",
    "engine_samples.kv_usage": "KV-cache usage in the engine's metrics",
    "events.name": "the engine's log or process events",
    "config_facts.value": "the engine's settings",
}
"""What a rule needs, in the words of a reader. Whatever is not here is named from its column and table."""


def duration(ms: float | None) -> str:
    """Milliseconds as people say them.

    >>> duration(412.4), duration(12345.0), duration(0.21), duration(999.9)
    ('412 ms', '12.3 s', '0.2 ms', '1.0 s')
    """
    if ms is None:
        return ""
    if ms < 9.95:
        return f"{ms:.1f} ms"
    if ms < 999.5:
        return f"{ms:.0f} ms"
    return f"{ms / 1000:.1f} s" if ms < 119_950 else f"{ms / 60_000:.1f} min"


def missing(name: str) -> str:
    """What `table.column` is called, for people.

    >>> missing("subjects.queue_ms"), missing("gpu_samples.used_bytes"), missing("a gateway log")
    ('the time in queue', "used bytes in the GPU's samples", 'a gateway log')
    """
    if name in COLUMNS:
        return COLUMNS[name]
    table, dot, column = name.partition(".")
    if not dot or table not in TABLES:
        return name
    return f"{column.removesuffix('_ms').replace('_', ' ')} {TABLES[table]}".strip()


def clock(at: str) -> str:
    """RFC 3339 in UTC as people read it: 2026-01-31 09:00:00.250 UTC."""
    return f"{at[:-1].replace('T', ' ')} UTC" if at.endswith("Z") else at


def in_words(because: str) -> str:
    """ "queue_ms is 17" as "the time in queue is 17 ms"."""

    def said(found: re.Match[str]) -> str:
        column, value = found.groups()
        name = "decision" if column == "decision" else missing(f"subjects.{column}").removeprefix("the ")
        if not column.endswith("_ms"):
            return f"{name} is {value.replace('_', ' ')}"
        return f"{name} is {duration(float(value))}"

    return re.sub(r"\b([a-z]+(?:_[a-z]+)*) is (-?[\d.]+\d|\d|[a-z_]+)", said, because)
