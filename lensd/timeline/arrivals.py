"""Which requests rows that have just come in are about."""

from collections.abc import Mapping, Sequence

import msgspec
from lensd_collectors import conventions as c
from lensd_collectors.rows import Event, Row

from lensd.store.arrow import column
from lensd.timeline.engine_ids import trace_of_event
from lensd.timeline.senders import STARTED

LATER = 2**63
"""Than any instant."""


def touched(rows: Mapping[str, Sequence[Row]]) -> dict[str, int]:
    """Traces that these new rows belong to, each with the first instant of its rows (microseconds since the epoch).

    What an engine's plugin or its log tells of a request has no trace: it comes under one of the engine's own.
    """
    found: dict[str, int] = {}
    spans = rows.get("spans", ())
    for trace_id, at in zip(column(spans, "trace_id"), column(spans, "started_at"), strict=True):
        if trace_id and at is not None and at < found.get(trace_id, LATER):
            found[trace_id] = at
    for row in rows.get("events", ()):
        if isinstance(row, Event) and row.seen_at is not None:
            trace = row.trace_id or trace_of_event(row)
            if trace is not None:
                found[trace] = min(row.seen_at, found.get(trace, row.seen_at))
    return found


def answered(rows: Mapping[str, Sequence[Row]]) -> set[str]:
    """The engine's ids of requests that its plugin tells of in these new rows; the plugin knows no trace."""
    events = (row for row in rows.get("events", ()) if isinstance(row, Event))
    return {row.request_id for row in events if row.name == c.EVENT_ENGINE_REQUEST and row.request_id}


def sender_started(rows: Mapping[str, Sequence[Row]]) -> bool:
    """Whether these new rows tell that a gateway or a middleware has started: it may stand where another one stood."""
    acts = (row for row in rows.get("events", ()) if isinstance(row, Event) and row.name == c.EVENT_GATEWAY_ACT)
    return any(msgspec.json.decode(act.fields).get(c.ACT) == STARTED for act in acts if act.fields)
