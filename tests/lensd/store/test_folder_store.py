"""What only the folder store does: files, locks, versions, and what a crash between two files leaves."""

import json
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from lensd_collectors.rows import ConfigFact
from store_rows import DAY_US, NOV_29, NOV_30, request, span

from lensd.errors import NoStoreError, StoreBusyError, StoreFailedError, StoreVersionError
from lensd.store import folder as folder_module
from lensd.store.arrow import batch_of
from lensd.store.folder import FolderStore


def count(store: FolderStore, table: str = "spans") -> int:
    with store.cursor() as cursor:
        return int(cursor.execute(f"SELECT count(*) FROM {table}").fetchall()[0][0])


def test_files_lie_as_designed(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "deep" / "store", clock=lambda: NOV_30 / 1e6 + 60)
    store.append(batch_of({"spans": [span(1, NOV_29), span(2, None)], "config_facts": [ConfigFact(seen_at=NOV_29, name="n")]}), 5)
    store.append(batch_of({"requests": [request(1, 0, at=NOV_29 - 1)]}))
    store.close()
    made = tmp_path / "deep" / "store"
    assert sorted(path.name for path in made.iterdir()) == [
        "day-20261128.duckdb", "day-20261129.duckdb", "day-20261130.duckdb", "main.duckdb", "store.json",
    ]  # fmt: skip
    assert stat.S_IMODE(made.stat().st_mode) == 0o700
    assert json.loads((made / "store.json").read_text()) == {"schema_version": 2}


def test_reopening_finds_everything(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    store.append(batch_of({"spans": [span(1, NOV_29), span(2, NOV_30)]}), 7)
    store.close()
    again = FolderStore(tmp_path)
    assert (count(again), again.position()) == (2, 7)
    again.append(batch_of({"spans": [span(3, NOV_30)]}), 7)
    assert count(again) == 2
    again.close()


def test_files_are_made_with_the_storage_version_of_the_design(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    store.append(batch_of({"spans": [span(1)]}))
    with store.cursor() as cursor:
        tags = dict(cursor.execute("SELECT database_name, tags['storage_version'] FROM duckdb_databases() WHERE NOT internal").fetchall())
    store.close()
    del tags["memory"]
    assert set(tags) == {"main_file", "day_20261129"}
    assert all(tag.startswith("v1.5.0") for tag in tags.values()), tags


def test_a_crash_between_two_files_neither_loses_nor_doubles(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    store.append(batch_of({"spans": [span(1, NOV_29)]}), 5)
    store._append_to("day_20261129", {"spans": batch_of({"spans": [span(2, NOV_29)]})["spans"]}, 9)  # and then the process died
    store.close()
    store = FolderStore(tmp_path)
    assert (store.position(), store.reached()) == (5, 9)
    store.append(batch_of({"spans": [span(2, NOV_29), span(3, NOV_30)]}), 9)
    assert (store.position(), store.reached(), count(store)) == (9, 9, 3)
    store.close()


def test_read_only_sees_all_and_holds_more_in_memory(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    store.append(batch_of({"spans": [span(1, NOV_29)], "requests": [request(1, 0)]}), 5)
    store._append_to("day_20261129", {"spans": batch_of({"spans": [span(2, NOV_29)]})["spans"]}, 9)
    store.close()
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    reader = FolderStore(tmp_path, read_only=True)
    assert (count(reader), reader.position(), reader.reached()) == (2, 5, 9)
    reader.append(batch_of({"spans": [span(2, NOV_29), span(3, NOV_30)], "config_facts": [ConfigFact(name="n")]}), 9)
    reader.append(batch_of({"requests": [request(1, 1, "ok")]}))
    assert (count(reader), count(reader, "config_facts"), reader.position()) == (3, 1, 9)
    with reader.cursor() as cursor:
        assert cursor.execute("SELECT outcome FROM requests").fetchall() == [("ok",)]
    reader.close()
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


WRITE_AND_DIE = """
import os, sys
from pathlib import Path
sys.path.insert(0, {here!r})
from store_rows import span
from lensd.store.arrow import batch_of
from lensd.store.folder import FolderStore
store = FolderStore(Path(sys.argv[1]))
store.append(batch_of({{"spans": [span(1), span(2)]}}), 3)
print("ready", flush=True)
if sys.argv[2] == "die":
    os.kill(os.getpid(), 9)
sys.stdin.read()
"""


def writer(folder: Path, how: str) -> "subprocess.Popen[str]":
    code = WRITE_AND_DIE.format(here=str(Path(__file__).parent))
    return subprocess.Popen([sys.executable, "-c", code, str(folder), how], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_a_second_process_is_told_who_has_the_store(tmp_path: Path) -> None:
    child = writer(tmp_path, "stay")
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
        for read_only in (False, True):
            with pytest.raises(StoreBusyError, match=f"process {child.pid}"):
                FolderStore(tmp_path, read_only=read_only)
    finally:
        child.communicate("")
    store = FolderStore(tmp_path, read_only=True)
    assert count(store) == 2
    store.close()


def test_a_killed_writers_rows_are_read_without_a_writer(tmp_path: Path) -> None:
    child = writer(tmp_path, "die")
    child.communicate("")
    assert child.returncode == -9
    reader = FolderStore(tmp_path, read_only=True)
    assert (count(reader), reader.position()) == (2, 3)
    reader.close()


def test_closing_frees_the_store_while_a_cursor_is_open(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    with store.cursor() as cursor:
        cursor.execute("SELECT 1")
        store.close()
        FolderStore(tmp_path).close()


def test_no_store_is_said(tmp_path: Path) -> None:
    with pytest.raises(NoStoreError, match="no store at"):
        FolderStore(tmp_path / "nowhere", read_only=True)
    assert not (tmp_path / "nowhere").exists()


@pytest.mark.parametrize(("marker", "says"), [('{"schema_version": 99}', "99.*upgrade lensd"), ("{", "damaged")])
def test_a_newer_or_damaged_marker_is_refused_in_one_line(tmp_path: Path, marker: str, says: str) -> None:
    FolderStore(tmp_path).close()
    (tmp_path / "store.json").write_text(marker)
    with pytest.raises(StoreVersionError, match=says) as error:
        FolderStore(tmp_path)
    assert "\n" not in str(error.value)


def test_a_damaged_main_file_is_named_in_one_line(tmp_path: Path) -> None:
    FolderStore(tmp_path).close()
    (tmp_path / "main.duckdb").write_bytes(b"not a database" * 1000)
    with pytest.raises(StoreFailedError, match=r"main\.duckdb") as error:
        FolderStore(tmp_path)
    assert "\n" not in str(error.value)


def test_broken_clocks_do_not_fill_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder_module, "MAX_DAYS", 3)
    store = FolderStore(tmp_path)
    for day in range(6):
        store.append(batch_of({"spans": [span(day, NOV_29 + day * DAY_US)]}), day + 1)
    assert (count(store), len(list(tmp_path.glob("day-*.duckdb")))) == (6, 3)
    store.close()
    again = FolderStore(tmp_path)
    assert count(again) == 6
    again.close()


def test_a_file_whose_making_was_cut_short_does_not_keep_the_store_from_opening(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = FolderStore(tmp_path)
    seen: list[list[str]] = []

    def killed(*_: object) -> None:
        seen.append(sorted(path.name for path in tmp_path.glob("day-*")))
        raise OSError("killed")

    with monkeypatch.context() as patched:
        patched.setattr(folder_module.os, "replace", killed)
        with pytest.raises(StoreFailedError, match="killed"):
            store.append(batch_of({"spans": [span(1, NOV_29)]}), 7)
    store.close()
    assert seen == [["day-20261129.duckdb.new"]]
    (tmp_path / "day-20261129.duckdb.new").write_bytes(b"half a header")
    again = FolderStore(tmp_path)
    again.append(batch_of({"spans": [span(1, NOV_29)]}), 7)
    assert (count(again), again.position()) == (1, 7)
    again.close()
