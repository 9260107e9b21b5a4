"""The verdict on a folder of logs, scrapes, spans and exchanges that somebody mailed in: same rows, same rules, no server."""

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
from lensd_collectors.read.cite import CiteError, quote
from lensd_collectors.read.recognise import FileRows, Kind, read
from lensd_collectors.rows import Instant, Row, SpanRow

from lensd.diagnosis.causes import Conclusion, conclude
from lensd.diagnosis.evaluate import evaluate
from lensd.diagnosis.resolve import resolve
from lensd.diagnosis.runbook import Runbook
from lensd.diagnosis.scope import Scope
from lensd.errors import UnreadableError
from lensd.records import Diagnosis, Evidence, FileRead, Finding, Subject
from lensd.store.arrow import batch_of
from lensd.store.memory import MemoryStore
from lensd.timeline.assemble import witness_of
from lensd.timeline.assembler import assemble_all
from lensd.timeline.evidence import RequestEvidence
from lensd.timeline.exchange import requests_of
from lensd.timeline.limits import Limits

MAX_FILES = 2000
AHEAD_US = 3600 * 1_000_000  # rules look until an hour after the last instant, so that everything that was to settle has


def triage(
    paths: Sequence[Path],
    runbooks: Mapping[str, Runbook],
    params: Mapping[str, Mapping[str, Any]],
    limits: Limits,
    labels: Collection[str] | None = None,
) -> Diagnosis:
    """The verdict document. `labels` restricts it to a vocabulary. Raises UnreadableError where nothing could be read."""
    root, files = _files(paths)
    found = {name: _read(path, name) for name, path in files.items()}
    rows = _merged(found.values())
    if not any(rows.values()):
        raise UnreadableError(f"nothing in {', '.join(map(str, paths))} was understood: no engine log, scrape, span or HTTP exchange")
    first, last = _extent(rows)
    _date_spans(rows.get("spans", []), first)
    books = {name: book for name, book in runbooks.items() if labels is None or book.label in labels}
    store = MemoryStore()
    try:
        store.append(batch_of(rows))
        conclusion = _judge(store, rows, books, params, limits, (first, last), root)
    finally:
        store.close()
    read_as = tuple(
        FileRead(path=name, kind=(f"{f.dialect} log" if f.dialect and f.kind is Kind.ENGINE_LOG else f.kind.value.replace("_", " ")),
                 records=f.records, unread_lines=f.unread_lines)
        for name, f in found.items()
    )  # fmt: skip
    return Diagnosis(
        subject=Subject(kind="files"),
        verdict=conclusion.verdict,
        findings=conclusion.findings,
        ruled_out=conclusion.ruled_out,
        not_evaluated=conclusion.not_evaluated,
        files=read_as,
    )


def _judge(
    store: MemoryStore,
    rows: Mapping[str, list[Row]],
    books: Mapping[str, Runbook],
    params: Mapping[str, Mapping[str, Any]],
    limits: Limits,
    extent: tuple[int, int],
    root: Path,
) -> Conclusion:
    first, last = extent
    with store.cursor() as cursor:
        assembled = assemble_all(cursor, None, last + AHEAD_US, limits)
        requests = [r.row for r in assembled]
        ids = {name for r in requests for name in (r.request_id, r.engine_request_id) if name is not None}
        requests += requests_of(rows.get("http_exchanges", []), ids, first)  # type: ignore[arg-type]
        store.append(batch_of({"requests": requests}))
        scope = Scope(from_us=first, to_us=last + AHEAD_US, where="true", undated=True)
        given = {name: values for name, values in params.items() if name in books}
        conclusion = conclude(evaluate(cursor, books, scope, overrides=given, timeout_s=30.0), Subject(kind="files"))
    witnesses = {r.row.src: r.evidence for r in assembled if r.row.src is not None}
    return conclusion._replace(findings=tuple(_quoted(conclusion.findings, root, witnesses)))


def _files(paths: Sequence[Path]) -> tuple[Path, dict[str, Path]]:
    """The folder that names are relative to, and every file below the paths by its name there."""
    for path in paths:
        if not path.exists():
            raise UnreadableError(f"no such file or folder: {path}")
    root = (
        paths[0]
        if len(paths) == 1 and paths[0].is_dir()
        else Path(_common([p.resolve().parent if p.is_file() else p.resolve() for p in paths]))
    )
    found: dict[str, Path] = {}
    for path in paths:
        inside = sorted(p for p in path.rglob("*") if p.is_file()) if path.is_dir() else [path]
        for file in inside:
            found[str(file.resolve().relative_to(root.resolve()))] = file
    if len(found) > MAX_FILES:
        raise UnreadableError(f"{len(found)} files are more than the {MAX_FILES} that are read at once: name a folder below")
    return root, found


def _common(folders: Sequence[Path]) -> str:
    import os.path

    return os.path.commonpath([str(folder) for folder in folders])


def _read(path: Path, name: str) -> FileRows:
    try:
        return read(path, name=name)
    except OSError as error:
        raise UnreadableError(f"cannot read {path}: {error.strerror}") from None


def _merged(files: Iterable[FileRows]) -> dict[str, list[Row]]:
    merged: dict[str, list[Row]] = {}
    for file in files:
        for table, rows in file.rows.items():
            merged.setdefault(table, []).extend(rows)
    return merged


def _extent(rows: Mapping[str, list[Row]]) -> tuple[int, int]:
    """First and last instant of anything dated (microseconds since the epoch); now where nothing is."""
    instants = [
        at
        for some in rows.values()
        for row in some
        for name in ("seen_at", "started_at", "ended_at")
        if (at := getattr(row, name, None)) is not None
    ]
    now = time.time_ns() // 1000
    return (min(instants), max(instants)) if instants else (now, now)


def _date_spans(spans: Sequence[Row], first: int) -> None:
    """Spans written down without instants begin at the first instant of the rest."""
    for span in spans:
        if isinstance(span, SpanRow) and span.started_at is None:
            span.started_at = Instant(first)
            span.ended_at = Instant(first + int((span.duration_ms or 0.0) * 1000))


def _quoted(findings: Iterable[Finding], root: Path, witnesses: Mapping[str, RequestEvidence]) -> list[Finding]:
    def resolver(src: str, column: str) -> Evidence | None:
        witness = witness_of(witnesses[src], column) if src in witnesses else None
        try:
            text, place = quote(witness or src, column, root)
        except CiteError:
            return None
        return Evidence(text="", quote=text, source=place)

    return resolve(findings, resolver)


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
