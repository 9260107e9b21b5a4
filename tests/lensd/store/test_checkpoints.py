"""Logs are written into their files by the store alone, and what goes wrong with that costs no row."""

import errno
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from store_rows import DAY_US, NOV_29, span

from lensd.errors import StoreFailedError
from lensd.store import checkpoints
from lensd.store.arrow import batch_of
from lensd.store.disk import RealDisk
from lensd.store.folder import FolderStore
from lensd.store.torn_log import log_bytes
from lensd.store.undo import record_of

DAY = "day-20261129.duckdb"
OPEN_IT = "import sys\nfrom pathlib import Path\nfrom lensd.store.folder import FolderStore\nFolderStore(Path(sys.argv[1]), read_only=True)"


@pytest.fixture
def store(tmp_path: Path) -> Iterator[FolderStore]:
    made = FolderStore(tmp_path)
    made.append(batch_of({"spans": [span(1), span(2)]}), 1)
    yield made
    made.close()


def count(store: FolderStore) -> int:
    with store.cursor() as cursor:
        return int(cursor.execute("SELECT count(*) FROM spans").fetchall()[0][0])


def test_a_checkpoint_empties_the_logs_and_leaves_no_record(store: FolderStore) -> None:
    assert log_bytes(store.path / DAY) > 0
    store.checkpoint()
    assert [log_bytes(store.path / name) for name in (DAY, "main.duckdb")] == [0, 0]
    assert not [*store.path.glob("*.undo")]
    assert count(store) == 2


def test_a_long_log_is_written_at_the_next_append(store: FolderStore, monkeypatch: pytest.MonkeyPatch) -> None:
    store.append(batch_of({"spans": [span(3)]}), 2)
    assert log_bytes(store.path / DAY) > 0
    monkeypatch.setattr(checkpoints, "LOG_BYTES", 100)
    again = FolderStore(store.path / "again")
    again.append(batch_of({"spans": [span(1)]}), 1)
    assert log_bytes(again.path / DAY) == 0
    again.close()


def test_closing_writes_the_logs_and_nothing_else_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = FolderStore(tmp_path)
    made.append(batch_of({"spans": [span(1)]}), 1)
    with monkeypatch.context() as patch:
        patch.setattr(checkpoints.Checkpoints, "write", lambda *_: None)
        before = (tmp_path / DAY).read_bytes()
        made.close()
        assert (tmp_path / DAY).read_bytes() == before
    again = FolderStore(tmp_path)
    assert (tmp_path / DAY).read_bytes() == before, "nor does opening"
    assert count(again) == 1
    again.close()
    assert log_bytes(tmp_path / DAY) == 0


def test_a_full_disk_costs_no_row(store: FolderStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(RealDisk, "create", lambda *_: (_ for _ in ()).throw(OSError(errno.ENOSPC, "No space left on device")))
        with pytest.raises(StoreFailedError, match="No space left"):
            store.checkpoint()
        store.append(batch_of({"spans": [span(3)]}), 2)
    assert count(store) == 3
    store.checkpoint()
    assert (count(store), log_bytes(store.path / DAY)) == (3, 0)


def test_what_fails_is_not_tried_at_every_append(store: FolderStore, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = []
    monkeypatch.setattr(checkpoints, "LOG_BYTES", 100)
    monkeypatch.setattr(checkpoints.undo, "keep", lambda file, *_: tried.append(file.name) or (_ for _ in ()).throw(OSError("refused")))
    again = FolderStore(store.path / "again")
    for number in range(5):
        again.append(batch_of({"spans": [span(number)]}), number + 1)
    assert tried.count(DAY) == 1
    assert count(again) == 5
    again.close()


def test_a_try_that_was_cut_short_is_not_followed_by_another(store: FolderStore) -> None:
    """What it has written over would be taken for what the file stands on."""
    written = store._checkpoints._run
    store._checkpoints._run = lambda sql, *rest: _fail(sql) if sql.startswith("CHECKPOINT") else written(sql, *rest)
    with pytest.raises(StoreFailedError, match="disk failed"):
        store.checkpoint()
    store._checkpoints._run = written
    assert record_of(store.path / "main.duckdb").exists()
    with pytest.raises(StoreFailedError, match=r"main\.duckdb: an earlier try was cut short, which the next start takes back"):
        store.checkpoint()
    store.close()
    again = FolderStore(store.path)
    assert count(again) == 2
    assert not [*store.path.glob("*.undo")]
    again.close()


def _fail(sql: str) -> None:
    raise OSError(errno.EIO, "the disk failed")


def test_a_checkpoint_keeps_the_lock_on_the_files(store: FolderStore) -> None:
    """A process that closes any handle of a file loses all of its locks on it."""
    store.checkpoint()
    for file in (DAY, "main.duckdb"):
        code = "import duckdb, sys; duckdb.connect(sys.argv[1], read_only=True)"
        found = subprocess.run([sys.executable, "-c", code, str(store.path / file)], capture_output=True, text=True, check=False)
        assert "Could not set lock on file" in found.stderr


def test_what_is_kept_of_a_day_is_not_checkpointed_while_it_is_written(store: FolderStore) -> None:
    files = store.seal(NOV_29 // DAY_US, hide=True)
    store.checkpoint()
    assert log_bytes(store.path / "kept.duckdb") > 0
    store.unseal(files)
    store.checkpoint()
    assert log_bytes(store.path / "kept.duckdb") == 0
