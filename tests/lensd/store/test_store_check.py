"""What a check finds in a folder that is sound, and in one that is not."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest
from lensd_collectors.rows import Event, Instant
from old_store import bytes_of, old_store
from store_rows import DAY_US, NOV_29, NOV_30, request, span

from lensd.errors import NoStoreError, StoreBusyError
from lensd.store.arrow import batch_of
from lensd.store.check import StoreCheck, check, lines
from lensd.store.folder import FolderStore
from lensd.store.journal import Journal
from lensd.store.segments import Signal

DAY = "day-20261129.duckdb"
EVENTS = 400_000


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    store = FolderStore(tmp_path / "store")
    store.append(batch_of({"spans": [span(1, NOV_29), span(2, NOV_30)], "requests": [request(1, 0), request(1, 1, "ok")]}), 5)
    store.close()
    return tmp_path / "store"


def rows(found: StoreCheck, table: str) -> int | None:
    return next(view.rows for view in found.views if view.table == table)


def of_file(found: StoreCheck, name: str) -> dict[str, int | None]:
    [file] = [file for file in found.files if file.file == name]
    return {table.table: table.rows for table in file.tables}


def test_a_sound_store(folder: Path) -> None:
    before = bytes_of(folder)
    told: list[str] = []
    found = check(folder, told.append)
    assert found.is_sound
    assert (rows(found, "spans"), rows(found, "requests")) == (2, 1)
    assert (of_file(found, DAY)["requests"], of_file(found, DAY)["spans"], of_file(found, DAY)["progress"]) == (2, 1, 1)
    assert {DAY, "main.duckdb", "view spans", "journal"} <= set(told)
    assert bytes_of(folder) == before
    assert not [line for line in lines(found) if line.startswith("damaged")]


def test_a_migrated_store_says_so(tmp_path: Path) -> None:
    FolderStore(old_store(tmp_path / "old"), clock=lambda: 1_796_101_200.0).close()
    found = check(tmp_path / "old")
    assert [(step["version"], step["at"]) for step in found.migrations] == [(2, 1_796_101_200_000_000)]
    assert [backup.name for backup in found.backups] == ["backup-v1-20261201T050000Z"]
    assert any("backup-v1-20261201T050000Z" in line for line in lines(found))


def test_a_file_that_does_not_open_is_named_in_one_line_and_the_rest_is_counted(folder: Path) -> None:
    (folder / DAY).write_bytes(b"not a database" * 1000)
    found = check(folder)
    assert not found.is_sound
    [said] = [line for line in lines(found) if line.startswith("damaged")]
    assert DAY in said
    assert "\n" not in said
    assert (rows(found, "spans"), rows(found, "requests")) == (1, 0)


def test_the_tables_that_a_damaged_file_still_gives_are_counted(folder: Path) -> None:
    store = FolderStore(folder)
    told = [Event(seen_at=Instant(NOV_29 + n % DAY_US), name=f"event {n * 7919 % 1_000_003}", line=f"{n * 104_729}") for n in range(EVENTS)]
    store.append(batch_of({"events": told}))
    store.close()
    harm_block_of(folder / DAY, "events", "line")
    found = check(folder)
    assert not found.is_sound
    assert of_file(found, DAY)["events"] is None
    assert (of_file(found, DAY)["spans"], of_file(found, DAY)["requests"]) == (1, 2)
    [said] = [line for line in lines(found) if line.startswith("damaged") and DAY in line]
    assert "cannot read events" in said
    assert len(of_file(found, "main.duckdb")) > 2


def harm_block_of(file: Path, table: str, column: str) -> None:
    """Turn round some bytes of a block in which values of this column lie."""
    with duckdb.connect(str(file), read_only=True) as connection:
        sql = f"SELECT block_id FROM pragma_storage_info('{table}') WHERE column_name = ? AND block_id >= 0 AND segment_type <> 'VALIDITY'"
        block = connection.execute(f"{sql} ORDER BY count DESC, block_id LIMIT 1", [column]).fetchall()[0][0]
        size = connection.execute("SELECT block_size FROM pragma_database_size()").fetchall()[0][0]
    data = bytearray(file.read_bytes())
    start = 3 * 4096 + block * size + size // 2
    data[start : start + 64] = bytes(byte ^ 0xFF for byte in data[start : start + 64])
    file.write_bytes(data)


def test_the_journal(folder: Path) -> None:
    journal = Journal(folder / "journal", after=5)
    positions = [journal.append(Signal.TRACES, 1, b"body %d" % number).result() for number in range(3)]
    journal.close()
    store = FolderStore(folder)
    store.append({}, positions[0])
    store.close()
    found = check(folder).journal
    assert (found.segments, found.records, found.undrained, found.torn, found.damaged) == (1, 3, 2, 0, ())
    [segment] = (folder / "journal").iterdir()
    data = bytearray(segment.read_bytes())
    data[-1] ^= 0xFF
    segment.write_bytes(data)
    harmed = check(folder)
    assert not harmed.is_sound
    assert (harmed.journal.records, len(harmed.journal.damaged)) == (2, 1)
    assert [line for line in lines(harmed) if line.startswith("damaged")] == [f"damaged  journal: {harmed.journal.damaged[0]}"]


def test_a_store_that_another_process_has_is_not_read(folder: Path) -> None:
    code = "import sys; from pathlib import Path; from lensd.store.folder import FolderStore\n"
    code += "s = FolderStore(Path(sys.argv[1])); print('has it', flush=True); sys.stdin.read()"
    child = subprocess.Popen([sys.executable, "-c", code, str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "has it\n"
        with pytest.raises(StoreBusyError, match=f"process {child.pid}.*stop it"):
            check(folder)
    finally:
        child.communicate("")


def test_no_store(tmp_path: Path) -> None:
    with pytest.raises(NoStoreError):
        check(tmp_path)
