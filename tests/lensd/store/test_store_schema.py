"""schema.sql says the same as the structs of rows.py: tables, column names, order and types."""

import types
import typing

import duckdb
import pytest
from lensd_collectors.rows import TABLES, Instant

from lensd.store.schema import MAIN_TABLES, arrow_schema, create_tables, instant_column

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


def test_no_table_is_left_over() -> None:
    con = duckdb.connect()
    for statement in create_tables("memory.main", frozenset(TABLES)):
        con.execute(statement)
    assert {name for (name,) in con.execute("SELECT table_name FROM duckdb_tables()").fetchall()} == set(TABLES)


def test_every_day_table_has_its_instant() -> None:
    for table in set(TABLES) - MAIN_TABLES:
        assert instant_column(table) in TABLES[table].__struct_fields__
