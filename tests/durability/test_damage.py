"""Damage that a disk does to a store at rest: the rest is served, and what is damaged is said in one line."""

import json
import signal
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from daemon_process import Daemon, until
from load import SPANS, body_of, spans_in
from store_rows import NOV_29

from lensd.store.folder import FolderStore
from lensd.store.journal import Journal, Signal

DAY_NS = 86_400_000_000_000
BODIES = 30
FIRST_DAY_NS, SECOND_DAY_NS = NOV_29 * 1000, NOV_29 * 1000 + DAY_NS


@pytest.fixture
def daemon(tmp_path: Path) -> Iterator[Daemon]:
    made = Daemon(tmp_path)
    yield made
    made.clean_up()


def journalled(daemon: Daemon, at_ns: int, first: int = 1) -> None:
    """Bodies that a daemon has acknowledged and not stored, several to a segment."""
    store = FolderStore(daemon.store)
    after = store.reached()
    store.close()
    journal = Journal(daemon.store / "journal", segment_bytes=3_000, after=after)
    for number in range(first, first + BODIES):
        journal.append(Signal.TRACES, at_ns // 1000, body_of(number, at_ns)).result(10)
    journal.close()


def lived(daemon: Daemon, bodies: int) -> str:
    """What the daemon logs in a life that stores that many bodies."""
    log = daemon.folder / "serve.log"
    before = log.stat().st_size if log.exists() else 0
    daemon.start()
    until(lambda: records_of(daemon) >= bodies)
    assert daemon.end(signal.SIGTERM) == 0
    return log.read_bytes()[before:].decode()


def records_of(daemon: Daemon) -> int:
    """How many records this life of the daemon has stored."""
    token = (daemon.store / "token").read_text().strip()
    request = urllib.request.Request(f"http://127.0.0.1:{daemon.api}/api/v1/status", headers={"authorization": f"Bearer {token}"})
    with urllib.request.urlopen(request, timeout=10) as answer:
        return int(json.loads(answer.read())["counts"]["records"])


@pytest.fixture
def flipped(daemon: Daemon) -> tuple[Path, int]:
    """A segment of several, in the middle of which a bit is the other way round, and how many segments there are."""
    journalled(daemon, FIRST_DAY_NS)
    segments = sorted((daemon.store / "journal").glob("*.journal"))
    assert len(segments) > 4
    raw = bytearray(segments[1].read_bytes())
    raw[len(raw) // 2] ^= 0x20
    segments[1].write_bytes(raw)
    return segments[1], len(segments)


@pytest.mark.slow
def test_a_flipped_byte_in_a_segment_costs_the_rest_of_that_segment(daemon: Daemon, flipped: tuple[Path, int]) -> None:
    lived(daemon, BODIES // 2)
    found = spans_in(daemon)
    missing = sorted({number for number in range(1, BODIES + 1) for part in range(SPANS) if not found[f"{number}/{part}"]})
    assert 0 < len(missing) < BODIES // flipped[1] + 2
    assert missing == list(range(missing[0], missing[-1] + 1))
    assert max(found.values()) == 1


@pytest.mark.slow
def test_a_damaged_segment_is_named(daemon: Daemon, flipped: tuple[Path, int]) -> None:
    checked = daemon.lensd("store", "check", "--store", str(daemon.store))
    assert checked.returncode == 3, checked.stderr
    assert [line for line in checked.stdout.splitlines() if flipped[0].name in line and "damaged" in line]
    assert [line for line in lived(daemon, BODIES // 2).splitlines() if flipped[0].name in line], "the daemon's log names it"


@pytest.mark.slow
def test_a_damaged_day_is_named_and_the_others_are_served(long_only: None, daemon: Daemon) -> None:
    journalled(daemon, FIRST_DAY_NS)
    lived(daemon, BODIES)
    journalled(daemon, SECOND_DAY_NS, first=BODIES + 1)
    lived(daemon, BODIES)
    damaged = next(daemon.store.glob("day-20261129*.duckdb"))
    raw = bytearray(damaged.read_bytes())
    raw[: 3 * 4096] = b"\xee" * (3 * 4096)  # the headers
    damaged.write_bytes(raw)
    checked = daemon.lensd("store", "check", "--store", str(daemon.store))
    assert checked.returncode == 3, checked.stderr
    assert [line for line in checked.stdout.splitlines() if damaged.name in line and "damaged" in line]
    journalled(daemon, SECOND_DAY_NS, first=2 * BODIES + 1)
    said = lived(daemon, BODIES)
    assert [line for line in said.splitlines() if damaged.name in line], "the damaged file is named in the log"
    assert said.count("Traceback") == 0
    assert set(spans_in(daemon)) == {f"{number}/{part}" for number in range(BODIES + 1, 3 * BODIES + 1) for part in range(SPANS)}


@pytest.mark.slow
def test_a_damaged_table_leaves_the_rest_of_its_day_readable(long_only: None, daemon: Daemon) -> None:
    journalled(daemon, FIRST_DAY_NS)
    lived(daemon, BODIES)
    damaged = next(daemon.store.glob("day-20261129*.duckdb"))
    raw = bytearray(damaged.read_bytes())
    at = raw.find(b"/4")  # inside the names of the spans
    raw[at : at + 64] = b"\xee" * 64
    damaged.write_bytes(raw)
    checked = daemon.lensd("store", "check", "--store", str(daemon.store), "--json")
    assert checked.returncode == 3, checked.stderr
    file = next(file for file in json.loads(checked.stdout)["files"] if file["file"] == damaged.name)
    broken = {table["table"] for table in file.get("tables", ()) if table.get("error")}
    assert file.get("error") or broken
