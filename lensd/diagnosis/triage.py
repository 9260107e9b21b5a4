"""The verdict on a folder of logs, scrapes, spans and exchanges that somebody mailed in: same rows, same rules, no server."""

import time
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
from lensd_collectors.read.cite import CiteError, quote
from lensd_collectors.rows import Event, HttpExchange, RequestRow, Row, SpanRow

from lensd.diagnosis.causes import Conclusion, conclude
from lensd.diagnosis.doubts import doubts
from lensd.diagnosis.evaluate import evaluate
from lensd.diagnosis.folder import Folder, instants_of, read_folder
from lensd.diagnosis.postmortem import of_findings
from lensd.diagnosis.resolve import Resolver, resolve
from lensd.diagnosis.runbook import Runbook
from lensd.diagnosis.scope import Scope
from lensd.diagnosis.settings import compare_files, derived_rows
from lensd.errors import UnreadableError
from lensd.records import Diagnosis, Evidence, PostMortem, Subject
from lensd.store.arrow import batch_of
from lensd.store.interface import Cursor
from lensd.store.memory import MemoryStore
from lensd.timeline.assemble import witness_of
from lensd.timeline.assembler import Assembled, assemble_all
from lensd.timeline.evidence import RequestEvidence
from lensd.timeline.exchange import COLUMNS, requests_of
from lensd.timeline.hours import Hours, date_spans, widen
from lensd.timeline.limits import Limits

AHEAD_US: Final = 3600 * 1_000_000  # rules look until an hour after the last instant, so that everything that was to settle has
PIECE: Final = 50_000  # rows
R = TypeVar("R", bound=Row)


def triage(
    paths: Sequence[Path],
    runbooks: Mapping[str, Runbook],
    params: Mapping[str, Mapping[str, Any]],
    limits: Limits,
    labels: Collection[str] | None = None,
) -> Diagnosis:
    """The verdict document. `labels` restricts it to a vocabulary. Raises UnreadableError where nothing could be read."""
    folder = read_folder(paths)
    rows = _merged(folder)
    if not any(rows.values()):
        raise UnreadableError(_nothing(paths, folder))
    compare_files(rows)
    hours = _hours(rows)
    undated = date_spans(_of(rows, "spans", SpanRow), _of(rows, "events", Event), hours)
    books = {name: book for name, book in runbooks.items() if labels is None or book.label in labels}
    store = MemoryStore()
    try:
        _append(store, rows)
        _append(store, derived_rows(rows))
        conclusion, memory = _judge(
            store, rows, {name: params[name] for name in params if name in books}, books, limits, hours, undated, folder
        )
    finally:
        store.close()
    return Diagnosis(
        subject=Subject(kind="files"),
        verdict=conclusion.verdict,
        findings=conclusion.findings,
        ruled_out=conclusion.ruled_out,
        not_evaluated=conclusion.not_evaluated,
        files=folder.read_as,
        post_mortem=memory,
    )


def _judge(
    store: MemoryStore,
    rows: Mapping[str, list[Row]],
    params: Mapping[str, Mapping[str, Any]],
    books: Mapping[str, Runbook],
    limits: Limits,
    hours: Hours,
    undated: frozenset[str],
    folder: Folder,
) -> tuple[Conclusion, PostMortem | msgspec.UnsetType]:
    to_us = hours.last + AHEAD_US
    with store.cursor() as cursor:
        assembled = assemble_all(cursor, None, to_us, limits)
        store.append(batch_of({"requests": _requests(assembled, _of(rows, "http_exchanges", HttpExchange), hours, undated)}))
        scope = Scope(from_us=hours.first, to_us=to_us, where="true", undated=True)
        evaluation = evaluate(cursor, books, scope, overrides=params, timeout_s=30.0)
        conclusion = conclude(evaluation, Subject(kind="files"), _doubts(cursor, folder))
        witnesses = {r.row.src: r.evidence for r in assembled if r.row.src is not None}
        resolver = _resolver(folder.root, witnesses)
        memory = of_findings(cursor, books, conclusion.findings, resolver, from_us=hours.first, to_us=to_us)
    return conclusion._replace(findings=tuple(resolve(conclusion.findings, resolver))), memory


def _requests(assembled: Sequence[Assembled], exchanges: Sequence[HttpExchange], hours: Hours, undated: frozenset[str]) -> list[RequestRow]:
    """Requests that spans tell of, and those known from an exchange alone; one of unknown hour may have been at any."""
    requests = [widen(r.row, hours) if r.row.trace_id in undated else r.row for r in assembled]
    ids = {name for r in requests for name in (r.request_id, r.engine_request_id) if name is not None}
    dateless = {exchange.src for exchange in exchanges if exchange.seen_at is None}
    known = requests_of(exchanges, ids, hours.first)
    return requests + [widen(r, hours) if r.src in dateless else r for r in known]


def _append(store: MemoryStore, rows: Mapping[str, list[Row]]) -> None:
    """A piece at a time: as columns, the rows of a large log would stand in memory once more."""
    for table, some in rows.items():
        for start in range(0, len(some), PIECE):
            store.append(batch_of({table: some[start : start + PIECE]}))


def _doubts(cursor: Cursor, folder: Folder) -> tuple[str, ...]:
    unread = folder.not_understood
    return ((f"{len(unread)} file(s) were not understood ({', '.join(unread[:3])})",) if unread else ()) + doubts(cursor)


def _merged(folder: Folder) -> dict[str, list[Row]]:
    merged: dict[str, list[Row]] = {}
    for file in folder.files.values():
        for table, rows in file.rows.items():
            merged.setdefault(table, []).extend(rows)
    return merged


def _of(rows: Mapping[str, list[Row]], table: str, kind: type[R]) -> list[R]:
    return [row for row in rows.get(table, ()) if isinstance(row, kind)]


def _nothing(paths: Sequence[Path], folder: Folder) -> str:
    named = ", ".join(map(str, paths))
    if folder.refused and not folder.files:
        name, why = next(iter(folder.refused.items()))
        return f"cannot read {name} in {named}: {why}"
    return f"nothing in {named} was understood: no engine log, scrape, span or HTTP exchange"


def _hours(rows: Mapping[str, list[Row]]) -> Hours:
    """First and last instant of anything dated; now where nothing is."""
    first = min((at for some in rows.values() for at in instants_of(some)), default=None)
    last = max((at for some in rows.values() for at in instants_of(some)), default=None)
    now = time.time_ns() // 1000
    return Hours(now if first is None else first, now if last is None else last)


def _resolver(root: Path, witnesses: Mapping[str, RequestEvidence]) -> Resolver:
    def resolver(src: str, column: str) -> Evidence | None:
        witness = witness_of(witnesses[src], column) if src in witnesses else None
        named = column if src in witnesses else COLUMNS.get(column, column)
        try:
            text, place = quote(witness or src, named, root)
        except (CiteError, OSError):  # gone since it was read
            return None
        return Evidence(text="", quote=text or None, source=place)

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
