"""The verdict on a bundle that `lensd bundle` made: its rows in a store of their own, judged as the daemon judged them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec
from lensd_collectors.rows import TABLES, Row

from lensd.diagnosis.bundle import FORMAT, MANIFEST, Manifest
from lensd.diagnosis.causes import Conclusion, conclude, verdict_of
from lensd.diagnosis.diagnose import diagnose_row, live_cites
from lensd.diagnosis.evaluate import evaluate
from lensd.diagnosis.resolve import resolve
from lensd.diagnosis.runbook import Runbook
from lensd.diagnosis.scope import Scope
from lensd.errors import UnreadableError
from lensd.records import Diagnosis, FileRead, Finding, Incident, Subject, Verdict
from lensd.store.arrow import batch_of
from lensd.store.interface import Cursor
from lensd.store.memory import MemoryStore
from lensd.store.queries import rows as rows_of

LARGEST_MANIFEST: Final = 1 << 20
PIECE: Final = 20_000  # rows
BEFORE_US: Final = 600_000_000


def manifest_of(files: Mapping[str, Path]) -> Manifest | None:
    """What the files say they are; None where they are no bundle. Raises UnreadableError for one that is not of this version."""
    path = files.get(MANIFEST)
    if path is None:
        return None
    with path.open("rb") as file:
        text = file.read(LARGEST_MANIFEST)
    try:
        said = msgspec.json.decode(text)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    if not isinstance(said, dict) or "lensd_bundle" not in said:
        return None
    if said["lensd_bundle"] != FORMAT:
        raise UnreadableError(f"{MANIFEST}: a bundle of form {said['lensd_bundle']}; this lensd reads form {FORMAT}: use the newer one")
    try:
        return msgspec.convert(said, Manifest)
    except msgspec.ValidationError as error:
        raise UnreadableError(f"{MANIFEST}: not what a bundle says of itself: {error}") from None


def diagnose_bundle(manifest: Manifest, files: Mapping[str, Path], books: Mapping[str, Runbook]) -> Diagnosis:
    """The verdict document. Raises UnreadableError for a table that does not hold what it should."""
    params = {name: given for name, given in manifest.params.items() if name in books}
    store = MemoryStore()
    try:
        read = tuple(_load(store, table, files) for table in TABLES if f"tables/{table}.jsonl" in files)
        with store.cursor() as cursor:
            if manifest.about.incident is not None:
                found = _of_incident(cursor, manifest, manifest.about.incident, books, params)
            else:
                found = _of_request(cursor, manifest, books, params)
    finally:
        store.close()
    return msgspec.structs.replace(found, files=read)


def _load(store: MemoryStore, table: str, files: Mapping[str, Path]) -> FileRead:
    name, count = f"tables/{table}.jsonl", 0
    decoder = msgspec.json.Decoder(TABLES[table])
    piece: list[Row] = []
    with files[name].open("rb") as file:
        for number, line in enumerate(file, start=1):
            try:
                piece.append(decoder.decode(line))
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                raise UnreadableError(f"{name}:{number}: no row of {table}: {error}") from None
            count += 1
            if len(piece) >= PIECE:
                store.append(batch_of({table: piece}))
                piece = []
    store.append(batch_of({table: piece}))
    return FileRead(path=name, kind=f"rows of {table}", records=count, unread_lines=0)


def _of_request(cursor: Cursor, manifest: Manifest, books: Mapping[str, Runbook], params: Mapping[str, Mapping[str, Any]]) -> Diagnosis:
    found = rows_of(cursor, "select * from requests where request_key = $key", {"key": manifest.about.request_key})
    if not found:
        raise UnreadableError("the bundle does not hold the request that it is of")
    return diagnose_row(cursor, found[0], books, params, manifest.limits, manifest.made_at)


def _of_incident(
    cursor: Cursor, manifest: Manifest, incident: Incident, books: Mapping[str, Runbook], params: Mapping[str, Mapping[str, Any]]
) -> Diagnosis:
    """Judged as at a tick when it was last seen, else when it opened; what no look finds again is said as it was recorded."""
    about = manifest.about
    instants = dict.fromkeys((incident.last_seen_at, incident.opened_at, (incident.opened_at + incident.last_seen_at) // 2))
    conclusion: Conclusion | None = None
    for at in instants:
        scope = Scope(
            to_us=at,
            where=f"coalesce(ended_at, started_at) between make_timestamp({at - BEFORE_US}) and make_timestamp({at})",
            engine=about.engine,
            models=about.models,
            gpu=about.gpu,
        )
        looked = conclude(evaluate(cursor, books, scope, overrides=params), Subject(kind="files"))
        own = next((f for f in looked.findings if f.label == incident.label and f.explained_by is None), None)
        if own is not None:
            cites = live_cites(cursor, scope)
            conclusion = looked._replace(verdict=verdict_of(own), findings=tuple(resolve(looked.findings, cites)))
            break
    conclusion = conclusion or _as_recorded(incident)
    return Diagnosis(
        subject=Subject(kind="files", engine=incident.engine, model=incident.model, key_id=incident.key_id),
        verdict=conclusion.verdict,
        findings=conclusion.findings,
        ruled_out=conclusion.ruled_out,
        not_evaluated=conclusion.not_evaluated,
    )


def _as_recorded(incident: Incident) -> Conclusion:
    told = {name: getattr(incident, name) for name in ("label", "stage", "severity", "confidence", "cause", "fix")}
    where = {name: getattr(incident, name) for name in ("engine", "model", "gpu", "key_id")}
    finding = Finding(**told, **where, runbook=incident.label, title=incident.cause, kind="cause", evidence=incident.evidence)
    return Conclusion(Verdict(**told), (finding,), (), ())
