"""Every runbook judged over one scope, set-wise: fires, is quiet, or cannot be told because something is missing.

One query a runbook, however many requests are judged. What a query returns becomes findings:

- Reserved columns: `request_id`, `engine`, `model`, `gpu`, `key_id` say what a finding stands on; `confidence`, `stage`,
  `since_at` and `rank` go before the runbook's own; every other column may be named by an evidence line.
- Columns whose names end in `_cite` hold `src#column`. Cites are paired with evidence lines by order: the first cite column of
  the SELECT belongs to the first line, the second to the second. A line without a cite has no quote. A line that names a
  column whose value is null is left out together with its cite; the others keep theirs.
- `missing`: a row with a value here does not fire. It says that for this request, or in this window, the rule would have to
  know the columns named (comma-separated) to judge: unknown, with these names.

A query that fails or takes too long makes its runbook unknown with the reason; it never ends the evaluation.
"""

from collections.abc import Iterable, Mapping
from datetime import datetime, timedelta
from decimal import Decimal
from typing import Any, Final

import duckdb
import msgspec
from lensd_collectors.conventions import Outcome, Stage

from lensd.diagnosis.guard import check_select, first_line, run_guarded, tables
from lensd.diagnosis.needs import Needs
from lensd.diagnosis.reach import reach_of
from lensd.diagnosis.runbook import Runbook, fields, override
from lensd.diagnosis.scope import AFTER, BEFORE, PUBLIC, SUBJECTS, Scope, instant, microseconds
from lensd.diagnosis.sight import Sight, bound
from lensd.errors import SqlLimitError, SqlRefusedError
from lensd.records import Confidence, Evidence, Finding, Record, Where
from lensd.store.interface import Cursor

CITE: Final = "_cite"
SOON: Final = timedelta(seconds=90)  # within which a caller who was refused by a slip has put it right
MOST_REFUSED: Final = 0.05  # of all calls of a folder in which a slip is a slip


class Fired(Record, frozen=True, kw_only=True):
    findings: tuple[Finding, ...]


class Quiet(Record, frozen=True, kw_only=True):
    because: str


class Unknown(Record, frozen=True, kw_only=True):
    """`pointed`: the rule itself asked for what is missing, having seen something that fits it."""

    missing: tuple[str, ...]
    pointed: bool = False


Answer = Fired | Quiet | Unknown


class Judged(Record, frozen=True, kw_only=True):
    """A request that was judged, as far as weighing findings needs it. `where`: the stage that failed, else that took longest."""

    request_id: str
    engine: str | None
    model: str | None
    outcome: str
    decision: str | None
    started_at: datetime
    ended_at: datetime | None
    where: Where
    request_key: int | None = None


class Result(Record, frozen=True, kw_only=True):
    """What one runbook said over the scope; `unknown` by request id, `window_unknown` for the scope as a whole."""

    runbook: Runbook
    findings: tuple[Finding, ...] = ()
    unknown: dict[str, Unknown] = msgspec.field(default_factory=dict)
    window_unknown: Unknown | None = None
    seen: str = ""  # values of the columns it needs, where one request is judged

    def of(self, request_id: str | None) -> Answer:
        """The answer for one request, or for the whole scope."""
        wanted = [f for f in self.findings if request_id is None or f.request_id in (None, request_id)]
        if wanted:
            return Fired(findings=tuple(wanted))
        if self.window_unknown is not None:
            return self.window_unknown
        if request_id is None and self.unknown:
            missing = dict.fromkeys(name for unknown in self.unknown.values() for name in unknown.missing)
            return Unknown(missing=tuple(missing), pointed=any(unknown.pointed for unknown in self.unknown.values()))
        if request_id in self.unknown:
            return self.unknown[request_id]
        return Quiet(because=self.seen or ("no request fits" if self.runbook.scope == "request" else "nothing in the window fits"))


class Evaluation(Record, frozen=True, kw_only=True):
    """All runbooks over one scope. `subjects` by request id; `put_right`: those refused once whose callers were served a moment later."""

    results: tuple[Result, ...]
    subjects: dict[str, Judged]
    put_right: frozenset[str] = frozenset()

    @property
    def findings(self) -> tuple[Finding, ...]:
        return tuple(finding for result in self.results for finding in result.findings)

    def split(self) -> dict[str, "Evaluation"]:
        """One evaluation a request, with what was found on it and on the window: the others' findings neither hide nor heal it."""
        results: dict[str, list[Result]] = {request: [] for request in self.subjects}
        for result in self.results:
            own: dict[str | None, list[Finding]] = {}
            for finding in result.findings:
                own.setdefault(finding.request_id, []).append(finding)
            of_all = tuple(own.get(None, ()))
            others = Result(runbook=result.runbook, findings=of_all, window_unknown=result.window_unknown)
            for request, some in results.items():
                if request not in own and request not in result.unknown:
                    some.append(others)
                    continue
                unknown = {request: result.unknown[request]} if request in result.unknown else {}
                findings = (*own.get(request, ()), *of_all)
                some.append(Result(runbook=result.runbook, findings=findings, unknown=unknown, window_unknown=result.window_unknown))
        return {request: Evaluation(results=tuple(some), subjects={request: self.subjects[request]}) for request, some in results.items()}


def evaluate(
    cursor: Cursor,
    runbooks: Mapping[str, Runbook] | Iterable[Runbook],
    scope: Scope,
    *,
    overrides: Mapping[str, Mapping[str, object]] | None = None,
    timeout_s: float = 5.0,
) -> Evaluation:
    """Judge `runbooks` over `scope`; `overrides` are params by runbook id. Raises ConfigError for an override of nothing.

    Evidence carries its cite (`src#column`) as source; `resolve` turns it into quote and place.
    """
    books = dict(runbooks) if isinstance(runbooks, Mapping) else {book.id: book for book in runbooks}
    books = override(books, overrides or {})
    with bound(cursor, scope) as sight:
        subjects = _subjects(cursor)
        extent = _extent(subjects, scope)
        asked = [book for book in books.values() if subjects or book.scope == "window"]
        needs = Needs(cursor, sight, extent, [(book, window_of(book, scope) if book.scope == "window" else extent) for book in asked])
        idle = unasked(cursor, asked)
        found: dict[str, Result] = {}
        for book in sorted(asked, key=reach_of):  # those that see the same one after another
            if book.id in idle:
                found[book.id] = Result(runbook=book, unknown=_unknown_of(needs, book, subjects))
            else:
                found[book.id] = _judge(cursor, sight, book, scope, extent, subjects, needs, timeout_s)
        put_right = _put_right(cursor, sight, microseconds(extent[0])) if scope.undated and subjects else frozenset[str]()
    return Evaluation(results=tuple(found[book.id] for book in asked), subjects=subjects, put_right=put_right)


def unasked(cursor: Cursor, books: Iterable[Runbook]) -> frozenset[str]:
    """Ids of the request rules whose `asks` holds of no subject: quiet without their query. One that cannot be asked is judged."""
    asking = [book for book in books if book.asks]
    try:
        held = _holds(cursor, [book.asks for book in asking])
    except (SqlLimitError, SqlRefusedError, duckdb.Error):
        held = [_holds_or_fails(cursor, book.asks) for book in asking]
    return frozenset(book.id for book, is_asked in zip(asking, held, strict=True) if not is_asked)


def _holds(cursor: Cursor, conditions: list[str]) -> list[bool]:
    if not conditions:
        return []
    sql = f"select {', '.join(f'coalesce(bool_or({each}), false)' for each in conditions)} from {SUBJECTS}"
    check_select(cursor, sql, PUBLIC)
    _, [row] = run_guarded(cursor, sql, {}, timeout_s=5.0)
    return list(row)


def _holds_or_fails(cursor: Cursor, condition: str) -> bool:
    try:
        return _holds(cursor, [condition])[0]
    except (SqlLimitError, SqlRefusedError, duckdb.Error):
        return True


def window_of(book: Runbook, scope: Scope) -> tuple[datetime, datetime]:
    """The time a window rule looks at."""
    end = instant(scope.to_us)
    return (instant(scope.from_us) if scope.from_us is not None else end - book.window), end


def _unknown_of(needs: Needs, book: Runbook, subjects: Mapping[str, Judged]) -> dict[str, Unknown]:
    return {name: Unknown(missing=missing) for name, missing in needs.of_requests(book, frozenset(subjects)).items()}


def _judge(
    cursor: Cursor,
    sight: Sight,
    book: Runbook,
    scope: Scope,
    extent: tuple[datetime, datetime],
    subjects: Mapping[str, Judged],
    needs: Needs,
    timeout_s: float,
) -> Result:
    start, end = extent if book.scope == "request" else window_of(book, scope)
    unknown: dict[str, Unknown] = {}
    try:
        if book.scope == "request":
            unknown = _unknown_of(needs, book, subjects)
            if unknown.keys() == subjects.keys():
                return Result(runbook=book, unknown=unknown)
        elif missing := needs.of_window(book, start, end):
            return Result(runbook=book, window_unknown=Unknown(missing=missing))
        elif not (needs.is_woken(book, start, end) and needs.is_stirred(book, start, end)):
            return Result(runbook=book)
        check_select(cursor, book.sql, PUBLIC)
        sight.look(tables(cursor, book.sql), microseconds(start), reach_of(book) // timedelta(microseconds=1))
        params: dict[str, object] = {**book.params, "from": start, "to": end}
        columns, rows = run_guarded(cursor, book.sql, params, timeout_s=timeout_s)
        result = _sort_out(book, [dict(zip((name for name, _ in columns), row, strict=True)) for row in rows], unknown)
        if len(subjects) == 1 and book.scope == "request" and not result.findings:
            result = msgspec.structs.replace(result, seen=_seen(cursor, book))
        return result
    except (SqlLimitError, SqlRefusedError) as error:
        reason = str(error)
    except (duckdb.Error, ValueError, TypeError) as error:
        reason = f"its result cannot be read: {first_line(error)}"
    return Result(runbook=book, window_unknown=Unknown(missing=(f"an answer of its query ({reason})",)))


def _sort_out(book: Runbook, rows: list[dict[str, Any]], unknown: dict[str, Unknown]) -> Result:
    """Rows of requests that lack what the rule needs are dropped, rows with `missing` are unknown, the others are findings."""
    findings: list[Finding] = []
    pointed: dict[str, Unknown] = {}
    window_unknown: Unknown | None = None
    for row in rows:
        request = row.get("request_id")
        if request is not None and request in unknown:
            continue
        if not row.get("missing"):
            findings.append(finding_of(book, row))
            continue
        asked = Unknown(missing=tuple(name.strip() for name in str(row["missing"]).split(",")), pointed=True)
        if request is None:
            window_unknown = asked
        else:
            pointed[request] = asked
    return Result(runbook=book, findings=tuple(findings), unknown={**unknown, **pointed}, window_unknown=window_unknown)


def finding_of(book: Runbook, row: Mapping[str, Any]) -> Finding:
    """One result row as a finding."""
    evidence = _evidence(book, row)
    since = row.get("since_at")
    cause = f"{book.title}: {evidence[0].text}" if evidence else book.title
    return Finding(
        label=book.label,
        runbook=book.id,
        title=book.title,
        kind=book.kind,
        stage=row.get("stage") or book.stage,
        severity=book.severity,
        confidence=Confidence(row.get("confidence") or book.confidence),
        cause=cause,
        fix=row.get("fix") or book.fix,
        evidence=evidence,
        explains=book.explains,
        since_at=microseconds(since) if isinstance(since, datetime) else None,
        rank=float(row.get("rank") or 0.0),
        **{name: row.get(name) for name in ("request_id", "engine", "model", "gpu", "key_id")},
    )


def _evidence(book: Runbook, row: Mapping[str, Any]) -> tuple[Evidence, ...]:
    cites = [value for name, value in row.items() if name.endswith(CITE)]
    lines = []
    for number, template in enumerate(book.evidence):
        names = [name for name, _ in fields(template)]
        if any(row.get(name) is None for name in names):
            continue
        cite = cites[number] if number < len(cites) else None
        lines.append(Evidence(text=render(template, row), source=cite))
    return tuple(lines)


def render(template: str, row: Mapping[str, Any]) -> str:
    """An evidence line with the row's values; a value that its format does not take is written as it is."""
    values = {name: _plain(row[name]) for name, _ in fields(template)}
    try:
        return template.format(**values)
    except (ValueError, TypeError):
        return _without_specs(template).format(**values)


def _without_specs(template: str) -> str:
    for name, spec in fields(template):
        template = template.replace(f"{{{name}:{spec}}}", f"{{{name}}}")
    return template


def _plain(value: object) -> object:
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, timedelta):
        return f"{value.total_seconds():g} s"
    if isinstance(value, datetime):
        return f"{value:%Y-%m-%d %H:%M:%S}"
    return value


def _subjects(cursor: Cursor) -> dict[str, Judged]:
    failed = " ".join(f"when {stage}_state = 'failed' then '{stage}'" for stage in Stage)
    times = ", ".join(f"{{'ms': coalesce({stage}_exclusive_ms, {stage}_ms, 0.0), 'stage': '{stage}'}}" for stage in Stage)
    longest = f"list_sort([{times}], 'desc')[1]"
    rows = cursor.execute(
        f"select request_id, engine, coalesce(served_model, model), outcome, decision, started_at, ended_at,"
        f" case {failed} else if({longest}.ms > 0, {longest}.stage, 'none') end, request_key from subjects"
    ).fetchall()
    return {row[0]: Judged(**dict(zip(Judged.__struct_fields__, row, strict=True))) for row in rows}


def _put_right(cursor: Cursor, sight: Sight, from_us: int) -> frozenset[str]:
    """Requests refused, of which the same caller's next was answered soon, where nearly all there are were served.

    A caller is an address, or where no address is known a transcript. A slip that is over says nothing of how a folder's servers do.
    """
    sight.look(("http_exchanges", "events"), from_us)
    rows = cursor.execute(
        f"""select request_id from {SUBJECTS} s
            where outcome = '{Outcome.REFUSED}' and exists (
                from http_exchanges x where x.status = 200 and x.seen_at > s.started_at and x.seen_at <= s.started_at + $soon
                  and split_part(x.src, ':', 1) = split_part(s.src, ':', 1)
                  and coalesce(x.peer = s.peer, coalesce(x.hop, 'client') = 'client'))
              and (select count(*) from {SUBJECTS} where outcome = '{Outcome.REFUSED}') <= $most * (
                (select count(*) from http_exchanges where status = 200 and method = 'POST')
                + (select count(*) from {SUBJECTS} where outcome = '{Outcome.OK}')
                + (select count(*) from events where name = 'request.decode'))""",
        {"soon": SOON, "most": MOST_REFUSED},
    ).fetchall()
    return frozenset(request for (request,) in rows)


def _extent(subjects: Mapping[str, Judged], scope: Scope) -> tuple[datetime, datetime]:
    """What request rules get as $from and $to."""
    end = instant(scope.to_us)
    if not subjects:
        return end - BEFORE, end
    return (
        min(subject.started_at for subject in subjects.values()) - BEFORE,
        max(subject.ended_at or max(end - AFTER, subject.started_at) for subject in subjects.values()) + AFTER,
    )


def _seen(cursor: Cursor, book: Runbook) -> str:
    """Values of the request's columns that the rule needs: what its silence rests on."""
    wanted = [*book.needs, *(need for group in book.needs_any for need in group)]
    columns = list(dict.fromkeys(need.split(".")[1] for need in wanted if need.startswith("subjects.")))
    if not columns:
        return ""
    row = cursor.execute(f"select {', '.join(columns)} from subjects").fetchone()
    return ", ".join(f"{name} is {_text(value)}" for name, value in zip(columns, row, strict=True) if value is not None)


def _text(value: object) -> str:
    return f"{value:.0f}" if isinstance(value, float) else str(value)
