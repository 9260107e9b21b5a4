"""What an engine's plugin and its log tell of requests: joined to those that others tell of, else requests of their own."""

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence
from typing import Any, Final, NamedTuple

import msgspec
from lensd_collectors import conventions as c

from lensd.store.interface import Cursor
from lensd.timeline.engine_ids import ENDS, RECEIVED, bases, engine_base, engine_trace, ids_of_trace
from lensd.timeline.evidence import RequestEvidence, Signal
from lensd.timeline.hours import names_of
from lensd.timeline.instants import clock_skew
from lensd.timeline.join import EARLY_US

LATE_US: Final = 15_000_000
"""A plugin tells of a request when it ends there, which may be a while after its caller left."""

_RANDOM: Final = re.compile(r"-[0-9a-f]{8}$")
_INDEX: Final = re.compile(r"-[0-9]{1,3}$")
_ALL: Final = """
select request_id, name, engine, epoch_us(seen_at), fields, src from events
where list_contains($names, name) and trace_id is null and request_id is not null and seen_at >= make_timestamp($since) {where}
order by seen_at, request_id, name, fields, src
"""
_SOME: Final = f"""
and seen_at <= make_timestamp($until) and regexp_replace(regexp_replace(request_id, '{_RANDOM.pattern}', ''), '{_INDEX.pattern}', '')
    in (select unnest($ids))
"""
_CLAIMED: Final = """
select distinct trace_id from spans
where request_id in (select unnest($ids)) and started_at >= make_timestamp($since) and trace_id is not null
union
select distinct trace_id from events
where name in ($started, $progress) and request_id in (select unnest($ids)) and seen_at >= make_timestamp($since) and trace_id is not null
"""
_json = msgspec.json.Decoder()


class _Told(NamedTuple):
    """One event: the trace it would stand for alone, the ids that its request may have, and what it says."""

    trace: str
    names: tuple[str, ...]
    signal: Signal


def claimed_traces(cursor: Cursor, alone: Collection[str], since: int) -> list[str]:
    """Traces that may tell of what these engines' traces do."""
    ids = sorted({name for trace in alone for name in ids_of_trace(trace)})
    given = {"ids": ids, "since": max(0, since), "started": c.EVENT_STARTED, "progress": c.EVENT_PROGRESS}
    return [trace for (trace,) in cursor.execute(_CLAIMED, given).fetchall()] if ids else []


def told_alone(cursor: Cursor, since: int) -> dict[str, int]:
    """Engines' traces that something was told of since then, each with the first instant (microseconds since the epoch)."""
    rows = cursor.execute(_ALL.format(where=""), {"names": list(ENDS), "since": max(0, since)}).fetchall()
    found: dict[str, int] = {}
    for engine_id, name, engine, at, *_ in rows:
        found.setdefault(engine_trace(engine, name, engine_id), at)
    return found


def add_engine_records(
    cursor: Cursor, found: Sequence[RequestEvidence], alone: Collection[str] | None, since: int
) -> list[RequestEvidence]:
    """Give each request what its engine tells of it; returns the requests that only their engines tell of.

    `alone`: the engines' traces that are asked for, None for all. Callers choose ids, and ids repeat: a record belongs to a
    request that was there when it was written, and where several were, to the one that ended nearest to it.
    """
    wanted: dict[str, list[tuple[int, int, RequestEvidence]]] = defaultdict(list)
    for request in found:
        first, last = _extent(request)
        for name in bases(request):
            wanted[name].append((first - EARLY_US, last, request))
    left = [told for told in _read(cursor, wanted, alone, since) if not _take(told, wanted)]
    asked = left if alone is None else [told for told in left if told.trace in alone]
    return [request for trace, some in sorted(_by_trace(asked).items()) for request in _requests_of_engine(trace, some)]


def _extent(request: RequestEvidence) -> tuple[int, int]:
    """From the first instant to the last that is known of a request, by its server's clock where there is one."""
    seen = [request.server_extent] if request.server_extent is not None else []
    if request.client is not None:
        skew = clock_skew(request)
        seen.append((request.client.start - skew, request.client.end - skew))
    return min(first for first, _ in seen), max(last for _, last in seen)


def _read(
    cursor: Cursor, wanted: dict[str, list[tuple[int, int, RequestEvidence]]], alone: Collection[str] | None, since: int
) -> list[_Told]:
    """Events that are about these ids, each once."""
    names, given = [*ENDS], dict[str, Any]()
    if alone or alone is None:
        names = [*ENDS, RECEIVED]
        given["since"] = max(0, since)
    if alone is not None:
        ids = {*wanted, *(name for trace in alone for name in ids_of_trace(trace))}
        if not ids:
            return []
        edges = [edge for entries in wanted.values() for start, end, _ in entries for edge in (start, end + LATE_US)]
        given |= {"ids": sorted({*map(_loose, ids), *ids}), "until": 2**62 if alone else max(edges)}
        given.setdefault("since", max(0, min(edges, default=0)))
    rows = cursor.execute(_ALL.format(where="" if alone is None else _SOME), {"names": names, **given}).fetchall()
    return [_told(*row) for row in dict.fromkeys(rows)]


def _loose(engine_id: str) -> str:
    """An id without whatever its end may have been given on the way: more match than are meant."""
    return _INDEX.sub("", _RANDOM.sub("", engine_id))


def _told(engine_id: str, name: str, engine: str | None, at: int, fields: str | None, src: str | None) -> _Told:
    known = {c.RESPONSE_ID: engine_id, c.ENGINE: engine} | (_json.decode(fields) if fields else {})
    names = (engine_id, engine_base(engine_id)) if name == c.EVENT_ENGINE_REQUEST else names_of(engine_id)
    return _Told(engine_trace(engine, name, engine_id), names, Signal(name, at, known, src))


def _take(told: _Told, wanted: dict[str, list[tuple[int, int, RequestEvidence]]]) -> bool:
    """Whether one of the requests takes it."""
    at = told.signal.at
    there = {
        r.span_id: (abs(at - end), r.trace_id, r.span_id, r)
        for name in told.names
        for start, end, r in wanted.get(name, ())
        if start <= at <= end + LATE_US
    }
    if not there:
        return False
    request = min(there.values(), key=lambda found: found[:3])[3]
    request.taken_in.append((told.trace, _alone_id(told.signal)))
    if told.signal.name == c.EVENT_ENGINE_REQUEST:
        request.engine_records.append(told.signal)
    return True


def _by_trace(told: Iterable[_Told]) -> dict[str, list[Signal]]:
    by_trace: dict[str, list[Signal]] = defaultdict(list)
    for one in told:
        by_trace[one.trace].append(one.signal)
    return by_trace


def _requests_of_engine(trace: str, signals: Sequence[Signal]) -> list[RequestEvidence]:
    """Requests of one id: what overlaps in time is one, and what was received belongs to the next end."""
    groups: list[list[Signal]] = []
    until = 0
    for signal in sorted(signals, key=lambda s: (s.ago(c.E2E_MS), s.at)):
        is_open = bool(groups) and all(s.name == RECEIVED for s in groups[-1])
        if not groups or (not is_open and signal.ago(c.E2E_MS) > until):
            groups.append([])
        groups[-1].append(signal)
        until = max(until, signal.at)
    return [_request(trace, group) for group in groups if any(s.name != RECEIVED for s in group)]


def _request(trace: str, group: Sequence[Signal]) -> RequestEvidence:
    in_order = sorted(group, key=lambda s: s.at)
    first_end = next(s for s in in_order if s.name != RECEIVED)
    return RequestEvidence(
        trace,
        _alone_id(first_end),
        engine_records=[s for s in in_order if s.name == c.EVENT_ENGINE_REQUEST],
        logged=[s for s in in_order if s.name != c.EVENT_ENGINE_REQUEST],
    )


def _alone_id(end: Signal) -> str:
    """In place of a span's id, of a request that only this end tells of: an engine's id repeats, but not at one instant."""
    return str(end.at)
