"""A GPU table in a handed-over folder: what it dates, what it is listed as, and what it does not turn into."""

from datetime import UTC, datetime
from pathlib import Path

import pytest
from lensd_collectors.rows import Event

from lensd.diagnosis.folder import Folder, read_folder
from lensd.diagnosis.runbook import load
from lensd.diagnosis.triage import triage
from lensd.timeline.limits import Limits

CORPUS = Path(__file__).parents[2] / "corpus"
LOG = (
    "INFO 11-06 07:44:01 [loggers.py:123] Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 9.0 tokens/s, "
    "Running: 1 reqs, Waiting: 0 reqs, GPU KV cache usage: 1.0%, Prefix cache hit rate: 0.0%\n"
)
TABLE = "timestamp, index, memory.used [MiB], memory.total [MiB]\n{day} 07:44:00, 0, 5, 81152\n"


def folder(path: Path, **files: str) -> Folder:
    for name, text in files.items():
        (path / name.replace("_", ".")).write_text(text)
    return read_folder([path])


@pytest.mark.parametrize(("day", "year"), [("2026/11/06", 2026), ("2024/11/05", 2024), ("2025/01/02", 2024)])
def test_a_table_dates_a_log_that_writes_no_year(day: str, year: int, tmp_path: Path) -> None:
    found = folder(tmp_path, engine_log=LOG, gpu_csv=TABLE.format(day=day))
    (sample,) = found.files["engine.log"].rows["engine_samples"]
    assert datetime.fromtimestamp(sample.seen_at / 1e6, UTC) == datetime(year, 11, 6, 7, 44, 1, tzinfo=UTC)  # type: ignore[attr-defined]


def test_tables_are_listed_for_what_they_are(tmp_path: Path) -> None:
    found = folder(
        tmp_path,
        gpu_csv=TABLE.format(day="2026/11/06") + "cut off he",
        ps_txt="  PID   RSS COMMAND\n 4471 18700 VLLM::EngineCor\n",
        note_txt="it was slow, then the memory was full\n",
    )
    assert {(file.path, file.kind, file.records, file.unread_lines) for file in found.read_as} == {
        ("gpu.csv", "gpu csv", 1, 1),
        ("ps.txt", "process table", 1, 0),
        ("note.txt", "notes", 0, 1),
    }
    assert found.not_understood == ()  # what somebody has written by hand is no log that was not understood


def test_a_word_that_there_was_no_fault_is_no_fault(tmp_path: Path) -> None:
    (case,) = CORPUS.glob("53-*")
    found = folder(tmp_path, dmesg_txt=(case / "dmesg.txt").read_text(), gpu_csv=(case / "gpu.csv").read_text())
    assert [row for file in found.files.values() for row in file.rows.get("events", ()) if isinstance(row, Event)] == []


def test_a_card_at_work_alone_is_no_incident(tmp_path: Path) -> None:
    lines = [f"2026/11/06 07:{minute:02d}:00, {gpu}, 79810, 81152, 99, 401, 1980, 0x4" for minute in range(30) for gpu in range(8)]
    memory, load_ = "memory.used [MiB], memory.total [MiB]", "utilization.gpu [%], power.draw [W], clocks.sm [MHz]"
    head = f"timestamp, index, {memory}, {load_}, clocks_event_reasons.active"
    (tmp_path / "gpu.csv").write_text("\n".join([head, *lines]))
    found = triage([tmp_path], load(), {}, Limits())
    assert [finding.label for finding in found.findings if finding.kind != "negative"] == []
    assert found.verdict.label in ("inconclusive", "no-incident")


def test_a_log_of_an_unknown_kind_is_not_understood_and_a_ticket_is_written_by_hand(tmp_path: Path) -> None:
    lines = "".join(f"2026-11-06 07:44:0{n}.310  INFO 1 --- [pool-1] o.e.Job : item {n} looked at again\n" for n in range(5))
    found = folder(tmp_path, job_log=lines, ticket_txt="the rule asks for a rank failure\nno Xid in dmesg, four cards at 60 %\n")
    assert found.not_understood == ("job.log",)
