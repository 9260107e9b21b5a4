"""Real scrapes → wide rows, histograms in OTLP's form, and the line behind each column."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lensd_collectors.dialects import load
from lensd_collectors.read.lines import rfc3339
from lensd_collectors.read.prometheus import SAMPLE, instant_in_name, metric_line, parse_line, read_prometheus, scrapes
from lensd_collectors.read.samples import Series, engine_samples
from lensd_collectors.rows import ConfigFact, EngineSample, Point

CAPTURES = Path(__file__).parents[2] / "captures" / "vllm-0.32.0"


def capture(name: str) -> tuple[str, list[object]]:
    text = (CAPTURES / name).read_text()
    found = read_prometheus(text, name=name)
    assert found.unread_lines == 0
    return text, list(found.rows)


def sample(text: str, name: str = "m.prom") -> EngineSample:
    [row] = [row for row in read_prometheus(text, name=name).rows if isinstance(row, EngineSample)]
    return row


def line_behind(text: str, row: EngineSample, column: str) -> str:
    lines = text.split("\n")
    number = metric_line(lines, column, int(str(row.src).rsplit(":", 1)[1]))
    assert number is not None
    return lines[number - 1]


def test_a_scrape_under_load() -> None:
    text, rows = capture("metrics-3-under-load-queue-2.txt")
    [row] = [row for row in rows if isinstance(row, EngineSample)]
    assert (row.model, row.running, row.waiting, row.waiting_capacity, row.waiting_deferred) == ("tiny-llama", 2.0, 10.0, 10.0, 0.0)
    assert (row.generation_tokens_total, row.finished_total, row.prefix_queries_total) == (9044.0, 39.0, 3742.0)
    assert row.start_at == 1_795_963_262_820_000
    assert row.seen_at is None  # nothing in the text says when
    assert line_behind(text, row, "waiting_capacity").endswith('reason="capacity"} 10.0')
    assert line_behind(text, row, "finished_total").startswith('vllm:request_success_total{engine="0",finished_reason="length"')
    facts = {fact.name: fact.value for fact in rows if isinstance(fact, ConfigFact)}
    assert (facts["block_size"], facts["num_gpu_blocks"], facts["enable_prefix_caching"]) == ("128", "16384", "true")


def test_a_scrape_after_preemptions() -> None:
    text, rows = capture("metrics-6-preempt-after.txt")
    [row] = [row for row in rows if isinstance(row, EngineSample)]
    assert row.preemptions_total == 13.0
    assert line_behind(text, row, "preemptions_total") == 'vllm:num_preemptions_total{engine="0",model_name="tiny-llama"} 13.0'


def test_a_histogram_is_one_row_that_adds_up() -> None:
    text, rows = capture("metrics-3-under-load-queue-2.txt")
    [queue] = [row for row in rows if isinstance(row, Point) and row.name == "vllm:request_queue_time_seconds"]
    assert queue.buckets is not None
    assert queue.counts is not None
    assert len(queue.counts) == len(queue.buckets) + 1
    assert (queue.buckets[0], sum(queue.counts), queue.value) == (0.3, 39.0, 70.13391847599996)
    lines = text.split("\n")
    number = metric_line(lines, "value", int(str(queue.src).rsplit(":", 1)[1]))
    assert number is not None
    assert lines[number - 1].startswith("vllm:request_queue_time_seconds_sum")


OLD = 'vllm:gpu_cache_usage_perc{model_name="m"} 0.5\nvllm:num_requests_running{model_name="m"} 3\n'


def test_old_names_fill_the_same_columns() -> None:
    row = sample(OLD)
    assert (row.kv_usage, row.running, row.waiting) == (0.5, 3.0, None)
    both = sample(OLD + 'vllm:kv_cache_usage_perc{model_name="m"} 0.6\n')
    assert both.kv_usage == 0.6


def test_several_scrapes_in_one_file_stay_apart() -> None:
    text = "# scraped_at 2026-11-20T15:00:00Z\n" + OLD + OLD.replace("0.5", "0.7")
    rows = [row for row in read_prometheus(text, name="m.prom").rows if isinstance(row, EngineSample)]
    assert [(row.seq, row.kv_usage, row.src) for row in rows] == [(0, 0.5, "m.prom:2"), (1, 0.7, "m.prom:4")]
    assert [row.seen_at for row in rows] == [rfc3339("2026-11-20T15:00:00Z"), None]
    assert line_behind(text, rows[1], "kv_usage").endswith("0.7")


def test_ranks_and_models_are_rows_of_their_own() -> None:
    text = "".join(f'vllm:num_requests_running{{engine="{rank}",model_name="{model}"}} {rank}\n' for model in "ab" for rank in (0, 1))
    rows = [row for row in read_prometheus(text, name="m.prom", engine="e").rows if isinstance(row, EngineSample)]
    assert [(row.engine, row.model, row.running) for row in rows] == [
        ("e", "a", 0.0),
        ("e/dp1", "a", 1.0),
        ("e", "b", 0.0),
        ("e/dp1", "b", 1.0),
    ]
    assert line_behind(text, rows[3], "running") == text.split("\n")[3]


def test_a_dead_engine_leaves_a_row_that_says_so() -> None:
    down = [Series("up", {}, 0.0)]
    [row] = engine_samples(load()["vllm"], down, engine="e", seen_at=None, seq=None, src=lambda one: "scrape:x@1")
    assert (row.up, row.engine, row.running) == (False, "e", None)
    start = [Series("process_start_time_seconds", {}, 1e9)]
    assert engine_samples(load()["vllm"], start, engine="e", seen_at=None, seq=None, src=lambda one: "x") == []


@pytest.mark.parametrize(
    ("line", "value", "labels"),
    [
        ("a 1", 1.0, {}),
        ('a{b="c"} 1.5e+06 1795963503000', 1.5e6, {"b": "c"}),
        ('a{b="x}y\\"z",c=""} +Inf', float("inf"), {"b": 'x}y"z', "c": ""}),
        ('a_bucket{le="1"} 3 # {trace_id="x"} 0.5', 3.0, {"le": "1"}),
    ],
)
def test_sample_lines(line: str, value: float, labels: dict[str, str]) -> None:
    one = parse_line(line, 7)
    assert one is not None
    assert (one.value, one.labels, one.line) == (value, labels, 7)


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("metrics_20261120T150000Z.prom", "2026-11-20T15:00:00Z"),
        ("2026-11-20_15-00-00.txt", "2026-11-20T15:00:00Z"),
        ("metrics_1500.prom", None),
    ],
)
def test_instants_in_file_names(name: str, found: str | None) -> None:
    assert instant_in_name(name) == (rfc3339(found) if found else None)


@pytest.mark.parametrize("prefix", ["vllm:", "ray_vllm_", "ray_vllm:", "vllm_"])
def test_a_name_that_another_exporter_carries_on_is_the_engines(prefix: str) -> None:
    text = f'{prefix}num_requests_running{{model_name="m"}} 3\n{prefix}generation_tokens_total{{model_name="m"}} 90\n'
    row = sample(text)
    assert (row.running, row.generation_tokens_total, row.model) == (3, 90, "m")
    assert metric_line(text.split("\n"), "generation_tokens_total", 1) == 2


@settings(max_examples=150, deadline=None)
@given(
    st.lists(
        st.one_of(st.text(max_size=60), st.sampled_from([*OLD.split("\n"), "# scraped_at x", "up 0", "a{", 'vllm:x_bucket{le="x"} 1']))
    )
)
def test_no_text_makes_it_raise_and_no_series_is_lost(parts: list[str]) -> None:
    text = "\n".join(parts)
    found = read_prometheus(text, name="m")
    lines = text.split("\n")
    assert found.series == sum(1 for line in lines if not line.startswith("#") and SAMPLE.match(line.strip()))
    assert sum(len(scrape.series) for scrape in scrapes(lines)) == found.series


def test_a_comment_dates_the_scrape_below_it_also_to_the_minute() -> None:
    text = "# 2026-11-17T10:00Z  chat-0\nvllm:num_requests_running 3\n# 2026-11-17 11:05:30 again\nvllm:num_requests_running 4\n"
    instants = [row.seen_at for row in read_prometheus(text, name="m.prom").rows if isinstance(row, EngineSample)]
    assert instants == [rfc3339("2026-11-17T10:00:00Z"), rfc3339("2026-11-17T11:05:30Z")]
