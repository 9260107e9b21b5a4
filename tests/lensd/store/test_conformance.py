"""What lensd/store/interface.py promises, held against every backend, on disk, in memory and as a read-only overlay."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from lensd_collectors.rows import TABLES, ConfigFact, Event, IncidentRow, Instant, Point
from store_rows import NOV_29, NOV_30, request, span

from lensd.errors import StoreError
from lensd.store.arrow import batch_of
from lensd.store.bodies import bodies_of, hash_of
from lensd.store.folder import FolderStore
from lensd.store.interface import Store
from lensd.store.memory import MemoryStore
from lensd.store.segments import Record, Signal

Backend = FolderStore | MemoryStore


def overlay(tmp_path: Path) -> FolderStore:
    FolderStore(tmp_path / "store").close()
    return FolderStore(tmp_path / "store", read_only=True)


BACKENDS: dict[str, Callable[[Path], Backend]] = {
    "folder": lambda tmp_path: FolderStore(tmp_path / "store"),
    "memory": lambda tmp_path: MemoryStore(),
    "overlay": overlay,
}


@pytest.fixture(params=BACKENDS)
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    made = BACKENDS[request.param](tmp_path)
    yield made
    made.close()


def ask(store: Store, sql: str) -> list[tuple[object, ...]]:
    with store.cursor() as cursor:
        return cursor.execute(sql).fetchall()


def test_a_new_store_has_every_table_empty(store: Store) -> None:
    assert [ask(store, f"SELECT count(*) FROM {table}") for table in TABLES] == [[(0,)]] * len(TABLES)
    assert store.position() == 0
    assert store.reached() == 0


def test_rows_come_back_as_they_went_in(store: Store) -> None:
    point = Point(seen_at=NOV_29, name="h", labels='{"a":"b"}', value=1.5, buckets=[0.1, 1.0], counts=[1.0, 2.0, 0.0], src="s")
    event = Event(seen_at=Instant(NOV_30 + 1), name="e", fields='{"k":1}', line="ü", src="log:x")
    store.append(batch_of({"points": [point], "events": [event], "config_facts": [ConfigFact(name="max_model_len", value="16")]}))
    assert ask(store, "SELECT epoch_us(seen_at), name, labels, value, buckets, counts, src FROM points") == [
        (NOV_29, "h", '{"a":"b"}', 1.5, [0.1, 1.0], [1.0, 2.0, 0.0], "s")
    ]
    assert ask(store, "SELECT epoch_us(seen_at), seq, fields, line FROM events") == [(NOV_30 + 1, None, '{"k":1}', "ü")]
    assert ask(store, "SELECT seen_at, name, value FROM config_facts") == [(None, "max_model_len", "16")]


def test_days_are_one_table(store: Store) -> None:
    store.append(batch_of({"spans": [span(1, NOV_29), span(2, NOV_30), span(3, None), span(4, NOV_29)]}))
    store.append(batch_of({"spans": [span(5, NOV_30)]}))
    assert ask(store, "SELECT span_id[-1:] FROM spans ORDER BY span_id") == [("1",), ("2",), ("3",), ("4",), ("5",)]


def test_missing_columns_are_null(store: Store) -> None:
    store.append({"spans": pa.table({"name": ["n"], "started_at": pa.array([NOV_29], pa.timestamp("us"))})})
    store.append({"spans": pa.table({"name": ["m"]})})
    assert ask(store, "SELECT name, trace_id FROM spans ORDER BY name") == [("m", None), ("n", None)]


@pytest.mark.parametrize("at", [NOV_29, NOV_30])
def test_the_last_revision_stands(store: Store, at: int) -> None:
    store.append(batch_of({"requests": [request(1, 0), request(2, 0)]}))
    store.append(batch_of({"requests": [request(1, 2, "failed", at)]}))
    store.append(batch_of({"requests": [request(1, 1, "late")]}))
    assert ask(store, "SELECT request_key, revision, outcome FROM requests ORDER BY request_key") == [(1, 2, "failed"), (2, 0, "open")]


def test_of_equal_revisions_the_later_one_stands(store: Store) -> None:
    store.append(batch_of({"requests": [request(1, 1, "first"), request(1, 1, "second")]}))
    assert ask(store, "SELECT outcome FROM requests") == [("second",)]
    store.append(batch_of({"requests": [request(1, 1, "third")]}))
    assert ask(store, "SELECT outcome FROM requests") == [("third",)]


def test_a_request_key_uses_all_64_bits(store: Store) -> None:
    store.append(batch_of({"requests": [request(2**64 - 1, 0)]}))
    assert ask(store, "SELECT request_key FROM requests") == [(2**64 - 1,)]


def test_incidents_show_their_last_state(store: Store) -> None:
    opened = IncidentRow(
        incident_id="i", revision=0, label="x", state="open", severity="critical", stage="engine", opened_at=NOV_29, last_seen_at=NOV_29
    )
    store.append(batch_of({"incidents": [opened]}))
    resolved = IncidentRow(
        incident_id="i", revision=1, label="x", state="resolved", severity="critical", stage="engine", opened_at=NOV_29, last_seen_at=NOV_30
    )
    store.append(batch_of({"incidents": [resolved]}))
    assert ask(store, "SELECT state, revision FROM incidents") == [("resolved", 1)]


def test_a_position_is_stored_once(store: Store) -> None:
    batch = batch_of({"spans": [span(1, NOV_29), span(2, NOV_30)], "config_facts": [ConfigFact(name="n")]})
    store.append(batch, 10)
    store.append(batch, 10)
    store.append(batch, 9)
    assert ask(store, "SELECT (SELECT count(*) FROM spans), (SELECT count(*) FROM config_facts)") == [(2, 1)]
    assert (store.position(), store.reached()) == (10, 10)
    store.append({}, 12)
    assert store.position() == 12
    store.append(batch)
    assert ask(store, "SELECT count(*) FROM spans") == [(4,)]
    assert store.position() == 12


def test_a_position_may_use_64_bits(store: Store) -> None:
    store.append(batch_of({"spans": [span(1)]}), 2**63 + 7)
    assert store.position() == 2**63 + 7


def bodies(*numbers: int) -> pa.Table:
    return bodies_of(Record(number, Signal.TRACES, number * 1_000_000, b"%d" % number) for number in numbers)


def known(*numbers: int) -> list[tuple[int, int]]:
    return [(hash_of(Signal.TRACES, b"%d" % number), number * 1_000_000) for number in numbers]


def test_bodies_are_stored_with_the_position_and_only_once(store: Store) -> None:
    assert list(store.bodies(0, 10)) == []
    store.append(batch_of({"spans": [span(1)]}), 10, bodies(3, 1, 2))
    store.append({}, 10, bodies(3, 1, 2))
    store.append({}, 11, bodies())
    store.append({}, 12, bodies(4))
    store.append(batch_of({"spans": [span(2)]}), None, bodies(5))
    assert list(store.bodies(0, 10)) == known(1, 2, 3, 4)
    assert list(store.bodies(3_000_000, 10)) == known(3, 4)
    assert list(store.bodies(0, 2)) == known(3, 4)


def test_bodies_are_no_table_of_the_readers(store: Store) -> None:
    store.append({}, 10, bodies(1))
    with store.cursor() as cursor, pytest.raises(duckdb.CatalogException):
        cursor.execute("SELECT * FROM bodies")


def test_old_bodies_are_forgotten_but_not_by_a_reader(store: Store, request: pytest.FixtureRequest) -> None:
    store.append({}, 10, bodies(1, 2, 3))
    if request.node.callspec.params["store"] == "overlay":
        with pytest.raises(StoreError, match="read-only"):
            store.forget(2_000_000)
        return
    store.forget(2_000_000)
    assert list(store.bodies(0, 10)) == known(2, 3)
    store.append({}, 10, bodies(1))
    assert list(store.bodies(0, 10)) == known(2, 3)


def test_temporary_views_are_the_cursors_own(store: Store) -> None:
    with store.cursor() as one, store.cursor() as other:
        one.execute("CREATE TEMP VIEW subjects AS SELECT 1 AS a")
        assert one.execute("SELECT a FROM subjects").fetchall() == [(1,)]
        with pytest.raises(duckdb.CatalogException):
            other.execute("SELECT a FROM subjects")


def test_a_cursor_sees_what_is_appended_later(store: Store) -> None:
    with store.cursor() as cursor:
        assert cursor.execute("SELECT count(*) FROM spans").fetchall() == [(0,)]
        store.append(batch_of({"spans": [span(1, NOV_30)]}))
        assert cursor.execute("SELECT count(*) FROM spans").fetchall() == [(1,)]


def test_other_threads_may_read_meanwhile(store: Store) -> None:
    seen: list[int] = []
    failed: list[Exception] = []
    done = threading.Event()

    def read() -> None:
        try:
            while not done.is_set():
                seen.append(ask(store, "SELECT count(*) FROM spans")[0][0])  # type: ignore[arg-type]
            seen.append(ask(store, "SELECT count(*) FROM spans")[0][0])  # type: ignore[arg-type]
        except Exception as error:
            failed.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(12):
        store.append(batch_of({"spans": [span(number * 2, NOV_29 + number * 86_400_000_000), span(number * 2 + 1, NOV_29)]}))
    done.set()
    reader.join()
    assert not failed
    assert seen == sorted(seen)
    assert seen[-1] == 24


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT * FROM read_text('{outside}')",
        "COPY (SELECT 1) TO '{outside}.copy'",
        "ATTACH '{outside}.db'",
        "SET enable_external_access = true",
        "SET python_enable_replacements = true",
        "SET lock_configuration = false",
        "SELECT * FROM planted",
        "INSTALL httpfs",
    ],
)
def test_sql_on_a_cursor_does_not_reach_outside(store: Store, tmp_path: Path, sql: str) -> None:
    outside = tmp_path / "outside"
    outside.write_text("secret")
    planted = pa.table({"a": ["secret"]})
    with store.cursor() as cursor, pytest.raises(duckdb.Error):
        cursor.execute(sql.format(outside=outside))
    assert planted.num_rows == 1
    assert {path.name for path in tmp_path.iterdir()} <= {"outside", "store"}


def test_closing_twice_is_no_error_and_a_closed_store_says_so(store: Store) -> None:
    store.close()
    store.close()
    with pytest.raises(StoreError, match="closed"):
        store.append(batch_of({"spans": [span(1)]}))
    with pytest.raises(StoreError, match="closed"), store.cursor():
        pass
