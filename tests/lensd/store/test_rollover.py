"""Roll-over: the views show the same before, while and after a day is packed, and whatever stops it."""

import json
import random
import resource
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from lensd_collectors.rows import Event, Instant, Point, RequestRow, Row, SpanRow
from store_rows import DAY_US, NOV_29, request, span
from store_snapshots import snapshot

from lensd.errors import StoreError, StoreFailedError
from lensd.store import packing
from lensd.store.arrow import batch_of
from lensd.store.config import StoreConfig
from lensd.store.folder import FolderStore
from lensd.store.memory import MemoryStore
from lensd.store.retention import Due, delete
from lensd.store.rollover import roll_over
from lensd.store.schema import instant_column

DAY = NOV_29 // DAY_US
NOW = (NOV_29 + DAY_US) / 1e6 + 60

texts = st.text(st.characters(exclude_categories=("Cs",)), max_size=8)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
attributes = st.one_of(
    st.none(),
    st.dictionaries(texts, values, max_size=4).map(lambda fields: json.dumps(fields, separators=(",", ":"), ensure_ascii=False)),
    values.map(json.dumps),
    st.sampled_from(["", "{", "not JSON", '{"a":1,"a":2}', '{"a":1e999}', '{"n":1E5} ', '{"u":"\\u00e9"}']),
)
instants = st.one_of(st.none(), st.integers(0, 3 * DAY_US - 1).map(lambda after: Instant(NOV_29 - DAY_US + after)))


@st.composite
def rows(draw: st.DrawFn) -> dict[str, list[Row]]:
    return {
        "spans": [
            SpanRow(trace_id="t", span_id=draw(texts), started_at=draw(instants), attributes=draw(attributes), src=draw(texts))
            for _ in range(draw(st.integers(0, 5)))
        ],
        "requests": [
            RequestRow(
                request_key=key,
                revision=draw(st.integers(0, 2)),
                request_id=draw(texts),
                started_at=Instant(NOV_29 + (key % 3 - 1) * DAY_US),
                withdrawn=draw(st.sampled_from([None, None, False, True])),
            )
            for key in draw(st.lists(st.integers(0, 5), max_size=4))
        ],
        "events": [Event(seen_at=draw(instants), name=draw(texts), fields=draw(attributes)) for _ in range(draw(st.integers(0, 2)))],
        "points": [
            Point(seen_at=draw(instants), name="p", buckets=[1.0, 2.0], counts=draw(st.lists(st.floats(0, 9), min_size=3, max_size=3)))
        ],
    }


steps = st.lists(
    st.one_of(
        st.tuples(st.just("append"), rows()),
        st.tuples(st.just("roll over"), st.integers(DAY - 1, DAY + 1)),
        st.tuples(st.just("delete"), st.integers(DAY - 1, DAY + 1)),
        st.tuples(st.sampled_from(["release", "reopen"]), st.none()),
    ),
    min_size=3,
    max_size=6,
)


@settings(max_examples=6, deadline=None, phases=[Phase.generate], suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(steps=steps)
def test_views_show_every_row_once_whatever_comes_to_pass(tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, Any]]) -> None:
    folder = tmp_path_factory.mktemp("packed")
    store = FolderStore(folder, clock=lambda: NOW)
    told: list[dict[str, list[Row]]] = []
    for position, (act, given_to_it) in enumerate(steps, 1):
        if act == "append":
            batch = batch_of(given_to_it)
            store.append(batch, position)
            store.append(batch, position)  # a replay
            told.append(given_to_it)
        elif act == "roll over":
            if given_to_it in store.days():
                roll_over(store, given_to_it)
        elif act == "delete":
            if given_to_it in store.days():
                assert delete(store, Due(given_to_it, "a rule"), StoreConfig(), NOW) is not None
            told = [without(given_to_it, rows) for rows in told]
        elif act == "release":
            store.release()
        else:
            store.close()
            store = FolderStore(folder, clock=lambda: NOW)
    plain = MemoryStore()
    for each in told:
        plain.append(batch_of(each))
    expected = snapshot(plain)
    plain.close()
    assert snapshot(store) == expected
    for day in store.days():
        roll_over(store, day)
    assert snapshot(store) == expected
    store.close()
    reader = FolderStore(folder, read_only=True)
    assert snapshot(reader) == expected
    reader.close()


def without(day: int, told: dict[str, list[Row]]) -> dict[str, list[Row]]:
    """All rows but those of a day; what has no instant is of today."""

    def day_of(table: str, row: Row) -> int:
        at = getattr(row, instant_column(table))
        return int(NOW * 1e6 if at is None else at) // DAY_US

    return {table: [row for row in some if day_of(table, row) != day] for table, some in told.items()}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[FolderStore]:
    made = FolderStore(tmp_path, clock=lambda: NOW)
    yield made
    made.close()


def files(store: FolderStore) -> list[str]:
    return sorted(path.name.removeprefix("day-20261129") for path in store.path.glob("day-20261129*"))


def noisy(count: int, first: int = 0) -> list[Row]:
    """Spans that do not get much smaller."""
    chance = random.Random(first)
    made: list[Row] = []
    for number in range(first, first + count):
        row = span(number)
        row.attributes = f'{{"a":{chance.random()!r},"b":"{chance.getrandbits(256):064x}"}}'
        made.append(row)
    return made


def test_a_day_becomes_one_file_without_its_earlier_revisions(store: FolderStore) -> None:
    store.append(batch_of({"spans": [span(1)], "requests": [request(1, 0), request(1, 1, "ok"), request(2, 0)]}), 7)
    shown = snapshot(store)
    packed = roll_over(store, DAY)
    assert packed is not None
    assert packed.file == "day-20261129-packed.duckdb"
    assert snapshot(store) == shown
    store.release()
    assert files(store) == ["-packed.duckdb"]
    with store.cursor() as cursor:
        assert cursor.execute("SELECT count(*) FROM day_20261129_packed.requests").fetchall() == [(2,)]
        kinds = cursor.execute("SELECT data_type FROM duckdb_columns() WHERE table_name = 'spans' AND column_name = 'attributes'")
        assert {*kinds.fetchall()} == {("VARCHAR",), ("VARIANT",)}
    assert roll_over(store, DAY) is None


def test_attributes_of_every_file_are_read_the_same_way(store: FolderStore) -> None:
    first, late = span(1), span(2)
    first.attributes = late.attributes = '{"gen_ai.request.model":"tiny","n":3,"l":["stop"]}'
    store.append(batch_of({"spans": [first]}))
    roll_over(store, DAY)
    store.append(batch_of({"spans": [late]}))
    with store.cursor() as cursor:
        found = cursor.execute("SELECT attr(attributes, 'gen_ai.request.model'), attr(attributes, 'n'), attr(attributes, 'l') FROM spans")
        assert found.fetchall() == [("tiny", "3", '["stop"]')] * 2


def test_late_rows_are_packed_in_and_a_replay_doubles_nothing(store: FolderStore) -> None:
    store.append(batch_of({"spans": [span(1)], "requests": [request(1, 0)]}), 3)
    roll_over(store, DAY)
    late = batch_of({"spans": [span(2)], "requests": [request(1, 1, "ok")]})
    for _ in range(2):
        store.append(late, 5)
    shown = snapshot(store)
    assert files(store) == ["-late.duckdb", "-late.duckdb.wal", "-packed.duckdb", ".duckdb", ".duckdb.wal"]
    assert store.days()[DAY].loose_rows == 2
    roll_over(store, DAY)
    store.append(late, 5)
    store.append(batch_of({"spans": [span(2)]}), 4)
    assert snapshot(store) == shown
    store.release()
    assert files(store) == ["-packed-2.duckdb"]
    assert len(shown["spans"]) == 2


def test_a_replay_after_a_crash_between_two_files_adds_nothing_to_a_packed_one(store: FolderStore) -> None:
    store.append(batch_of({"spans": [span(1)]}), 5)
    store._append_to("day_20261129", dict(batch_of({"spans": [span(2)]})), 9)  # and the main file does not know
    roll_over(store, DAY)
    assert (store.position(), store.reached()) == (5, 9)
    store.append(batch_of({"spans": [span(2)]}), 9)
    assert (store.position(), len(snapshot(store)["spans"])) == (9, 2)


def test_a_big_day_is_sorted_in_slices(store: FolderStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packing, "ROWS_AT_ONCE", 7)
    times = random.Random(1).sample(range(DAY_US), 40)
    spans: list[Row] = [SpanRow(span_id=str(at), started_at=Instant(NOV_29 + at), src="s") for at in times]
    store.append(batch_of({"spans": spans, "requests": [request(key, revision) for key in range(9) for revision in range(3)]}))
    shown = snapshot(store)
    seen: list[str] = []
    roll_over(store, DAY, seen.append)
    assert snapshot(store) == shown
    assert (seen.count("spans"), seen.count("requests")) == (6, 4)
    with store.cursor() as cursor:
        assert cursor.execute("SELECT bool_and(started_at >= before) FROM (SELECT *, lag(started_at) OVER (ORDER BY rowid) AS before"
                              " FROM day_20261129_packed.spans)").fetchall() == [(True,)]  # fmt: skip


def test_rows_that_come_while_a_day_is_packed_go_on_to_the_next_part(store: FolderStore) -> None:
    store.append(batch_of({"spans": noisy(500)}), 1)
    seen: list[int] = []

    def appending(step: str) -> None:
        if step == "spans":
            store.append(batch_of({"spans": [span(1000)]}), 2)
            seen.append(len(snapshot(store)["spans"]))

    roll_over(store, DAY, appending)
    store.release()
    assert (seen, len(snapshot(store)["spans"])) == ([501], 501)
    assert files(store) == ["-late.duckdb", "-late.duckdb.wal", "-packed.duckdb"]


def test_readers_see_every_row_once_while_days_are_packed(store: FolderStore) -> None:
    done, wrong, reads = threading.Event(), [], []
    written = 0

    def read() -> None:
        while not done.is_set():
            least = written
            with store.cursor() as cursor:
                ids = cursor.execute("SELECT span_id, attr(attributes, 'a') FROM spans").fetchall()
            reads.append(len(ids))
            if len(ids) < least or len(set(ids)) != len(ids):
                wrong.append((least, len(ids)))

    store.append(batch_of({"spans": noisy(300)}))
    written = 300
    threads = [threading.Thread(target=read) for _ in range(2)]
    for thread in threads:
        thread.start()
    try:
        for turn in range(2):
            roll_over(store, DAY)
            store.append(batch_of({"spans": noisy(20, 1000 * (turn + 1))}))
            written += 20
            before = len(reads)
            while len(reads) < before + 4:  # those that began before the swap are through
                assert all(thread.is_alive() for thread in threads)
            store.release()
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert wrong == []
    assert len(snapshot(store)["spans"]) == 340


@contextmanager
def files_of_at_most(size: int) -> Iterator[None]:
    """What a full disk does: no file of this process grows beyond that."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("share", [0.05, 0.5, 0.9])
def test_a_full_disk_leaves_the_fresh_file_and_it_is_tried_again(store: FolderStore, share: float) -> None:
    store.append(batch_of({"spans": noisy(3000)}), 1)
    shown = snapshot(store)
    trial = FolderStore(store.path / "trial", clock=lambda: NOW)
    trial.append(batch_of({"spans": noisy(3000)}), 1)
    packed = roll_over(trial, DAY)
    trial.close()
    assert packed is not None
    with files_of_at_most(int(packed.bytes_after * share)), pytest.raises(StoreFailedError, match="pack 2026-11-29"):
        roll_over(store, DAY)
    assert (files(store), snapshot(store)) == ([".duckdb", ".duckdb.wal"], shown)
    store.append(batch_of({"spans": [span(9000)]}), 2)
    assert files(store) == [".duckdb", ".duckdb.wal"]
    assert roll_over(store, DAY) is not None
    assert len(snapshot(store)["spans"]) == 3001


def test_what_ends_a_roll_over_leaves_the_day_as_it_was(store: FolderStore) -> None:
    store.append(batch_of({"spans": [span(1)]}), 1)

    def stop(step: str) -> None:
        raise StoreError(f"stopped while packing {step}")

    with pytest.raises(StoreError, match="stopped while packing engine_samples"):
        roll_over(store, DAY, stop)
    assert files(store) == [".duckdb", ".duckdb.wal"]


def test_a_closed_store_packs_nothing(tmp_path: Path) -> None:
    store = FolderStore(tmp_path, clock=lambda: NOW)
    store.append(batch_of({"spans": [span(1)]}), 1)

    def closing(step: str) -> None:
        if step == "spans":
            store.close()

    with pytest.raises(StoreError):
        roll_over(store, DAY, closing)
    assert sorted(path.name for path in tmp_path.glob("day-*")) == ["day-20261129.duckdb"]
    again = FolderStore(tmp_path)
    assert len(snapshot(again)["spans"]) == 1
    again.close()


def test_a_damaged_packed_file_gives_way_to_what_it_was_made_of(tmp_path: Path) -> None:
    store = FolderStore(tmp_path, clock=lambda: NOW)
    store.append(batch_of({"spans": [span(1)]}), 1)
    roll_over(store, DAY)
    store.close()
    (tmp_path / "day-20261129-packed.duckdb").write_bytes(b"not a database" * 1000)
    for read_only in (True, False):
        again = FolderStore(tmp_path, read_only=read_only)
        assert len(snapshot(again)["spans"]) == 1
        again.close()
    assert sorted(path.name for path in tmp_path.glob("day-*")) == ["day-20261129-packed.duckdb.damaged", "day-20261129.duckdb"]
