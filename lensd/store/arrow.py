"""Rows (structs) as Arrow tables, one a public table."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec
import pyarrow as pa
from lensd_collectors.rows import Row

from lensd.store.interface import Batch
from lensd.store.schema import arrow_schema

Rows = Mapping[str, Sequence[Row]]
"""Table name to rows of that table's struct."""


def table_of(name: str, rows: Iterable[Row]) -> pa.Table:
    """One table's rows as Arrow. Raises pa.ArrowException, TypeError or OverflowError for a value that is not of its column's type."""
    schema = arrow_schema(name)
    columns: Sequence[Sequence[Any]] = tuple(zip(*map(msgspec.structs.astuple, rows), strict=True)) or ((),) * len(schema)
    return pa.Table.from_arrays(
        [pa.array(values, type=field.type) for values, field in zip(columns, schema, strict=True)],
        schema=schema,
    )


def batch_of(rows: Rows) -> Batch:
    """Every table's rows as Arrow; tables without rows are left out."""
    return {name: table_of(name, some) for name, some in rows.items() if some}
