"""Rows as Arrow tables, one a public table; rows are structs, or stand column by column where there are very many."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, overload

import msgspec
import pyarrow as pa
from lensd_collectors.rows import Row

from lensd.store.interface import Batch
from lensd.store.schema import arrow_schema

Rows = Mapping[str, Sequence[Row]]
"""Table name to rows of that table's struct."""


class Columns(Sequence[Row]):
    """Rows of one struct, kept as one list a column; a struct is made of a row only when somebody looks at it."""

    def __init__(self, struct: type[Row], columns: Mapping[str, list[Any]]) -> None:
        """`columns`: one for every field of the struct, all as long."""
        self._struct, self.columns = struct, {name: columns[name] for name in struct.__struct_fields__}

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Row]: ...
    def __getitem__(self, index: int | slice) -> Row | Sequence[Row]:
        if isinstance(index, slice):
            return Columns(self._struct, {name: values[index] for name, values in self.columns.items()})
        return self._struct(**{name: values[index] for name, values in self.columns.items()})

    def __iter__(self) -> Iterator[Row]:
        names = tuple(self.columns)
        return (self._struct(**dict(zip(names, values, strict=True))) for values in zip(*self.columns.values(), strict=True))

    def followed_by(self, others: Iterable["Columns"]) -> "Columns":
        """All rows of this and then of the others, which have the same struct."""
        joined = {name: values.copy() for name, values in self.columns.items()}
        for other in others:
            for name, values in other.columns.items():
                joined[name] += values
        return Columns(self._struct, joined)


def column(rows: Sequence[Row], name: str) -> Sequence[Any]:
    """One field of all rows."""
    return rows.columns[name] if isinstance(rows, Columns) else [getattr(row, name) for row in rows]


def merged(parts: Iterable[Rows]) -> dict[str, Sequence[Row]]:
    """Each table's rows of all parts, in order."""
    by_table: dict[str, list[Sequence[Row]]] = {}
    for rows in parts:
        for table, some in rows.items():
            by_table.setdefault(table, []).append(some)
    return {table: _joined(many) for table, many in by_table.items()}


def table_of(name: str, rows: Iterable[Row]) -> pa.Table:
    """One table's rows as Arrow. Raises pa.ArrowException, TypeError or OverflowError for a value that is not of its column's type."""
    schema = arrow_schema(name)
    if isinstance(rows, Columns):
        columns: Sequence[Sequence[Any]] = tuple(rows.columns.values())
    else:
        columns = tuple(zip(*map(msgspec.structs.astuple, rows), strict=True)) or ((),) * len(schema)
    return pa.Table.from_arrays(
        [pa.array(values, type=field.type) for values, field in zip(columns, schema, strict=True)],
        schema=schema,
    )


def batch_of(rows: Rows) -> Batch:
    """Every table's rows as Arrow; tables without rows are left out."""
    return {name: table_of(name, some) for name, some in rows.items() if some}


def _joined(many: Sequence[Sequence[Row]]) -> Sequence[Row]:
    first, *others = many
    alike = [each for each in others if isinstance(each, Columns)]
    if isinstance(first, Columns) and len(alike) == len(others):
        return first.followed_by(alike)
    return [row for some in many for row in some]
