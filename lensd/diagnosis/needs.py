"""Whether the evidence a rule needs is there (`needs` all of it, `needs_any` one whole group of it), and whether it is to be asked.

`subjects.<column>` is judged per request. Another table's column is there for a request if a row of its engine (or of an
unknown one) around its time has a value, for a window rule if any row of the window has one.
"""

import itertools
import re
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Final

import duckdb
from lensd_collectors.rows import TABLES

from lensd.diagnosis.guard import check_select, run_guarded
from lensd.diagnosis.runbook import Runbook, Value
from lensd.diagnosis.scope import PUBLIC, SUBJECTS, microseconds
from lensd.diagnosis.sight import LASTS_US, Sight
from lensd.errors import SqlLimitError, SqlRefusedError
from lensd.store.catalog import quoted
from lensd.store.interface import Cursor

_NAME: Final = re.compile(r"\$(\w+)")
MARGIN_S: Final = 60  # a sample this close to a request counts as around its time

_Window = tuple[datetime, datetime]


class Needs:
    """Answers for one scope, each asked of the database once; made anew for each evaluation."""

    def __init__(self, cursor: Cursor, sight: Sight, extent: _Window, asked: Iterable[tuple[Runbook, _Window]] = ()) -> None:
        """`extent` is the requests' time; `asked` are the rules that will be asked for, each with its own."""
        self._cursor, self._sight, self._extent = cursor, sight, extent
        self._conditions: dict[tuple[str, _Window], dict[str, None]] = {}
        self._columns: dict[str, None] = {}
        for book, window in asked:
            if book.scope == "request":
                self._columns |= dict.fromkeys(column for need in _all(book) for table, column in [need.split(".")] if table == SUBJECTS)
                continue
            for table, condition in map(_is_there, _all(book)):
                if table != "spans":  # wide: asked only for what nothing else tells
                    self._conditions.setdefault((table, window), {})[condition] = None
            for table, condition in stirs_of(book):
                self._conditions.setdefault((table, _stirring(book, window)), {})[condition] = None
        self._true: dict[tuple[str, _Window], frozenset[str]] = {}
        self._lacking: dict[str, frozenset[str]] = {}
        self._events: dict[tuple[datetime, datetime], frozenset[str]] = {}

    def of_window(self, book: Runbook, from_at: datetime, to_at: datetime) -> tuple[str, ...]:
        """Names that are missing for a window rule."""

        def is_there(need: str) -> bool:
            return self._holds(*_is_there(need), from_at, to_at)

        if all(map(is_there, book.needs)) and (not book.needs_any or any(all(map(is_there, group)) for group in book.needs_any)):
            return ()
        return _missing(book, {need for need in _all(book) if not is_there(need)})

    def is_stirred(self, book: Runbook, from_at: datetime, to_at: datetime) -> bool:
        """Whether one of the conditions holds without which a window rule finds nothing; true of one that names none."""
        if not book.stirs:
            return True
        return any(self._holds(table, condition, *_stirring(book, (from_at, to_at))) for table, condition in stirs_of(book))

    def _holds(self, table: str, condition: str, from_at: datetime, to_at: datetime) -> bool:
        """Whether a condition on a table holds in this time; all there are on that table are asked at once."""
        key = table, (from_at, to_at)
        conditions = self._conditions.setdefault(key, {})
        if key not in self._true or condition not in conditions:
            conditions[condition] = None
            self._sight.look([table], microseconds(from_at))
            self._true[key] = frozenset(_true(self._cursor, table, list(conditions), from_at, to_at, self._sight.undated))
        return condition in self._true[key]

    def is_woken(self, book: Runbook, from_at: datetime, to_at: datetime) -> bool:
        """Whether one of the events that a window rule begins with is there; true of one that names none."""
        if not book.wakes:
            return True
        if (from_at, to_at) not in self._events:
            self._sight.look(["events"], microseconds(from_at))
            sql = "select distinct name from events where seen_at is null or seen_at between $from and $to"
            names = self._cursor.execute(sql, {"from": from_at, "to": to_at}).fetchall()
            self._events[from_at, to_at] = frozenset(name for (name,) in names)
        return not self._events[from_at, to_at].isdisjoint(book.wakes)

    def of_requests(self, book: Runbook, request_ids: frozenset[str]) -> dict[str, tuple[str, ...]]:
        """Request id to the names that are missing for it; requests that can be judged are left out."""
        lacking = {need: self._requests_without(need) for need in _all(book)}
        if not any(lacking.values()):
            return {}
        touched = frozenset().union(*lacking.values()) & request_ids
        found = {request: _missing(book, {need for need, without in lacking.items() if request in without}) for request in touched}
        return {request: missing for request, missing in found.items() if missing}

    def _requests_without(self, need: str) -> frozenset[str]:
        if need not in self._lacking:
            table, column = need.split(".")
            if table == SUBJECTS:
                self._look_at_subjects(column)
            else:
                self._lacking[need] = frozenset(row[0] for row in self._far_from(table, column))
        return self._lacking[need]

    def _look_at_subjects(self, column: str) -> None:
        """Which requests lack this column, and which each of the others that rules need; where one of those is none, this alone."""
        for columns in (list(self._columns | {column: None}), [column]):
            sql = f"select request_id, {', '.join(f'{each} is null' for each in columns)} from {SUBJECTS}"
            try:
                rows = self._cursor.execute(sql).fetchall()
            except duckdb.Error:
                if columns == [column]:
                    raise
                continue
            for number, each in enumerate(columns, start=1):
                self._lacking[f"{SUBJECTS}.{each}"] = frozenset(row[0] for row in rows if row[number])
            return

    def _far_from(self, table: str, column: str) -> list[tuple[str]]:
        """Requests around which no row of `table` has a value in `column`."""
        from_at, to_at = self._extent
        self._sight.look([table], microseconds(from_at))
        engine = {"config_facts": "subject"}.get(table, "engine" if "engine" in TABLES[table].__struct_fields__ else "null::varchar")
        if table == "config_facts":  # a setting holds until it is changed
            sql = f"""
                with have as (select distinct {engine} as engine from {table} where {column} is not null)
                select request_id from subjects s where not exists (
                  from have h where h.engine is null or s.engine is null or h.engine = s.engine)"""
            rows: list[tuple[str]] = self._cursor.execute(sql).fetchall()
            return rows
        at = _instant(table)
        sql = f"""
            with have as (
              select {engine} as engine, min({at}) - interval {MARGIN_S} seconds as lo, max({at}) + interval {MARGIN_S} seconds as hi,
                     bool_or({at} is null) as undated
              from {table} where {column} is not null and ({at} is null or {at} between $from and $to) group by all)
            select request_id from subjects s where not exists (
              from have h where (h.engine is null or s.engine is null or h.engine = s.engine)
                and (h.undated or (h.lo <= coalesce(s.ended_at, $to) and h.hi >= s.started_at)))"""
        rows = self._cursor.execute(sql, {"from": from_at, "to": to_at}).fetchall()
        return rows


def stirs_of(book: Runbook) -> list[tuple[str, str]]:
    """Tables and conditions on them, with the rule's params written out: conditions of many rules are asked as one query."""

    def written(name: re.Match[str]) -> str:
        return _written(book.params[name[1]]) if name[1] in book.params else name[0]

    return [(table, _NAME.sub(written, condition)) for table, condition in book.stirs.items()]


def _stirring(book: Runbook, window: _Window) -> _Window:
    """The time in which rows stir a rule."""
    before = book.params.get(book.stirs_before)
    return (window[0] - before, window[1]) if isinstance(before, timedelta) else window


def _written(value: Value) -> str:
    if isinstance(value, timedelta):
        return f"to_microseconds({value // timedelta(microseconds=1)})"
    return quoted(value) if isinstance(value, str) else str(value)


def _is_there(need: str) -> tuple[str, str]:
    table, column = need.split(".")
    return table, f"count({column}) > 0"


def _true(cursor: Cursor, table: str, conditions: list[str], from_at: datetime, to_at: datetime, undated: bool) -> list[str]:
    """The conditions that hold, and those that cannot be asked: their rules are judged."""
    rows, bounds = f"from {table}", dict[str, datetime]()
    if table != "config_facts":  # a setting holds until it is changed
        rows, bounds = f"from {table} where {_within(table, undated)}", {"from": from_at, "to": to_at}
    alone = {each: row for each in conditions if table == "spans" and (row := _of_a_row(each))}
    together = [each for each in conditions if each not in alone]
    held = [each for each, row in alone.items() if _held(cursor, f"select exists ({rows} and ({row}))", bounds, [each]) != []]
    if not together:
        return held
    answer = _held(cursor, f"select {', '.join(f'coalesce({each}, false)' for each in together)} {rows}", bounds, together)
    if answer is None and len(together) > 1:
        return held + [each for each in together if _true(cursor, table, [each], from_at, to_at, undated)]
    return held + (together if answer is None else answer)


def _held(cursor: Cursor, sql: str, bounds: dict[str, datetime], conditions: list[str]) -> list[str] | None:
    """Those of the conditions, the columns of `sql`, that hold; None where it cannot be asked."""
    try:
        check_select(cursor, sql, PUBLIC)
        _, [row] = run_guarded(cursor, sql, bounds, timeout_s=5.0)
    except (SqlLimitError, SqlRefusedError, duckdb.Error):
        return None
    return [each for each, holds in zip(conditions, row, strict=True) if holds]


def _of_a_row(condition: str) -> str:
    """What `bool_or(...)` says of one row, "" of anything else. Spans are wide: asked for by rows, what few have is read of few."""
    inner = condition.removeprefix("bool_or(").removesuffix(")")
    if f"bool_or({inner})" != condition:
        return ""
    depths = itertools.accumulate((ch == "(") - (ch == ")") for ch in inner)
    return inner if min(depths, default=0) >= 0 else ""


def _all(book: Runbook) -> list[str]:
    return list(dict.fromkeys([*book.needs, *(need for group in book.needs_any for need in group)]))


def _missing(book: Runbook, absent: set[str]) -> tuple[str, ...]:
    missing = [need for need in book.needs if need in absent]
    if book.needs_any and all(any(need in absent for need in group) for group in book.needs_any):
        missing += [need for group in book.needs_any for need in group if need in absent]
    return tuple(dict.fromkeys(missing))


def _within(table: str, undated: bool) -> str:
    """Of a row: that it is of $from..$to, or of no known time. A span that began up to an hour before is, where it ended in it."""
    if table == "spans":
        begun = f"started_at between $from - interval {LASTS_US // 1_000_000} seconds and $to"
        return f"{f'(started_at is null or {begun})' if undated else begun} and (ended_at is null or ended_at >= $from)"
    return f"({_instant(table)} is null or {_instant(table)} between $from and $to)"


def _instant(table: str) -> str:
    return "seen_at" if table != "subjects" and "seen_at" in TABLES[table].__struct_fields__ else "started_at"
