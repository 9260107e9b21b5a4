"""Which requests rows that have just come in are about."""

from collections.abc import Mapping, Sequence

import msgspec
from lensd_collectors import conventions as c
from lensd_collectors.rows import Event, Row, SpanRow

from lensd.timeline.engine_ids import trace_of_event
from lensd.timeline.senders import STARTED


def touched(rows: Mapping[str, Sequence[Row]]) -> dict[str, int]:
    """Traces that these new rows belong to, each with the first instant of its rows (microseconds since the epoch).

    What an engine's plugin or its log tells of a request has no trace: it comes under one of the engine's own.
    """
    found: dict[str, int] = {}
    for row in rows.get("spans", ()):
        if isinstance(row, SpanRow) and row.trace_id and row.started_at is not None:
            found[row.trace_id] = min(row.started_at, found.get(row.trace_id, row.started_at))
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
