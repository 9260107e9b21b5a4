"""Turns what has come in since the last look into new rows of `requests`."""

import logging
from collections import OrderedDict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import NamedTuple

import msgspec
from lensd_collectors import conventions as c
from lensd_collectors.rows import RequestRow

from lensd.records import Timeline
from lensd.store.interface import Cursor
from lensd.store.queries import last_requests
from lensd.timeline.arrivals import answered as answered
from lensd.timeline.arrivals import sender_started as sender_started
from lensd.timeline.arrivals import touched as touched
from lensd.timeline.assemble import assemble, inner_keys
from lensd.timeline.ears import Ears, Heard, heard_long_ago
from lensd.timeline.engine_ids import engine_trace, is_engine_trace
from lensd.timeline.engine_records import told_alone
from lensd.timeline.estimate import AROUND_US, Scrapes
from lensd.timeline.evidence import RequestEvidence
from lensd.timeline.gather import LAST_INSTANT_US, engine_ids, gather
from lensd.timeline.instants import handed_over_at, request_start
from lensd.timeline.layout import layout
from lensd.timeline.life import SETTLE_AFTER_US, Life, life
from lensd.timeline.limits import Limits

log = logging.getLogger(__name__)

REMEMBERED = 20_000  # requests whose last revision is kept in memory; older ones are read from the store
MOST = 4_000  # traces looked at in one step, so that whatever came in at once holds nothing else up
MOST_TOUCHED = 500_000  # traces that something new has come for and that no step has taken yet, about 250 bytes each
MOST_WAITING = 200_000  # traces that time can change, about 1 KB each; beyond either, the oldest are left as they stand
LONGEST_US = 3_600_000_000  # how long before what has come a request may have begun
RECENT_US = 60_000_000  # what engines alone told of in that time, an earlier run may not have looked at
LATEST = 2**62


class Assembled(NamedTuple):
    """A request with its row and its timeline. `early`: it may yet turn out to be part of another; `settled_first`: settled just now."""

    evidence: RequestEvidence
    row: RequestRow
    timeline: Timeline
    look_again: int | None
    early: bool = False
    settled_first: bool = False


def assemble_all(
    cursor: Cursor,
    trace_ids: Sequence[str] | None,
    now: int,
    limits: Limits | None = None,
    *,
    since: int = 0,
    until: int = LAST_INSTANT_US,
    heard: Heard | None = None,
) -> list[Assembled]:
    """Every request of these traces (None: of the whole store) as known at `now`, revision 0; of what began in `since..until`."""
    return [r for r in _look(cursor, trace_ids, now, limits or Limits(), since, heard, until) if not r.early]


class _Wait(NamedTuple):
    """A trace with a request that time or new data can still change; what is told is of all its requests, settled ones too."""

    look_again: int
    since: int  # when the first that came of it began
    heard: dict[int, tuple[int, int]]  # request key -> last sign by its sender's clock, and when we heard of it by ours
    names: tuple[str, ...]  # what the engine may call its requests


class Assembler:
    """Keeps the requests that time or new data can still change. One thread uses it.

    `live` False: nothing more will come, so senders' clocks are believed and nothing is waited for.
    """

    def __init__(self, limits: Limits | None = None, *, live: bool = True) -> None:
        self._limits = limits or Limits()
        self._live = live
        self.shed = 0  # traces that were left as they stood, since too many waited
        self._now = 0
        self._behind = False
        self._touched: dict[str, int] = {}
        self._waiting: dict[str, _Wait] = {}
        self._traces: dict[str, str] = {}  # what the engine may call a request that waits -> its trace
        self._last: OrderedDict[int, RequestRow] = OrderedDict()
        self._in_hand: tuple[dict[str, int], list[int]] = ({}, [])  # traces and request keys of the last step

    def touch(self, traces: Mapping[str, int], answered: Iterable[str] = (), *, started: bool = False) -> None:
        """Traces that something new has come for, and when that began; ids of requests that an engine's plugin told of.

        `started`: so has a sender, and what waits may have lost its own.
        """
        for trace, since in traces.items():
            if is_engine_trace(trace) and self._live and trace not in self._touched:
                self._put_off(trace, since)
            else:
                self._due_at_once({trace: since})
        for trace in {self._traces[name] for name in answered if name in self._traces}:
            self._touched.setdefault(trace, self._waiting[trace].since)
        if started:
            self._touch_waiting()
        self._shed(self._touched, MOST_TOUCHED)

    def _put_off(self, trace: str, since: int) -> None:
        """A request that only its engine tells of so far: whoever else does so takes it in before it is looked at, mostly."""
        wait = self._waiting.get(trace)
        if wait is None:
            self._keep(trace, _Wait(self._now + SETTLE_AFTER_US, since, {}, ()))
        else:
            self._waiting[trace] = wait._replace(since=min(since, wait.since))

    def _keep(self, trace: str, wait: _Wait) -> None:
        self._forget(trace)
        self._waiting[trace] = wait
        self._traces.update(dict.fromkeys(wait.names, trace))
        self._shed(self._waiting, MOST_WAITING)

    def _shed(self, kept: "dict[str, int] | dict[str, _Wait]", most: int) -> None:
        """Keep what is kept within bounds: what has been there for longest goes, and is counted."""
        while len(kept) > most:
            oldest = next(iter(kept))
            if kept is self._waiting:
                self._forget(oldest)
            else:
                del kept[oldest]
            self.shed += 1
            if self.shed.bit_count() == 1:  # 1, 2, 4, 8 ... so that a flood of them is not one of lines as well
                log.warning("left %d traces as they stand: more than %d wait to be looked at", self.shed, most)

    @property
    def waiting(self) -> int:
        """Traces that will be looked at again."""
        return len(self._touched.keys() | self._waiting.keys())

    @property
    def behind(self) -> bool:
        """Whether the last step may have left something undone: take another at once."""
        return self._behind

    def step(self, cursor: Cursor, now: int) -> list[Assembled]:
        """Requests whose row changed since the last step, each with its next revision; at most MOST traces are looked at."""
        if self._live and not self._now:
            self._due_at_once(told_alone(cursor, now - RECENT_US))
        if now < self._now:  # the clock was set back: instants to look again at lie too far ahead
            self._touch_waiting()
        self._now = now
        due = self._due(now)
        self._in_hand = (due, [])
        changed: list[Assembled] = []
        for group in (
            {trace: since for trace, since in due.items() if since >= now - LONGEST_US},
            {trace: since for trace, since in due.items() if since < now - LONGEST_US},
        ):
            if group:
                changed += self._step(cursor, group, now)
        return changed

    def undo(self) -> None:
        """The rows of the last step did not reach the store: its traces are due again, as the store knows them."""
        traces, keys = self._in_hand
        self._due_at_once(traces)
        for key in keys:
            self._last.pop(key, None)

    def judged(self, row: RequestRow, label: str | None, confidence: str | None) -> RequestRow | None:
        """The row's next revision, with its verdict; None where the verdict is what it was."""
        if (row.label, row.confidence) == (label, confidence):
            return None
        revised = msgspec.structs.replace(row, label=label, confidence=confidence, revision=row.revision + 1)
        self._last[row.request_key] = revised
        return revised

    def _touch_waiting(self) -> None:
        self._due_at_once({trace: wait.since for trace, wait in self._waiting.items()})

    def _due_at_once(self, traces: Mapping[str, int]) -> None:
        for trace, since in traces.items():
            self._touched[trace] = min(since, self._touched.get(trace, since))

    def _due(self, now: int) -> dict[str, int]:
        again = ((trace, wait.since) for trace, wait in self._waiting.items() if wait.look_again <= now and trace not in self._touched)
        due = dict(islice(chain(again, self._touched.items()), MOST))
        self._behind = len(due) == MOST
        for trace in due:
            self._touched.pop(trace, None)
            if trace in self._waiting:
                due[trace] = min(due[trace], self._waiting[trace].since)
        return due

    def _step(self, cursor: Cursor, traces: Mapping[str, int], now: int) -> list[Assembled]:
        old = [self._forget(trace) for trace in traces]
        heard = Ears({key: sign for wait in old if wait is not None for key, sign in wait.heard.items()}, now)
        since = min(traces.values()) - LONGEST_US
        found = _look(cursor, sorted(traces), now, self._limits, since, heard if self._live else heard_long_ago)
        self._recall(cursor, found)
        self._wait_for(found, traces, heard)
        self._take_in(found)
        changed = []
        own = {request.row.request_key for request in found}
        for request in found:
            if request.early:
                continue
            before = self._last.get(request.row.request_key)
            if self._revise(request.row, before):
                first = request.row.settled and (before is None or not before.settled)
                changed.append(request._replace(settled_first=first))
            changed += self._withdraw(request, own)
        return changed

    def _withdraw(self, request: Assembled, own: set[int]) -> Iterator[Assembled]:
        """Takes back what was shown as a request before this one, of which it is a part, was known."""
        for key in inner_keys(request.evidence) - own:
            shown = self._last.get(key)
            if shown is not None and not shown.withdrawn:
                row = msgspec.structs.replace(shown, withdrawn=True, settled=True, revision=shown.revision + 1)
                self._in_hand[1].append(key)
                self._last[key] = row
                yield request._replace(row=row, look_again=None)

    def _wait_for(self, found: Iterable[Assembled], traces: Mapping[str, int], heard: "Ears") -> None:
        by_trace: dict[str, list[Assembled]] = {}
        for request in found:
            by_trace.setdefault(request.evidence.trace_id, []).append(request)
        for trace, requests in by_trace.items():
            look_again = [r.look_again for r in requests if r.look_again is not None]
            if not look_again:
                continue
            wait = _Wait(
                look_again=min(look_again),
                since=min(traces.get(trace, LATEST), *(request_start(r.evidence) for r in requests)),
                heard={key: heard.signs[key] for r in requests if (key := r.row.request_key) in heard.signs},
                names=tuple(name for r in requests for name in engine_ids(r.evidence)),
            )
            self._keep(trace, wait)

    def _take_in(self, found: Iterable[Assembled]) -> None:
        """What an engine alone told of, and turned out to be one of these, is no request of its own."""
        for request in found:
            if not is_engine_trace(request.evidence.trace_id):
                for record in request.evidence.engine_records:
                    name = str(record.fields.get(c.RESPONSE_ID))
                    self._forget(engine_trace(record.fields.get(c.ENGINE), record.name, name))

    def _forget(self, trace: str) -> _Wait | None:
        wait = self._waiting.pop(trace, None)
        for name in wait.names if wait is not None else ():
            if self._traces.get(name) == trace:
                del self._traces[name]
        return wait

    def _revise(self, row: RequestRow, before: RequestRow | None) -> bool:
        """Give the row its revision; False where it says what the last one said, and was judged if there was something to judge."""
        self._in_hand[1].append(row.request_key)
        if before is not None:
            row.label, row.confidence = before.label, before.confidence
            row.revision = before.revision
            if _same(before, row) and not (self._live and row.settled and row.label is None):
                return False
            row.revision += 1
        self._last[row.request_key] = row
        self._last.move_to_end(row.request_key)
        while len(self._last) > REMEMBERED:
            self._last.popitem(last=False)
        return True

    def _recall(self, cursor: Cursor, found: Iterable[Assembled]) -> None:
        """Rows that an earlier run or a longer-gone time wrote, so that revisions count on and nothing is told twice."""
        unknown = [request for request in found if request.row.request_key not in self._last]
        if not unknown:
            return
        starts = [request.row.started_at for request in unknown]
        keys = {key for request in unknown for key in (request.row.request_key, *inner_keys(request.evidence))} - self._last.keys()
        for row in last_requests(cursor, sorted(keys), min(starts) - LONGEST_US, max(starts) + LONGEST_US):
            self._last[row.request_key] = row


def _look(
    cursor: Cursor,
    trace_ids: Sequence[str] | None,
    now: int,
    limits: Limits,
    since: int,
    heard: Heard | None,
    until: int = LAST_INSTANT_US,
) -> list[Assembled]:
    gathered = gather(cursor, trace_ids, since, until)
    found = [(request, life(request, now, heard(request) if heard is not None else None)) for request in gathered]
    scrapes = _scrapes(cursor, found, now)
    done = []
    for request, state in found:
        try:
            done.append(_draw(request, state, scrapes, now, limits))
        except (ValueError, TypeError, ArithmeticError) as error:  # anybody may send anything: it costs this request, not the others
            log.warning("left out request %s of trace %s: %s", request.span_id, request.trace_id, error)
    return done


def _draw(request: RequestEvidence, state: Life, scrapes: Scrapes, now: int, limits: Limits) -> Assembled:
    end = state.ended_at if state.ended_at is not None else now
    seen = scrapes.of(request.value(c.ENGINE), (handed_over_at(request) or request_start(request)) - AROUND_US, end + AROUND_US)
    timeline = layout(request, seen, state.ended_at, state.outcome, now, limits)
    return Assembled(request, assemble(request, timeline, state), timeline, state.look_again, state.early)


def _scrapes(cursor: Cursor, found: Collection[tuple[RequestEvidence, Life]], now: int) -> Scrapes:
    """Scrapes of the time in which requests lie that the engine says nothing of."""
    untold = [(request_start(r), state.ended_at or now) for r, state in found if r.engine_times() is None]
    if not untold:
        return Scrapes({})
    return Scrapes.read(cursor, min(start for start, _ in untold) - AROUND_US, max(end for _, end in untold) + AROUND_US)


def _same(a: RequestRow, b: RequestRow) -> bool:
    return msgspec.structs.astuple(a) == msgspec.structs.astuple(b)
