"""A store of an earlier schema version becomes one of the present version; a kill at any point leaves the one or the other."""

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import pytest
from old_store import all_of, bytes_of, everything, old_store, tables_of, version_of
from store_rows import NOV_29, span

from lensd.errors import StoreBusyError, StoreFailedError
from lensd.store import migrations, swap
from lensd.store.arrow import batch_of
from lensd.store.backups import backups, restore
from lensd.store.folder import FolderStore
from lensd.store.journal import Journal
from lensd.store.migrations import MIGRATIONS, Applied, Migration, applied, migrate
from lensd.store.schema import SCHEMA_VERSION, statements
from lensd.store.segments import Signal

NOW = 1_796_101_200.0  # 2026-12-01T05:00:00Z
BACKUP = "backup-v1-20261201T050000Z"
LACKING = ("spans.status_message", "requests.withdrawn", "events.line")


def opened(folder: Path) -> FolderStore:
    return FolderStore(folder, clock=lambda: NOW)


def lacking(folder: Path) -> Path:
    """A store of version 1 from before some of its columns came."""
    old_store(folder)
    with duckdb.connect(str(folder / "day-20261129.duckdb")) as file:
        for column in LACKING:
            table, _, name = column.partition(".")
            file.execute(f"ALTER TABLE {table} DROP COLUMN {name}")
    return folder


def test_every_row_of_a_store_of_version_1_is_there_afterwards(tmp_path: Path) -> None:
    folder = old_store(tmp_path / "store")
    before = everything(folder)
    assert all(before.values()), "a table of the fixture is empty"
    store = opened(folder)
    assert store.position() == 9
    store.close()
    assert version_of(folder) == SCHEMA_VERSION
    assert everything(folder) == before
    assert everything(folder / BACKUP) == before


def test_a_migrated_file_has_the_columns_of_a_new_one(tmp_path: Path) -> None:
    opened(lacking(tmp_path / "old")).close()
    new = opened(tmp_path / "new")
    new.append(batch_of({"spans": [span(1, NOV_29)]}))
    new.close()
    for name in ("main.duckdb", "day-20261129.duckdb"):
        assert tables_of(tmp_path / "old" / name) == tables_of(tmp_path / "new" / name)
    store = opened(tmp_path / "old")
    store.append(batch_of({"spans": [span(77, NOV_29)]}))
    with store.cursor() as cursor:
        assert cursor.execute("SELECT count(*), count(status_message) FROM spans WHERE started_at < '2026-11-30'").fetchall() == [(4, 0)]
    store.close()


def test_what_was_done_is_recorded_and_the_backup_is_what_it_was(tmp_path: Path) -> None:
    folder = lacking(tmp_path / "store")
    kept = bytes_of(folder)
    opened(folder).close()
    with duckdb.connect(str(folder / "main.duckdb"), read_only=True) as main:
        [step] = applied(main.execute, "main_db")
    assert isinstance(step, Applied)
    assert (step.name, step.version, step.at) == (MIGRATIONS[0].name, 2, int(NOW * 1e6))
    assert bytes_of(folder / BACKUP) == kept
    [backup] = backups(folder)
    assert (backup.name, backup.schema_version, backup.made_at) == (BACKUP, 1, "2026-12-01T05:00:00Z")
    assert backup.bytes == sum(map(len, kept.values()))
    again = opened(folder)
    again.close()
    assert len(backups(folder)) == 1


def test_a_migrated_store_is_no_new_install(tmp_path: Path) -> None:
    folder = old_store(tmp_path / "store")
    os.utime(folder / "store.json", (NOW - 86_400, NOW - 86_400))
    opened(folder).close()
    assert (folder / "store.json").stat().st_mtime == NOW - 86_400
    restore(folder, BACKUP, lambda: NOW + 60)
    assert (folder / "store.json").stat().st_mtime == NOW - 86_400


def test_an_undrained_journal_goes_along(tmp_path: Path) -> None:
    folder = old_store(tmp_path / "store")
    journal = Journal(folder / "journal", after=9)
    journal.append(Signal.TRACES, 1, b"body").result()
    journal.close()
    [segment] = (folder / "journal").iterdir()
    told = segment.read_bytes()
    opened(folder).close()
    assert [path.read_bytes() for path in (folder / "journal").iterdir()] == [told]
    assert [path.read_bytes() for path in (folder / BACKUP / "journal").iterdir()] == [told]


def test_rows_in_a_log_that_a_kill_has_left_are_migrated_too(tmp_path: Path) -> None:
    folder = old_store(tmp_path / "store")
    code = "import duckdb, os, sys; c = duckdb.connect(sys.argv[1]); c.execute(sys.argv[2]); os.kill(os.getpid(), 9)"
    insert = "INSERT INTO spans BY NAME SELECT 'late' AS name, TIMESTAMP '2026-11-29 01:00:00' AS started_at"
    done = subprocess.run([sys.executable, "-c", code, str(folder / "day-20261129.duckdb"), insert], check=False)
    assert done.returncode == -signal.SIGKILL
    assert (folder / "day-20261129.duckdb.wal").exists()
    before = everything(folder)
    opened(folder).close()
    assert "late" in repr(before["spans"])
    assert everything(folder) == before


def test_a_reader_without_a_daemon_changes_nothing(tmp_path: Path) -> None:
    folder = lacking(tmp_path / "store")
    before = bytes_of(folder)
    assert len(everything(folder)["spans"]) == 6
    assert bytes_of(folder) == before


def test_too_little_room_is_said_before_anything_is_copied(tmp_path: Path) -> None:
    folder = old_store(tmp_path / "store")
    with pytest.raises(StoreFailedError, match=r"from schema version 1 to 2: this needs 0\.07 GB of disk and 0\.01 GB are free") as error:
        migrate(folder, 1, free=lambda _: 10_000_000)
    assert "\n" not in str(error.value)
    assert sorted(path.name for path in folder.iterdir()) == ["day-20261129.duckdb", "day-20261130.duckdb", "main.duckdb", "store.json"]


def test_a_store_that_another_process_has_is_left_alone(tmp_path: Path) -> None:
    folder = old_store(tmp_path / "store")
    code = "import duckdb, sys; c = duckdb.connect(sys.argv[1]); print('has it', flush=True); sys.stdin.read()"
    child = subprocess.Popen(
        [sys.executable, "-c", code, str(folder / "main.duckdb")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert child.stdout is not None
        assert child.stdout.readline() == "has it\n"
        with pytest.raises(StoreBusyError, match=f"process {child.pid}"):
            opened(folder)
        assert version_of(folder) == 1
    finally:
        child.communicate("")
    opened(folder).close()
    assert version_of(folder) == SCHEMA_VERSION


def test_a_migration_that_fails_leaves_the_old_store(tmp_path: Path) -> None:
    folder = old_store(tmp_path / "store")
    before = everything(folder)

    def fail(run: Callable[..., Any], database: str) -> None:
        run(f"DELETE FROM {database}.progress")
        run("SELECT no_such_function()")

    with pytest.raises(StoreFailedError, match="no_such_function"):
        migrate(folder, 1, migrations=(Migration(2, "fails", fail),))
    assert version_of(folder) == 1
    assert everything(folder) == before
    opened(folder).close()
    assert everything(folder) == before


def test_steps_run_in_order_and_only_those_that_are_due(tmp_path: Path) -> None:
    folder, ran = old_store(tmp_path / "store"), list[str]()

    def step(name: str) -> Callable[..., None]:
        return lambda run, database: ran.append(name)

    steps = [Migration(version, f"to-{version}", step(f"to-{version}")) for version in (1, 2, 3, 4)]
    migrate(folder, 1, lambda: NOW, migrations=steps, target=3)
    assert (ran, version_of(folder)) == (["to-2", "to-3"] * 3, 3)


class Killed(BaseException):
    """What nobody catches: nothing after it happens, as after a kill."""


MOVES = ("replace", "link")


def killing(monkeypatch: pytest.MonkeyPatch, at: int) -> list[str]:
    """The moves on the disk that were made, of which number `at` is not: there the process dies."""
    made: list[str] = []

    def wrapped(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def move(*given: Any, **more: Any) -> Any:
            if len(made) == at:
                raise Killed
            made.append(name)
            return real(*given, **more)

        return move

    for name in MOVES:
        monkeypatch.setattr(os, name, wrapped(name, getattr(os, name)))
    for name in ("copyfile", "rmtree"):
        monkeypatch.setattr(shutil, name, wrapped(name, getattr(shutil, name)))
    monkeypatch.setattr(migrations, "_apply", wrapped("apply", migrations._apply))
    return made


@pytest.mark.slow
def test_a_kill_at_any_point_leaves_a_store_that_opens(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pattern = old_store(tmp_path / "pattern")
    (pattern / "day-20261130.duckdb").unlink()  # two files have every kind of step between them
    journal = Journal(pattern / "journal", after=9)
    journal.append(Signal.TRACES, 1, b"body").result()
    journal.close()
    before, kept, versions, is_done = everything(pattern), bytes_of(pattern), list[int](), False
    while not is_done:
        folder = tmp_path / f"killed-{len(versions)}"
        shutil.copytree(pattern, folder)
        with monkeypatch.context() as patched:
            made = killing(patched, len(versions))
            try:
                opened(folder).close()
                is_done = True
            except Killed:
                pass
        assert everything(folder) == before, f"after {made}"
        versions.append(version_of(folder))
        store = opened(folder)
        assert all_of(store) == before, f"after {made}"
        store.close()
        [backup] = backups(folder)
        assert bytes_of(folder / backup.name) == kept, f"after {made}"
        files = {"day-20261129.duckdb", "main.duckdb", "store.json", "journal", backup.name}
        assert (version_of(folder), {path.name for path in folder.iterdir()}) == (SCHEMA_VERSION, files), f"after {made}"
        shutil.rmtree(folder)
    assert versions == sorted(versions), "once it is the new one it stays that"
    assert len(versions) > 15


REAL = """
import os, sys
from pathlib import Path
from lensd.store import swap
from lensd.store.folder import FolderStore
real, left = os.replace, int(sys.argv[2])
def replace(*given):
    global left
    left -= 1
    if left < 0:
        os.kill(os.getpid(), 9)
    real(*given)
os.replace = replace
FolderStore(Path(sys.argv[1]))
"""


@pytest.mark.parametrize("renames", [1, 4])
def test_a_real_kill_between_two_renames(tmp_path: Path, renames: int) -> None:
    folder = old_store(tmp_path / "store")
    before = everything(folder)
    done = subprocess.run([sys.executable, "-c", REAL, str(folder), str(renames)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert everything(folder) == before
    opened(folder).close()
    assert (version_of(folder), everything(folder)) == (SCHEMA_VERSION, before)


def test_a_damaged_day_stays_as_it_is(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    folder = old_store(tmp_path / "store")
    (folder / "day-20261129.duckdb").write_bytes(b"not a database" * 1000)
    opened(folder).close()
    assert (folder / "day-20261129.duckdb").read_bytes() == b"not a database" * 1000
    assert version_of(folder) == SCHEMA_VERSION
    assert sum("day-20261129.duckdb" in record.message and "stays as it is" in record.message for record in caplog.records) == 1
    assert len(everything(folder)["spans"]) == 3


def test_a_schema_that_changes_needs_a_version_of_its_own() -> None:
    """Where this fails: raise SCHEMA_VERSION, add a migration, and write down the columns of the new version beside the old ones."""
    wanted = (Path(__file__).parents[2] / "captures" / "schema" / f"v{SCHEMA_VERSION}.sql").read_text()
    assert "\n".join(statements("schema.sql")) + "\n" == wanted


def test_nobody_opens_what_is_being_moved_and_nobody_moves_what_is_open(tmp_path: Path) -> None:
    folder = old_store(tmp_path / "store")
    with swap.alone(folder, "test"), pytest.raises(StoreBusyError, match="another lensd uses or moves"):
        opened(folder)
    store = opened(folder)
    with pytest.raises(StoreBusyError, match="open elsewhere"):
        restore(folder, BACKUP)
    store.close()
    with swap.alone(folder, "test"), pytest.raises(StoreBusyError, match="another lensd uses or moves"):
        opened(folder)
    restore(folder, BACKUP)
