"""The verdict on a folder of logs, scrapes, spans and exchanges that somebody mailed in: same rows, same rules, no server."""

import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
from lensd_collectors.read.cite import CiteError, quote
from lensd_collectors.rows import Event, HttpExchange, RequestRow, Row, SpanRow

from lensd.diagnosis.beside import beside
from lensd.diagnosis.causes import conclude
from lensd.diagnosis.clocks import instants_of
from lensd.diagnosis.complaints import complaints
from lensd.diagnosis.course import course_of
from lensd.diagnosis.doubts import ALARMING, COMPLAINT, TIMES, UNREAD, Doubt, doubt, doubts
from lensd.diagnosis.evaluate import evaluate
from lensd.diagnosis.find import REST, STANDARD_INPUT, Intake, find
from lensd.diagnosis.folder import Folder, read_found
from lensd.diagnosis.postmortem import of_findings
from lensd.diagnosis.resolve import Resolver, resolve
from lensd.diagnosis.runbook import Runbook
from lensd.diagnosis.scope import Scope
from lensd.diagnosis.settings import compare_files, derived_rows
from lensd.diagnosis.unbundle import diagnose_bundle, manifest_of
from lensd.diagnosis.unread import lines_alarming, times_unread
from lensd.diagnosis.windows import tell
from lensd.errors import UnreadableError
from lensd.records import Diagnosis, Evidence, Finding, Subject
from lensd.store.arrow import batch_of
from lensd.store.memory import MemoryStore
from lensd.timeline.assemble import witness_of
from lensd.timeline.assembler import Assembled, assemble_all
from lensd.timeline.evidence import RequestEvidence
from lensd.timeline.exchange import COLUMNS, requests_of
from lensd.timeline.hours import Hours, date_spans, widen
from lensd.timeline.limits import Limits

AHEAD_US: Final = 3600 * 1_000_000  # rules look until an hour after the last instant, so that everything that was to settle has
PIECE: Final = 20_000  # rows
BEHIND: Final = ("engine", "proxy")
"""Hops whose access lines are no requests by themselves."""
R = TypeVar("R", bound=Row)


def triage(
    paths: Sequence[Path],
    runbooks: Mapping[str, Runbook],
    params: Mapping[str, Mapping[str, Any]],
    limits: Limits,
    labels: Collection[str] | None = None,
    intake: Intake | None = None,
) -> Diagnosis:
    """The verdict document. `labels` restricts it to a vocabulary. Raises UnreadableError where nothing could be read."""
    with intake or Intake() as taken_in:
        return _triage(paths, runbooks, params, limits, labels, taken_in)


def _triage(
    paths: Sequence[Path],
    runbooks: Mapping[str, Runbook],
    params: Mapping[str, Mapping[str, Any]],
    limits: Limits,
    labels: Collection[str] | None,
    intake: Intake,
) -> Diagnosis:
    found = find(paths, intake)
    books = {name: book for name, book in runbooks.items() if labels is None or book.label in labels}
    manifest = manifest_of(found.files)
    if manifest is not None:
        intake.told("judging")
        return diagnose_bundle(manifest, found.files, books)
    folder = read_found(found, intake)
    unread = _unread(folder)
    rows = _merged(folder)
    if not any(rows.values()):
        raise UnreadableError(_nothing(paths, folder))
    compare_files(rows)
    hours = _hours(rows)
    undated = date_spans(_of(rows, "spans", SpanRow), _of(rows, "events", Event), hours)
    exchanges = [row for row in _of(rows, "http_exchanges", HttpExchange) if row.hop not in BEHIND or row.finish_reason is not None]
    intake.told("judging")
    store = MemoryStore()
    try:
        for some in (derived_rows(rows), rows):
            _append(store, some)
        given = {name: params[name] for name in params if name in books}
        return _judge(store, exchanges, given, books, limits, hours, undated, folder, unread)
    finally:
        store.close()


def _judge(
    store: MemoryStore,
    exchanges: Sequence[HttpExchange],
    params: Mapping[str, Mapping[str, Any]],
    books: Mapping[str, Runbook],
    limits: Limits,
    hours: Hours,
    undated: frozenset[str],
    folder: Folder,
    unread: Sequence[Doubt],
) -> Diagnosis:
    to_us = hours.last + AHEAD_US
    with store.cursor() as cursor:
        assembled = assemble_all(cursor, None, to_us, limits)
        store.append(batch_of({"requests": _requests(assembled, exchanges, hours, undated)}))
        scope = Scope(from_us=hours.first, to_us=to_us, where="true", undated=True)
        evaluation = evaluate(cursor, books, scope, overrides=params, timeout_s=30.0)
        conclusion = conclude(evaluation, Subject(kind="files"), (*unread, *doubts(cursor)))
        witnesses = {r.row.src: r.evidence for r in assembled if r.row.src is not None}
        resolver = _resolver(folder.places, witnesses)
        memory = of_findings(cursor, books, conclusion.findings, resolver, from_us=hours.first, to_us=to_us)

        def look(first: int, last: int | None) -> Sequence[Finding]:
            part = Scope(from_us=first, to_us=to_us if last is None else last, undated=True)
            return conclude(evaluate(cursor, books, part, overrides=params, timeout_s=30.0), Subject(kind="files")).findings

        told = tell(cursor, conclusion.verdict, conclusion.findings, folder.lines, look)
        course = course_of(cursor, conclusion.findings)
        findings = beside(cursor, resolve(conclusion.findings, resolver), resolver, folder.places)
    return Diagnosis(
        subject=Subject(kind="files"),
        verdict=conclusion.verdict,
        findings=findings,
        ruled_out=conclusion.ruled_out,
        not_evaluated=conclusion.not_evaluated,
        files=folder.read_as,
        post_mortem=memory,
        course=course,
        window=told.window,
        others=told.others,
    )


def _requests(assembled: Sequence[Assembled], exchanges: Sequence[HttpExchange], hours: Hours, undated: frozenset[str]) -> list[RequestRow]:
    """Requests that spans tell of, and those known from an exchange alone; one of unknown hour may have been at any."""
    requests = [widen(r.row, hours) if r.row.trace_id in undated else r.row for r in assembled]
    ids = {name for r in requests for name in (r.request_id, r.engine_request_id) if name is not None}
    dateless = {exchange.src for exchange in exchanges if exchange.seen_at is None}
    known = requests_of(exchanges, ids, hours.first)
    return requests + [widen(r, hours) if r.src in dateless else r for r in known]


def _append(store: MemoryStore, rows: Mapping[str, list[Row]]) -> None:
    """A piece at a time, each let go as it is stored: the rows of a large log must not stand in memory twice."""
    for table, some in rows.items():
        some.reverse()
        while some:
            store.append(batch_of({table: some[: -PIECE - 1 : -1]}))
            del some[-PIECE:]


def _unread(folder: Folder) -> list[Doubt]:
    """What no reader understood; asked for while the rows are still with their files."""
    found = {
        UNREAD: folder.not_understood,
        ALARMING: lines_alarming(folder),
        TIMES: times_unread(folder),
        COMPLAINT: complaints(folder),
    }
    return [doubt(name, places) for name, places in found.items() if places]


def _merged(folder: Folder) -> dict[str, list[Row]]:
    """Rows by table, taken out of the files."""
    merged: dict[str, list[Row]] = {}
    for file in folder.files.values():
        for table, rows in file.rows.items():
            merged.setdefault(table, []).extend(rows)
            rows.clear()
    return merged


def _of(rows: Mapping[str, list[Row]], table: str, kind: type[R]) -> list[R]:
    return [row for row in rows.get(table, ()) if isinstance(row, kind)]


def _nothing(paths: Sequence[Path], folder: Folder) -> str:
    named = ", ".join("standard input" if path == STANDARD_INPUT else str(path) for path in paths)
    if folder.refused and not any(file.unread_lines for name, file in folder.files.items() if f"{name}{REST}" not in folder.refused):
        name, why = next(iter(folder.refused.items()))
        within = "" if name.removesuffix(REST) == named else f" in {named}"
        return f"cannot read {name.removesuffix(REST)}{within}: {why}"
    return f"nothing in {named} was understood: no engine log, scrape, span or HTTP exchange"


def _hours(rows: Mapping[str, list[Row]]) -> Hours:
    """First and last instant of anything dated; now where nothing is."""
    first = min((at for some in rows.values() for at in instants_of(some)), default=None)
    last = max((at for some in rows.values() for at in instants_of(some)), default=None)
    now = time.time_ns() // 1000
    return Hours(now if first is None else first, now if last is None else last)


def _resolver(places: Mapping[str, Path], witnesses: Mapping[str, RequestEvidence]) -> Resolver:
    def resolver(src: str, column: str) -> Evidence | None:
        witness = witness_of(witnesses[src], column) if src in witnesses else None
        column = column if src in witnesses else COLUMNS.get(column, column)
        name, _, line = (witness or src).rpartition(":")
        path = places.get(name)
        if path is None:
            return None
        try:
            text, place = quote(f"{path.name}:{line}", column, path.parent)
        except (CiteError, OSError):  # gone since it was read
            return None
        return Evidence(text="", quote=text or None, source=f"{name}:{place.rpartition(':')[2]}")

    return resolver


def read_labels(path: Path) -> frozenset[str]:
    """A vocabulary: a JSON list, the keys of a JSON object, or one label a line. Raises UnreadableError."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise UnreadableError(f"cannot read the labels in {path}: {error}") from None
    try:
        data = msgspec.json.decode(text)
    except msgspec.DecodeError:
        data = [line.strip() for line in text.splitlines() if line.strip()]
    return frozenset(str(label) for label in data)
