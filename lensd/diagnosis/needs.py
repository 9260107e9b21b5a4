"""Whether the evidence a rule needs is there (`needs` all of it, `needs_any` one whole group of it), and whether it is to be asked.

`subjects.<column>` is judged per request. Another table's column is there for a request if a row of its engine (or of an
unknown one) around its time has a value, for a window rule if any row of the window has one.
"""

from collections.abc import Iterable
from datetime import datetime
from typing import Final

import duckdb
from lensd_collectors.rows import TABLES

from lensd.diagnosis.guard import check_select, run_guarded
from lensd.diagnosis.runbook import Runbook
from lensd.diagnosis.scope import PUBLIC
from lensd.errors import SqlLimitError, SqlRefusedError
from lensd.store.interface import Cursor

MARGIN_S: Final = 60  # a sample this close to a request counts as around its time

_Window = tuple[datetime, datetime]


class Needs:
    """Answers for one scope, each asked of the database once; made anew for each evaluation."""

    def __init__(self, cursor: Cursor, from_at: datetime, to_at: datetime, windows: Iterable[tuple[Runbook, _Window]] = ()) -> None:
        """`from_at` to `to_at` is the requests' time; `windows` are the window rules that will be asked for, each with its own."""
        self._cursor, self._from, self._to = cursor, from_at, to_at
        self._conditions: dict[tuple[str, _Window], dict[str, None]] = {}
        for book, window in windows:
            for table, condition in (*map(_is_there, _all(book)), *book.stirs.items()):
                self._conditions.setdefault((table, window), {})[condition] = None
        self._true: dict[tuple[str, _Window], frozenset[str]] = {}
        self._lacking: dict[str, frozenset[str]] = {}
        self._events: dict[tuple[datetime, datetime], frozenset[str]] = {}

    def of_window(self, book: Runbook, from_at: datetime, to_at: datetime) -> tuple[str, ...]:
        """Names that are missing for a window rule."""
        return _missing(book, {need for need in _all(book) if not self._holds(*_is_there(need), from_at, to_at)})

    def is_stirred(self, book: Runbook, from_at: datetime, to_at: datetime) -> bool:
        """Whether one of the conditions holds without which a window rule finds nothing; true of one that names none."""
        if not book.stirs:
            return True
        return any(self._holds(table, condition, from_at, to_at) for table, condition in book.stirs.items())

    def _holds(self, table: str, condition: str, from_at: datetime, to_at: datetime) -> bool:
        """Whether a condition on a table holds in this time; all there are on that table are asked at once."""
        key = table, (from_at, to_at)
        conditions = self._conditions.setdefault(key, {})
        if key not in self._true or condition not in conditions:
            conditions[condition] = None
            self._true[key] = frozenset(_true(self._cursor, table, list(conditions), from_at, to_at))
        return condition in self._true[key]

    def is_woken(self, book: Runbook, from_at: datetime, to_at: datetime) -> bool:
        """Whether one of the events that a window rule begins with is there; true of one that names none."""
        if not book.wakes:
            return True
        if (from_at, to_at) not in self._events:
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
            if table == "subjects":
                rows = self._cursor.execute(f"select request_id from subjects where {column} is null").fetchall()
            else:
                rows = self._far_from(table, column)
            self._lacking[need] = frozenset(row[0] for row in rows)
        return self._lacking[need]

    def _far_from(self, table: str, column: str) -> list[tuple[str]]:
        """Requests around which no row of `table` has a value in `column`."""
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
        rows = self._cursor.execute(sql, {"from": self._from, "to": self._to}).fetchall()
        return rows


def _is_there(need: str) -> tuple[str, str]:
    table, column = need.split(".")
    return table, f"count({column}) > 0"


def _true(cursor: Cursor, table: str, conditions: list[str], from_at: datetime, to_at: datetime) -> list[str]:
    """The conditions that hold, and those that cannot be asked: their rules are judged."""
    when, bounds = "true", dict[str, datetime]()
    if table != "config_facts":  # a setting holds until it is changed
        when, bounds = f"({_instant(table)} is null or {_instant(table)} between $from and $to)", {"from": from_at, "to": to_at}
    sql = f"select {', '.join(f'coalesce({each}, false)' for each in conditions)} from {table} where {when}"
    try:
        check_select(cursor, sql, PUBLIC)
        _, [row] = run_guarded(cursor, sql, bounds, timeout_s=5.0)
    except (SqlLimitError, SqlRefusedError, duckdb.Error):
        if len(conditions) == 1:
            return conditions
        return [each for each in conditions if _true(cursor, table, [each], from_at, to_at)]
    return [each for each, holds in zip(conditions, row, strict=True) if holds]


def _all(book: Runbook) -> list[str]:
    return list(dict.fromkeys([*book.needs, *(need for group in book.needs_any for need in group)]))


def _missing(book: Runbook, absent: set[str]) -> tuple[str, ...]:
    missing = [need for need in book.needs if need in absent]
    if book.needs_any and all(any(need in absent for need in group) for group in book.needs_any):
        missing += [need for group in book.needs_any for need in group if need in absent]
    return tuple(dict.fromkeys(missing))


def _instant(table: str) -> str:
    return "seen_at" if table != "subjects" and "seen_at" in TABLES[table].__struct_fields__ else "started_at"
