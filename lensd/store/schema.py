"""The public tables as SQL and as Arrow: what `schema.sql` says, which column dates a row, and which file a table lies in."""

import types
import typing
from functools import cache
from importlib.resources import files
from typing import Final

import pyarrow as pa
from lensd_collectors.rows import TABLES, Instant

SCHEMA_VERSION: Final = 2
STORAGE_VERSION: Final = "v1.5.0"
"""DuckDB's format of every database file: the first that knows VARIANT."""

MAIN_TABLES: Final = frozenset({"incidents", "deliveries", "config_facts"})
"""Tables of main.duckdb; every other one lies in the file of its row's day."""

INSTANT_COLUMN: Final[dict[str, str]] = {"requests": "started_at", "spans": "started_at"}
"""The column that says which day a row belongs to, where it is not `seen_at`."""

REVISED: Final[dict[str, str]] = {"requests": "request_key", "incidents": "incident_id"}
"""Tables whose rows carry a revision, and the key the revisions belong to."""

WITHDRAWN: Final[dict[str, str]] = {"requests": "withdrawn"}
"""Tables whose rows can be taken back, and the column that says so in the last revision."""

SQUEEZED: Final[dict[str, str]] = {"spans": "attributes"}
"""A table's column of long texts that are much alike: a third of what DuckDB makes of it unasked, and no slower to write or read. Holds
for files that are made from now on; older ones go on as they are."""

_UNSIGNED: Final = frozenset({"request_key"})
_ARROW: Final[dict[object, pa.DataType]] = {
    Instant: pa.timestamp("us"),
    int: pa.int64(),
    float: pa.float64(),
    str: pa.string(),
    bool: pa.bool_(),
    list[float]: pa.list_(pa.float64()),
}


def instant_column(table: str) -> str:
    return INSTANT_COLUMN.get(table, "seen_at")


@cache
def arrow_schema(table: str) -> pa.Schema:
    """Columns of a table in the struct's order."""
    struct = TABLES[table]
    hints = typing.get_type_hints(struct)
    return pa.schema([(name, _arrow_type(name, hints[name])) for name in struct.__struct_fields__])


def _arrow_type(name: str, hint: object) -> pa.DataType:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        hint = next(part for part in typing.get_args(hint) if part is not types.NoneType)
    return pa.uint64() if name in _UNSIGNED else _ARROW[hint]


@cache
def statements(name: str) -> tuple[str, ...]:
    """The statements of one of the .sql files beside this module, comments removed."""
    text = files(__package__).joinpath(name).read_text(encoding="utf-8")
    bare = "\n".join(line.split("--")[0].rstrip() for line in text.splitlines())
    return tuple(part.strip() for part in bare.split(";") if part.strip())


def create_tables(schema: str, tables: frozenset[str]) -> list[str]:
    """CREATE statements of these tables inside `schema` (a database, or database.schema)."""
    made = []
    for statement in statements("schema.sql"):
        table = statement.split("(", 1)[0].split()[-1]
        if table in tables:
            whole = statement.replace(f"CREATE TABLE {table}", f"CREATE TABLE IF NOT EXISTS {schema}.{table}", 1)
            if column := SQUEEZED.get(table):
                whole = whole.replace(f" {column} VARCHAR", f" {column} VARCHAR USING COMPRESSION zstd", 1)
            made.append(whole)
    return made
