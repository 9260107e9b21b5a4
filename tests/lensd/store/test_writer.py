"""The writer moves every record once, leaves out what cannot be decoded, and outlives a store that fails."""

import contextlib
import errno
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lensd_collectors.rows import Row
from store_rows import DAY_US, NOV_29, span

from lensd.errors import StoreFailedError
from lensd.store.arrow import Rows
from lensd.store.bodies import hash_of
from lensd.store.folder import FolderStore
from lensd.store.interface import Batch
from lensd.store.journal import Journal, Scan, Signal
from lensd.store.memory import MemoryStore
from lensd.store.writer import Writer, replay


def decode(kind: Signal, payload: bytes, received_at_us: int) -> dict[str, list[Row]]:
    """Payload `N` becomes span N, on day N % 3; `bad` cannot be decoded and `misfit` gives a row of the wrong type."""
    if payload == b"misfit":
        row = span(0)
        row.name = 7  # type: ignore[assignment]
        return {"spans": [row]}
    number = int(payload)
    return {"spans": [span(number, NOV_29 + number % 3 * DAY_US)]}


class FailingStore(MemoryStore):
    fails = 0

    def append(self, batch: Batch, position: int | None = None, bodies: pa.Table | None = None) -> None:
        if self.fails:
            self.fails -= 1
            raise StoreFailedError(f"append: {errno.errorcode[errno.ENOSPC]}")
        super().append(batch, position, bodies)


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    made = Journal(tmp_path / "journal", segment_bytes=200)
    yield made
    made.close()


def put(journal: Journal, *payloads: bytes) -> None:
    for future in [journal.append(Signal.TRACES, 1_000_000, payload) for payload in payloads]:
        future.result(5)


def names(store: FolderStore | MemoryStore) -> list[str]:
    with store.cursor() as cursor:
        return [name for (name,) in cursor.execute("SELECT name FROM spans ORDER BY span_id").fetchall()]


def hashes(store: FolderStore | MemoryStore) -> list[int]:
    return [found for found, _ in store.bodies(0, 1000)]


def numbered(*numbers: int) -> list[str]:
    return [f"span {number}" for number in numbers]


def test_records_reach_the_store_and_leave_the_journal(journal: Journal) -> None:
    store, batches = MemoryStore(), []
    writer = Writer(journal, store, decode, on_batch=batches.append)
    put(journal, *(b"%d" % number for number in range(40)))
    writer.drain_now()
    assert names(store) == numbered(*range(40))
    assert store.position() == journal.end
    assert len(list(journal.folder.iterdir())) == 1  # the segment that is still open
    assert [row.name for rows in batches for row in rows["spans"]] == numbered(*range(40))  # type: ignore[attr-defined]
    assert (writer.counts.records, writer.counts.rows, writer.counts.bad_records, writer.lag_s) == (40, 40, 0, 0.0)


def test_a_bad_record_is_left_out_and_counted(journal: Journal) -> None:
    store = MemoryStore()
    writer = Writer(journal, store, decode)
    put(journal, b"1", b"bad", b"2", b"misfit", b"3")
    writer.drain_now()
    assert names(store) == numbered(1, 2, 3)
    assert writer.counts.bad_records == 2
    assert store.position() == journal.end
    assert len(hashes(store)) == 5  # it was acknowledged: sent again, it is known


def test_a_store_that_fails_is_tried_again_and_nothing_is_decoded_twice(journal: Journal) -> None:
    store, decoded = FailingStore(), []

    def counting(kind: Signal, payload: bytes, at: int) -> dict[str, list[Row]]:
        decoded.append(payload)
        return decode(kind, payload, at)

    writer = Writer(journal, store, counting, clock=lambda: 31.0)
    put(journal, b"1", b"2")
    store.fails = 2
    for _ in range(2):
        with pytest.raises(StoreFailedError):
            writer.drain_now()
        assert writer.lag_s == 30.0
    writer.drain_now()
    assert names(store) == numbered(1, 2)
    assert decoded == [b"1", b"2"]


class SlowStore(MemoryStore):
    """Is told of more to come while it stores."""

    more: Callable[[], None] = staticmethod(lambda: None)

    def append(self, batch: Batch, position: int | None = None, bodies: pa.Table | None = None) -> None:
        super().append(batch, position, bodies)
        more, self.more = self.more, lambda: None
        more()


def test_lag_goes_on_where_more_came_in_meanwhile(journal: Journal) -> None:
    store = SlowStore()
    store.more = lambda: put(journal, b"2")
    writer = Writer(journal, store, decode, clock=lambda: 31.0)
    put(journal, b"1")
    writer.drain_now()
    assert writer.lag_s == 30.0
    writer.drain_now()
    assert writer.lag_s == 0.0


def test_it_tells_how_long_it_takes_over_a_record(journal: Journal) -> None:
    writer = Writer(journal, MemoryStore(), decode, ticks=count(0.0, 4.0).__next__)
    put(journal, *(b"%d" % number for number in range(8)))
    writer.drain_now()
    assert writer.speed.seconds_a_record == 0.5


def test_a_failing_hook_stops_nothing(journal: Journal) -> None:
    def fail(rows: Rows) -> None:
        raise RuntimeError("hook")

    store = MemoryStore()
    writer = Writer(journal, store, decode, on_batch=fail)
    put(journal, b"1")
    writer.drain_now()
    assert names(store) == numbered(1)
    assert writer.counts.failed_hooks == 1


def test_the_thread_drains_by_itself_and_stop_takes_the_rest(journal: Journal) -> None:
    store = FailingStore()
    store.fails = 1
    writer = Writer(journal, store, decode)
    writer.start()
    put(journal, b"1", b"2")
    journal.close()
    writer.stop()
    assert names(store) == numbered(1, 2)


def test_a_journal_below_the_store_is_refused(tmp_path: Path) -> None:
    store = MemoryStore()
    store.append({}, (5 << 32) + 1)
    journal = Journal(tmp_path / "new")
    with pytest.raises(StoreFailedError, match="after="):
        Writer(journal, store, decode)
    journal.close()
    journal = Journal(tmp_path / "new", after=store.reached())
    writer = Writer(journal, store, decode)
    put(journal, b"1")
    writer.drain_now()
    assert names(store) == numbered(1)
    journal.close()


@settings(max_examples=8, deadline=None)
@given(st.data())
def test_a_crash_at_any_file_neither_loses_nor_doubles(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """The store dies inside an append after some of its files; a writer, or a reader with the overlay, goes on from there."""
    folder = tmp_path_factory.mktemp("crash")
    count = data.draw(st.integers(4, 40))
    journal = Journal(folder / "journal")
    put(journal, *(b"%d" % number for number in range(count)))
    store = FolderStore(folder / "store")
    writer = Writer(journal, store, decode, max_records=data.draw(st.integers(1, count)))
    left = data.draw(st.integers(0, 8))
    append = store._append_to

    def dying(name: str, batch: Batch, position: int | None) -> None:
        nonlocal left
        if left == 0:
            raise KeyboardInterrupt
        left -= 1
        append(name, dict(batch), position)

    store._append_to = dying  # type: ignore[method-assign]
    with contextlib.suppress(KeyboardInterrupt):
        writer.drain_now()
    put(journal, b"%d" % count)
    journal.close()
    store.close()

    reader = FolderStore(folder / "store", read_only=True)
    replay(reader, Scan(journal.folder, reader.position()), decode)
    assert sorted(names(reader)) == sorted(numbered(*range(count + 1)))
    reader.close()

    store, journal = FolderStore(folder / "store"), Journal(folder / "journal")
    writer = Writer(journal, store, decode, max_records=count)
    put(journal, b"%d" % (count + 1))
    writer.drain_now()
    assert sorted(names(store)) == sorted(numbered(*range(count + 2)))
    assert sorted(hashes(store)) == sorted(hash_of(Signal.TRACES, b"%d" % number) for number in range(count + 2))
    journal.close()
    store.close()
