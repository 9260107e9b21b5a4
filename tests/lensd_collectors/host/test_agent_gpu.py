"""The sampler over any library: what it sends of a reading, when it opens and lists anew, and that a driver which blocks is told."""

import threading
import tracemalloc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from lensd_collectors.host.card import Card, CardProcess, CardState, Identity, Reading, UnavailableDriverError
from lensd_collectors.host.gpu import NEWS_BYTES, STALLED, STALLED_AFTER_S, GpuSampler
from lensd_collectors.host.kmsg import Pids
from lensd_collectors.host.line import Standing, State
from lensd_collectors.host.memory import MemoryWatch
from lensd_collectors.host.owners import Owners
from lensd_collectors.host.procfs import PAGE_BYTES

NOT_HERE = Standing(State.MISSING, "no library")


class FakeCard:
    def __init__(self, identity: Identity, reading: Reading) -> None:
        self.identity, self.reading = identity, reading
        self.blocked = threading.Event()
        self.blocked.set()
        self.entered = threading.Event()

    def read(self, *, whole: bool) -> Reading:
        self.entered.set()
        assert self.blocked.wait(10)
        return self.reading


class FakeDriver:
    name = "fake"

    def __init__(self, *cards: FakeCard) -> None:
        self.listed, self.closed = list(cards), 0

    def cards(self) -> Sequence[Card]:
        return self.listed

    def close(self) -> None:
        self.closed += 1


class House:
    """A sampler with a clock in seconds, and a /proc of its own."""

    def __init__(self, recorder: Any, driver: FakeDriver, proc: Path) -> None:
        self.now, self.opened, self.driver, self.here = 0.0, 0, driver, True
        self.pids = Pids(proc)
        self.recorder = recorder
        self.sampler = GpuSampler(self.open, recorder, Owners(self.pids, proc), lambda: 9, lambda: self.now)

    def open(self) -> FakeDriver:
        self.opened += 1
        if not self.here:
            raise UnavailableDriverError(NOT_HERE)
        return self.driver

    def steps(self, count: int) -> None:
        for _ in range(count):
            self.sampler.step()
            self.now += 1.0

    def states(self) -> list[tuple[str, str, str]]:
        told = [self.recorder.attributes(each) for each in self.recorder.events]
        return [(each["gpu"], each["hw.id"], each["lensd.gpu.state"]) for each in told]


def used(bytes_: int, *processes: CardProcess) -> Reading:
    return Reading(values={"hw.gpu.memory.usage": bytes_}, processes=processes)


def card(index: int, uuid: str, reading: Reading | None = None) -> FakeCard:
    return FakeCard(Identity(index=index, uuid=uuid, name="Fake"), reading or used(7))


def test_a_blocked_driver_is_told_while_it_blocks(recorder: Any, tmp_path: Path) -> None:
    only = card(0, "A")
    house = House(recorder, FakeDriver(only), tmp_path)
    assert house.sampler.standing is None
    only.blocked.clear()
    thread = threading.Thread(target=house.sampler.step)
    thread.start()
    assert only.entered.wait(10)
    house.now += STALLED_AFTER_S
    assert house.sampler.standing != STALLED
    house.now += 0.1
    assert house.sampler.standing == STALLED
    only.blocked.set()
    thread.join(10)
    assert house.sampler.standing == Standing(State.FOLLOWED)


def test_a_library_that_is_not_there_is_looked_for_each_minute(recorder: Any, tmp_path: Path) -> None:
    house = House(recorder, FakeDriver(card(0, "A")), tmp_path)
    house.here = False
    house.steps(121)
    assert house.opened == 3
    assert house.sampler.standing == NOT_HERE
    house.here = True
    house.steps(60)
    assert house.states() == [("0", "A", "ok")]


def test_a_library_is_opened_anew_for_a_lost_card_less_and_less_often(recorder: Any, tmp_path: Path) -> None:
    lost = card(0, "A")
    house = House(recorder, FakeDriver(lost, card(1, "B")), tmp_path)
    house.steps(1)
    lost.reading = Reading(state=CardState.LOST, reason="GPU is lost")
    house.steps(60)
    assert house.opened == house.driver.closed + 1 == 3
    house.steps(1200)
    assert house.opened - 3 == 1 + 3
    lost.reading = used(8)
    house.steps(300)
    assert house.states() == [("0", "A", "ok"), ("1", "B", "ok"), ("0", "A", "lost"), ("0", "A", "ok")]
    opened = house.opened
    house.steps(120)
    assert house.opened == opened


def test_a_card_keeps_the_index_it_had_when_the_driver_counts_anew(recorder: Any, tmp_path: Path) -> None:
    house = House(recorder, FakeDriver(card(0, "A"), card(1, "B")), tmp_path)
    house.steps(1)
    house.driver.listed = [card(0, "B"), card(1, "C")]
    house.steps(20)
    house.sampler.flush()
    assert house.states() == [("0", "A", "ok"), ("1", "B", "ok"), ("0", "A", "absent"), ("2", "C", "ok")]
    last = {recorder.attributes(metric.gauge.data_points[0])["hw.id"]: recorder.attributes(metric.gauge.data_points[0])["lensd.gpu.index"]
            for _, _, metric in recorder.metrics}  # fmt: skip
    assert last == {"A": "0", "B": "1", "C": "2"}


def test_a_lost_card_that_tells_no_uuid_is_the_one_that_had_its_index(recorder: Any, tmp_path: Path) -> None:
    house = House(recorder, FakeDriver(card(0, "A"), card(1, "B")), tmp_path)
    house.steps(1)
    house.driver.listed = [card(0, "", Reading(state=CardState.LOST)), card(1, "B")]
    house.steps(20)
    assert house.states()[2:] == [("0", "A", "lost")]


def test_quiet_samples_of_all_cards_travel_together_and_news_at_once(recorder: Any, tmp_path: Path) -> None:
    first = card(0, "A", used(1, CardProcess(5, 3), CardProcess(6, None)))
    house = House(recorder, FakeDriver(first, card(1, "B")), tmp_path)
    house.steps(1)
    assert recorder.batches == [3]
    house.steps(4)
    assert recorder.batches == [3]
    house.steps(1)
    assert recorder.batches == [3, 10]
    first.reading = used(NEWS_BYTES)
    house.steps(1)
    assert recorder.batches == [3, 10, 2]
    first.reading = used(NEWS_BYTES + 1)
    house.steps(1)
    assert recorder.batches == [3, 10, 2]
    house.sampler.flush()
    assert recorder.batches == [3, 10, 2, 2]
    first.reading = Reading(state=CardState.LOST)
    house.steps(1)
    assert recorder.batches == [3, 10, 2, 2, 1]


def test_instances_and_processes_that_come_and_go_leave_nothing_behind(recorder: Any, tmp_path: Path) -> None:
    house = House(recorder, FakeDriver(), tmp_path)

    def hours(count: int) -> int:
        for _ in range(count):
            now = round(house.now)
            instance = FakeCard(Identity(index=0, uuid=f"MIG-{now}", mig=f"gi{now % 7}ci0"), used(1, CardProcess(now, 1)))
            house.driver.listed = [card(0, "A", used(1, CardProcess(now, 1))), instance]
            house.steps(10)
            for kept in (recorder.metrics, recorder.events, recorder.batches):
                kept.clear()
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        before = hours(20)
        assert hours(200) - before < 20_000
    finally:
        tracemalloc.stop()


def test_what_engines_and_host_hold_of_memory(recorder: Any, tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal:       1000 kB\nMemFree: 10 kB\nMemAvailable:    400 kB\n")
    for pid, pages, state in ((100, 3, "S"), (200, 5, "S"), (300, 0, "Z")):
        place = tmp_path / str(pid)
        place.mkdir()
        (place / "stat").write_text(f"{pid} (x) {state} 1 " + "0 " * 17 + "77 0\n")
        (place / "statm").write_text(f"9 {pages} 1 1 0 1 0\n")
        (place / "comm").write_text("llama-server\n")
    pids = Pids(tmp_path)
    pids.add(100, "e0")
    pids.add(300, "e0")
    pids.add(400, "e0")
    MemoryWatch(recorder, pids, lambda: 9, tmp_path).sample()
    assert recorder.values() == {
        ("system.memory.limit", ()): 1_024_000,
        ("system.linux.memory.available", ()): 409_600,
        ("process.memory.usage", (("process.executable.name", "llama-server"), ("process.pid", "100"))): 3 * PAGE_BYTES,
    }


@pytest.mark.parametrize("text", ["", "MemTotal: 1 kB\n", "MemTotal: x kB\nMemAvailable: 1 kB\n"])
def test_memory_that_is_not_told_is_not_sent(recorder: Any, tmp_path: Path, text: str) -> None:
    (tmp_path / "meminfo").write_text(text)
    MemoryWatch(recorder, Pids(tmp_path), lambda: 9, tmp_path).sample()
    assert recorder.metrics == []


def test_a_pid_given_anew_is_not_the_engines(tmp_path: Path) -> None:
    (tmp_path / "100").mkdir()
    stat = tmp_path / "100/stat"
    stat.write_text("100 (a b) S 1 " + "0 " * 17 + "77 0\n")
    pids = Pids(tmp_path)
    pids.add(100, "e0")
    assert (pids.engine_of(100), pids.living()) == ("e0", [(100, "e0")])
    stat.write_text("100 (a b) S 1 " + "0 " * 17 + "99 0\n")
    assert (pids.engine_of(100), pids.living()) == (None, [])
    assert pids.engine_in("Killed process 100 (x)") == "e0"
