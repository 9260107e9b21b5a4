"""The journal gives back what it acknowledged, in order, whatever happened to the end or the middle of its files."""

import tempfile
import threading
from concurrent.futures import Future
from pathlib import Path

import pytest
from faulty_disk import FaultyDisk
from hypothesis import given, settings
from hypothesis import strategies as st

from lensd.errors import FullError, JournalError
from lensd.store.journal import Journal, Record, Scan, Signal
from lensd.store.segments import HEADER, framed, name_of, segment_of

RECORDS = st.lists(st.tuples(st.sampled_from(Signal), st.integers(0, 2**62), st.binary(max_size=300)), max_size=30)


def fill(journal: Journal, count: int, size: int = 10) -> list[int]:
    futures = [journal.append(Signal.TRACES, number, bytes([number % 256]) * size) for number in range(count)]
    return [future.result(5) for future in futures]


def payloads(folder: Path, after: int = 0) -> list[bytes]:
    return [record.payload for record in Scan(folder, after)]


@settings(max_examples=30, deadline=None)
@given(records=RECORDS, segment_bytes=st.integers(50, 2000), reopen_after=st.integers(0, 30))
def test_what_went_in_comes_out_in_order(records: list[tuple[Signal, int, bytes]], segment_bytes: int, reopen_after: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        positions: list[int] = []
        for part in (records[:reopen_after], records[reopen_after:]):
            journal = Journal(Path(name), segment_bytes=segment_bytes)
            positions += [journal.append(*record).result(5) for record in part]
            live = list(journal.read_from(0))
            journal.close()
            assert live == list(Scan(Path(name)))
        found = list(Scan(Path(name)))
        assert [(record.kind, record.received_at_us, record.payload) for record in found] == records
        assert [record.position for record in found] == positions
        assert positions == sorted(set(positions))
        for cut in range(len(found)):
            assert list(Scan(Path(name), positions[cut])) == found[cut + 1 :]


def segment(folder: Path) -> tuple[Path, list[Record]]:
    """A segment with five records, as another process would find it."""
    journal = Journal(folder)
    fill(journal, 5, 20)
    journal.close()
    return next(folder.iterdir()), list(Scan(folder))


def test_a_torn_end_is_cut_at_every_offset(tmp_path: Path) -> None:
    file, records = segment(tmp_path)
    whole = file.read_bytes()
    ends = [0, *(record.position & 0xFFFFFFFF for record in records)]
    for size in range(len(whole) + 1):
        file.write_bytes(whole[:size])
        scan = Scan(tmp_path)
        expected = [record for record, end in zip(records, ends[1:], strict=True) if end <= size]
        assert list(scan) == expected
        assert scan.damaged == []
        assert scan.torn == (size not in (*ends[1:], len(HEADER)))


def test_a_torn_end_does_not_stop_the_next_writer(tmp_path: Path) -> None:
    file, records = segment(tmp_path)
    file.write_bytes(file.read_bytes()[:-1])
    journal = Journal(tmp_path)
    position = journal.append(Signal.LOGS, 1, b"after").result(5)
    assert position > records[-1].position
    assert [record.payload for record in journal.read_from(0)] == [*(record.payload for record in records[:-1]), b"after"]
    journal.close()


def test_a_flipped_byte_anywhere_is_named_and_the_next_segment_read(tmp_path: Path) -> None:
    file, records = segment(tmp_path)
    journal = Journal(tmp_path)
    journal.append(Signal.LOGS, 1, b"next").result(5)
    journal.close()
    whole = file.read_bytes()
    for offset in range(len(whole)):
        file.write_bytes(whole[:offset] + bytes([whole[offset] ^ 0x41]) + whole[offset + 1 :])
        scan = Scan(tmp_path)
        found = list(scan)
        before = [record for record in records if record.position & 0xFFFFFFFF <= offset and offset >= len(HEADER)]
        assert found[:-1] == before
        assert found[-1].payload == b"next"
        assert [damage.segment for damage in scan.damaged] == [file.name]
        assert file.name in str(scan.damaged[0])


def test_damage_met_by_a_reader_of_the_journal_is_counted_once(tmp_path: Path) -> None:
    file, _ = segment(tmp_path)
    file.write_bytes(file.read_bytes()[:-1] + b"\xff")
    journal = Journal(tmp_path)
    assert len(list(journal.read_from(0))) == 4
    assert len(list(journal.read_from(0))) == 4
    assert [damage.reason for damage in journal.damaged] == ["payload"]
    journal.close()


def test_group_commit_shares_syncs(tmp_path: Path) -> None:
    disk = FaultyDisk()
    held = threading.Event()
    sync = disk.sync
    disk.sync = lambda handle: (held.wait(5), sync(handle))[1]  # type: ignore[method-assign]
    journal = Journal(tmp_path, disk=disk)
    futures = [journal.append(Signal.TRACES, 1, b"x") for _ in range(200)]
    assert not any(future.done() for future in futures)
    held.set()
    assert len({future.result(5) for future in futures}) == 200
    journal.close()
    assert disk.syncs <= 4  # the header, the first record or so, the rest


def test_nothing_is_acknowledged_that_was_not_synced(tmp_path: Path) -> None:
    disk = FaultyDisk()
    journal = Journal(tmp_path, disk=disk)
    fill(journal, 3)
    end = journal.end
    for failing in ("sync", "append", "create"):
        disk.fail = {failing}
        with pytest.raises(JournalError, match="no space left"):
            journal.append(Signal.TRACES, 1, b"refused").result(5)
        assert journal.end == end
    disk.fail = set()
    journal.append(Signal.TRACES, 1, b"taken").result(5)
    assert [record.payload for record in journal.read_from(end)] == [b"taken"]
    journal.close()
    assert b"refused" not in b"".join(payloads(tmp_path))


def test_a_full_journal_refuses_and_takes_again_once_drained(tmp_path: Path) -> None:
    journal = Journal(tmp_path, max_bytes=2000)
    positions: list[int] = []

    def append_many() -> None:
        for _ in range(100):
            positions.append(journal.append(Signal.TRACES, 1, b"x" * 50).result(5))

    with pytest.raises(FullError, match="try again"):
        append_many()
    assert journal.bytes <= 2000
    assert len(payloads(tmp_path)) == len(positions) > 10
    journal.drained(positions[-1])
    assert journal.bytes == 0
    fill(journal, 5)
    journal.close()


def test_one_full_group_does_not_lock_the_journal(tmp_path: Path) -> None:
    journal = Journal(tmp_path, max_bytes=1000)
    position = journal.append(Signal.TRACES, 1, b"x" * 900).result(5)
    with pytest.raises(FullError):
        journal.append(Signal.TRACES, 1, b"x" * 900)
    journal.drained(position)
    position = journal.append(Signal.TRACES, 1, b"y" * 900).result(5)
    journal.drained(position)
    assert payloads(tmp_path) == [b"y" * 900]
    journal.close()


def test_what_waits_in_memory_has_a_limit_too(tmp_path: Path) -> None:
    disk = FaultyDisk()
    held = threading.Event()
    sync = disk.sync
    disk.sync = lambda handle: (held.wait(5), sync(handle))[1]  # type: ignore[method-assign]
    journal = Journal(tmp_path, max_waiting_bytes=1000, disk=disk)
    taken: list[Future[int]] = []

    def append_many() -> None:
        for _ in range(100):
            taken.append(journal.append(Signal.TRACES, 1, b"x" * 100))

    with pytest.raises(FullError):
        append_many()
    held.set()
    assert [future.result(5) for future in taken]
    journal.close()


def test_drained_removes_whole_segments_only(tmp_path: Path) -> None:
    journal = Journal(tmp_path, segment_bytes=100)
    positions = [journal.append(Signal.TRACES, number, b"x" * 30).result(5) for number in range(10)]
    numbers = sorted({segment_of(position) for position in positions})
    assert len(numbers) > 2
    middle = next(position for position in positions if segment_of(position) == numbers[2])
    journal.drained(middle)
    assert sorted(path.name for path in tmp_path.iterdir()) == [name_of(number) for number in numbers[2:]]
    assert [record.position for record in journal.read_from(middle)] == [position for position in positions if position > middle]
    journal.close()


def test_a_removed_journal_begins_above_the_stores_position(tmp_path: Path) -> None:
    journal = Journal(tmp_path, after=(7 << 32) + 99)
    assert journal.append(Signal.TRACES, 1, b"x").result(5) > (7 << 32) + 99
    journal.close()


def test_a_closed_journal_says_so_and_has_written_what_was_queued(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    futures = [journal.append(Signal.TRACES, 1, b"x") for _ in range(50)]
    journal.close()
    journal.close()
    assert all(future.done() for future in futures)
    assert len(payloads(tmp_path)) == 50
    with pytest.raises(JournalError, match="closed"):
        journal.append(Signal.TRACES, 1, b"x")


def test_a_caller_who_leaves_does_not_take_its_record_back(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    future = journal.append(Signal.TRACES, 1, b"x")
    assert not future.cancel()
    assert future.result(5) > 0
    journal.append(Signal.TRACES, 1, b"y").result(5)
    journal.close()


def test_wait_tells_of_new_records(tmp_path: Path) -> None:
    journal = Journal(tmp_path)
    assert not journal.wait(0, 0.0)
    position = journal.append(Signal.TRACES, 1, b"x").result(5)
    assert journal.wait(0, 0.0)
    assert not journal.wait(position, 0.0)
    journal.close()


def test_files_that_are_not_segments_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("x")
    (tmp_path / "zzzzzzzz.journal").write_text("x")
    journal = Journal(tmp_path)
    fill(journal, 1)
    journal.drained(journal.end)
    journal.close()
    assert {"notes.txt", "zzzzzzzz.journal"} < {path.name for path in tmp_path.iterdir()}


def test_a_record_of_an_unknown_kind_stops_its_segment(tmp_path: Path) -> None:
    record = framed(9, 1, b"x")  # type: ignore[arg-type]
    (tmp_path / name_of(1)).write_bytes(HEADER + record)
    scan = Scan(tmp_path)
    assert list(scan) == []
    assert [damage.reason for damage in scan.damaged] == ["kind"]


def test_an_empty_folder_and_none_hold_nothing(tmp_path: Path) -> None:
    assert payloads(tmp_path) == payloads(tmp_path / "none") == []
