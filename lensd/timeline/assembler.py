"""Turns what has come in since the last look into new rows of `requests`."""

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec
from lensd_collectors.rows import Event, RequestRow, Row, SpanRow

from lensd.records import Timeline
from lensd.store.interface import Cursor
from lensd.timeline.assemble import assemble
from lensd.timeline.estimate import AROUND_US, Scrapes
from lensd.timeline.evidence import RequestEvidence
from lensd.timeline.gather import gather
from lensd.timeline.layout import handed_over_at, layout, request_start
from lensd.timeline.life import life
from lensd.timeline.limits import Limits

REMEMBERED = 20_000  # requests whose last revision is kept in memory; older ones are read from the store


class Assembled(NamedTuple):
    """A request with its row and its timeline."""

    evidence: RequestEvidence
    row: RequestRow
    timeline: Timeline
    look_again: int | None


def assemble_all(cursor: Cursor, trace_ids: Sequence[str] | None, now: int, limits: Limits | None = None) -> list[Assembled]:
    """Every request of these traces (None: of the whole store) as known at `now`, revision 0."""
    alive = [(request, state) for request in gather(cursor, trace_ids) if (state := life(request, now)) is not None]
    if not alive:
        return []
    first, last = min(request_start(r) for r, _ in alive), max(s.ended_at or now for _, s in alive)
    scrapes = Scrapes.read(cursor, first - AROUND_US, last + AROUND_US)
    done = []
    for request, state in alive:
        end = state.ended_at if state.ended_at is not None else now
        seen = scrapes.of(request.value("lensd.engine"), (handed_over_at(request) or request_start(request)) - AROUND_US, end + AROUND_US)
        timeline = layout(request, seen, state.ended_at, state.outcome, now, limits or Limits())
        done.append(Assembled(request, assemble(request, timeline, state), timeline, state.look_again))
    return done


def touched(rows: Mapping[str, Sequence[Row]]) -> set[str]:
    """Traces that these new rows belong to."""
    return {
        row.trace_id for table in ("spans", "events") for row in rows.get(table, ()) if isinstance(row, SpanRow | Event) and row.trace_id
    }


class Assembler:
    """Keeps the requests that time or new data can still change. One thread uses it."""

    def __init__(self, limits: Limits | None = None) -> None:
        self._limits = limits or Limits()
        self._touched: set[str] = set()
        self._due: dict[str, int] = {}  # trace id -> when to look again
        self._last: OrderedDict[int, RequestRow] = OrderedDict()

    def touch(self, trace_ids: Iterable[str]) -> None:
        """Traces that something new has come for."""
        self._touched.update(trace_ids)

    @property
    def waiting(self) -> int:
        """Traces that will be looked at again."""
        return len(self._touched | self._due.keys())

    def step(self, cursor: Cursor, now: int) -> list[Assembled]:
        """Requests whose row changed since the last step, each with its next revision."""
        due = self._touched | {trace for trace, at in self._due.items() if at <= now}
        self._touched = set()
        if not due:
            return []
        for trace in due:
            self._due.pop(trace, None)
        found = assemble_all(cursor, sorted(due), now, self._limits)
        self._recall(cursor, [r.row.request_key for r in found])
        changed = []
        for request in found:
            if request.look_again is not None:
                trace = request.evidence.trace_id
                self._due[trace] = min(self._due.get(trace, request.look_again), request.look_again)
            if self._revise(request.row):
                changed.append(request)
        self._wait_for_parents(cursor, due, found, now)
        return changed

    def judged(self, row: RequestRow, label: str | None, confidence: str | None) -> RequestRow | None:
        """The row's next revision, with its verdict; None where the verdict is what it was."""
        if (row.label, row.confidence) == (label, confidence):
            return None
        revised = msgspec.structs.replace(row, label=label, confidence=confidence, revision=row.revision + 1)
        self._last[row.request_key] = revised
        return revised

    def _revise(self, row: RequestRow) -> bool:
        """Give the row its revision; False where it says what the last one said."""
        before = self._last.get(row.request_key)
        if before is not None:
            row.label, row.confidence = before.label, before.confidence
            row.revision = before.revision
            if _same(before, row):
                return False
            row.revision += 1
        self._last[row.request_key] = row
        self._last.move_to_end(row.request_key)
        while len(self._last) > REMEMBERED:
            self._last.popitem(last=False)
        return True

    def _recall(self, cursor: Cursor, keys: Sequence[int]) -> None:
        """Rows that an earlier run or a longer-gone time wrote, so that revisions count on."""
        unknown = [key for key in keys if key not in self._last]
        if not unknown:
            return
        sql = "select request_key, revision, label, confidence from requests where request_key in (select unnest($keys))"
        for key, revision, label, confidence in cursor.execute(sql, {"keys": unknown}).fetchall():
            self._last[key] = RequestRow(request_key=key, revision=revision, started_at=0, label=label, confidence=confidence)  # type: ignore[arg-type]

    def _wait_for_parents(self, cursor: Cursor, due: set[str], found: Sequence[Assembled], now: int) -> None:
        """Look again at traces that hold something but no request yet: their gateway's spans may be on the way."""
        empty = due - {r.evidence.trace_id for r in found}
        if not empty:
            return
        for request in gather(cursor, sorted(empty)):
            if life(request, now) is None:
                self._due[request.trace_id] = now + 10_000_000


def _same(a: RequestRow, b: RequestRow) -> bool:
    return msgspec.structs.astuple(a) == msgspec.structs.astuple(b)
