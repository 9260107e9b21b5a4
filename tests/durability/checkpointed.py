"""The process that is watched: rows come, change and go, are checkpointed with an undo record, and the file is opened anew.

    python checkpointed.py FOLDER SEED

Before and after each checkpoint, `used/<number>` gets the blocks that the file's tables and its metadata lie in, as JSON.
"""

import itertools
import json
import random
import sys
from pathlib import Path
from typing import Final

import duckdb

from lensd.store.catalog import Catalog
from lensd.store.checkpoints import Checkpoints
from lensd.store.schema import STORAGE_VERSION

LIVES: Final = 4
STEPS: Final = 40
TABLES: Final = (
    "narrow (number BIGINT)",
    "wide (number BIGINT, name VARCHAR, fields VARCHAR, seen_at TIMESTAMP)",
    "few (number BIGINT, name VARCHAR)",
)
_ROWS: Final = {
    "narrow": "SELECT range",
    "wide": "SELECT range, 'name ' || range % 9, repeat(md5(range::VARCHAR), 1 + range::INT % 3), make_timestamp(range * 1000)",
    "few": "SELECT range, md5(range::VARCHAR)",
}


def main(folder: Path, chance: random.Random) -> None:
    (folder / "used").mkdir()
    numbers = itertools.count()
    for _ in range(LIVES):
        catalog = Catalog(folder)
        run = catalog.connection.execute
        run(f"ATTACH '{folder / 'made.duckdb'}' AS made (STORAGE_VERSION '{STORAGE_VERSION}')")
        checkpoints = Checkpoints(run)
        checkpoints.add("made", folder / "made.duckdb")
        for table in TABLES:
            run(f"CREATE TABLE IF NOT EXISTS made.{table}")
        for _ in range(STEPS):
            change(run, chance)
            if chance.random() < 0.4:
                note(run, folder / "used" / str(next(numbers)))
                checkpoints.write("made")
                note(run, folder / "used" / str(next(numbers)))
        catalog.close()
        checkpoints.close()


def change(run, chance: random.Random) -> None:  # type: ignore[no-untyped-def]
    table = chance.choice([*_ROWS])
    low = chance.randrange(100_000)
    match chance.randrange(8):
        case 0:
            run(f"DELETE FROM made.{table} WHERE number BETWEEN {low} AND {low + chance.choice((10, 50_000))}")
        case 1:
            run(f"UPDATE made.{table} SET number = number + 1 WHERE number BETWEEN {low} AND {low + 100}")
        case 2:
            run(f"INSERT INTO made.{table} {_ROWS[table]} FROM range({low}, {low + 150_000})")
        case 3 if table == "few":
            run("DROP TABLE made.few")
            run(f"CREATE TABLE made.{TABLES[2]}")
        case _:
            run(f"INSERT INTO made.{table} {_ROWS[table]} FROM range({low}, {low + chance.choice((3, 300, 9_000))})")


def note(run, target: Path) -> None:  # type: ignore[no-untyped-def]
    found: set[int] = set()
    for table in _ROWS:
        for block, others in run(
            f"SELECT block_id, additional_block_ids FROM pragma_storage_info('made.{table}') WHERE persistent"
        ).fetchall():
            found.update(number for number in (block, *(others or ())) if number is not None and number >= 0)
    metadata = [number for (number,) in run("SELECT block_id FROM pragma_metadata_info('made')").fetchall()]
    target.write_text(json.dumps({"tables": sorted(found), "metadata": metadata}))


if __name__ == "__main__":
    try:
        main(Path(sys.argv[1]), random.Random(int(sys.argv[2])))
    except duckdb.Error as error:
        sys.exit(str(error))
