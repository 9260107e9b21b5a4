"""A store as an earlier lensd made it, from the SQL of its files in tests/captures/store-v<version>."""

import json
import shutil
from pathlib import Path
from typing import Any

import duckdb
from lensd_collectors.rows import TABLES

from lensd.store.folder import FolderStore
from lensd.store.schema import MAIN_TABLES

CAPTURES = Path(__file__).parents[2] / "captures"


def old_store(folder: Path, version: int = 1) -> Path:
    """The store's folder, made anew in `folder`: main.duckdb and two days."""
    told = CAPTURES / f"store-v{version}"
    folder.mkdir(parents=True)
    with duckdb.connect() as connection:
        for script in sorted(told.glob("*.sql")):
            connection.execute(f"ATTACH '{folder / script.stem}.duckdb' AS made (STORAGE_VERSION 'v1.5.0')")
            connection.execute("USE made")
            connection.execute(script.read_text())
            connection.execute("USE memory")
            connection.execute("DETACH made")
    shutil.copy(told / "store.json", folder / "store.json")
    return folder


def version_of(folder: Path) -> int:
    return int(json.loads((folder / "store.json").read_text())["schema_version"])


def everything(folder: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Each table's rows as readers without a daemon see them, with every column that a present store has."""
    store = FolderStore(folder, read_only=True)
    try:
        return all_of(store)
    finally:
        store.close()


def all_of(store: FolderStore) -> dict[str, list[tuple[Any, ...]]]:
    with store.cursor() as cursor:
        return {table: sorted(cursor.execute(f"SELECT * FROM {table}").fetchall(), key=repr) for table in TABLES}


def bytes_of(folder: Path) -> dict[str, bytes]:
    """What every file below a folder holds."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def tables_of(file: Path) -> dict[str, list[tuple[str, str]]]:
    """Columns of each public table in one file: name and type, sorted."""
    with duckdb.connect(str(file), read_only=True) as connection:
        columns = connection.execute("SELECT table_name, column_name, data_type FROM duckdb_columns() WHERE NOT internal").fetchall()
    wanted = MAIN_TABLES if file.stem == "main" else frozenset(TABLES) - MAIN_TABLES
    return {table: sorted((name, kind) for of, name, kind in columns if of == table) for table in sorted(wanted)}
