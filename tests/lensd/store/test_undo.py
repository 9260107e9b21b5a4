"""A checkpoint that was cut short is taken back by whoever opens the store next; one that is over stays."""

import errno
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest
from store_rows import NOV_30, span

from lensd.errors import StoreBusyError, StoreFailedError
from lensd.store import undo
from lensd.store.arrow import batch_of
from lensd.store.check import check
from lensd.store.disk import RealDisk
from lensd.store.folder import FolderStore
from lensd.store.undo import BLOCK_BYTES, HEADER_BYTES, HEADERS_BYTES, record_of

DAY = "day-20261129.duckdb"
ROWS = ["span 1", "span 2", "span 3"]


class Day(NamedTuple):
    """A store whose day is about to be checkpointed, with the undo record, and what the file is after the checkpoint."""

    folder: Path
    after: bytes

    @property
    def file(self) -> Path:
        return self.folder / DAY

    def names(self, *, read_only: bool = False) -> list[str]:
        store = FolderStore(self.folder, read_only=read_only)
        try:
            assert store.left_out == {}
            with store.cursor() as cursor:
                return [name for (name,) in cursor.execute("SELECT name FROM spans ORDER BY started_at").fetchall()]
        finally:
            store.close()


@pytest.fixture
def day(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Day:
    store = FolderStore(tmp_path / "made")
    store.append(batch_of({"spans": [span(1)]}), 1)
    store.checkpoint()
    store.append(batch_of({"spans": [span(2), span(3)]}), 2)
    shutil.copytree(tmp_path / "made", tmp_path / "store")
    with monkeypatch.context() as patch:
        patch.setattr(undo, "drop", lambda *_: None)
        store.close()
    shutil.copy(record_of(tmp_path / "made" / DAY), record_of(tmp_path / "store" / DAY))
    return Day(tmp_path / "store", (tmp_path / "made" / DAY).read_bytes())


def untouched(before: bytes, after: bytes) -> bytes:
    return before


def torn_block(before: bytes, after: bytes) -> bytes:
    half = HEADERS_BYTES + BLOCK_BYTES // 100
    assert before[HEADERS_BYTES:half] != after[HEADERS_BYTES:half]
    return before[:HEADERS_BYTES] + after[HEADERS_BYTES:half] + before[half:]


def blocks_without_header(before: bytes, after: bytes) -> bytes:
    return before[:HEADERS_BYTES] + after[HEADERS_BYTES:]


def torn_header(before: bytes, after: bytes) -> bytes:
    changed = next(at for at in (HEADER_BYTES, 2 * HEADER_BYTES) if before[at : at + HEADER_BYTES] != after[at : at + HEADER_BYTES])
    return before[:changed] + after[changed : changed + 20] + before[changed + 20 : HEADERS_BYTES] + after[HEADERS_BYTES:]


CUT_SHORT = (untouched, torn_block, blocks_without_header, torn_header)


@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize("harm", CUT_SHORT)
def test_it_is_taken_back_at_the_next_opening(day: Day, harm: Callable[[bytes, bytes], bytes], read_only: bool) -> None:
    day.file.write_bytes(harm(day.file.read_bytes(), day.after))
    assert day.names(read_only=read_only) == ROWS
    assert not record_of(day.file).exists()
    assert day.names() == ROWS  # and once more, from what a checkpoint has made of it


@pytest.mark.parametrize("harm", CUT_SHORT)
def test_the_file_stands_as_before(day: Day, harm: Callable[[bytes, bytes], bytes]) -> None:
    before = day.file.read_bytes()
    day.file.write_bytes(harm(before, day.after))
    assert undo.settle(day.file)
    assert day.file.read_bytes()[: len(before)] == before
    assert not record_of(day.file).exists()


def test_a_checkpoint_that_is_over_stays(day: Day) -> None:
    day.file.write_bytes(day.after)
    day.file.with_name(f"{DAY}.wal").unlink()
    assert not undo.settle(day.file)
    assert day.file.read_bytes() == day.after
    assert day.names() == ROWS
    assert not record_of(day.file).exists()


def record_cut(record: bytes) -> bytes:
    return record[:-1]


def record_flipped(record: bytes) -> bytes:
    return record[:20_000] + bytes([record[20_000] ^ 1]) + record[20_001:]


@pytest.mark.parametrize("harm", [record_cut, record_flipped, lambda _: b"", lambda record: record[:10], lambda record: b"x" * len(record)])
def test_a_torn_record_was_followed_by_no_checkpoint(day: Day, harm: Callable[[bytes], bytes]) -> None:
    before, record = day.file.read_bytes(), record_of(day.file)
    record.write_bytes(harm(record.read_bytes()))
    assert not undo.settle(day.file)
    assert (day.file.read_bytes(), record.exists()) == (before, False)
    assert day.names() == ROWS


def test_a_record_of_another_file_changes_nothing(day: Day, tmp_path: Path) -> None:
    other = FolderStore(tmp_path / "other")
    other.append(batch_of({"spans": [span(9)]}), 1)
    other.close()
    shutil.copy(tmp_path / "other" / DAY, day.file)
    assert not undo.settle(day.file)
    assert day.file.read_bytes() == (tmp_path / "other" / DAY).read_bytes()


def test_a_record_whose_file_is_gone_is_removed(day: Day) -> None:
    day.file.unlink()
    assert not undo.settle(day.file)
    assert not record_of(day.file).exists()


def test_a_check_takes_it_back_and_finds_the_store_sound(day: Day) -> None:
    day.file.write_bytes(torn_block(day.file.read_bytes(), day.after))
    assert check(day.folder).is_sound
    assert not record_of(day.file).exists()


def test_a_folder_that_cannot_be_written_is_said_in_one_line(day: Day, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(self: RealDisk, path: Path) -> int:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(RealDisk, "open", refused)
    with pytest.raises(StoreFailedError, match=rf"a checkpoint of {DAY} was cut short and is not taken back: read-only file system; open"):
        FolderStore(day.folder, read_only=True)
    assert record_of(day.file).exists()


def test_the_record_of_a_process_that_lives_is_left_alone(day: Day) -> None:
    record = record_of(day.file).read_bytes()
    record_of(day.file).unlink()
    owner = FolderStore(day.folder)
    owner.append(batch_of({"spans": [span(4, NOV_30)]}), 3)
    record_of(day.file).write_bytes(record)  # as in the middle of a checkpoint
    with pytest.raises(StoreBusyError):
        FolderStore(day.folder, read_only=True)
    assert record_of(day.file).read_bytes() == record
    owner.close()


def test_a_full_disk_leaves_no_record(day: Day, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: RealDisk, handle: int, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(RealDisk, "append", full)
    disk = RealDisk()
    handle = disk.open(day.file)
    with pytest.raises(OSError, match="No space left"):
        undo.keep(day.file, handle, [0], disk)
    disk.close(handle)
    assert not record_of(day.file).exists()


def test_the_sizes_are_those_of_the_files_that_are_made(day: Day) -> None:
    fields = [int.from_bytes(day.after[HEADER_BYTES + at : HEADER_BYTES + at + 8], "little") for at in range(8, 64, 8)]
    assert fields[4] == BLOCK_BYTES
    assert (len(day.after) - HEADERS_BYTES) % BLOCK_BYTES == 0
