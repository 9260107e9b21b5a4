"""A request is found by its names as well with filters as without; filters leave few rows to be looked through."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from lensd_collectors.rows import RequestRow
from store_rows import DAY_US, NOV_29

from lensd.store import name_filters
from lensd.store.arrow import batch_of
from lensd.store.catalog import FILTERS
from lensd.store.folder import FolderStore
from lensd.store.interface import Cursor
from lensd.store.name_filters import Rows, beginning, cover, rows_with
from lensd.store.names import find_requests
from lensd.store.rollover import roll_over

DAY = NOV_29 // DAY_US
A_DAY = 35
"""Requests of each of the two days: three whole runs and a half of one."""


def request(number: int, **more: object) -> RequestRow:
    """Of every other one the trace is the request's id."""
    trace = f"{number * 7919:032x}"[::-1]
    own = trace if number % 2 else f"bestellung-ä-{number:06}-x"
    at = NOV_29 + number // A_DAY * DAY_US + number % A_DAY * 1_000_000
    given = {"request_id": own, "trace_id": trace, "span_id": f"{number:016x}", "engine_request_id": f"chatcmpl-{own}"}
    return RequestRow(**{"request_key": number, "revision": 0, "started_at": at, "outcome": "ok", "settled": True} | given | more)


REQUESTS = [request(number) for number in range(2 * A_DAY)]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FolderStore]:
    monkeypatch.setattr(name_filters, "ROWS", 10)
    made = FolderStore(tmp_path / "store")
    made.append(batch_of({"requests": REQUESTS}))
    yield made
    made.close()


@pytest.fixture
def cursor(store: FolderStore) -> Iterator[Cursor]:
    with store.cursor() as made:
        yield made


def keys(cursor: Cursor, ident: str) -> list[int]:
    return [row["request_key"] for row in find_requests(cursor, ident)]


def names(number: int) -> list[str]:
    row = REQUESTS[number]
    own, trace, engines = str(row.request_id), str(row.trace_id), str(row.engine_request_id)
    return [own, trace, str(row.span_id), engines, f"{engines}-0a1b2c3d", own[:20], trace[:9], engines[:29]]


@pytest.mark.parametrize("number", [0, 1, 9, 10, 29, 30, 34, 35, 64, 65, 69])
def test_every_name_finds_its_request_with_filters_and_without(cursor: Cursor, number: int) -> None:
    before = [keys(cursor, name) for name in names(number)]
    cover(cursor)
    assert [keys(cursor, name) for name in names(number)] == before == [[number]] * len(before)


def test_a_beginning_too_short_for_filters_is_looked_for_everywhere(cursor: Cursor) -> None:
    cover(cursor)
    assert keys(cursor, "bestel") == [number for number in reversed(range(2 * A_DAY)) if number % 2 == 0]
    assert (beginning("bestel"), beginning("bestellung"), beginning("bestellung-ä-0000")) == (None, ["bestellu"], ["bestellung-ä-000"])


def test_filters_leave_the_runs_that_may_have_a_name_and_the_rows_that_came_last(cursor: Cursor) -> None:
    cover(cursor)
    known, unknown = rows_with(cursor, [[str(REQUESTS[12].trace_id)], ["nobody"]])
    last = Rows("day_20261130.main.requests", 30)
    assert unknown == [last]
    assert [(rows.place, rows.low, rows.high) for rows in known if rows != last] == [("day_20261129.main.requests", 10, 20)]


def test_what_came_after_the_filters_is_found_and_gets_some_of_its_own(store: FolderStore, cursor: Cursor) -> None:
    cover(cursor)
    store.append(batch_of({"requests": [request(20, revision=1, engine_request_id="cmpl-late-0")]}))
    assert keys(cursor, "cmpl-late") == [20]
    cover(cursor)
    [rows] = [rows for rows in rows_with(cursor, [["cmpl-late-0"]])[0] if rows.high is not None]
    assert (rows.place, rows.low, rows.high, keys(cursor, "cmpl-late")) == ("day_20261129.main.requests", 35, 36, [20])


def test_a_packed_day_has_filters_of_its_own_and_those_of_its_parts_go(store: FolderStore, cursor: Cursor) -> None:
    cover(cursor)
    roll_over(store, DAY)
    assert keys(cursor, str(REQUESTS[3].request_id)) == [3], "what nobody has looked at yet is looked through"
    cover(cursor)
    places = {place for (place,) in cursor.execute(f"select distinct place from {FILTERS}").fetchall()}
    assert places == {"day_20261129_packed.main.requests", "day_20261130.main.requests"}
    assert [keys(cursor, name) for name in names(3)] == [[3]] * len(names(3))


def test_a_filter_counts_for_the_file_that_it_was_made_of_alone(cursor: Cursor) -> None:
    cover(cursor)
    cursor.execute(f"update {FILTERS} set file = file + 1000, bits = bitstring('0', 1024)")  # of files that had these names before
    assert keys(cursor, str(REQUESTS[12].trace_id)) == [12]


def test_the_oldest_files_are_left_without_where_filters_grow_too_large(cursor: Cursor) -> None:
    cover(cursor, most_bytes=1)
    assert cursor.execute(f"select place, low from {FILTERS}").fetchall() == [("day_20261130.main.requests", 0)]
    assert [keys(cursor, str(row.trace_id)) for row in REQUESTS] == [[number] for number in range(2 * A_DAY)]


def test_making_filters_stops_when_it_is_told_to(cursor: Cursor) -> None:
    said = iter([True, True, False])
    cover(cursor, lambda: next(said))
    assert cursor.execute(f"select count(*) from {FILTERS}").fetchall() == [(2,)]
