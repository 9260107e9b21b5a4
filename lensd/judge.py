"""Each tick: new requests are assembled, rules judged over them and over the window, incidents moved on, alerts offered."""

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
from lensd_collectors.conventions import Outcome
from lensd_collectors.rows import DeliveryRow, FindingRow, IncidentRow, Instant, RequestRow

from lensd.alerts.delivery import Reason
from lensd.alerts.outbox import Outbox
from lensd.diagnosis.causes import BEFORE_ENGINE, conclude, rank
from lensd.diagnosis.diagnose import live_cites
from lensd.diagnosis.evaluate import Evaluation, evaluate
from lensd.diagnosis.resolve import resolve
from lensd.diagnosis.runbook import Runbook
from lensd.diagnosis.scope import AFTER, BEFORE, Scope
from lensd.diagnosis.standing import Standing
from lensd.errors import IncidentNotFoundError, StoreError
from lensd.incidents import Incidents, Served, from_row, to_row
from lensd.records import Confidence, Finding, Incident, Severity, Subject
from lensd.store import queries
from lensd.store.arrow import batch_of
from lensd.store.catalog import store_errors
from lensd.store.interface import Cursor, Store
from lensd.timeline.assembler import Assembled, Assembler

log = logging.getLogger(__name__)

QUIET_US: Final = 30 * 60 * 1_000_000  # a new install alerts on hard faults only for its first half hour
BATCH: Final = 4000  # requests judged in one go
APART_US: Final = 300_000_000  # how far apart requests judged in one go may have begun: they share one window
STALE_US: Final = 900_000_000  # a request that ended longer ago is judged, but says nothing of how things stand now
AGAIN_US: Final = 60_000_000  # a finding that stands is written again after this
OF_ONE_ID: Final = 4  # batches in which no id stands twice
REMEMBERED: Final = 20_000
_STANDS_ON: Final = ("engine", "model", "gpu", "key_id")
BEFORE_US, AFTER_US = (int(span.total_seconds() * 1e6) for span in (BEFORE, AFTER))


class Judge:
    """Owns the assembler and the incidents. `tick` is called by one thread; `touch` and what people do by any.

    What cannot be stored is kept and tried again, and what cannot be judged holds up no alert on what can.
    """

    def __init__(
        self,
        store: Store,
        runbooks: Mapping[str, Runbook],
        params: Mapping[str, Mapping[str, Any]],
        assembler: Assembler,
        outbox: Outbox,
        installed_at: int,
        *,
        clock: Callable[[], int],
    ) -> None:
        self._store, self._runbooks, self._params, self._outbox = store, runbooks, params, outbox
        self._assembler, self._clock = assembler, clock
        self._quiet_until: int | None = installed_at + QUIET_US  # None: over, and what stood then has been told
        self._incidents = Incidents()
        self._unwritten: list[IncidentRow] = []
        self._unjudged: dict[int, RequestRow] = {}
        self._told = _Told()
        self._touched: dict[str, int] = {}
        self._answered: set[str] = set()
        self._started = False
        self._judged = {name: book for name, book in runbooks.items() if book.live}
        self._standing = Standing(self._judged, params)
        self._unknown: set[str] = set()  # labels no window rule could judge at the last tick
        self._lock = threading.Lock()
        self._moving = threading.Lock()  # what moves an incident stores and offers it before another does

    def restore(self, now: int) -> None:
        """Take up the incidents, alerts and open requests of an earlier run."""
        with self._store.cursor() as cursor:
            kept = queries.structs(cursor, IncidentRow, "select * from incidents")
            letters = queries.structs(cursor, DeliveryRow, "select * from deliveries")
            unfinished = queries.unfinished_traces(cursor, now)
        self._incidents.restore(kept, self._runbooks)
        self._outbox.restore([i for i in map(from_row, kept) if self._may_alert(i, now)], letters)
        self.touch(unfinished)

    def touch(self, traces: Mapping[str, int], answered: Collection[str] = (), *, started: bool = False) -> None:
        """Traces that something new was stored for, since when; ids of requests that a plugin told of; whether a sender started."""
        with self._lock:
            for trace, since in traces.items():
                self._touched[trace] = min(since, self._touched.get(trace, since))
            self._answered.update(answered)
            self._started |= started

    @property
    def behind(self) -> bool:
        """Whether more is waiting to be judged than one tick takes."""
        return self._assembler.behind

    def tick(self, now: int) -> None:
        """One look, at `now` (microseconds since the epoch)."""
        with self._lock:
            touched, self._touched = self._touched, {}
            answered, self._answered = self._answered, set()
            started, self._started = self._started, False
        self._assembler.touch(touched, answered, started=started)
        with self._store.cursor() as cursor:
            changed = self._assemble(cursor, now)
            standing = self._judge_window(cursor, now)
            of_requests, stale = self._judge_settled(cursor, [r.row for r in changed if r.row.settled and not r.row.withdrawn], now)
        self._keep([*standing, *of_requests], now)
        hits = [f for f in of_requests if f.request_key not in stale]
        self._move_incidents([*standing, *hits], [r.row for r in changed if r.settled_first], now)

    def all(self) -> list[Incident]:
        """Every incident ever, in its last revision."""
        with self._store.cursor() as cursor:
            kept = {row.incident_id: from_row(row) for row in queries.structs(cursor, IncidentRow, "select * from incidents")}
        return list((kept | {i.incident_id: i for i in self._incidents.standing()}).values())

    def acknowledge(self, incident_id: str) -> Incident | None:
        with self._moving:
            try:
                incident = self._incidents.ack(incident_id)
            except IncidentNotFoundError:
                return None
            self._write([incident])
        return incident

    def close(self, incident_id: str) -> Incident | None:
        with self._moving:
            now = self._clock()
            try:
                incident = self._incidents.close(incident_id, now)
            except IncidentNotFoundError:
                return None
            self._write([incident])
            self._offer(incident, now)
        return incident

    def _assemble(self, cursor: Cursor, now: int) -> list[Assembled]:
        """Requests that changed, stored; none where that failed, to be looked at again."""
        try:
            with store_errors("assemble requests"):
                changed = self._assembler.step(cursor, now)
                self._append({"requests": [r.row for r in changed]})
                for gone in [r.row.request_key for r in changed if r.row.withdrawn]:
                    self._unjudged.pop(gone, None)
                return changed
        except StoreError as error:
            self._assembler.undo()
            log.warning("requests put off: %s", error)
        except Exception:
            log.exception("requests of this tick were not assembled")
        return []

    def _judge_window(self, cursor: Cursor, now: int) -> list[Finding]:
        """What stands now, whoever asks; where nothing can be said, nothing counts as gone either."""
        try:
            with store_errors("judge what stands"):
                self._standing.look(cursor, now)
                found = (finding for result in self._standing.results for finding in result.findings)
                findings = resolve(rank(tuple(found), self._runbooks), live_cites(cursor, Scope(to_us=now)))
        except Exception as error:
            self._standing.forget()
            self._unknown = self._standing.labels
            log.warning("what stands was not judged: %s", error, exc_info=not isinstance(error, StoreError))
            return []
        self._unknown = {r.runbook.label for r in self._standing.results if r.window_unknown is not None}
        return findings

    def _judge_settled(self, cursor: Cursor, settled: Sequence[RequestRow], now: int) -> tuple[list[Finding], set[int]]:
        """Findings of these requests, and the keys of those that ended too long ago to say how things stand."""
        rows = self._unjudged | {row.request_key: row for row in settled}
        self._unjudged = {}
        findings: list[Finding] = []
        try:
            with store_errors("judge requests"):
                for batch in _batches(rows.values()):
                    findings += self._judge_batch(cursor, batch, now)
        except StoreError as error:
            self._unjudged = dict(list(rows.items())[-REMEMBERED:])
            log.warning("verdicts put off: %s", error)
            return [], set()
        except Exception:
            log.exception("requests of this tick were not judged")
        return findings, {key for key, row in rows.items() if row.ended_at is not None and now - row.ended_at > STALE_US}

    def _judge_batch(self, cursor: Cursor, batch: Sequence[RequestRow], now: int) -> list[Finding]:
        """Findings of these requests, best first each; their rows get the verdict as a further revision."""
        rows: dict[int | None, RequestRow] = {row.request_key: row for row in batch}
        first, last = batch[0].started_at, max(row.ended_at or now for row in batch)
        scope = Scope(to_us=max(min(now, last + AFTER_US), first), from_us=first - BEFORE_US, keys=tuple(row.request_key for row in batch))
        evaluation = self._evaluate(cursor, batch, scope, now)
        findings: list[Finding] = []
        revised: list[RequestRow] = []
        for name, own in evaluation.split().items():
            row = rows[own.subjects[name].request_key]
            conclusion = conclude(own, Subject(kind="request", request_id=name), with_reasons=False)
            again = self._assembler.judged(row, conclusion.verdict.label, conclusion.verdict.confidence.value)
            revised += [again] if again is not None else []
            told = (f for f in conclusion.findings if f.request_id is not None and f.kind != "negative")
            findings += [msgspec.structs.replace(f, request_id=_name(row), request_key=row.request_key) for f in told]
        self._append({"requests": revised})
        return resolve(findings, live_cites(cursor, scope))

    def _evaluate(self, cursor: Cursor, batch: Sequence[RequestRow], scope: Scope, now: int) -> Evaluation:
        """All rules over these requests; that a window rule found nothing as of now holds for requests that are a part of that time."""
        failed = any(map(_may_be_the_engines, batch))
        stood = self._standing.of_requests(batch[0].started_at, now if failed else 0) if scope.to_us >= now else ()
        said = {result.runbook.id for result in stood}
        books = {name: book for name, book in self._judged.items() if name not in said}
        params = {name: given for name, given in self._params.items() if name in books}
        evaluation = evaluate(cursor, books, scope, overrides=params)
        return msgspec.structs.replace(evaluation, results=(*evaluation.results, *stood))

    def _move_incidents(self, findings: Sequence[Finding], settled: Sequence[RequestRow], now: int) -> None:
        counts: dict[tuple[str | None, ...], int] = {}
        for row in settled:
            stands_on = (row.engine, row.served_model or row.model, row.key_id)
            counts[stands_on] = counts.get(stands_on, 0) + 1
        served = [Served(count=count, engine=engine, model=model, key_id=key) for (engine, model, key), count in counts.items()]
        with self._moving:
            moved = self._incidents.update(findings, self._runbooks, now, served=served, unknown=self._unknown)
            self._write(moved)
            for incident in moved:
                self._offer(incident, now)
            self._end_quiet(now)

    def _offer(self, incident: Incident, now: int) -> None:
        if incident.state == "resolved":
            self._outbox.offer(incident, Reason.RESOLVED)
        elif incident.revision == 1 and self._may_alert(incident, now):
            self._outbox.offer(incident, Reason.OPENED)

    def _may_alert(self, incident: Incident, now: int) -> bool:
        return self._quiet_until is None or now >= self._quiet_until or incident.severity is Severity.CRITICAL

    def _end_quiet(self, now: int) -> None:
        """What opened in the quiet time and still stands is told when that is over, unless somebody has seen it."""
        if self._quiet_until is None or now < self._quiet_until:
            return
        self._quiet_until = None
        for incident in self._incidents.standing():
            if incident.state == "open":
                self._outbox.offer(incident, Reason.OPENED)

    def _write(self, incidents: Iterable[Incident]) -> None:
        """Store incidents, with those that could not be stored before; a store that fails costs no alert."""
        self._unwritten += [to_row(incident) for incident in incidents]
        try:
            self._append({"incidents": self._unwritten})
            self._unwritten = []
        except StoreError as error:
            self._unwritten = self._unwritten[-REMEMBERED:]
            log.warning("%d rows of incidents not stored yet: %s", len(self._unwritten), error)

    def _keep(self, findings: Sequence[Finding], now: int) -> None:
        try:
            self._append({"findings": [_finding_row(f, now) for f in self._told.news(findings, now)]})
        except StoreError as error:
            log.warning("findings not stored: %s", error)

    def _append(self, rows: Mapping[str, Sequence[Any]]) -> None:
        batch = batch_of(rows)
        if batch:
            self._store.append(batch)


class _Told:
    """Which findings have been written down: a request's once, what stands in a window again once a minute."""

    def __init__(self) -> None:
        self._last: OrderedDict[tuple[object, ...], tuple[Confidence, int]] = OrderedDict()

    def news(self, findings: Iterable[Finding], now: int) -> list[Finding]:
        new = []
        for f in findings:
            subject = (f.runbook, f.request_key, *(getattr(f, name) for name in _STANDS_ON))
            confidence, at = self._last.get(subject, (None, 0))
            if confidence is not f.confidence or (f.request_key is None and not 0 <= now - at < AGAIN_US):
                new.append(f)
                self._last[subject] = (f.confidence, now)
                self._last.move_to_end(subject)
        while len(self._last) > REMEMBERED:
            self._last.popitem(last=False)
        return new


def _batches(rows: Iterable[RequestRow]) -> Iterator[list[RequestRow]]:
    """At most BATCH requests, oldest first, of about the same time.

    The first batches hold no two of one id, so that what is joined by it is each one's own. Callers choose ids, and where one id
    is everybody's, the rest are judged together.
    """
    left, number = sorted(rows, key=lambda row: row.started_at), 0
    while left:
        batch: list[RequestRow] = []
        names: set[str] = set()
        rest = []
        for row in left:
            name, apart = _name(row), row.started_at - left[0].started_at > APART_US
            if apart or len(batch) >= BATCH or (name in names and number < OF_ONE_ID):
                rest.append(row)
            else:
                batch.append(row)
                names.add(name)
        yield batch
        left, number = rest, number + 1


def _may_be_the_engines(row: RequestRow) -> bool:
    """Whether a request failed of what an engine may have suffered a moment ago."""
    return row.outcome not in (Outcome.OK, Outcome.CALLER_GONE) and row.decision not in BEFORE_ENGINE


def _name(row: RequestRow) -> str:
    return str(row.request_id or row.engine_request_id or row.trace_id or row.request_key)


def _finding_row(finding: Finding, now: int) -> FindingRow:
    plain = ("label", "request_key", "request_id", *_STANDS_ON, "stage", "severity", "confidence", "explained_by")
    return FindingRow(
        seen_at=Instant(now),
        evidence=msgspec.json.encode(finding.evidence).decode(),
        src=f"runbook:{finding.runbook}",
        since_at=Instant(finding.since_at) if finding.since_at is not None else None,
        **{name: getattr(finding, name) for name in plain},
    )
