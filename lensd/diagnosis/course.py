"""How the request that a verdict on files is of went, in the order in which people look."""

from collections.abc import Sequence
from typing import Final

import msgspec

from lensd.records import Course, Finding
from lensd.store.interface import Cursor
from lensd.store.queries import rows

_REQUEST: Final = """
select request_id, outcome, status, auth_routing_ms + coalesce(client_ms, 0) as entered_ms, queue_ms, ttft_ms, tpot_ms, completion_tokens,
       max_gap_ms, total_ms, client_timeout_ms
from requests
where $id is null or request_id = $id or engine_request_id = $id or trace_id = $id
order by outcome = 'ok', total_ms desc nulls last, started_at limit 1
"""
_ENGINE: Final = """
select max(waiting) as most_waiting, max(running) as most_running,
       median(generation_tps) filter (running > 0 and generation_tps is not null) as tokens_per_s
from engine_samples
"""


def course_of(cursor: Cursor, findings: Sequence[Finding]) -> Course | msgspec.UnsetType:
    """Of the request that the first finding names, else of the worst there is; unset where neither requests nor samples are known."""
    named = next((finding.request_id for finding in findings[:1] if finding.request_id is not None), None)
    told = next(iter(rows(cursor, _REQUEST, {"id": named})), {}) | rows(cursor, _ENGINE)[0]
    told = {name: value for name, value in told.items() if value is not None}
    return Course(**told) if told else msgspec.UNSET
