"""What the rules of a scope see of each public table: temporary views that go before the public ones of the same name.

Live, a table is seen from some time before a rule's window on, to the end of the scope. What most rules see of one that has few
rows there is copied, so that the store is read once and not by each of them; a rule that reaches further back reads the store's
own files. At a tick, where each rule has a window of its own, requests alone are bounded; in files (`undated`) all is seen.
"""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Final

from lensd_collectors.rows import TABLES

from lensd.diagnosis.reach import NEAR
from lensd.diagnosis.scope import BY_ENGINE, BY_MODEL, DECIDED, SUBJECTS, TIMED, Scope
from lensd.diagnosis.subjects import make_subjects
from lensd.store.catalog import HELD, quoted
from lensd.store.interface import Cursor
from lensd.store.queries import LAST_APPENDED
from lensd.store.schema import instant_column

LASTING: Final = ("requests", "spans")  # dated by their beginning: one of an hour before may have run in a window
LASTS_US: Final = 3_600_000_000
NEAR_US: Final = NEAR // timedelta(microseconds=1)
MOST_VALUES: Final = 400_000  # rows times columns that are copied: more take longer than the rules that read them

LAST: Final = "last"  # the copy of which rows are last revisions

Since = int | None
"""Microseconds since the epoch; None: without a bound."""


@contextmanager
def bound(cursor: Cursor, scope: Scope) -> "Iterator[Sight]":
    """Within it the cursor sees `subjects`, and through the sight the scope's rows only."""
    make_subjects(cursor, scope)
    sight = Sight(cursor, scope)
    try:
        yield sight
    finally:
        sight.close()
        cursor.execute(f"drop table temp.{SUBJECTS}")


class Sight:
    """The tables as one scope's rules see them on a cursor: `look` before each query, `close` at the end."""

    def __init__(self, cursor: Cursor, scope: Scope) -> None:
        self._cursor, self._scope = cursor, scope
        self._seen: dict[str, Since] = {}
        self._views: set[str] = set()
        self._copies: set[str] = set()

    @property
    def undated(self) -> bool:
        return self._scope.undated

    def look(self, tables: Collection[str], from_us: int, reach_us: int = NEAR_US) -> None:
        """From now on these tables are seen as by a rule whose window begins at `from_us` (microseconds since the epoch)."""
        for table in tables:
            if table in TABLES:
                since = self._since(table, from_us, reach_us)
                if table not in self._seen or self._seen[table] != since:
                    self._show(table, since)
                    self._seen[table] = since

    def close(self) -> None:
        """The public tables are seen again as they are."""
        drops = [f"drop view temp.{table}" for table in self._views] + [f"drop table temp.{_copy(table)}" for table in self._copies]
        if drops:
            self._cursor.execute("; ".join(drops))

    def _since(self, table: str, from_us: int, reach_us: int) -> Since:
        before = LASTS_US if table in LASTING else reach_us
        if self._scope.undated or table in DECIDED[1:]:
            return None
        if self._scope.from_us is None:  # in steps, so that rules share a view
            if table not in LASTING:
                return None
            steps = -(-(self._scope.to_us - from_us + before) // (2 * LASTS_US))
            return self._scope.to_us - 2 * LASTS_US * (1 << (steps - 1).bit_length())
        near = self._near(table)
        return near if table == "config_facts" else min(near, from_us - before)

    def _near(self, table: str) -> int:
        assert self._scope.from_us is not None
        return self._scope.from_us - (LASTS_US if table in LASTING else NEAR_US)

    def _is_near(self, table: str, since: Since) -> bool:
        return self._scope.from_us is not None and not self._scope.undated and since == self._near(table)

    def _show(self, table: str, since: Since) -> None:
        body = self._body(table, since)
        if body is None:
            return
        if self._is_near(table, since) and table != "spans":
            if self._is_copied(table, body, since):
                body = f"select * from temp.{_copy(table)}"
            elif table == "requests" and since is not None:
                body = self._last_of_near(since)
        self._cursor.execute(f"create or replace temp view {table} as {body}")
        self._views.add(table)

    def _is_copied(self, table: str, body: str, since: Since) -> bool:
        """Whether what is near of the table stands in a copy, which is made here where it is small."""
        if table in self._copies:
            return True
        place, when = _place(table), "true"
        if table == "requests":
            place = f"{HELD}.every_requests"
        if since is not None and table != "config_facts":
            when = _within(instant_column(table), since, self._scope.to_us)
        [(rows,)] = self._cursor.execute(f"select count(*) from {place} where {when}").fetchall()
        if rows * len(TABLES[table].__struct_fields__) > MOST_VALUES:
            return False
        self._cursor.execute(f"create temp table {_copy(table)} as {body}")
        self._copies.add(table)
        return True

    def _last_of_near(self, since: int) -> str:
        """As `_last_of_time`, with which rows those are found once for all rules."""
        every = f"{HELD}.every_requests"
        if LAST not in self._copies:
            when = _within("started_at", since - LASTS_US, self._scope.to_us)
            last = f"select {LAST_APPENDED} as appended from {every} where {when} group by request_key"
            self._cursor.execute(f"create temp table {_copy(LAST)} as {last}")
            self._copies.add(LAST)
        return (
            f"select * exclude (appended) from {every} where {_within('started_at', since, self._scope.to_us)} and withdrawn is not true"
            f" and appended in (select appended from temp.{_copy(LAST)})"
        )

    def _body(self, table: str, since: Since) -> str | None:
        """The SELECT that goes before a table, None where the scope does not narrow it."""
        if table == "requests" and since is not None:
            return _last_of_time(since, self._scope.to_us)
        chosen = " and ".join(self._of_scope(table))
        if since is not None and table != "config_facts":  # a setting holds until it is changed
            rows, at = f"select * from {_place(table)} where {chosen or 'true'}", instant_column(table)
            # two selects, since DuckDB leaves out whole files by a plain range only
            return f"{rows} and {_within(at, since, self._scope.to_us)} union all {rows} and {at} is null"
        undated = self._scope.undated and table in TIMED
        if not chosen and not undated:
            return None
        columns = "*"
        if undated:
            order = "coalesce(seq, 0)" if "seq" in TABLES[table].__struct_fields__ else "0"
            start = self._scope.from_us if self._scope.from_us is not None else self._scope.to_us
            columns = f"* replace (coalesce(seen_at, make_timestamp({int(start)} + {order})) as seen_at)"
        return f"select {columns} from {_place(table)} where {chosen or 'true'}"

    def _of_scope(self, table: str) -> Iterator[str]:
        scope = self._scope
        if scope.engine is not None and table in BY_ENGINE:
            yield f"(engine is null or engine = {quoted(scope.engine)})"
        if scope.engine is not None and table == "config_facts":
            others = (
                f"select distinct engine from {_place('engine_samples')} where engine in (select subject from {_place('config_facts')})"
            )
            yield f"(subject is null or subject = {quoted(scope.engine)} or subject not in ({others}))"
        if scope.engine is None and scope.models and table in BY_MODEL:
            yield f"(model is null or model in ({', '.join(map(quoted, scope.models))}))"
        if scope.gpu is not None and table == "gpu_samples":
            yield f"(gpu is null or gpu = {quoted(scope.gpu)})"


def _last_of_time(since: int, until: int) -> str:
    """Requests begun in this time in their last revision, which may tell of an earlier start. Not by the view: it looks for later
    revisions among all there are."""
    every, begun = f"{HELD}.every_requests", _within("this.started_at", since, until)
    return (
        f"select this.* exclude (appended) from {every} this where {begun} and this.withdrawn is not true"
        f" and not exists (select 1 from {every} newer where {_within('newer.started_at', since - LASTS_US, until)}"
        " and newer.request_key = this.request_key and (newer.revision > this.revision"
        " or newer.revision = this.revision and newer.appended > this.appended))"
    )


def _within(at: str, since: int, until: int) -> str:
    return f"{at} between make_timestamp({int(since)}) and make_timestamp({int(until)})"


def _place(table: str) -> str:
    return f"memory.main.{table}"


def _copy(table: str) -> str:
    return f"near_{table}"
