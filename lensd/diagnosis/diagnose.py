"""The verdict on one request: its timeline, every rule judged on it, one conclusion."""

from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import msgspec
from lensd_collectors.conventions import Outcome
from lensd_collectors.dialects import load as load_dialects

from lensd.diagnosis.causes import INCONCLUSIVE, conclude
from lensd.diagnosis.evaluate import evaluate
from lensd.diagnosis.postmortem import of_findings
from lensd.diagnosis.resolve import LiveCites, resolve
from lensd.diagnosis.runbook import Runbook
from lensd.diagnosis.scope import AFTER, BEFORE, Scope, microseconds
from lensd.diagnosis.unended import of_lost, of_open
from lensd.records import Diagnosis, Subject, Timeline, Verdict
from lensd.store.interface import Cursor
from lensd.timeline.assembler import LONGEST_US, Assembled, assemble_all
from lensd.timeline.gather import engine_ids
from lensd.timeline.life import SETTLE_AFTER_US, SILENT_AFTER_US
from lensd.timeline.limits import Limits
from lensd.timeline.senders import sender_of


def diagnose_row(
    cursor: Cursor,
    row: Mapping[str, Any],
    runbooks: Mapping[str, Runbook],
    params: Mapping[str, Mapping[str, Any]],
    limits: Limits,
    now: int,
) -> Diagnosis:
    """The verdict document of a row of `requests`, as known at `now` (microseconds since the epoch)."""
    request = _assembled(cursor, row, limits, now)
    scope = _scope(row, now)
    books = {name: book for name, book in runbooks.items() if book.kind != "negative" or book.scope == "request"}
    evaluation = evaluate(cursor, books, scope, overrides={name: given for name, given in params.items() if name in books})
    subject = _subject(row, request)
    named = _rule_name(row)
    conclusion = conclude(evaluation, msgspec.structs.replace(subject, request_id=named))
    verdict = _with_standing(cursor, conclusion.verdict, row, request)
    timeline = (
        request.timeline if request is not None else Timeline(stages=(), unattributed_ms=0.0, gaps=(), total_ms=row["total_ms"] or 0.0)
    )
    cites = live_cites(cursor, scope)
    memory = of_findings(cursor, runbooks, conclusion.findings, cites, from_us=scope.from_us or 0, to_us=scope.to_us)
    return Diagnosis(
        subject=subject,
        verdict=verdict,
        timeline=timeline.stages,
        unattributed_ms=timeline.unattributed_ms,
        gaps=timeline.gaps,
        total_ms=timeline.total_ms,
        clock_skew_ms=timeline.clock_skew_ms,
        frontend_ms=timeline.frontend_ms,
        findings=tuple(resolve(conclusion.findings, cites)),
        ruled_out=conclusion.ruled_out,
        not_evaluated=conclusion.not_evaluated,
        post_mortem=memory,
    )


def of_matches(diagnosis: Diagnosis, matches: int) -> Diagnosis:
    """The same, saying how many requests have the name that was asked for."""
    return msgspec.structs.replace(diagnosis, matches=matches) if matches > 1 else diagnosis


def _with_standing(cursor: Cursor, verdict: Verdict, row: Mapping[str, Any], request: Assembled | None) -> Verdict:
    """The verdict with where an open request stands, and what became of a lost one, which is said beside a cause too."""
    if request is None or not request.evidence.signals:
        return verdict
    undecided = verdict.label == INCONCLUSIVE
    if row["outcome"] == Outcome.OPEN and undecided:
        return of_open(request)
    if row["outcome"] == Outcome.LOST:
        lost = of_lost(request, sender_of(cursor, request.evidence))
        return lost if undecided else msgspec.structs.replace(verdict, cause=f"{verdict.cause}; besides, the request is {lost.cause}")
    return verdict


def _assembled(cursor: Cursor, row: Mapping[str, Any], limits: Limits, now: int) -> Assembled | None:
    """The request's evidence and timeline; open or lost as its row says, which knows better than its sender's clock."""
    if row["trace_id"] is None:
        return None
    heard_at = now - (SILENT_AFTER_US if row["outcome"] == Outcome.LOST else SETTLE_AFTER_US)
    since = microseconds(row["started_at"]) - LONGEST_US
    until = (microseconds(row["ended_at"]) if row["ended_at"] is not None else now) + LONGEST_US
    found = assemble_all(cursor, [row["trace_id"]], now, limits, since=since, until=until, heard=lambda _: heard_at)
    return next((r for r in found if r.row.request_key == row["request_key"]), None)


def live_cites(cursor: Cursor, scope: Scope) -> LiveCites:
    """What cites of live rows point at: samples are shown under the engine's own metric names, newest first."""
    names: dict[str, tuple[str, ...]] = {}
    for dialect in load_dialects().values():
        for column, metrics in dialect.metrics.items():
            plain = column.rpartition(".")[2]
            names[plain] = names.get(plain, ()) + tuple(metrics)
    return LiveCites(cursor, scope.from_us, scope.to_us, names)


def _scope(row: Mapping[str, Any], now: int) -> Scope:
    """The request alone, and the time around it on its own engine."""
    start = microseconds(row["started_at"])
    end = microseconds(row["ended_at"]) if row["ended_at"] is not None else now
    models = tuple(m for m in dict.fromkeys((row["served_model"], row["model"])) if m)
    return Scope(
        from_us=start - int(BEFORE.total_seconds() * 1e6),
        to_us=min(now, end + int(AFTER.total_seconds() * 1e6)),
        keys=(row["request_key"],),
        engine=row["engine"],
        models=models,
    )


def _rule_name(row: Mapping[str, Any]) -> str:
    """What rules call a request: its own id, else the engine's, else its trace."""
    return str(row["request_id"] or row["engine_request_id"] or row["trace_id"] or row["request_key"])


def _subject(row: Mapping[str, Any], request: Assembled | None) -> Subject:
    known = (row["request_id"], row["engine_request_id"], row["trace_id"], *(engine_ids(request.evidence) if request is not None else ()))
    return Subject(
        kind="request",
        request_id=row["request_id"],
        trace_id=row["trace_id"],
        aliases=tuple(dict.fromkeys(str(name) for name in known if name)),
        model=row["served_model"] or row["model"],
        engine=row["engine"],
        key_id=row["key_id"],
        started_at=instant(row["started_at"]),
        status=row["status"],
        outcome=row["outcome"],
        settled=row["settled"],
        revision=row["revision"],
    )


def instant(at: datetime) -> str:
    """RFC 3339 with milliseconds, UTC."""
    return at.replace(tzinfo=UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
