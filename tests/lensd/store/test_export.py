"""Parquet files hold what readers see, and an export that was cut short looks like none."""

from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from lensd_collectors.rows import TABLES, ConfigFact, DeliveryRow, Instant
from old_store import all_of, old_store
from store_rows import DAY_US, NOV_30, span

from lensd.errors import StoreError, UsageError
from lensd.store.arrow import batch_of
from lensd.store.export import Span, Written, dated_by, export, prepare
from lensd.store.folder import FolderStore


@pytest.fixture
def store(tmp_path: Path) -> Iterator[FolderStore]:
    made = FolderStore(old_store(tmp_path / "store"))
    yield made
    made.close()


def exported(store: FolderStore, folder: Path, *tables: str, span: Span = Span()) -> list[Written]:  # noqa: B008 - immutable
    with store.cursor() as cursor:
        return list(export(cursor, folder, prepare(folder, tables), span))


def read(folder: Path, table: str) -> list[tuple[Any, ...]]:
    return [tuple(row.values()) for row in pq.read_table(folder / f"{table}.parquet").to_pylist()]


def test_every_table_is_what_readers_see(store: FolderStore, tmp_path: Path) -> None:
    written = exported(store, tmp_path / "out")
    seen = all_of(store)
    assert {table: sorted(read(tmp_path / "out", table), key=repr) for table in TABLES} == seen
    assert [(each.table, each.rows) for each in written] == [(table, len(seen[table])) for table in TABLES]
    assert {path.name: path.stat().st_size for path in (tmp_path / "out").iterdir()} == {each.file: each.bytes for each in written}


def test_a_span_of_time_counts_on_every_table(store: FolderStore, tmp_path: Path) -> None:
    exported(store, tmp_path / "out", span=Span(NOV_30, NOV_30 + DAY_US))
    for table, rows in all_of(store).items():
        place = TABLES[table].__struct_fields__.index(dated_by(table))
        inside = [row for row in rows if row[place].date() == date(2026, 11, 30)]
        assert sorted(read(tmp_path / "out", table), key=repr) == inside
        assert 3 <= len(inside) < len(rows)


def test_bounds_are_from_and_up_to(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "store")
    delivered = [DeliveryRow(delivery_id=f"{n}", incident_id="i", destination="d", reason="opened", attempt=1, attempted_at=Instant(n), status="sent") for n in (1, 2, 3)]  # fmt: skip  # noqa: E501
    store.append(batch_of({"deliveries": delivered, "config_facts": [ConfigFact(name="undated")]}))
    [written, none] = exported(store, tmp_path / "out", "deliveries", "config_facts", span=Span(2, 3))
    store.close()
    assert (written.rows, none.rows) == (1, 0)
    assert read(tmp_path / "out", "deliveries")[0][0] == "2"


def test_what_cannot_be_written_to_is_said(store: FolderStore, tmp_path: Path) -> None:
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("kept")
    (tmp_path / "file").write_text("kept")
    for folder, tables, says in (("full", (), "not empty"), ("file", (), "file exists"), ("new", ("span",), "--table span: no such table")):
        with pytest.raises(UsageError, match=says) as error:
            exported(store, tmp_path / folder, *tables)
        assert "\n" not in str(error.value)
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["mine.txt"]
    assert not (tmp_path / "new").exists()


def test_a_file_has_its_name_only_once_it_is_whole(store: FolderStore, tmp_path: Path) -> None:
    store.append(batch_of({"spans": [span(number) for number in range(100, 400)]}))
    told: list[int] = []

    def stop(table: str, rows: int) -> None:
        told.append(rows)
        raise StoreError("stopped")

    with store.cursor() as cursor, pytest.raises(StoreError, match="stopped"):
        list(export(cursor, tmp_path / "out", prepare(tmp_path / "out", ("spans",)), tell=stop))
    assert told == [306]
    assert not list((tmp_path / "out").glob("*.parquet"))
