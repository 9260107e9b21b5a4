"""A runbook's own tests: small tables of rows and what the rule must say of them, read from `<id>.cases.yaml` and run on a store in memory.

    - case: a minute in line behind 64 running
      expect: fires                       # fires | quiet | unknown
      confidence: certain                 # of fires, optional; also stage
      evidence: ["waited 59970 ms ..."]   # of fires, optional: every line of the first finding
      missing: [subjects.queue_ms]        # of unknown: exactly these names
      subjects: [{request_id: r1, ...}]   # requests to judge; any other public table by its name

Rows need only the columns that matter. A request without them begins at the case's first instant and ends `total_ms` later.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime
from functools import cache
from pathlib import Path
from typing import Any, Final, Literal, get_type_hints

import msgspec
import yaml
from lensd_collectors.rows import TABLES, Instant, RequestRow, Row

from lensd.diagnosis.evaluate import Answer, Evaluation, Fired, Quiet, Unknown, evaluate
from lensd.diagnosis.runbook import Runbook, files, parse
from lensd.diagnosis.scope import Scope, instant, microseconds
from lensd.errors import RunbookError
from lensd.records import Record
from lensd.store.arrow import batch_of
from lensd.store.interface import Cursor
from lensd.store.memory import MemoryStore

DEFAULT_START: Final = datetime(2026, 1, 1, 12)
DEFAULT_LENGTH_MS: Final = 1000
MARGIN_US: Final = 1_000_000

Rows = dict[str, list[dict[str, Any]]]


class Case(Record, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One case as written; `rows` by table."""

    case: str
    expect: Literal["fires", "quiet", "unknown"]
    line: int = 0
    confidence: str | None = None
    stage: str | None = None
    evidence: tuple[str, ...] | None = None
    missing: tuple[str, ...] = ()
    rows: Rows


class CaseResult(Record, frozen=True, kw_only=True):
    """`why` is empty where the case held."""

    runbook: str
    case: str
    why: str = ""

    @property
    def ok(self) -> bool:
        return not self.why


def cases_path(runbook_path: Path) -> Path:
    return runbook_path.with_suffix(".cases.yaml")


def run_folders(folders: Iterable[Path | str] = ()) -> list[CaseResult]:
    """Every case of the built-in runbooks and of `folders`; raises RunbookError for a file that does not load."""
    results = []
    store = store_of_cases()
    try:
        for path in files(folders).values():
            book = parse(path)
            results += [run_case(book, case, store) for case in load_cases(cases_path(path))]
    finally:
        store.close()
    return results


def store_of_cases() -> MemoryStore:
    """A store for one case after another: small, and on one thread, which for a few rows is the quickest."""
    return MemoryStore(memory_limit="256MiB", threads=1)


def load_cases(path: Path) -> list[Case]:
    """The cases of one file; raises RunbookError with file and line for a key, column or value that is none."""
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise RunbookError(f"{path}:1: cases cannot be read: {error.strerror}") from None
    try:
        written = yaml.safe_load(text)
        tree = yaml.compose(text)
        lines = [node.start_mark.line + 1 for node in tree.value] if isinstance(tree, yaml.SequenceNode) else []
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        raise RunbookError(f"{path}:{mark.line + 1 if mark else 1}: cases are not YAML") from None
    if not isinstance(written, list) or not written:
        raise RunbookError(f"{path}:1: cases are a list, each with case, expect and rows")
    return [_case(path, line, entry) for line, entry in zip(lines, written, strict=True)]


def run_case(book: Runbook, case: Case, store: MemoryStore | None = None) -> CaseResult:
    """Run one case on a store of its own, or on `store`, which is emptied first."""
    used = store or store_of_cases()
    try:
        evaluation = evaluate_rows(used, case.rows, [book])
        why = _compare(case, _answer(evaluation), evaluation)
    finally:
        if store is None:
            used.close()
    return CaseResult(runbook=book.id, case=case.case, why=why)


def evaluate_rows(store: MemoryStore, written: Rows, books: Iterable[Runbook]) -> Evaluation:
    """Runbooks over rows as a case writes them; what the store held before is gone."""
    store.empty()
    keys, bounds = fill(store, written)
    with store.cursor() as cursor:
        return evaluate_case(cursor, books, keys, bounds)


def evaluate_case(cursor: Cursor, books: Iterable[Runbook], keys: tuple[int, ...], bounds: tuple[int, int]) -> Evaluation:
    """Runbooks over a case's rows as `fill` put them in."""
    return evaluate(cursor, books, Scope(from_us=bounds[0], to_us=bounds[1], keys=keys or None), timeout_s=10.0)


def fill(store: MemoryStore, written: Rows) -> tuple[tuple[int, ...], tuple[int, int]]:
    """Put rows in; gives the keys of the `subjects` and the extent of all rows, in microseconds since the epoch."""
    instants = [microseconds(_instant(value)) for row in _every(written) for name, value in row.items() if name.endswith("_at") and value]
    first = min(instants, default=microseconds(DEFAULT_START))
    requests = [*written.get("subjects", []), *written.get("requests", [])]
    rows: dict[str, list[Row]] = {"requests": [_request(row, number, first) for number, row in enumerate(requests, start=1)]}
    for table, given in written.items():
        if table not in ("subjects", "requests"):
            rows[table] = [TABLES[table](**_typed(table, row)) for row in given]
    store.append(batch_of(rows))
    ends = [row.ended_at for row in rows["requests"] if isinstance(row, RequestRow) and row.ended_at is not None]
    keys = tuple(row.request_key for row in rows["requests"][: len(written.get("subjects", []))] if isinstance(row, RequestRow))
    return keys, (first - MARGIN_US, max([*instants, *ends, first]) + MARGIN_US)


def _case(path: Path, line: int, entry: object) -> Case:
    if not isinstance(entry, dict):
        raise RunbookError(f"{path}:{line}: a case is a set of keys")
    rows = {name: given for name, given in entry.items() if name == "subjects" or name in TABLES}
    for table, given in rows.items():
        known = TABLES["requests" if table == "subjects" else table].__struct_fields__
        if not isinstance(given, list) or not all(isinstance(row, dict) for row in given):
            raise RunbookError(f"{path}:{line}: {table} is a list of rows")
        unknown = sorted({name for row in given for name in row} - set(known))
        if unknown:
            raise RunbookError(f"{path}:{line}: {table} has no column {unknown[0]}")
    try:
        return msgspec.convert({**{k: v for k, v in entry.items() if k not in rows}, "rows": rows, "line": line}, Case)
    except msgspec.ValidationError as error:
        raise RunbookError(f"{path}:{line}: {error}") from None


def _answer(evaluation: Evaluation) -> Answer:
    if not evaluation.results:
        return Quiet(because="no request to judge")
    return evaluation.results[0].of(None)


def _compare(case: Case, answer: Answer, evaluation: Evaluation) -> str:
    said = {Fired: "fires", Quiet: "quiet", Unknown: "unknown"}[type(answer)]
    if said != case.expect:
        detail = answer.missing if isinstance(answer, Unknown) else [f.cause for f in evaluation.findings]
        return f"expected {case.expect}, got {said}{f' ({detail})' if detail else ''}"
    if isinstance(answer, Unknown) and set(answer.missing) != set(case.missing):
        return f"expected missing {list(case.missing)}, got {list(answer.missing)}"
    if not isinstance(answer, Fired):
        return ""
    finding = answer.findings[0]
    evidence = tuple(line.text for line in finding.evidence)
    for name, expected, got in (
        ("confidence", case.confidence, finding.confidence),
        ("stage", case.stage, finding.stage),
        ("evidence", case.evidence, evidence),
    ):
        if expected is not None and expected != got:
            return f"expected {name} {expected}, got {got}"
    return ""


def _request(row: Mapping[str, Any], number: int, first: int) -> RequestRow:
    given: dict[str, Any] = {"request_key": number, "revision": 1, "started_at": Instant(first), **_typed("requests", row)}
    if "ended_at" not in row and given.get("outcome", "ok") != "open":
        length = row.get("total_ms")
        given["ended_at"] = given["started_at"] + int((DEFAULT_LENGTH_MS if length is None else length) * 1000)
    given.setdefault("outcome", "ok")
    given.setdefault("settled", given["outcome"] != "open")
    return RequestRow(**given)


def _every(written: Rows) -> Iterable[dict[str, Any]]:
    return (row for given in written.values() for row in given)


def _typed(table: str, row: Mapping[str, Any]) -> dict[str, Any]:
    instants = _instant_columns(table)
    return {name: microseconds(_instant(value)) if name in instants and value is not None else value for name, value in row.items()}


@cache
def _instant_columns(table: str) -> frozenset[str]:
    return frozenset(name for name, hint in get_type_hints(TABLES[table]).items() if name.endswith("_at") and "Instant" in str(hint))


def _instant(value: object) -> datetime:
    """YAML gives an instant as text or, unquoted, as a datetime."""
    if isinstance(value, int):
        return instant(value)
    return value.replace(tzinfo=None) if isinstance(value, datetime) else datetime.fromisoformat(str(value)).replace(tzinfo=None)
