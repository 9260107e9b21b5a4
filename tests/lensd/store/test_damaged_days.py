"""A day's file that is damaged costs that day, not the store."""

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from store_rows import NOV_29, NOV_30, span

from lensd.errors import StoreBusyError
from lensd.store.arrow import batch_of
from lensd.store.folder import FolderStore

DAY = "day-20261129.duckdb"


def names(store: FolderStore) -> list[str]:
    with store.cursor() as cursor:
        return [name for (name,) in cursor.execute("SELECT name FROM spans ORDER BY started_at").fetchall()]


def cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


def garbage(data: bytes) -> bytes:
    return b"not a database" * 1000


def flipped(start: int, stop: int) -> Callable[[bytes], bytes]:
    def flip(data: bytes) -> bytes:
        return data[:start] + bytes(byte ^ 0xFF for byte in data[start:stop]) + data[stop:]

    return flip


DAMAGES = {"garbage": garbage, "cut": cut, "empty": lambda _: b"", "headers": flipped(0, 12288), "catalogue": flipped(12288, 1 << 20)}


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    store = FolderStore(tmp_path)
    store.append(batch_of({"spans": [span(1, NOV_29), span(2, NOV_30)]}), 5)
    store.close()
    return tmp_path


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("harm", DAMAGES.values(), ids=DAMAGES)
def test_the_rest_is_served(folder: Path, harm: Callable[[bytes], bytes], read_only: bool, caplog: pytest.LogCaptureFixture) -> None:
    (folder / DAY).write_bytes(harm((folder / DAY).read_bytes()))
    store = FolderStore(folder, read_only=read_only)
    assert (names(store), store.position()) == (["span 2"], 5)
    assert list(store.left_out) == [DAY]
    assert "\n" not in store.left_out[DAY]
    assert sum(DAY in record.message for record in caplog.records) == 1
    store.close()


def test_rows_of_that_day_are_taken_and_the_damaged_file_is_kept(folder: Path) -> None:
    (folder / DAY).write_bytes(garbage(b""))
    store = FolderStore(folder)
    store.append(batch_of({"spans": [span(3, NOV_29)]}), 7)
    assert names(store) == ["span 3", "span 2"]
    assert list(store.left_out) == [f"{DAY}.damaged"]
    store.close()
    assert (folder / f"{DAY}.damaged").read_bytes() == garbage(b"")
    again = FolderStore(folder)
    assert (names(again), again.position(), again.left_out) == (["span 3", "span 2"], 7, {})
    again.close()


def test_a_file_that_another_process_has_is_not_damaged(folder: Path) -> None:
    code = "import duckdb, sys; c = duckdb.connect(sys.argv[1]); print('has it', flush=True); sys.stdin.read()"
    child = subprocess.Popen([sys.executable, "-c", code, str(folder / DAY)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "has it\n"
        with pytest.raises(StoreBusyError, match=f"process {child.pid}"):
            FolderStore(folder)
    finally:
        child.communicate("")
    store = FolderStore(folder)
    assert names(store) == ["span 1", "span 2"]
    store.close()
