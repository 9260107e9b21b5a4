"""What is wrong in runbooks, each with file and line: nothing that passes here can fail only when an incident is on."""

import re
from collections.abc import Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Final

from lensd_collectors.rows import TABLES, RequestRow

from lensd import rungs
from lensd.diagnosis.cases import cases_path, load_cases
from lensd.diagnosis.doubts import IDS
from lensd.diagnosis.evaluate import CITE, render
from lensd.diagnosis.guard import check_select, functions, parameters, run_guarded
from lensd.diagnosis.needs import stirs_of
from lensd.diagnosis.runbook import HEADINGS, Malformed, Runbook, fields, files, parse
from lensd.diagnosis.scope import PUBLIC, Scope, instant
from lensd.diagnosis.sight import bound
from lensd.errors import LensdError, RunbookError, SqlLimitError, SqlRefusedError
from lensd.records import Record
from lensd.store.interface import Cursor
from lensd.store.memory import MemoryStore

BOUND: Final = frozenset({"from", "to"})
OUTCOMES: Final = ("fires", "quiet", "unknown")
GROUPING: Final = frozenset({"engine", "model", "gpu", "key_id"})
# What makes the same rows give another answer tomorrow: a rule is judged live, later and offline alike.
NOT_REPEATABLE: Final = frozenset(
    {
        "now", "today", "ago", "current_date", "current_localtime", "current_localtimestamp", "get_current_time", "get_current_timestamp",
        "transaction_timestamp", "random", "uuid", "uuidv4", "uuidv7", "gen_random_uuid",
    }
)  # fmt: skip
SAMPLE: Final[dict[str, object]] = {"VARCHAR": "x", "BOOLEAN": True, "TIMESTAMP": instant(0)}


class Problem(Record, frozen=True, kw_only=True):
    path: str
    line: int
    message: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.message}"


def check_folders(folders: Iterable[Path | str] = ()) -> list[Problem]:
    """Problems of the built-in runbooks and of `folders`."""
    store = MemoryStore(memory_limit="256MiB")
    try:
        with store.cursor() as cursor:
            return check(files(folders).values(), cursor)
    except RunbookError as error:
        return [Problem(path=", ".join(map(str, folders)), line=1, message=str(error))]
    finally:
        store.close()


def check(paths: Iterable[Path], cursor: Cursor) -> list[Problem]:
    """Problems of these files; `cursor` is one on an empty store, on which each query is run once."""
    books: dict[str, Runbook] = {}
    problems: list[Problem] = []
    for path in paths:
        try:
            books[path.stem] = parse(path)
        except Malformed as error:
            problems.append(Problem(path=str(path), line=error.line, message=error.message))
        except (OSError, UnicodeDecodeError) as error:
            problems.append(Problem(path=str(path), line=1, message=f"runbook cannot be read: {error}"))
    for book in books.values():
        problems += [
            *_form(book),
            *_needs(book),
            *_claims(book),
            *_asks(book, cursor),
            *_stirs(book, cursor),
            *_query(book, cursor),
            *_cases(book),
            *_explains(book, books),
        ]
    return sorted(problems + _circles(books), key=lambda problem: (problem.path, problem.line))


def _form(book: Runbook) -> Iterable[Problem]:
    found = tuple(book.sections)
    for heading in HEADINGS:
        if heading not in found:
            yield _problem(book, None, f"heading '## {heading}' is missing")
        elif heading != "Query" and not book.sections[heading]:
            yield _problem(book, f"## {heading}", f"heading '## {heading}' has no text under it")
    known = [heading for heading in found if heading in HEADINGS]
    if known != [heading for heading in HEADINGS if heading in found]:
        yield _problem(book, f"## {known[0]}", f"headings stand in another order than {', '.join(HEADINGS)}")
    if book.scope == "window" and not book.evidence:
        yield _problem(book, None, "evidence has no line; say what was seen")
    if "@" in book.id and book.label == book.id:
        yield _problem(book, None, f"label is missing; write label: {book.id.split('@')[0]}")


def _needs(book: Runbook) -> Iterable[Problem]:
    for need in dict.fromkeys([*book.needs, *(need for group in book.needs_any for need in group)]):
        table, _, column = need.partition(".")
        if table != "subjects" and table not in TABLES:
            yield _problem(book, "needs", f"needs names {need}; there is no public table {table}")
        elif column not in (RequestRow if table == "subjects" else TABLES[table]).__struct_fields__:
            yield _problem(book, "needs", f"needs names {need}; {table} has no column {column}")
        elif table == "subjects" and book.scope == "window":
            yield _problem(book, "needs", f"needs names {need}, but a window rule has no subjects; name requests.{column}")
    if book.wakes and (book.scope != "window" or "events.name" not in book.needs):
        yield _problem(book, "wakes", "wakes is for window rules that need events.name: without any event nothing can be told")


def _claims(book: Runbook) -> Iterable[Problem]:
    """What the front matter says of when the rule can be told."""
    keys = [each.key for each in (*rungs.RUNGS, *rungs.BESIDE)]
    if book.rung is not None and book.rung not in keys:
        yield _problem(book, "rung:", f"rung is {book.rung}; the rungs are {', '.join(keys)}")
    if (book.rung is None) != (book.rung_because is None):
        yield _problem(book, "rung", "rung and rung_because go together: from which rung on, and why not where its needs are met")
    if book.rung is not None and not book.live:
        yield _problem(book, "rung", "rung is said of a rule with live: false, which is claimed at none")
    if book.accounts_for and book.kind != "negative":
        yield _problem(book, "accounts_for", "accounts_for is for negatives: what looks ill and is not")
    for name in sorted({*book.accounts_for} - {*IDS}):
        yield _problem(book, "accounts_for", f"accounts_for names {name}; the doubts are {', '.join(sorted(IDS))}")


def _asks(book: Runbook, cursor: Cursor) -> Iterable[Problem]:
    if book.asks and book.scope != "request":
        yield _problem(book, "asks", "asks is for request rules: it is a condition on subjects")
    elif book.asks:
        with bound(cursor, Scope(to_us=0)):
            yield from _condition(book, "asks", "subjects", book.asks, f"bool_or({book.asks})", cursor)


def _stirs(book: Runbook, cursor: Cursor) -> Iterable[Problem]:
    if book.stirs and book.scope != "window":
        yield _problem(book, "stirs", "stirs is for window rules: a request rule says when it is to be asked in asks")
        return
    if book.stirs_before and not isinstance(book.params.get(book.stirs_before), timedelta):
        yield _problem(book, "stirs_before", f"stirs_before names {book.stirs_before}, which is no duration in params")
    used = {name for condition in book.stirs.values() for name in re.findall(r"\$(\w+)", condition)}
    for name in sorted(used - book.params.keys()):
        yield _problem(book, "stirs", f"stirs uses ${name}, which params does not have")
    for table in sorted(book.stirs.keys() - TABLES.keys()):
        yield _problem(book, "stirs", f"stirs names {table}, which is no public table")
    if used <= book.params.keys():
        for table, condition in stirs_of(book):
            if table in TABLES:
                yield from _condition(book, "stirs", table, book.stirs[table], condition, cursor)


def _condition(book: Runbook, key: str, table: str, said: str, of_all: str, cursor: Cursor) -> Iterable[Problem]:
    """`of_all`, what is said of a row or of all rows together, is run over no row: without params, since none are bound to it."""
    sql = f"select coalesce({of_all}, false) from {table}"
    try:
        check_select(cursor, sql, PUBLIC)
        if used := parameters(cursor, sql):
            yield _problem(book, key, f"{key} uses ${sorted(used)[0]}, but no params are bound to it")
            return
        columns, rows = run_guarded(cursor, sql, {}, timeout_s=10)
        if len(rows) != 1 or columns[0][1] != "BOOLEAN":
            yield _problem(book, key, f"{key} says {said} of {table}, which is not true or false of all its rows together")
    except (SqlRefusedError, SqlLimitError) as error:
        yield _problem(book, key, f"{key} is no condition on {table}: {error}")


def _query(book: Runbook, cursor: Cursor) -> Iterable[Problem]:
    try:
        check_select(cursor, book.sql, PUBLIC)
        used = parameters(cursor, book.sql)
        called = functions(cursor, book.sql) & NOT_REPEATABLE
    except SqlRefusedError as error:
        yield _at_query(book, error)
        return
    for name in sorted(called):
        yield _problem(book, None, f"query calls {name}, so the same rows would not give the same answer; use $to", book.sql_line)
    for name in sorted(used - BOUND - book.params.keys()):
        yield _problem(book, None, f"query uses ${name}, which params does not have", book.sql_line)
    for name in sorted(book.params.keys() - used):
        yield _problem(book, "params", f"params has {name}, which the query does not use")
    if used - BOUND - book.params.keys():
        return
    try:
        with bound(cursor, Scope(to_us=0)):
            columns, _ = run_guarded(cursor, book.sql, {**book.params, "from": instant(0), "to": instant(0)}, timeout_s=10)
    except (SqlRefusedError, SqlLimitError) as error:
        yield _at_query(book, error)
        return
    yield from _result(book, dict(columns))


def _result(book: Runbook, columns: Mapping[str, str]) -> Iterable[Problem]:
    if book.scope == "request" and "request_id" not in columns:
        yield _problem(book, None, "query of a request rule returns no request_id", book.sql_line)
    if book.scope == "window" and not GROUPING & columns.keys():
        yield _problem(book, None, "query of a window rule returns none of engine, model, gpu, key_id", book.sql_line)
    cites = [name for name in columns if name.endswith(CITE)]
    if len(cites) > len(book.evidence):
        yield _problem(book, "evidence", f"{cites[len(book.evidence)]} has no evidence line; the nth cite belongs to the nth line")
    for template in book.evidence:
        try:
            named = fields(template)
        except ValueError as error:
            yield _problem(book, template, f"evidence: {error}")
            continue
        for name, spec in named:
            if name not in columns:
                yield _problem(book, template, f"evidence names {name}; the query returns {', '.join(columns)}")
            elif not _takes(columns[name], spec):
                yield _problem(book, template, f"evidence formats {name} as '{spec}', but it is {columns[name].lower()}")


def _takes(kind: str, spec: str) -> bool:
    value = SAMPLE.get(kind, 1 if "INT" in kind else 1.0)
    try:
        format(value, spec)
    except (ValueError, TypeError):
        return False
    return render("{v:" + spec + "}", {"v": value}) != "" if spec else True


def _explains(book: Runbook, books: Mapping[str, Runbook]) -> Iterable[Problem]:
    labels = {other.label for other in books.values()}
    for label in book.explains:
        if label not in labels:
            yield _problem(book, "explains", f"explains {label}, which no runbook finds")


def _circles(books: Mapping[str, Runbook]) -> list[Problem]:
    above: dict[str, set[str]] = {}
    for book in books.values():
        above.setdefault(book.label, set()).update(book.explains)
    problems = []
    for book in books.values():
        reached, front = set[str](), set(book.explains)
        while front:
            reached |= front
            front = {label for name in front for label in above.get(name, ())} - reached
        if book.label in reached:
            problems.append(_problem(book, "explains", f"explains goes in a circle: {book.label} explains itself through others"))
    return problems


def _cases(book: Runbook) -> Iterable[Problem]:
    path = cases_path(Path(book.path))
    if not path.is_file():
        yield _problem(book, None, f"{path.name} is missing; a rule comes with cases")
        return
    try:
        cases = load_cases(path)
    except LensdError as error:
        place, _, message = str(error).partition(": ")
        yield Problem(path=str(path), line=int(place.rpartition(":")[2] or 1), message=message)
        return
    for outcome in OUTCOMES:
        if not any(case.expect == outcome for case in cases):
            yield Problem(path=str(path), line=1, message=f"no case expects {outcome}")


def _at_query(book: Runbook, error: LensdError) -> Problem:
    """The error with the line that DuckDB names inside the query, where it names one."""
    text = str(error)
    found = re.search(r"\(line (\d+) of the query\)", text)
    return _problem(book, None, text, book.sql_line + (int(found[1]) - 1 if found else 0))


def _problem(book: Runbook, near: str | None, message: str, line: int | None = None) -> Problem:
    """A problem at `line`, else at the first line that holds `near` (a key or a text of the file), else at the first."""
    if line is None and near is not None:
        lines = Path(book.path).read_text(encoding="utf-8").splitlines()
        line = next((number for number, text in enumerate(lines, start=1) if near in text), None)
    return Problem(path=book.path, line=line or 1, message=message)
