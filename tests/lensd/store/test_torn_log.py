"""The end of a log that a loss of power has torn is cut off; damage before the end is named."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from store_rows import span

from lensd.store.arrow import batch_of
from lensd.store.folder import FolderStore
from lensd.store.torn_log import log_bytes, log_of

DAY = "day-20261129.duckdb"
BATCHES = 3


@pytest.fixture
def ends(tmp_path: Path) -> tuple[Path, list[int]]:
    """A store as a kill leaves it, and the length of the day's log after each batch."""
    made, ends = FolderStore(tmp_path / "made"), []
    made.checkpoint()
    for number in range(BATCHES):
        made.append(batch_of({"spans": [span(number)]}), number + 1)
        ends.append(log_bytes(made.path / DAY))
    shutil.copytree(tmp_path / "made", tmp_path / "store")
    made.close()
    return tmp_path / "store", ends


def zeros(part: bytes) -> bytes:
    return bytes(len(part))


def hole(part: bytes) -> bytes:
    return part[:200] + bytes(100) + part[300:]


def flipped(part: bytes) -> bytes:
    return part[:250] + bytes([part[250] ^ 0xFF]) + part[251:]


def cut(part: bytes) -> bytes:
    return part[: len(part) // 2]


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("harm", [zeros, hole, flipped, cut])
def test_the_last_transaction_may_be_torn(ends: tuple[Path, list[int]], harm: Callable[[bytes], bytes], read_only: bool) -> None:
    folder, (_, before, end) = ends
    log = log_of(folder / DAY)
    raw = log.read_bytes()
    log.write_bytes(raw[:before] + harm(raw[before:end]))
    store = FolderStore(folder, read_only=read_only)
    with store.cursor() as cursor:
        assert cursor.execute("SELECT name FROM spans ORDER BY name").fetchall() == [("span 0",), ("span 1",)]
    assert store.left_out == {}
    store.append(batch_of({"spans": [span(2)]}), 3)  # the journal still has it
    with store.cursor() as cursor:
        assert cursor.execute("SELECT count(*) FROM spans").fetchall() == [(3,)]
    store.close()


@pytest.mark.parametrize("harm", [hole, flipped])
def test_a_hole_before_further_commits_is_damage(ends: tuple[Path, list[int]], harm: Callable[[bytes], bytes]) -> None:
    folder, (first, before, _) = ends
    log = log_of(folder / DAY)
    raw = log.read_bytes()
    log.write_bytes(harmed := raw[:first] + harm(raw[first:before]) + raw[before:])
    store = FolderStore(folder)
    assert list(store.left_out) == [DAY]
    assert log.read_bytes() == harmed
    store.close()
