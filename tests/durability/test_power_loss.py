"""What a store did to its disk, with what was not synced dropped or torn: everything acknowledged is there, and there once."""

import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from torn import LIVES_BEFORE, ROWS
from watched import HERE, Folder, changes, environ, library

from lensd.errors import StoreError
from lensd.store.folder import FolderStore

NO_KILLS = 1_000_000  # every millionth change
LOSSES_A_CHANGE = 3
LOSSES_OF_A_BLOCK = 8
SHORT_FORM = 9  # of so many changes one is followed by a loss


@pytest.mark.slow
@pytest.mark.parametrize("life", ["asking", "rolling-over"])
def test_a_loss_of_power_loses_and_doubles_nothing(
    life: str, is_long: bool, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    watch(tmp_path, life)
    folder, said, losses, records = Folder(), LIVES_BEFORE * ROWS, 0, 0
    folder.start(tmp_path / "before")
    for number, change in enumerate(changes(tmp_path / "log")):
        folder.take(change)
        if change.path.startswith("said/"):
            said = int(change.path.removeprefix("said/"))
        for loss in range(LOSSES_A_CHANGE if is_long else number % SHORT_FORM == 0):
            place = tmp_path / "left"
            shutil.rmtree(place, ignore_errors=True)
            folder.lose_power(place, random.Random(f"{number}/{loss}"))
            losses += 1
            records += any(place.glob("store/*.undo"))
            what = f"loss {loss} after change {number}, {change.kind} of {change.path}"
            assert rows_of(place / "store", read_only=loss % 2 == 0) in (said, said + ROWS), what
    record_property("figures", f"{life}: {losses} losses of power, {records} of them with an undo record there")
    assert records


@pytest.mark.slow
def test_without_its_records_a_store_would_lose_rows(long_only: None, tmp_path: Path) -> None:
    """The losses do tear what a checkpoint writes."""
    watch(tmp_path, "asking")
    folder = Folder()
    folder.start(tmp_path / "before")
    for number, change in enumerate(changes(tmp_path / "log")):
        folder.take(change)
        for loss in range(LOSSES_OF_A_BLOCK if change.path.endswith(".duckdb") else 0):
            if is_lost(tmp_path / "left", folder, random.Random(f"{number}/{loss}")):
                return
    pytest.fail("no loss was found out")


def is_lost(place: Path, folder: Folder, chance: random.Random) -> bool:
    shutil.rmtree(place, ignore_errors=True)
    folder.lose_power(place, chance)
    for record in place.glob("store/*.undo"):
        record.unlink()
    try:
        return rows_of(place / "store", read_only=True) < LIVES_BEFORE * ROWS
    except (AssertionError, StoreError):
        return True


def watch(tmp_path: Path, life: str) -> None:
    """Have `tmp_path/before` made, and `tmp_path/log` of the changes of that life."""
    command = [sys.executable, str(HERE / "torn.py"), str(tmp_path), life, str(NO_KILLS)]
    subprocess.run(command, env=environ(library(tmp_path), tmp_path / "watched"), check=True, timeout=120)


def rows_of(store: Path, *, read_only: bool) -> int:
    """How many rows there are; fails where a row is there twice or a file is left out."""
    opened = FolderStore(store, read_only=read_only)
    try:
        assert opened.left_out == {}
        with opened.cursor() as cursor:
            [(rows, names)] = cursor.execute("SELECT count(*), count(DISTINCT name) FROM spans").fetchall()
    finally:
        opened.close()
    assert rows == names
    return int(rows)
