"""What one look does, by a clock of ours."""

import logging
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from store_rows import DAY_US, NOV_29, request, span
from store_snapshots import snapshot

from lensd.store import housekeeping, name_filters
from lensd.store.arrow import batch_of
from lensd.store.catalog import FILTERS
from lensd.store.config import StoreConfig
from lensd.store.folder import FolderStore
from lensd.store.housekeeping import Housekeeping

DAY = NOV_29 // DAY_US
DAY_S = DAY_US / 1e6
HOUR = 3600.0


class Clock:
    now = NOV_29 / 1e6 + 12 * HOUR

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def store(tmp_path: Path, clock: Clock) -> Iterator[FolderStore]:
    made = FolderStore(tmp_path, clock=clock)
    made.append(batch_of({"spans": [span(1)]}), 1)
    yield made
    made.close()


@pytest.fixture
def house(store: FolderStore, clock: Clock) -> Housekeeping:
    return Housekeeping(store, StoreConfig(), clock)


def files(store: FolderStore) -> list[str]:
    return sorted(path.name for path in store.path.glob("day-*.duckdb"))


def test_a_day_is_packed_two_hours_after_its_end(
    store: FolderStore, house: Housekeeping, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    clock.now = NOV_29 / 1e6 + DAY_S + 2 * HOUR - 1
    house.look()
    assert (files(store), house.state.packed_day) == (["day-20261129.duckdb"], None)
    clock.now += 1
    with caplog.at_level(logging.INFO):
        house.look()
    assert [record.getMessage().split(" MB")[0][:18] for record in caplog.records] == ["packed 2026-11-29:"]
    assert (house.state.packed_day, house.state.packed_at) == ("2026-11-29", int(clock.now * 1e6))
    house.look()
    assert files(store) == ["day-20261129-packed.duckdb"]
    assert (house.state.days, house.state.last_error) == (1, "")
    assert house.state.bytes == sum(path.stat().st_size for path in store.path.glob("*.duckdb*"))


@pytest.mark.parametrize(("rows", "later_s", "packs"), [(1, DAY_S - 1, False), (1, DAY_S, True), (2, 0, True)])
def test_late_rows_are_packed_when_they_are_many_or_old(
    store: FolderStore, house: Housekeeping, clock: Clock, monkeypatch: pytest.MonkeyPatch, rows: int, later_s: float, packs: bool
) -> None:
    monkeypatch.setattr(housekeeping, "LATE_ROWS", 3)  # the file's own row of progress is none of them
    clock.now = NOV_29 / 1e6 + DAY_S + 2 * HOUR
    house.look()
    store.append(batch_of({"spans": [span(number) for number in range(2, 2 * rows + 1)]}), 2)
    clock.now += later_s
    house.look()
    house.look()
    assert files(store) == (["day-20261129-packed-2.duckdb"] if packs else ["day-20261129-late.duckdb", "day-20261129-packed.duckdb"])
    assert len(snapshot(store)["spans"]) == 2 * rows


def test_old_days_go(store: FolderStore, house: Housekeeping, clock: Clock, caplog: pytest.LogCaptureFixture) -> None:
    store.append(batch_of({"spans": [span(2, NOV_29 + DAY_US)]}), 2)
    clock.now = NOV_29 / 1e6 + 8 * DAY_S
    with caplog.at_level(logging.INFO):
        house.look()
    assert caplog.records[0].getMessage().startswith("deleted 2026-11-29: ")
    assert caplog.records[0].getMessage().endswith(", by store.keep_days = 7")
    assert (house.state.deleted_day, house.state.deleted_by) == ("2026-11-29", "store.keep_days = 7")
    house.look()
    assert files(store) == ["day-20261130-packed.duckdb"]


def test_days_over_the_bytes_go_oldest_first_and_never_todays(store: FolderStore, clock: Clock) -> None:
    for day in range(1, 4):
        store.append(batch_of({"spans": [span(day, NOV_29 + day * DAY_US)]}), day + 1)
    clock.now = NOV_29 / 1e6 + 3 * DAY_S + HOUR
    sizes = {day: state.bytes for day, state in store.days().items()}
    keep = sizes[DAY + 2] + sizes[DAY + 3] + store.other_bytes() + 8_000_000
    house = Housekeeping(store, StoreConfig(keep_bytes=max(keep, 1), roll_over_after_s=1e9), clock)
    house.look()
    assert files(store)[-1] == "day-20261202.duckdb"
    Housekeeping(store, StoreConfig(keep_bytes=1), clock).look()
    store.release()
    assert files(store) == ["day-20261202.duckdb"]


def test_bodies_are_forgotten_after_a_day(store: FolderStore, house: Housekeeping, clock: Clock) -> None:
    at = [int((clock.now - age) * 1e6) for age in (25 * HOUR, 23 * HOUR)]
    bodies = pa.table({"hash": pa.array([1, 2], pa.uint64()), "received_at": pa.array(at, pa.timestamp("us"))})
    store.append({}, 2, bodies)
    house.look()
    assert [body[0] for body in store.bodies(0, 9)] == [2]


def test_what_fails_is_told_and_tried_again(store: FolderStore, house: Housekeeping, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    clock.now = NOV_29 / 1e6 + DAY_S + 2 * HOUR

    def full(*_: object) -> None:
        raise OSError(28, "no space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("lensd.store.rollover.os.replace", full)
        house.look()
    assert "pack 2026-11-29" in house.state.last_error
    assert "no space left" in house.state.last_error
    assert files(store) == ["day-20261129.duckdb"]
    house.look()
    assert house.state.packed_day == "2026-11-29"


def test_the_thread_looks_until_it_is_told_to_stop(
    store: FolderStore, house: Housekeeping, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(housekeeping, "EVERY_S", 0.001)
    clock.now = NOV_29 / 1e6 + DAY_S + 2 * HOUR
    packed, stop, real = threading.Event(), threading.Event(), house.look

    def look() -> None:
        real()
        if house.state.packed_day:
            packed.set()

    monkeypatch.setattr(house, "look", look)
    thread = threading.Thread(target=house.run, args=(stop,))
    thread.start()
    assert packed.wait(60)
    stop.set()
    thread.join(60)
    assert not thread.is_alive()


def test_a_look_makes_the_filters_by_name(store: FolderStore, house: Housekeeping, clock: Clock) -> None:
    store.append(batch_of({"requests": [request(1, 0), request(2, 0, at=NOV_29 + DAY_US)]}), 2)
    house.look()
    with store.cursor() as cursor:
        assert cursor.execute(f"select place, high from {FILTERS}").fetchall() == [("day_20261129.main.requests", 1)]
    assert house.state.names_at == int(clock.now * 1e6)


def test_names_have_filters_before_the_first_look(store: FolderStore, house: Housekeeping, monkeypatch: pytest.MonkeyPatch) -> None:
    made, stop, real = threading.Event(), threading.Event(), name_filters.cover

    def cover(*given: Any) -> None:
        real(*given)
        made.set()

    monkeypatch.setattr(name_filters, "cover", cover)
    thread = threading.Thread(target=house.run, args=(stop,))
    thread.start()
    assert made.wait(60)
    stop.set()
    thread.join(60)
    assert not thread.is_alive()


def test_stopping_ends_a_roll_over_between_two_steps(store: FolderStore, house: Housekeeping, clock: Clock) -> None:
    clock.now = NOV_29 / 1e6 + DAY_S + 2 * HOUR
    stop = threading.Event()
    house._stop = stop
    go_on = house._go_on

    def stopping(step: str) -> None:
        stop.set()
        go_on(step)

    house._go_on = stopping  # type: ignore[method-assign]
    house.look()
    assert "stopped while packing" in house.state.last_error
    assert files(store) == ["day-20261129.duckdb"]
