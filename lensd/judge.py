"""Each tick: new requests are assembled, rules judged over them and over the window, incidents moved on, alerts offered."""

import logging
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import msgspec
from lensd_collectors.rows import DeliveryRow, FindingRow, IncidentRow, Instant, RequestRow

from lensd.alerts.delivery import Reason
from lensd.alerts.outbox import Outbox
from lensd.diagnosis.causes import conclude, rank
from lensd.diagnosis.diagnose import live_cites
from lensd.diagnosis.evaluate import evaluate
from lensd.diagnosis.resolve import resolve
from lensd.diagnosis.runbook import Runbook
from lensd.diagnosis.scope import Scope
from lensd.errors import IncidentNotFoundError
from lensd.incidents import Incidents, Served, from_row, to_row
from lensd.records import Finding, Incident, Severity, Subject
from lensd.store import queries
from lensd.store.arrow import batch_of
from lensd.store.interface import Cursor, Store
from lensd.timeline.assembler import Assembler

log = logging.getLogger(__name__)

QUIET_US: Final = 30 * 60 * 1_000_000  # a new install alerts on hard faults only for its first half hour
BATCH: Final = 200  # requests judged in one go


class Judge:
    """Owns the assembler and the incidents. `tick` is called by one thread; `touch` and what people do by any."""

    def __init__(
        self,
        store: Store,
        runbooks: Mapping[str, Runbook],
        params: Mapping[str, Mapping[str, Any]],
        assembler: Assembler,
        outbox: Outbox,
        installed_at: int,
    ) -> None:
        self._store, self._runbooks, self._params, self._outbox = store, runbooks, params, outbox
        self._assembler = assembler
        self._quiet_until = installed_at + QUIET_US
        self._incidents = Incidents()
        self._touched: set[str] = set()
        self._unknown: set[str] = set()  # labels no window rule could judge at the last tick
        self._lock = threading.Lock()

    def restore(self) -> None:
        """Take up the incidents, alerts and open requests of an earlier run."""
        with self._store.cursor() as cursor:
            kept = queries.structs(cursor, IncidentRow, "select * from incidents")
            letters = queries.structs(cursor, DeliveryRow, "select * from deliveries")
            unfinished = cursor.execute(queries.UNFINISHED_TRACES).fetchall()
        self._incidents.restore(kept, self._runbooks)
        self._outbox.restore([i for i in map(from_row, kept) if self._may_alert(i, i.opened_at)], letters)
        self.touch(row[0] for row in unfinished)

    def touch(self, traces: Iterator[str] | set[str]) -> None:
        """Traces that something new was stored for."""
        with self._lock:
            self._touched.update(traces)

    def tick(self, now: int) -> None:
        """One look, at `now` (microseconds since the epoch)."""
        with self._lock:
            touched, self._touched = self._touched, set()
        self._assembler.touch(touched)
        with self._store.cursor() as cursor:
            changed = [r.row for r in self._assembler.step(cursor, now)]
            self._append({"requests": changed})
            findings = self._judge_window(cursor, now)
            settled = [row for row in changed if row.settled]
            for batch in _batches(settled):
                findings += self._judge_requests(cursor, batch, now)
        self._append({"findings": [_finding_row(f, now) for f in findings]})
        self._move_incidents(findings, settled, now)

    def all(self) -> list[Incident]:
        """Every incident ever, in its last revision."""
        with self._store.cursor() as cursor:
            kept = {row.incident_id: from_row(row) for row in queries.structs(cursor, IncidentRow, "select * from incidents")}
        return list((kept | {i.incident_id: i for i in self._incidents.standing()}).values())

    def acknowledge(self, incident_id: str) -> Incident | None:
        try:
            incident = self._incidents.ack(incident_id)
        except IncidentNotFoundError:
            return None
        self._append({"incidents": [to_row(incident)]})
        return incident

    def close(self, incident_id: str) -> Incident | None:
        try:
            incident = self._incidents.close(incident_id, time.time_ns() // 1000)
        except IncidentNotFoundError:
            return None
        self._append({"incidents": [to_row(incident)]})
        self._offer(incident)
        return incident

    def _judge_window(self, cursor: Cursor, now: int) -> list[Finding]:
        """What stands now, whoever asks."""
        books = {name: book for name, book in self._runbooks.items() if book.scope == "window"}
        params = {name: given for name, given in self._params.items() if name in books}
        scope = Scope(to_us=now)
        evaluation = evaluate(cursor, books, scope, overrides=params)
        self._unknown = {r.runbook.label for r in evaluation.results if r.window_unknown is not None}
        return resolve(rank(evaluation.findings, self._runbooks), live_cites(cursor, scope))

    def _judge_requests(self, cursor: Cursor, rows: Sequence[RequestRow], now: int) -> list[Finding]:
        """Findings of these requests, best first each; their rows get the verdict as a further revision."""
        scope = Scope(to_us=now, from_us=min(r.started_at for r in rows) - 600_000_000, keys=tuple(r.request_key for r in rows))
        evaluation = evaluate(cursor, self._runbooks, scope, overrides=self._params)
        findings: list[Finding] = []
        revised: list[RequestRow] = []
        for row in rows:
            conclusion = conclude(evaluation, Subject(kind="request", request_id=_name(row)))
            verdict = conclusion.verdict
            again = self._assembler.judged(row, verdict.label, verdict.confidence.value)
            revised += [again] if again is not None else []
            findings += [f for f in conclusion.findings if f.request_id is not None and f.kind != "negative"]
        self._append({"requests": revised})
        return resolve(findings, live_cites(cursor, scope))

    def _move_incidents(self, findings: Sequence[Finding], settled: Sequence[RequestRow], now: int) -> None:
        counts: dict[tuple[str | None, ...], int] = {}
        for row in settled:
            stands_on = (row.engine, row.served_model or row.model, row.key_id)
            counts[stands_on] = counts.get(stands_on, 0) + 1
        served = [Served(count=count, engine=engine, model=model, key_id=key) for (engine, model, key), count in counts.items()]
        moved = self._incidents.update(findings, self._runbooks, now, served=served, unknown=self._unknown)
        self._append({"incidents": [to_row(i) for i in moved]})
        for incident in moved:
            self._offer(incident)

    def _offer(self, incident: Incident) -> None:
        if incident.state == "resolved":
            self._outbox.offer(incident, Reason.RESOLVED)
        elif incident.revision == 1 and self._may_alert(incident, incident.opened_at):
            self._outbox.offer(incident, Reason.OPENED)

    def _may_alert(self, incident: Incident, at: int) -> bool:
        return at >= self._quiet_until or incident.severity is Severity.CRITICAL

    def _append(self, rows: Mapping[str, Sequence[Any]]) -> None:
        batch = batch_of(rows)
        if batch:
            self._store.append(batch)


def _batches(rows: Sequence[RequestRow]) -> Iterator[list[RequestRow]]:
    """At most BATCH requests, no two of one name: rules return requests by the id that callers chose, and ids repeat."""
    left = list(rows)
    while left:
        batch: dict[str, RequestRow] = {}
        rest = []
        for row in left:
            name = _name(row)
            if name in batch or len(batch) >= BATCH:
                rest.append(row)
            else:
                batch[name] = row
        yield list(batch.values())
        left = rest


def _name(row: RequestRow) -> str:
    return str(row.request_id or row.engine_request_id or row.trace_id or row.request_key)


def _finding_row(finding: Finding, now: int) -> FindingRow:
    return FindingRow(
        seen_at=Instant(now),
        evidence=msgspec.json.encode(finding.evidence).decode(),
        src=f"runbook:{finding.runbook}",
        since_at=Instant(finding.since_at) if finding.since_at is not None else None,
        **{
            name: getattr(finding, name)
            for name in ("label", "request_id", "engine", "model", "gpu", "key_id", "stage", "severity", "confidence", "explained_by")
        },
    )
