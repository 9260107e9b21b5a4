"""What our collectors have ever posted is still read: recorded bodies, through the door and the journal, give the rows of their day.

`LENSD_ROWS=write` writes the rows of a recording that has none yet; rows that are there are never written anew.
"""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest
from lensd_collectors.rows import TABLES

from lensd.receive.decode import Decoder
from lensd.receive.http import OtlpDoor
from lensd.receive.intake import Intake
from lensd.store.journal import Journal
from lensd.store.memory import MemoryStore
from lensd.store.writer import Writer

CAPTURES = Path(__file__).parents[2] / "captures"
RECORDED = sorted(path for path in CAPTURES.glob("collectors-v*/*.jsonl") if not path.stem.endswith(".rows"))
AT_S = 1_796_101_600.0  # when the door took them
TABLES_OF = {
    "gateway": {"spans", "events"},
    "agent": {"engine_samples", "gpu_samples", "points", "events", "config_facts"},
    "middleware": {"spans"},
    "plugin": {"engine_samples", "events"},
}


async def _post(door: OtlpDoor, path: str, body: bytes) -> int:
    answered: list[int] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            answered.append(message["status"])

    await door({"type": "http", "path": path, "method": "POST", "headers": [(b"content-type", b"application/json")]}, receive, send)
    return answered[0]


def rows_of(recorded: Path, folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Each table's rows, without what is null, as the store gives them back."""
    store, journal = MemoryStore(), Journal(folder / "journal")
    door = OtlpDoor(Intake(journal, "", clock=lambda: AT_S))
    writer = Writer(journal, store, Decoder().decode, clock=lambda: AT_S)
    for line in recorded.read_text(encoding="utf-8").splitlines():
        posted = json.loads(line)
        assert asyncio.run(_post(door, posted["path"], json.dumps(posted["body"]).encode())) == 200
    journal.close()
    writer.drain_now()
    assert writer.counts.bad_records == 0
    found: dict[str, list[dict[str, Any]]] = {}
    with store.cursor() as cursor:
        for table, struct in TABLES.items():
            columns = struct.__struct_fields__
            shown = ", ".join(f'epoch_us("{name}")' if name.endswith("_at") else f'"{name}"' for name in columns)
            for row in cursor.execute(f"SELECT {shown} FROM {table}").fetchall():
                told = {name: value for name, value in zip(columns, row, strict=True) if value is not None}
                found.setdefault(table, []).append(told)
    store.close()
    return found


@pytest.mark.parametrize("recorded", RECORDED, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_recorded_bodies_give_the_rows_of_their_day(recorded: Path, tmp_path: Path) -> None:
    found, kept = rows_of(recorded, tmp_path), recorded.with_suffix(".rows.jsonl")
    if os.environ.get("LENSD_ROWS") == "write" and not kept.exists():
        lines = [msgspec.json.encode({"table": table, "row": row}).decode() for table, rows in found.items() for row in rows]
        kept.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    wanted: dict[str, list[dict[str, Any]]] = {}
    for line in kept.read_text(encoding="utf-8").splitlines():
        told = json.loads(line)
        wanted.setdefault(told["table"], []).append(told["row"])
    assert TABLES_OF[recorded.stem] <= set(wanted)
    assert {table: len(rows) for table, rows in found.items()} == {table: len(rows) for table, rows in wanted.items()}
    for table, rows in wanted.items():
        for had, has in zip(rows, found[table], strict=True):
            assert {name: has.get(name) for name in had} == had  # later versions may say more in columns of their own


def test_every_collector_is_recorded() -> None:
    assert {path.stem for path in RECORDED} == set(TABLES_OF)
    posted = [json.loads(line)["path"] for path in RECORDED for line in path.read_text(encoding="utf-8").splitlines()]
    assert set(posted) == {"/v1/traces", "/v1/metrics", "/v1/logs"}
