"""Compacting makes the files of past days smaller and changes nothing that readers see."""

import json
from pathlib import Path
from typing import Any

import pytest
from store_rows import DAY_US, NOV_29, NOV_30, span

from lensd.errors import NoStoreError
from lensd.store.arrow import batch_of
from lensd.store.check import check, lines
from lensd.store.compact import compact
from lensd.store.folder import FolderStore

SPANS = 40_000  # a VARIANT of fewer rows is not stored by its parts, and no smaller than the text
NOON = NOV_30 / 1e6 + 43_200


def filled(folder: Path) -> Path:
    store = FolderStore(folder, clock=lambda: NOON)
    for day, spans in ((NOV_29, SPANS), (NOV_30, 100)):
        rows = [span(number, day + number * 1000) for number in range(spans)]
        for number, row in enumerate(rows):
            told = {f"gen_ai.response.number_{each}": number * (each * 7919 + 1) % 1_000_003 for each in range(8)}
            row.attributes = json.dumps(told | {"http.response.status_code": 200, "gen_ai.request.model": "tiny"}, separators=(",", ":"))
        store.append(batch_of({"spans": rows}))
    store.close()
    return folder


SEEN = """
select count(*), bit_xor(hash(span_id, name, started_at, src)), bit_xor(hash(span_id, length(attributes))),
  bit_xor(hash(span_id, attr(attributes, 'gen_ai.response.number_7'), attr(attributes, 'gen_ai.request.model')))
from spans
"""


def seen(folder: Path) -> list[Any]:
    """What readers see of all spans; a packed file may put the names in attributes in another order."""
    store = FolderStore(folder, read_only=True)
    with store.cursor() as cursor:
        found = cursor.execute(SEEN).fetchall()
    store.close()
    return found


def test_past_days_are_packed_and_today_is_not(tmp_path: Path) -> None:
    folder = filled(tmp_path / "store")
    before = seen(folder)
    assert before[0][0] == SPANS + 100
    told: list[str] = []
    done = compact(folder, lambda: NOON, told.append)
    assert (done.packed, told) == (("2026-11-29",), ["pack 2026-11-29"])
    assert done.bytes_after < done.bytes_before
    assert done.bytes_after == sum(path.stat().st_size for path in folder.glob("*.duckdb"))
    assert seen(folder) == before
    names = sorted(path.name for path in folder.glob("day-*"))
    assert names == ["day-20261129-packed.duckdb", "day-20261130.duckdb"]
    found = check(folder)
    assert found.is_sound, [line for line in lines(found) if not line.startswith("ok")]
    packed = [file for file in found.files if file.file == "day-20261129-packed.duckdb"]
    assert [table.rows for file in packed for table in file.tables if table.table == "spans"] == [SPANS]
    again = compact(folder, lambda: NOON)
    assert (again.packed, again.bytes_before) == ((), done.bytes_after)
    later = compact(folder, lambda: NOON + DAY_US / 1e6)
    assert later.packed == ("2026-11-30",)
    assert seen(folder) == before


def test_no_store_is_made(tmp_path: Path) -> None:
    with pytest.raises(NoStoreError):
        compact(tmp_path / "nowhere")
    assert not (tmp_path / "nowhere").exists()
