"""Rows that stand column by column are the same rows."""

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lensd_collectors.rows import Event, Row, SpanRow

from lensd.store.arrow import Columns, batch_of, column, merged, table_of

TEXT = st.none() | st.text(max_size=4)
SPANS = st.lists(
    st.builds(SpanRow, trace_id=TEXT, name=TEXT, started_at=st.none() | st.integers(0, 2**50), duration_ms=st.none() | st.floats(0, 9)),
    max_size=6,
)


def by_column(rows: list[SpanRow]) -> Columns:
    return Columns(SpanRow, {name: [getattr(row, name) for row in rows] for name in SpanRow.__struct_fields__})


@settings(max_examples=100, deadline=None)
@given(SPANS, SPANS)
def test_columns_are_the_rows(first: list[SpanRow], second: list[SpanRow]) -> None:
    stood = by_column(first)
    assert list(stood) == first
    assert [stood[number] for number in range(len(stood))] == first
    assert list(stood[1:]) == first[1:]
    assert table_of("spans", stood).equals(table_of("spans", first))
    assert column(stood, "name") == column(first, "name") == [row.name for row in first]
    together = merged([{"spans": stood}, {"spans": by_column(second)}])
    assert list(together["spans"]) == [*first, *second]
    assert list(stood) == first  # joining leaves the parts alone
    mixed: dict[str, list[Row]] = {"spans": [*second]}
    assert list(merged([{"spans": stood}, mixed])["spans"]) == [*first, *second]


def test_tables_are_merged_apart_and_empty_ones_are_no_batch() -> None:
    event, span = Event(name="e"), SpanRow(name="s")
    parts = merged([{"events": [event]}, {"spans": by_column([span])}, {"events": [event]}])
    assert {name: list(rows) for name, rows in parts.items()} == {"events": [event, event], "spans": [span]}
    assert batch_of({"spans": by_column([])}) == {}


def test_a_column_that_is_missing_is_no_row() -> None:
    with pytest.raises(KeyError):
        Columns(SpanRow, {"trace_id": []})
    assert msgspec.structs.asdict(by_column([SpanRow(name="s")])[0])["name"] == "s"
