"""A kill inside any of the large writes of a checkpoint, at an orderly stop: what the store had before is still there."""

import itertools
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from lensd.store.folder import FolderStore

HERE = Path(__file__).resolve().parent
LIVES = 4
ROWS = 50

LIFE = """
import sys
from pathlib import Path
sys.path.insert(0, sys.argv[3])
from store_rows import span
from lensd.store.arrow import batch_of
from lensd.store.folder import FolderStore
first, rows = int(sys.argv[2]), int(sys.argv[4])
store = FolderStore(Path(sys.argv[1]))
store.append(batch_of({"spans": [span(number) for number in range(first, first + rows)]}), first + rows)
store.close()
"""


def live(store: Path, number: int, **environ: str) -> int:
    """The exit status of a process that appends rows and stops in order."""
    arguments = [str(store), str(number * ROWS), str(HERE.parent / "lensd" / "store"), str(ROWS)]
    done = subprocess.run([sys.executable, "-c", LIFE, *arguments], env=os.environ | environ, capture_output=True, timeout=60, check=False)
    return done.returncode


@pytest.mark.slow
def test_a_torn_write_of_a_checkpoint_loses_no_row_of_before(long_only: None, tmp_path: Path) -> None:
    """Fails with DuckDB 1.5.5, which writes over a block that the file still stands on: docs/adr/022."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler here")
    library, store = tmp_path / "torn_write.so", tmp_path / "store"
    subprocess.run([compiler, "-shared", "-fPIC", "-o", str(library), str(HERE / "torn_write.c"), "-ldl"], check=True)
    assert [live(store, number) for number in range(LIVES)] == [0] * LIVES
    torn = 0
    for write in itertools.count(1):
        place = tmp_path / str(write) / "store"
        shutil.copytree(store, place)
        day = next(place.glob("day-20261129*.duckdb")).resolve()
        status = live(place, LIVES, LD_PRELOAD=str(library), TORN_FILE=str(day), TORN_AT=str(write))
        if status == 0:
            break  # it writes no more than that
        assert status == -9
        assert spans_of(place) >= LIVES * ROWS, f"write {write} of the stop was torn"
        torn += 1
    assert torn > 0


def spans_of(place: Path) -> int:
    reader = FolderStore(place, read_only=True)
    try:
        with reader.cursor() as cursor:
            [(found,)] = cursor.execute("SELECT count(*) FROM spans").fetchall()
            return int(found)
    finally:
        reader.close()
