"""Power that fails anywhere in a checkpoint with an undo record, and in taking it back, leaves the file of before or the file of after."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import duckdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from power_cut import File, SimulatedDisk

from lensd.store import undo

FILE = Path("/store/day.duckdb")


class States(NamedTuple):
    """A real file before and after a checkpoint, and the blocks of its metadata before."""

    before: bytes
    after: bytes
    metadata: tuple[int, ...]


@pytest.fixture(scope="module")
def states(tmp_path_factory: pytest.TempPathFactory) -> States:
    file = tmp_path_factory.mktemp("undo") / "made.duckdb"
    with duckdb.connect() as connection:
        run = connection.execute
        run(f"ATTACH '{file}' AS made (STORAGE_VERSION 'v1.5.0')")
        run("CREATE TABLE made.rows AS SELECT range AS number FROM range(1000)")
        run("CHECKPOINT made")
        before = file.read_bytes()
        metadata = tuple(block for (block,) in run("SELECT block_id FROM pragma_metadata_info('made')").fetchall())
        run("INSERT INTO made.rows SELECT range FROM range(5000)")
        run("CHECKPOINT made")
    return States(before, file.read_bytes().ljust(len(before), b"\0"), metadata)


def written(states: States) -> Iterator[tuple[int, bytes]]:
    """The writes of the checkpoint as DuckDB does them: blocks first, the header last."""
    before = states.before.ljust(len(states.after), b"\0")
    blocks = range(undo.HEADERS_BYTES, len(states.after), undo.BLOCK_BYTES)
    headers = range(0, undo.HEADERS_BYTES, undo.HEADER_BYTES)
    for places, size in ((blocks, undo.BLOCK_BYTES), (headers, undo.HEADER_BYTES)):
        for at in places:
            if before[at : at + size] != states.after[at : at + size]:
                yield at, states.after[at : at + size]


def disk_with(content: bytes) -> SimulatedDisk:
    disk = SimulatedDisk()
    disk.files[FILE] = File(bytearray(content), len(content), True)
    return disk


def checkpoint(disk: SimulatedDisk, states: States) -> None:
    handle = disk.open(FILE)
    undo.keep(FILE, handle, states.metadata, disk)
    for at, data in written(states):
        if at < undo.HEADERS_BYTES:
            disk.sync(handle)
        disk.write_at(handle, at, data)
    disk.sync(handle)
    undo.drop(FILE, disk)


def settle(disk: SimulatedDisk) -> None:
    if undo.record_of(FILE) in disk.files:
        undo.settle(FILE, disk)


def stands(disk: SimulatedDisk, states: States) -> str:
    """Which of the two the file is, as far as it stands on anything."""
    now = bytes(disk.files[FILE].data)
    if now[: len(states.after)] == states.after:
        return "after"
    used = [(0, undo.HEADERS_BYTES), *((undo.HEADERS_BYTES + block * undo.BLOCK_BYTES, undo.BLOCK_BYTES) for block in states.metadata)]
    return "before" if all(now[at : at + size] == states.before[at : at + size] for at, size in used) else "neither"


@settings(max_examples=300, deadline=None)
@given(seed=st.integers(0, 2**32), fails_at=st.lists(st.integers(0, 24), min_size=1, max_size=4))
def test_the_file_is_the_one_of_before_or_the_one_of_after(states: States, seed: int, fails_at: list[int]) -> None:
    chance, disk = random.Random(seed), disk_with(states.before.ljust(len(states.after), b"\0"))
    is_over = False
    for number, operations in enumerate(fails_at):
        disk.fail_after(operations)
        try:
            if number == 0:
                checkpoint(disk, states)
                is_over = True
            else:
                settle(disk)
        except OSError:
            pass
        disk = disk.survivors(chance)
    settle(disk)
    assert undo.record_of(FILE) not in disk.files
    assert stands(disk, states) in (("after",) if is_over else ("before", "after"))


def test_a_checkpoint_without_a_record_is_found_out(states: States, monkeypatch: pytest.MonkeyPatch) -> None:
    """The simulated disk does tear what a checkpoint writes: with nothing kept the file is neither."""
    monkeypatch.setattr(undo, "keep", lambda *_: None)
    found = set()
    for seed in range(60):
        chance, disk = random.Random(seed), disk_with(states.before.ljust(len(states.after), b"\0"))
        disk.fail_after(1 + seed % 4)
        with pytest.raises(OSError, match="power"):
            checkpoint(disk, states)
        disk = disk.survivors(chance)
        found.add(stands(disk, states))
    assert "neither" in found


@pytest.mark.parametrize("broken", ["sync", "sync_folder"])
def test_a_record_that_is_not_synced_is_found_out(broken: str, states: States, monkeypatch: pytest.MonkeyPatch) -> None:
    found = set()
    for seed in range(300):
        chance, disk = random.Random(seed), disk_with(states.before.ljust(len(states.after), b"\0"))
        monkeypatch.setattr(SimulatedDisk, broken, lambda self, handle: None)
        disk.fail_after(4 + seed % 12)
        try:
            checkpoint(disk, states)
        except OSError:
            disk = disk.survivors(chance)
        monkeypatch.undo()
        disk.fail_after(1000)
        settle(disk)
        found.add(stands(disk, states))
    assert "neither" in found
