"""schema.sql says the same as the structs of rows.py: tables, column names, order and types."""

import random
import types
import typing
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from lensd_collectors.rows import TABLES, Instant

from lensd.store.schema import MAIN_TABLES, SQUEEZED, STORAGE_VERSION, arrow_schema, create_tables, instant_column

SQL_TYPES = {Instant: "TIMESTAMP", int: "BIGINT", float: "DOUBLE", str: "VARCHAR", bool: "BOOLEAN", list[float]: "DOUBLE[]"}


def sql_type(column: str, hint: object) -> str:
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        hint = next(part for part in typing.get_args(hint) if part is not types.NoneType)
    return "UBIGINT" if column == "request_key" else SQL_TYPES[hint]


@pytest.mark.parametrize("table", TABLES)
def test_columns_are_the_structs_fields(table: str) -> None:
    con = duckdb.connect()
    for statement in create_tables("memory.main", frozenset(TABLES)):
        con.execute(statement)
    made = con.execute("SELECT column_name, data_type FROM duckdb_columns() WHERE table_name = ? ORDER BY column_index", [table]).fetchall()
    hints = typing.get_type_hints(TABLES[table])
    assert made == [(name, sql_type(name, hints[name])) for name in TABLES[table].__struct_fields__]
    assert arrow_schema(table).names == [name for name, _ in made]


@pytest.mark.parametrize("table", SQUEEZED)
def test_long_texts_are_squeezed_and_come_back_as_they_were(table: str, tmp_path: Path) -> None:
    column, chance = SQUEEZED[table], random.Random(7)
    texts = [None, "", "\x00é", *(f'{{"id":"{chance.randbytes(8).hex()}","n":{n}}}' for n in range(5000)), chance.randbytes(600_000).hex()]
    with duckdb.connect() as con:
        con.execute(f"ATTACH '{tmp_path / 'made.duckdb'}' AS made (STORAGE_VERSION '{STORAGE_VERSION}')")
        for statement in create_tables("made", frozenset({table})):
            con.execute(statement)
        con.register("incoming", pa.table({column: pa.array(texts, pa.string())}))
        con.execute(f"INSERT INTO made.{table} BY NAME FROM incoming")
        con.execute("CHECKPOINT made")
        ways = con.execute(
            f"SELECT DISTINCT compression FROM pragma_storage_info('made.{table}') WHERE column_name = ? AND segment_type = 'VARCHAR'",
            [column],
        ).fetchall()
        assert ways == [("ZSTD",)]
    with duckdb.connect(str(tmp_path / "made.duckdb"), read_only=True) as con:
        assert con.execute(f"SELECT {column} FROM {table} ORDER BY rowid").fetchall() == [(text,) for text in texts]


def test_no_table_is_left_over() -> None:
    con = duckdb.connect()
    for statement in create_tables("memory.main", frozenset(TABLES)):
        con.execute(statement)
    assert {name for (name,) in con.execute("SELECT table_name FROM duckdb_tables()").fetchall()} == set(TABLES)


def test_every_day_table_has_its_instant() -> None:
    for table in set(TABLES) - MAIN_TABLES:
        assert instant_column(table) in TABLES[table].__struct_fields__
