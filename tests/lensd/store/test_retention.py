"""Retention: which day goes, what outlives it, and what is said of a request that is gone."""

import json
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
from lensd_collectors.rows import EngineSample, Event, FindingRow, GpuSample, IncidentRow, Instant, RequestRow, Row, SpanRow
from store_rows import DAY_US, NOV_29, request, span
from store_snapshots import snapshot

from lensd.api.unknown import unknown
from lensd.errors import RequestNotFoundError
from lensd.store import kept
from lensd.store.arrow import batch_of
from lensd.store.config import StoreConfig
from lensd.store.day_files import DayFile
from lensd.store.folder import FolderStore
from lensd.store.kept import deleted
from lensd.store.memory import MemoryStore
from lensd.store.retention import Due, Gone, delete, due
from lensd.store.rollover import roll_over

DAY = NOV_29 // DAY_US
NOW = (NOV_29 + 8 * DAY_US) / 1e6 + 3600
CONFIG = StoreConfig()
RULE = "store.keep_days = 7"
MINUTE = 60_000_000
OPENED = NOV_29 + 12 * 3600 * 1_000_000


@pytest.mark.parametrize(
    ("days", "config", "expected"),
    [
        ({}, CONFIG, None),
        ({DAY + 8: 9}, StoreConfig(keep_bytes=1), None),  # never today's
        ({DAY + 1: 9, DAY + 8: 9}, CONFIG, None),
        ({DAY: 9, DAY + 1: 9, DAY + 8: 9}, CONFIG, (DAY, RULE)),
        ({DAY: 9}, StoreConfig(keep_days=0), None),
        ({DAY + 5: 9, DAY + 6: 9, DAY + 8: 9}, StoreConfig(keep_bytes=30), (DAY + 5, "store.keep_bytes = 30")),
        ({DAY + 5: 9, DAY + 6: 9, DAY + 8: 9}, StoreConfig(keep_bytes=32), None),
        ({DAY + 8: 9, DAY + 20: 9, DAY + 90: 9}, StoreConfig(keep_bytes=30), (DAY + 90, "store.keep_bytes = 30")),
        ({DAY + 5: 9, DAY + 8: 9}, StoreConfig(keep_bytes=0), None),
    ],
)
def test_the_first_day_that_is_due(days: dict[int, int], config: StoreConfig, expected: tuple[int, str] | None) -> None:
    assert due(config, days, 5, NOW, {}) == (Due(*expected) if expected else None)


@pytest.mark.parametrize(("quiet_s", "is_due"), [(60.0, False), (7200.0, True)])
def test_an_old_day_that_rows_still_come_to_stays(quiet_s: float, is_due: bool) -> None:
    assert (due(CONFIG, {DAY: 9}, 0, NOW, {DAY: quiet_s}) is not None) == is_due
    assert due(StoreConfig(keep_bytes=5), {DAY: 9}, 0, NOW, {DAY: quiet_s}) is not None


@pytest.fixture
def store(tmp_path: Path) -> Iterator[FolderStore]:
    made = FolderStore(tmp_path, clock=lambda: NOW)
    yield made
    made.close()


def remove_day(store: FolderStore, day: int = DAY, config: StoreConfig = CONFIG, now: float = NOW) -> Gone:
    gone = delete(store, Due(day, RULE), config, now)
    assert gone is not None
    store.release()
    return gone


def incident(*typical: str, opened: int = OPENED, engine: str | None = "e1") -> IncidentRow:
    return IncidentRow(
        incident_id="i1",
        revision=1,
        label="queue-saturation",
        state="resolved",
        severity="warning",
        stage="queue",
        engine=engine,
        opened_at=Instant(opened),
        last_seen_at=Instant(opened + MINUTE),
        resolved_at=Instant(opened + 2 * MINUTE),
        typical_requests=json.dumps(typical),
    )


def served(key: int, name: str, at: int = OPENED, label: str | None = None) -> RequestRow:
    return RequestRow(
        request_key=key, revision=1, request_id=name, trace_id=f"trace-{key}", engine_request_id=f"chatcmpl-{name}", label=label,
        started_at=Instant(at), ended_at=Instant(at + MINUTE),
    )  # fmt: skip


def of_trace(key: int, at: int = OPENED) -> SpanRow:
    return SpanRow(trace_id=f"trace-{key}", span_id=f"s{key}", started_at=Instant(at + 1), attributes='{"a":1}', src="s")


def column(store: FolderStore, sql: str) -> list[object]:
    with store.cursor() as cursor:
        return [value for (value,) in cursor.execute(sql).fetchall()]


def test_a_day_goes_whole_with_its_late_files(store: FolderStore) -> None:
    store.append(batch_of({"spans": [span(1)], "requests": [request(1, 0)]}), 1)
    roll_over(store, DAY)
    store.append(batch_of({"spans": [span(2), span(3, NOV_29 + DAY_US)]}), 2)
    gone = remove_day(store)
    assert (gone.day, gone.rule, gone.bytes > 500_000) == (DAY, RULE, True)
    assert sorted(path.name for path in store.path.glob("day-*.duckdb")) == ["day-20261130.duckdb"]
    assert column(store, "SELECT span_id FROM spans") == [span(3).span_id]


def test_a_day_that_the_journal_still_tells_of_stays(store: FolderStore) -> None:
    store.append(batch_of({"spans": [span(1)]}), 5)
    store._append_to("day_20261129", dict(batch_of({"spans": [span(2)]})), 9)
    assert delete(store, Due(DAY, RULE), CONFIG, NOW) is None
    assert len(column(store, "SELECT span_id FROM spans")) == 2


def evidence() -> dict[str, list[Row]]:
    """A day with one incident on two of its three requests."""
    near, far = Instant(OPENED - 9 * MINUTE), Instant(OPENED - 11 * MINUTE)
    return {
        "incidents": [incident("r1", "r2")],
        "requests": [served(1, "r1", label="queue-saturation"), served(2, "r2"), served(3, "r3")],
        "spans": [of_trace(key) for key in (1, 2, 3)],
        "events": [
            Event(seen_at=near, name="of r1", request_id="r1"),
            Event(seen_at=near, name="of r3", request_id="r3"),
            Event(seen_at=near, name="near", engine="e1"),
            Event(seen_at=far, name="far", engine="e1"),
        ],
        "findings": [FindingRow(seen_at=near, label="queue-saturation", request_key=1), FindingRow(seen_at=near, label="x", request_key=3)],
        "engine_samples": [EngineSample(seen_at=at, engine=engine) for at in (near, far) for engine in ("e1", "e2")],
        "gpu_samples": [GpuSample(seen_at=at, gpu="0", host="h") for at in (near, far)],
    }


@pytest.mark.parametrize("packed", [False, True])
def test_what_an_incident_stands_on_outlives_the_day(store: FolderStore, packed: bool) -> None:
    store.append(batch_of(evidence()), 1)
    if packed:
        roll_over(store, DAY)
    remove_day(store)
    for _ in range(2):
        assert column(store, "SELECT request_id FROM requests ORDER BY ALL") == ["r1", "r2"]
        assert column(store, "SELECT attr(attributes, 'a') FROM spans") == ["1", "1"]
        assert column(store, "SELECT name FROM events ORDER BY ALL") == ["near", "of r1"]
        assert column(store, "SELECT label FROM findings") == ["queue-saturation"]
        assert column(store, "SELECT engine FROM engine_samples") == ["e1"]
        assert column(store, "SELECT host FROM gpu_samples") == ["h"]
        assert column(store, "SELECT incident_id FROM incidents") == ["i1"]
        store.close()
        store.__init__(store.path, clock=lambda: NOW)  # type: ignore[misc]


def test_of_requests_of_one_name_the_one_with_the_verdict_is_kept(store: FolderStore) -> None:
    requests: list[Row] = [served(key, "same", label="queue-saturation" if key == 2 else "other") for key in (1, 2, 3)]
    store.append(batch_of({"incidents": [incident("same")], "requests": requests}), 1)
    remove_day(store)
    assert column(store, "SELECT request_key FROM requests") == [2]


def test_a_request_over_midnight_is_kept_with_the_spans_of_both_days(store: FolderStore) -> None:
    midnight = NOV_29 + DAY_US
    rows: dict[str, list[Row]] = {
        "incidents": [incident("r1", opened=midnight)],
        "requests": [served(1, "r1", at=midnight - MINUTE // 2)],
        "spans": [of_trace(1, midnight - MINUTE // 2), of_trace(1, midnight + 5), of_trace(2, midnight + 5)],
    }
    store.append(batch_of(rows), 1)
    remove_day(store)
    remove_day(store, DAY + 1, now=NOW + DAY_US / 1e6)
    assert column(store, "SELECT trace_id FROM spans") == ["trace-1", "trace-1"]


def test_kept_rows_and_their_day_are_never_shown_both(store: FolderStore) -> None:
    store.append(batch_of(evidence()), 1)
    before, seen = snapshot(store), []
    delete(store, Due(DAY, RULE), CONFIG, NOW, lambda step: seen.append((step, snapshot(store) == before, len(snapshot(store)["spans"]))))
    assert seen == [("kept", True, 3), ("hidden", False, 2)]


def test_a_day_that_comes_again_goes_again_and_doubles_nothing(store: FolderStore) -> None:
    store.append(batch_of(evidence()), 1)
    delete(store, Due(DAY, RULE), CONFIG, NOW)
    late = {"requests": [served(9, "r9")], "spans": [of_trace(1, OPENED + 5), of_trace(9)]}
    store.append(batch_of(late), 2)
    store.release()
    assert len(column(store, "SELECT trace_id FROM spans")) == 4
    remove_day(store)
    assert sorted(map(str, column(store, "SELECT trace_id FROM spans"))) == ["trace-1", "trace-1", "trace-2"]
    with store.cursor() as cursor:
        assert deleted(cursor, "r3") is not None
        assert deleted(cursor, "r9") is not None


def test_what_is_kept_goes_in_its_own_time(store: FolderStore) -> None:
    store.append(batch_of(evidence()), 1)
    remove_day(store)
    store.append(batch_of({"spans": [span(1, NOV_29 + 95 * DAY_US)]}), 2)
    remove_day(store, DAY + 95, now=NOW + 95 * DAY_US / 1e6)
    assert column(store, "SELECT span_id FROM spans") == []
    with store.cursor() as cursor:
        assert deleted(cursor, "r3") is None


@pytest.mark.parametrize("name", ["r3", "trace-3", "chatcmpl-r3", "chatcmpl-r3-0123abcd"])
def test_a_deleted_request_is_known_by_every_name(store: FolderStore, name: str) -> None:
    store.append(batch_of(evidence()), 1)
    roll_over(store, DAY)
    remove_day(store)
    with store.cursor() as cursor:
        found = deleted(cursor, name)
        error = unknown(cursor, name, str, 0)
    assert found == (datetime.fromtimestamp(NOW, UTC), "2026-11-29", RULE)
    assert isinstance(error, RequestNotFoundError)
    assert str(error) == (
        f"no request {name} any more: it was deleted at 2026-12-07T01:00Z with the whole day 2026-11-29, by store.keep_days = 7"
    )


def test_the_command_says_it_in_one_line_and_ends_with_4(store: FolderStore) -> None:
    store.append(batch_of(evidence()), 1)
    remove_day(store)
    store.close()
    command = [sys.executable, "-m", "lensd", "diagnose", "r3", "--store", str(store.path)]
    found = subprocess.run(command, capture_output=True, text=True)
    assert (found.returncode, found.stdout) == (4, "")
    assert found.stderr.count("\n") == 1
    assert (
        "no request r3 any more: it was deleted at 2026-12-07T01:00Z with the whole day 2026-11-29, by store.keep_days = 7" in found.stderr
    )


def test_nobody_else_is_said_to_be_deleted(store: FolderStore) -> None:
    plain = MemoryStore()
    with store.cursor() as cursor, plain.cursor() as other:
        assert (deleted(cursor, "r3"), deleted(other, "r3")) == (None, None)
    plain.close()
    store.append(batch_of(evidence()), 1)
    remove_day(store)
    with store.cursor() as cursor:
        assert deleted(cursor, "r4") is None


def test_names_have_a_bound_and_the_oldest_go_first(store: FolderStore) -> None:
    for turn in range(3):
        at = NOV_29 + turn * DAY_US
        store.append(
            batch_of({"requests": [RequestRow(request_key=turn, revision=0, request_id=f"r{turn}", started_at=Instant(at))]}), turn + 1
        )
        files = store.seal(DAY + turn, hide=True)
        with store.cursor() as cursor:
            kept.keep(cursor.execute, kept.Deletion(DAY + turn, files, RULE, int(NOW * 1e6) + turn), 90, most_names=2)
        store.replace(files, None)
        store.release()
    with store.cursor() as cursor:
        assert [deleted(cursor, f"r{turn}") is not None for turn in range(3)] == [False, True, True]


def test_a_damaged_kept_file_is_left_out(store: FolderStore) -> None:
    store.append(batch_of(evidence()), 1)
    remove_day(store)
    store.append(batch_of({"spans": [span(1, NOV_29 + DAY_US)]}), 2)
    store.close()
    (store.path / "kept.duckdb").write_bytes(b"not a database" * 1000)
    for read_only in (True, False):
        again = FolderStore(store.path, read_only=read_only)
        assert (len(snapshot(again)["spans"]), list(again.left_out)) == (1, ["kept.duckdb"])
        again.close()
    again = FolderStore(store.path, clock=lambda: NOW)
    remove_day(again, DAY + 1)
    assert sorted(path.name for path in store.path.glob("kept*")) == ["kept.duckdb", "kept.duckdb.damaged", "kept.duckdb.wal"]
    again.close()


def test_files_that_a_kill_left_are_not_shown_to_a_reader(store: FolderStore) -> None:
    store.append(batch_of(evidence()), 1)
    delete(store, Due(DAY, RULE), CONFIG, NOW)
    store.close()
    assert (store.path / DayFile(DAY).file).exists()
    reader = FolderStore(store.path, read_only=True)
    assert column(reader, "SELECT request_id FROM requests ORDER BY ALL") == ["r1", "r2"]
    reader.close()
