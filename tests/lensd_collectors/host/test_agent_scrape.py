"""A real scrape is forwarded whole, under the engine's names; a dead target is `up` 0."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lensd_collectors.host.agent import StartWatch
from lensd_collectors.host.config import WatchedEngine
from lensd_collectors.host.engine import Engine, FetchError, FetchFailure, resolve
from lensd_collectors.host.scrape import Histogram, Scraper, Seen, Value, parse

CAPTURES = Path(__file__).parents[2] / "captures" / "vllm-0.32.0"
SCRAPE = (CAPTURES / "metrics-4-after-load.txt").read_text()
VLLM = ("vllm:",)
ENGINE = resolve(WatchedEngine(url="http://127.0.0.1:8100/v1", name="e0"))


def scraper(recorder: Any, answer: bytes | FetchError) -> Scraper:
    def fetch(engine: Engine, path: str) -> bytes:
        assert path == "/metrics"
        if isinstance(answer, FetchError):
            raise answer
        return answer

    return Scraper(ENGINE, recorder, fetch, lambda: 1_000)


def test_real_scrape(recorder: Any) -> None:
    seen = scraper(recorder, SCRAPE.encode()).scrape()
    assert seen.up
    assert seen.start_s == pytest.approx(1.795e9, rel=1e-2)
    names = {name for name, _, _ in recorder.metrics}
    assert {"up", "vllm:num_requests_running", "vllm:generation_tokens_total", "process_start_time_seconds", "http_requests_total"} <= names
    assert not [name for name in names if name.startswith(("python_", "process_c", "http_request_")) or name.endswith("_created")]
    assert recorder.batches == [len(recorder.metrics)]
    kinds = {name: kind for name, kind, _ in recorder.metrics}
    assert kinds["vllm:iteration_tokens_total"] == "histogram"
    assert kinds["vllm:prompt_tokens_total"] == kinds["http_requests_total"] == "counter"
    assert kinds["vllm:kv_cache_usage_perc"] == "gauge"


def test_every_series_of_the_capture_arrives_with_its_value(recorder: Any) -> None:
    scraper(recorder, SCRAPE.encode()).scrape()
    values = recorder.values()
    lines = [
        line
        for line in SCRAPE.splitlines()
        if line.startswith("vllm:") and not line.partition("{")[0].endswith(("_created", "_bucket", "_sum", "_count"))
    ]
    assert len(lines) > 30
    for line in lines:
        series, _, value = line.rpartition(" ")
        name, _, labels = series.partition("{")
        wanted = tuple(sorted(tuple(pair.split("=", 1)) for pair in labels.rstrip("}").replace('"', "").split(",") if pair))
        assert values[name, wanted] == float(value), line


def test_records_carry_engine_and_target(recorder: Any) -> None:
    scraper(recorder, SCRAPE.encode()).scrape()
    [point] = next(metric.gauge.data_points for name, _, metric in recorder.metrics if name == "vllm:num_requests_running")
    assert recorder.attributes(point) == {
        "engine": "0", "model_name": "tiny-llama", "lensd.engine": "e0", "lensd.engine.kind": "vllm",
        "lensd.scrape.target": "http://127.0.0.1:8100/metrics",
    }  # fmt: skip
    assert point.time_unix_nano == "1000"


def test_histogram_counts_are_per_bucket() -> None:
    found = [each for each in parse(SCRAPE, VLLM) if isinstance(each, Histogram)]
    assert len(found) > 10
    for each in found:
        assert len(each.counts) == len(each.bounds) + 1
        assert sum(each.counts) == each.count
        assert each.bounds == sorted(each.bounds)
    queue = next(each for each in found if each.name == "vllm:request_queue_time_seconds")
    running = [line for line in SCRAPE.splitlines() if line.startswith("vllm:request_queue_time_seconds_bucket")]
    totals = [float(line.rpartition(" ")[2]) for line in running]
    assert queue.counts[0] == totals[0]
    assert queue.counts[1] == totals[1] - totals[0]
    assert queue.count > 0


@given(st.lists(st.integers(0, 1000), min_size=1, max_size=8), st.floats(0, 1e6))
def test_histogram_sums_back(counts: list[int], total: float) -> None:
    lines, running = ["# TYPE vllm:x histogram"], 0
    for index, count in enumerate(counts):
        running += count
        bound = "+Inf" if index == len(counts) - 1 else f"{index + 1}.0"
        lines.append(f'vllm:x_bucket{{a="b",le="{bound}"}} {running}')
    lines += [f'vllm:x_sum{{a="b"}} {total}', f'vllm:x_count{{a="b"}} {running}']
    [read] = parse("\n".join(lines) + "\n", VLLM)
    assert isinstance(read, Histogram)
    assert read.counts == counts
    assert (read.labels, read.count, read.sum) == ({"a": "b"}, running, total)


def test_names_of_other_engines_pass_only_for_them() -> None:
    text = "# TYPE llamacpp:requests_processing gauge\nllamacpp:requests_processing 3\n# TYPE python_info gauge\npython_info 1\n"
    assert list(parse(text, ("llamacpp:",))) == [Value("llamacpp:requests_processing", {}, 3.0, False)]
    assert list(parse(text, VLLM)) == []


@pytest.mark.parametrize("why", list(FetchFailure))
def test_no_answer_is_up_0(recorder: Any, why: FetchFailure) -> None:
    assert scraper(recorder, FetchError(why)).scrape() == Seen(False, why)
    [(name, _, metric)] = recorder.metrics
    [point] = metric.gauge.data_points
    assert (name, point.as_double) == ("up", 0.0)
    assert recorder.attributes(point)["error.type"] == why.value


def test_an_answer_that_is_no_scrape_is_still_an_answer(recorder: Any, caplog: pytest.LogCaptureFixture) -> None:
    made = scraper(recorder, b'vllm:x{a="b" 1 1 1 1\n')
    assert made.scrape().up
    assert made.scrape().up
    assert [name for name, _, _ in recorder.metrics] == ["up", "up"]
    assert caplog.text.count("is no Prometheus text") == 1


@pytest.mark.parametrize(
    ("history", "starts"),
    [
        ([Seen(True, start_s=5.0), Seen(True, start_s=5.0)], [True, False]),
        ([Seen(True, start_s=5.0), Seen(True, start_s=9.0)], [True, True]),
        ([Seen(False), Seen(True), Seen(False), Seen(True)], [False, True, False, True]),
        ([Seen(True), Seen(True, start_s=5.0)], [True, False]),
    ],
)
def test_start_is_told_once(history: list[Seen], starts: list[bool]) -> None:
    watch = StartWatch()
    assert [watch.started(seen) for seen in history] == starts


@pytest.mark.parametrize(
    ("url", "name", "shown"),
    [
        ("http://127.0.0.1:8100", "127.0.0.1:8100", "http://127.0.0.1:8100"),
        ("127.0.0.1:8100/v1/", "127.0.0.1:8100", "http://127.0.0.1:8100"),
        ("https://user:planted@gpu1/llm", "gpu1:443", "https://gpu1:443/llm"),
    ],
)
def test_engine_name_and_url(url: str, name: str, shown: str) -> None:
    engine = resolve(WatchedEngine(url=url))
    assert (engine.name, engine.url) == (name, shown)
