"""Which rows of a day incidents stand on: typical requests with all that was told of them, and samples around an opening."""

from collections.abc import Sequence
from typing import Final

from lensd.store.day_files import DAY_US, DayFile
from lensd.store.packing import Run, shown

AROUND_US: Final = 600_000_000
"""Samples are kept from so long before an incident opened until so long after."""
MOST_OF_A_TRACE: Final = 2_000
MOST_ROWS: Final = 500_000
"""Of one table and day."""

_INCIDENTS: Final = f"""
CREATE OR REPLACE TEMP TABLE pinning AS
SELECT incident_id, label, engine, opened_at, greatest(opened_at, last_seen_at, resolved_at) AS ended_at,
       opened_at - to_microseconds({AROUND_US}) AS since, opened_at + to_microseconds({AROUND_US}) AS until, typical_requests
FROM incidents WHERE opened_at >= make_timestamp($oldest)
"""
_REQUESTS: Final = f"""
CREATE OR REPLACE TEMP TABLE pinned AS
SELECT request_key, trace_id, request_id, engine_request_id, this.started_at,
       coalesce(this.ended_at, that.ended_at, this.started_at) AS ended_at
FROM requests this
JOIN (SELECT *, unnest(json_extract_string(typical_requests, '$[*]')) AS ident FROM pinning) that
  ON ident = coalesce(request_id, engine_request_id, trace_id, request_key::VARCHAR)
  AND this.started_at <= that.ended_at + to_microseconds({AROUND_US})
  AND coalesce(this.ended_at, this.started_at) >= that.opened_at - INTERVAL 1 HOUR
WHERE this.started_at BETWEEN make_timestamp($begin) - INTERVAL 1 DAY AND make_timestamp($begin) + INTERVAL 2 DAY
QUALIFY row_number() OVER (
  PARTITION BY incident_id, ident ORDER BY this.label IS NOT DISTINCT FROM that.label DESC, this.started_at DESC) = 1
"""
_NAMES: Final = "(SELECT unnest([request_id, engine_request_id, trace_id]) FROM pinned)"
_NEAR: Final = "(pinning.engine IS NULL OR this.engine IS NULL OR this.engine = pinning.engine)"
_AROUND: Final = "EXISTS (FROM pinning WHERE this.seen_at BETWEEN pinning.since AND pinning.until AND {near})"
_CONDITIONS: Final = {
    "requests": "this.request_key IN (SELECT request_key FROM pinned)",
    "spans": (
        "EXISTS (FROM pinned WHERE pinned.trace_id = this.trace_id AND this.started_at BETWEEN pinned.started_at - INTERVAL 1 MINUTE"
        " AND pinned.ended_at + INTERVAL 1 MINUTE)"
        f" QUALIFY row_number() OVER (PARTITION BY this.trace_id ORDER BY this.started_at) <= {MOST_OF_A_TRACE}"
    ),
    "events": (
        f"this.request_id IN {_NAMES} OR this.trace_id IN (SELECT trace_id FROM pinned)"
        f" OR (this.request_id IS NULL AND this.trace_id IS NULL AND {_AROUND.format(near=_NEAR)})"
    ),
    "http_exchanges": f"this.request_id IN {_NAMES}",
    "findings": "this.request_key IN (SELECT request_key FROM pinned)",
    "engine_samples": _AROUND.format(near=_NEAR),
    "gpu_samples": _AROUND.format(near="true"),
}
"""By table, what is kept of it. Engines do not say which cards are theirs: those of all hosts are kept."""


def find_pinned(run: Run, day: int, oldest: int) -> None:
    """Temporary tables of the incidents opened since `oldest` (microseconds) and of their typical requests near this day."""
    run(_INCIDENTS, {"oldest": oldest})
    run(_REQUESTS, {"begin": day * DAY_US})


def copies(day: int, files: Sequence[DayFile]) -> dict[str, str]:
    """By table, the SELECT of what is kept of these files of a day, after `find_pinned`."""
    return {table: _select(table, condition, day, files) for table, condition in _CONDITIONS.items()}


def _select(table: str, condition: str, day: int, files: Sequence[DayFile]) -> str:
    column = "started_at" if table in ("requests", "spans") else "seen_at"
    begin, end = (f"make_timestamp({at * DAY_US})" for at in (day, day + 1))
    within = f"{column} >= {begin} AND {column} < {end}"
    each = [f"SELECT * FROM {shown(file, table)} WHERE {within}" for file in files]
    # Nobody is shown rows of another day than the one that a deletion is of.
    return f"SELECT this.* FROM ({' UNION ALL BY NAME '.join(each)}) this WHERE {condition} LIMIT {MOST_ROWS}"
