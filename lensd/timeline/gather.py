"""Evidence of many requests at once: a fixed number of queries, however many requests."""

import logging
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from lensd_collectors import conventions as c

from lensd.store.interface import Cursor
from lensd.timeline.engine_ids import engine_ids as engine_ids
from lensd.timeline.engine_ids import is_engine_trace
from lensd.timeline.engine_records import add_engine_records, claimed_traces
from lensd.timeline.evidence import RequestEvidence, Signal, Span
from lensd.timeline.join import requests_of_trace
from lensd.timeline.life import has_ended
from lensd.timeline.senders import add_successors

log = logging.getLogger(__name__)

_SPANS = """
select trace_id, span_id, parent_span_id, name, kind, scope, service, instance, engine, request_id,
       epoch_us(started_at), epoch_us(ended_at), status, status_message, attributes, src
from spans where {where} and started_at between make_timestamp($since) and make_timestamp($until) order by started_at, span_id
"""
_EVENTS = """
select trace_id, span_id, name, epoch_us(seen_at), host, engine, fields, src
from events where {where} and name in ($started, $progress) and seen_at between make_timestamp($since) and make_timestamp($until)
order by seen_at, seq, name desc, fields, src
"""
LAST_INSTANT_US = 253_402_300_799_000_000  # the end of the year 9999
_json = msgspec.json.Decoder()


def gather(cursor: Cursor, trace_ids: Sequence[str] | None = None, since: int = 0, until: int = LAST_INSTANT_US) -> list[RequestEvidence]:
    """Evidence of the requests of these traces, or of every request in the store; a trace can hold several.

    What came twice is taken once, and nothing depends on the order in which it came. `since`, `until`: of spans and their senders'
    events nothing that began before or after is read (microseconds since the epoch); a store holds many days. Of an engine's own trace
    (`engine_trace`), what others tell of the same request comes along.
    """
    alone = None if trace_ids is None else {trace for trace in trace_ids if is_engine_trace(trace)}
    traces = None if trace_ids is None or alone is None else {*trace_ids, *claimed_traces(cursor, alone, since)} - alone
    found = _by_request(*_read(cursor, traces, since, until)) if traces is None or traces else []
    found += add_engine_records(cursor, found, alone, since)
    add_successors(cursor, [request for request in found if not has_ended(request)])
    for request in found:
        request.complete()
    return found


def _read(cursor: Cursor, traces: set[str] | None, since: int, until: int) -> tuple[list[Span], list[Sequence[Any]]]:
    where = "true" if traces is None else "trace_id in (select unnest($traces))"
    given: dict[str, Any] = {"since": max(0, since), "until": until} | ({} if traces is None else {"traces": sorted(traces)})
    rows = cursor.execute(_SPANS.format(where=where), given).fetchall()
    names = {"started": c.EVENT_STARTED, "progress": c.EVENT_PROGRESS}
    events = cursor.execute(_EVENTS.format(where=where), given | names).fetchall()
    return [_span(row) for row in _once(rows)], list(dict.fromkeys(events))


def _once(rows: Iterable[Sequence[Any]]) -> Iterable[Sequence[Any]]:
    """Each span once, in order: its sender may send it again. Where two differ, the one that ended later or says more."""
    kept: dict[tuple[Any, ...], Sequence[Any]] = {}
    for number, row in enumerate(rows):
        key = (row[0], row[1] or number, row[3], row[10])
        if key not in kept or _weight(row) > _weight(kept[key]):
            kept[key] = row
    return kept.values()


def _weight(row: Sequence[Any]) -> tuple[int, int, str]:
    return row[11] or 0, len(row[14] or ""), row[14] or ""


def _span(row: Sequence[Any]) -> Span:
    told = list(row)
    if (end := told[11]) is None or end < told[10]:  # a clock set back during the span gives an end before its start
        told[11] = told[10]
    told[14] = _json.decode(told[14]) if told[14] else {}
    return Span(*told)


def _by_request(spans: Sequence[Span], events: Iterable[Sequence[Any]]) -> list[RequestEvidence]:
    by_trace: dict[str, list[Span]] = defaultdict(list)
    signals: dict[str, dict[str, list[Signal]]] = defaultdict(dict)
    for span in spans:
        by_trace[span.trace_id].append(span)
    for trace_id, span_id, name, at, host, engine, fields, src in events:
        known = {c.HOST_NAME: host, c.ENGINE: engine} | (_json.decode(fields) if fields else {})
        signals[trace_id].setdefault(span_id, []).append(Signal(name, at, known, src))
        by_trace.setdefault(trace_id, [])
    found = []
    for trace_id, members in by_trace.items():
        try:
            found += requests_of_trace(trace_id, members, signals.get(trace_id, {}))
        except (
            ValueError,
            TypeError,
            LookupError,
            ArithmeticError,
        ) as error:  # anybody may send anything: it costs this trace, not the others
            log.warning("left out trace %s: %s", trace_id, error)
    return found
