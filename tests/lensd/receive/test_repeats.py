"""A body that is sent again is known: while it is at work, once it was acknowledged, and after a restart or a kill; no other body is."""

import asyncio
import errno
import random
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest
from otlp_bodies import AT_NS, AT_US, logs, traces

from lensd.errors import FullError, JournalError
from lensd.receive.decode import Decoder
from lensd.receive.intake import Intake
from lensd.receive.repeats import A_RUN, KEPT_US, Repeats, remembered
from lensd.store.bodies import hash_of
from lensd.store.disk import RealDisk
from lensd.store.folder import FolderStore
from lensd.store.journal import Journal, Scan, Signal
from lensd.store.writer import Writer

HOUR_US = 3_600_000_000
BODY = traces({"name": "s"}).SerializeToString()


class HeldDisk(RealDisk):
    """Syncs once it is let go; with `fails`, the next sync fails."""

    def __init__(self) -> None:
        self.go, self.fails = threading.Event(), False

    def sync(self, handle: int) -> None:
        assert self.go.wait(30)
        if self.fails:
            self.fails = False
            raise OSError(errno.EIO, "input/output error")
        super().sync(handle)


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    made = Journal(tmp_path / "journal")
    yield made
    made.close()


def put(intake: Intake, *bodies: bytes, signal: Signal = Signal.TRACES) -> None:
    async def run() -> None:
        await asyncio.gather(*(intake.take(signal, body) for body in bodies))

    asyncio.run(run())


def counted(intake: Intake) -> tuple[int, int]:
    return intake.counts.accepted.total(), intake.counts.repeated.total()


def test_the_same_body_is_written_once(journal: Journal) -> None:
    intake = Intake(journal, "")
    for _ in range(3):
        put(intake, BODY)
    assert counted(intake) == (1, 2)
    assert len(list(Scan(journal.folder))) == 1


def test_other_bodies_are_not_the_same(journal: Journal) -> None:
    span = traces({"name": "s"})
    later = traces({"name": "s"})
    later.resource_spans[0].scope_spans[0].spans[0].end_time_unix_nano = AT_NS + 2_000_000
    twice = traces({"name": "s"}, {"name": "s"})
    split = traces({"name": "s"})
    split.MergeFrom(span)  # the same span under two resources
    empty = b"", b""
    intake = Intake(journal, "")
    put(intake, *(message.SerializeToString() for message in (span, later, twice, split)))
    assert counted(intake) == (4, 0)
    put(intake, empty[0])
    put(intake, empty[1], signal=Signal.LOGS)  # the same bytes say another thing
    assert counted(intake) == (6, 0)


def test_what_was_scrubbed_counts_as_the_journal_has_it(journal: Journal) -> None:
    intake = Intake(journal, "")
    for prompt in ("one", "another"):
        put(intake, traces({"name": "s", "attributes": {"gen_ai.prompt": prompt}}).SerializeToString())
    assert counted(intake) == (1, 1)


def test_a_body_at_work_is_waited_for_and_a_failed_one_forgotten(tmp_path: Path) -> None:
    disk = HeldDisk()
    journal = Journal(tmp_path / "journal", disk=disk)
    intake = Intake(journal, "")

    async def run() -> list[object]:
        tasks = [asyncio.create_task(intake.take(Signal.TRACES, BODY)) for _ in range(3)]
        await asyncio.sleep(0)
        assert not any(task.done() for task in tasks)
        tasks[0].cancel()  # the first sender leaves: the others are answered all the same
        disk.go.set()
        return await asyncio.gather(*tasks, return_exceptions=True)

    disk.fails = True
    gone, *failed = asyncio.run(run())
    assert isinstance(gone, asyncio.CancelledError)
    assert [type(error) for error in failed] == [JournalError, JournalError]
    assert counted(intake) == (0, 0)
    disk.go.clear()
    gone, *taken = asyncio.run(run())
    assert isinstance(gone, asyncio.CancelledError)
    assert taken == [(0, ""), (0, "")]
    journal.close()
    assert len(list(Scan(journal.folder))) == 1
    assert counted(intake) == (0, 2)


def test_a_body_that_the_journal_has_no_room_for_is_not_remembered(tmp_path: Path) -> None:
    repeats = Repeats()

    def full() -> Future[int]:
        raise FullError("full")

    for _ in range(2):
        with pytest.raises(FullError):
            repeats.enter(1, AT_US, full)
    assert len(repeats) == 0


def written(repeats: Repeats, key: int, at_us: int) -> bool:
    """Whether a body is new."""
    done: Future[int] = Future()
    done.set_result(1)
    return not repeats.enter(key, at_us, lambda: done)[1]


def test_bodies_are_known_for_a_day_and_no_more_than_an_hour_longer() -> None:
    repeats = Repeats(a_run=8)
    for minute in range(0, 26 * 60, 7):
        assert written(repeats, minute, AT_US + minute * 60_000_000)
    now = AT_US + 26 * HOUR_US
    known = [minute for minute in range(0, 26 * 60, 7) if not written(repeats, minute, now)]
    ages = [now - AT_US - minute * 60_000_000 for minute in known]
    assert max(ages) <= KEPT_US + HOUR_US
    assert known == [minute for minute in range(0, 26 * 60, 7) if minute >= known[0]]
    assert now - AT_US - known[0] * 60_000_000 >= KEPT_US


def test_over_the_limit_the_oldest_go_first() -> None:
    repeats = Repeats(a_run=10, most=40)
    chance = random.Random(1)
    keys = [chance.getrandbits(64) for _ in range(200)]
    for number, key in enumerate(keys):
        assert written(repeats, key, AT_US + number)
        assert len(repeats) <= 50
    assert [written(repeats, key, AT_US + 200) for key in keys[-40:]] == [False] * 40
    assert written(repeats, keys[0], AT_US + 200)


FULL = """
from lensd.receive.repeats import A_RUN, MOST, Repeats
def held(what):
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(what)) << 10
before = held("VmRSS")
repeats = Repeats()
repeats.learn((key * 0x9E3779B97F4A7C15 % 2**64, key) for key in range(MOST + 5 * A_RUN))
print(len(repeats) - MOST, held("VmRSS") - before, held("VmHWM") - before)
"""


def test_memory_stays_under_its_limit() -> None:
    done = subprocess.run([sys.executable, "-c", FULL], capture_output=True, text=True, timeout=60, check=True)
    over, held, most = map(int, done.stdout.split())
    assert 0 <= over <= A_RUN
    assert held < 16 << 20
    assert most < 22 << 20  # while a run is sorted


@pytest.mark.parametrize("drained", [0, 1, 2])
def test_a_restart_knows_what_the_store_and_the_journal_hold(tmp_path: Path, drained: int) -> None:
    bodies = [traces({"name": f"s{n}"}).SerializeToString() for n in range(2)]
    now_us = AT_US + HOUR_US
    store, journal = FolderStore(tmp_path / "store"), Journal(tmp_path / "journal")
    writer = Writer(journal, store, Decoder().decode)
    intake = Intake(journal, "", clock=lambda: AT_US / 1e6)
    for number, body in enumerate(bodies):
        if number == drained:
            writer.drain_now = lambda: None  # type: ignore[method-assign]  # from here on nothing reaches the store
        put(intake, body)
        writer.drain_now()
    journal.close()
    store.close()
    store = FolderStore(tmp_path / "store")
    assert len(list(store.bodies(0, 10))) == drained
    journal = Journal(tmp_path / "journal", after=store.reached())
    again = Intake(journal, "", repeats=remembered(store, journal, now_us), clock=lambda: now_us / 1e6)
    put(again, *bodies, traces({"name": "new"}).SerializeToString())
    assert counted(again) == (1, 2)
    Writer(journal, store, Decoder().decode).drain_now()
    with store.cursor() as cursor:
        assert cursor.execute("SELECT name FROM spans ORDER BY name").fetchall() == [("new",), ("s0",), ("s1",)]
    assert len(remembered(store, journal, now_us)) == 3
    assert len(remembered(store, journal, AT_US + KEPT_US + 1)) == 1, "only the new one came in the last 24 h"
    journal.close()
    store.close()


CHILD = """
import asyncio, sys
from pathlib import Path
from lensd.receive.decode import Decoder
from lensd.receive.intake import Intake
from lensd.receive.repeats import remembered
from lensd.store.folder import FolderStore
from lensd.store.journal import Journal, Signal
from lensd.store.writer import Writer
folder, now = Path(sys.argv[1]), int(sys.argv[2])
store = FolderStore(folder / "store")
journal = Journal(folder / "journal", segment_bytes=20_000, after=store.reached())
intake = Intake(journal, "", repeats=remembered(store, journal, now), clock=lambda: now / 1e6)
writer = Writer(journal, store, Decoder().decode, max_records=3)
writer.start()
for line in sys.stdin:
    asyncio.run(intake.take(Signal.LOGS, bytes.fromhex(line)))
    print(intake.counts.repeated.total(), flush=True)
"""


@pytest.mark.slow
def test_a_kill_between_journal_and_store_forgets_and_doubles_nothing(tmp_path: Path) -> None:
    """Each life is sent everything anew that an earlier one has acknowledged, then more; it dies wherever it is by then."""
    bodies = [logs({"name": "lensd.request.started", "attributes": {"n": n}}).SerializeToString().hex() for n in range(200)]
    chance, sent = random.Random(20261129), 0
    for _ in range(3):
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD, str(tmp_path), str(AT_US)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert child.stdin is not None
        assert child.stdout is not None
        more = chance.randrange(1, 40)
        for number, body in enumerate(bodies[: sent + more]):
            child.stdin.write(f"{body}\n")
            child.stdin.flush()
            assert int(child.stdout.readline()) == min(number + 1, sent)
        sent += more
        child.kill()
        child.communicate(timeout=10)
        assert child.returncode == -9
    store = FolderStore(tmp_path / "store")
    journal = Journal(tmp_path / "journal", after=store.reached())
    Writer(journal, store, Decoder().decode).drain_now()
    with store.cursor() as cursor:
        found = cursor.execute("SELECT attr(fields, 'n')::INT FROM events ORDER BY 1").fetchall()
    assert found == [(number,) for number in range(sent)]
    assert sorted(key for key, _ in store.bodies(0, 1000)) == sorted(hash_of(Signal.LOGS, bytes.fromhex(body)) for body in bodies[:sent])
    journal.close()
    store.close()
