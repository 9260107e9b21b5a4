"""The rows of a batch by the UTC day they belong to."""

from collections.abc import Collection
from typing import Final

import pyarrow as pa
import pyarrow.compute as pc

from lensd.store.day_files import DAY_US
from lensd.store.interface import Batch
from lensd.store.schema import instant_column

Tables = dict[str, pa.Table]
_LAST_DAY: Final = 2_932_896  # 9999-12-31


def by_day(batch: Batch, known: Collection[int], most: int, today: int) -> dict[int, Tables]:
    """Each day's tables. A row without an instant is of `today`.

    With `most` days `known`, rows of a further one go to the nearest of them; days are counted since the epoch.
    """
    parts: dict[int, Tables] = {}
    for table, rows in batch.items():
        if rows.num_rows == 0:
            continue
        days = _days_of(table, rows, today)
        present = pc.unique(days).to_pylist()
        for day in present:
            some = rows if len(present) == 1 else rows.filter(pc.equal(days, day))
            mine = parts.setdefault(_nearest(day, {*known, *parts}, most), {})
            mine[table] = pa.concat_tables([mine[table], some]) if table in mine else some
    return parts


def _days_of(table: str, rows: pa.Table, today: int) -> pa.ChunkedArray:
    column = instant_column(table)
    if column not in rows.column_names:
        return pa.chunked_array([pa.array([today] * rows.num_rows, pa.int64())])
    instants = rows.column(column).cast(pa.timestamp("us")).cast(pa.int64())
    return pc.fill_null(pc.divide(instants, DAY_US), today)


def _nearest(day: int, days: Collection[int], most: int) -> int:
    if day not in days and len(days) >= most:
        day = min(days, key=lambda other: abs(other - day))
    return max(0, min(day, _LAST_DAY))
