"""What load generators measured, printed or kept as JSON: one figure an event, on its own line, with the side or version it is of."""

import json
from collections.abc import Sequence
from pathlib import Path

import pytest
from lensd_collectors.read import read
from lensd_collectors.read.bench_results import is_results, read_results
from lensd_collectors.read.lines import rfc3339
from lensd_collectors.rows import Event, Row

KEPT = {
    "date": "20261117-103015",
    "request_rate": 4.0,
    "max_concurrency": 16,
    "output_throughput": 986.1,
    "mean_ttft_ms": 96.3,
    "mean_tpot_ms": 18.41,
}
SPREAD = {"inter_token_latency": {"unit": "ms", "avg": 18.41, "p99": 27.1}, "request_latency": {"unit": "ms", "avg": 4611.2}}


def told(rows: Sequence[Row]) -> list[tuple[str | None, dict[str, object], str | None]]:
    return [(row.name, json.loads(row.fields or "{}"), row.src) for row in rows if isinstance(row, Event)]


def test_each_measure_stands_on_the_line_of_its_key() -> None:
    found = read_results(json.dumps(KEPT, indent=1), name="before.json")
    assert found.unread_lines == 0
    assert told(found.rows) == [
        ("bench.load", {"sign": "json", "concurrency": 16.0}, "before.json:4"),
        ("bench.ttft", {"sign": "json", "ttft_ms": 96.3}, "before.json:6"),
        ("bench.throughput", {"sign": "json", "output_tps": 986.1}, "before.json:5"),
        ("bench.result", {"sign": "json", "tpot_ms": 18.41}, "before.json:7"),
    ]
    assert {row.seen_at for row in found.rows if isinstance(row, Event)} == {rfc3339("2026-11-17T10:30:15Z")}


def test_documents_one_a_line_each_with_its_version() -> None:
    lines = [json.dumps({**KEPT, "vllm_version": version, "mean_tpot_ms": ms}) for version, ms in (("0.9.2", 18.4), ("0.10.2", 33.9))]
    found = read_results("\n".join([*lines, "not JSON"]), name="b.jsonl")
    results = [(fields["version"], fields["tpot_ms"], src) for name, fields, src in told(found.rows) if name == "bench.result"]
    assert results == [("0.9.2", 18.4, "b.jsonl:1"), ("0.10.2", 33.9, "b.jsonl:2")]
    assert found.unread_lines == 1


def test_a_measure_with_its_spread_is_its_average() -> None:
    assert told(read_results(json.dumps(SPREAD), name="p.json").rows) == [
        ("bench.latency", {"sign": "json", "latency_ms": 4611.2}, "p.json:1"),
        ("bench.result", {"sign": "json", "tpot_ms": 18.41}, "p.json:1"),
    ]


def test_an_answer_that_tells_its_own_pace_is_no_result() -> None:
    assert not is_results('{"choices": [], "metrics": {"mean_itl_ms": 7.1}}')
    assert not is_results('[{"mean_tpot_ms": 7.1}]')


@pytest.mark.parametrize(
    ("line", "name", "fields"),
    [
        ("Mean ITL (ms):                           18.20", "bench.itl", {"tpot_ms": 18.2}),
        ("│  Inter Token Latency (ms) │ 18.41 │ 17.20 │", "bench.result", {"sign": "genai_perf", "tpot_ms": 18.41}),
        (
            "Throughput: 12.31 requests/s, 6302.11 total tokens/s, 3151.05 output tokens/s",
            "bench.result",
            {"sign": "offline", "generation_tps": 3151.05},
        ),
        ("     http_req_duration..............: avg=4.61s min=1.2s", "bench.latency", {"sign": "k6", "latency_s": 4.61}),
        ("=== after the upgrade ===", "bench.of", {"sign": "after", "side": "after"}),
    ],
)
def test_lines_of_printed_sheets(tmp_path: Path, line: str, name: str, fields: dict[str, object]) -> None:
    file = tmp_path / "sheet.txt"
    file.write_text(f"============ Serving Benchmark Result ============\n{line}\n")
    assert (name, fields, "sheet.txt:2") in told(read(file).rows["events"])


def test_a_heading_that_names_both_sides_is_of_neither(tmp_path: Path) -> None:
    file = tmp_path / "sheet.txt"
    file.write_text("# before and after the upgrade\nMean TPOT (ms):     18.41\n")
    assert [name for name, _, _ in told(read(file).rows["events"])] == ["bench.result"]
