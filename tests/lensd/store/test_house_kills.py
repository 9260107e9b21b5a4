"""kill -9 at every step of a roll-over and of a deletion: the next who opens the store finds every row once, and no file too many."""

import subprocess
import sys
from pathlib import Path

import pytest
from lensd_collectors.rows import Instant
from store_rows import DAY_US, NOV_29, request, span
from store_snapshots import snapshot

from lensd.store.arrow import batch_of
from lensd.store.folder import FolderStore
from lensd.store.kept import deleted
from lensd.store.memory import MemoryStore
from lensd.store.rollover import roll_over

DAY = NOV_29 // DAY_US
NOW = (NOV_29 + 8 * DAY_US) / 1e6

CHILD = """
import os, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from store_rows import DAY_US, NOV_29, span
from lensd.store.arrow import batch_of
from lensd.store.config import StoreConfig
from lensd.store.folder import FolderStore
from lensd.store.retention import Due, delete
from lensd.store.rollover import roll_over
store, day, now = FolderStore(Path(sys.argv[1])), NOV_29 // DAY_US, (NOV_29 + 8 * DAY_US) / 1e6
def die_after(step):
    if step == sys.argv[4]:
        store.append(batch_of({"spans": [span(50)]}), 2)
        os.kill(os.getpid(), 9)
if sys.argv[3] == "pack":
    roll_over(store, day, die_after)
else:
    delete(store, Due(day, "store.keep_days = 7"), StoreConfig(), now, die_after)
"""


def filled(folder: Path) -> FolderStore:
    store = FolderStore(folder, clock=lambda: NOW)
    store.append(batch_of({"spans": [span(1), span(2)], "requests": [request(1, 0), request(1, 1, "ok")]}), 1)
    roll_over(store, DAY)
    store.release()
    store.append(batch_of({"spans": [span(3)]}), 1)  # the journal has told it: it adds nothing
    store.append(batch_of({"spans": [span(3)], "requests": [request(2, 0)]}))
    return store


def kill(folder: Path, act: str, step: str) -> None:
    found = subprocess.run(
        [sys.executable, "-c", CHILD, str(folder), str(Path(__file__).parent), act, step], capture_output=True, text=True
    )
    assert found.returncode == -9, found.stderr


def names(folder: Path) -> list[str]:
    return sorted(path.name.removeprefix("day-20261129") for path in folder.glob("day-20261129*") if path.suffix != ".wal")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("step", "left"),
    [
        ("spans", ["-late-2.duckdb", "-late.duckdb", "-packed.duckdb"]),
        ("made", ["-late-2.duckdb", "-late.duckdb", "-packed.duckdb"]),
        ("named", ["-late-2.duckdb", "-packed-2.duckdb"]),
        ("shown", ["-late-2.duckdb", "-packed-2.duckdb"]),
    ],
)
def test_a_killed_roll_over(tmp_path: Path, step: str, left: list[str]) -> None:
    store = filled(tmp_path)
    expected = snapshot(store)
    expected["spans"] = sorted([*expected["spans"], _shown(span(50))])
    store.close()
    kill(tmp_path, "pack", step)
    lying = names(tmp_path)
    reader = FolderStore(tmp_path, read_only=True)
    assert (snapshot(reader), reader.position()) == (expected, 2)
    reader.close()
    assert names(tmp_path) == lying
    store = FolderStore(tmp_path, clock=lambda: NOW)
    assert names(tmp_path) == left
    store.append(batch_of({"spans": [span(50)]}), 2)
    roll_over(store, DAY)
    store.release()
    assert snapshot(store) == expected
    assert len(names(tmp_path)) == 1
    store.close()


@pytest.mark.slow
@pytest.mark.parametrize("step", ["kept", "hidden"])
def test_a_killed_deletion(tmp_path: Path, step: str) -> None:
    store = filled(tmp_path)
    store.append(batch_of({"spans": [span(9, Instant(NOV_29 + DAY_US))]}))
    store.close()
    kill(tmp_path, "delete", step)
    for read_only in (True, False):
        store = FolderStore(tmp_path, read_only=read_only, clock=lambda: NOW)
        with store.cursor() as cursor:
            assert cursor.execute("SELECT name FROM spans ORDER BY span_id").fetchall() == [("span 9",), ("span 50",)]
            assert cursor.execute("SELECT * FROM requests").fetchall() == []
            assert [deleted(cursor, name) is not None for name in ("r1", "r2", "r3")] == [True, True, False]
        assert store.position() == 2
        store.close()
    assert names(tmp_path) == ["-late-2.duckdb"]
    again = FolderStore(tmp_path, clock=lambda: NOW)
    with again.cursor() as cursor:
        assert cursor.execute("SELECT count(*) FROM kept_file.deletions WHERE NOT done").fetchall() == [(0,)]
    again.close()


def _shown(row: object) -> str:
    plain = MemoryStore()
    plain.append(batch_of({"spans": [row]}))  # type: ignore[list-item]
    (found,) = snapshot(plain)["spans"]
    plain.close()
    return found
