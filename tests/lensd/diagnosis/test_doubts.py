"""Health is not said where a benchmark got slower, prompts are read anew, or somebody complains, in whatever language."""

from typing import Any

import pytest

from lensd.diagnosis.cases import fill
from lensd.diagnosis.complaints import complains
from lensd.diagnosis.doubts import doubts
from lensd.store.memory import MemoryStore


def found(**tables: list[dict[str, Any]]) -> set[str]:
    store = MemoryStore(memory_limit="256MiB")
    try:
        fill(store, tables)
        with store.cursor() as cursor:
            return {one.id for one in doubts(cursor)}
    finally:
        store.close()


def sheets(later_ms: float, first: str = "before", then: str = "after") -> list[dict[str, Any]]:
    return [
        {"seq": 1, "name": "bench.of", "fields": f'{{"sign": "{first}"}}', "src": "bench.txt:1"},
        {"seq": 2, "name": "bench.result", "fields": '{"tpot_ms": 18.4}', "src": "bench.txt:2"},
        {"seq": 3, "name": "bench.of", "fields": f'{{"sign": "{then}"}}', "src": "bench.txt:3"},
        {"seq": 4, "name": "bench.result", "fields": f'{{"tpot_ms": {later_ms}}}', "src": "bench.txt:4"},
    ]


def test_a_benchmark_that_got_slower_speaks_against_health() -> None:
    assert found(events=sheets(33.9)) == {"measured-slower"}
    assert found(events=sheets(19.0)) == set()
    assert found(events=sheets(12.0)) == set()
    by_name = [{**one, "src": f"{side}.json:2"} for one, side in zip(sheets(33.9)[1::2], ("run-before", "run-after"), strict=True)]
    assert found(events=by_name) == {"measured-slower"}


@pytest.mark.parametrize(
    ("name", "value", "ids"),
    [
        ("proxy_buffering", "on", {"streams-collected"}),
        ("proxy_compression_by_type", "DEFLATE", {"streams-collected"}),
        ("proxy_buffering", "off", set()),
    ],
)
def test_a_proxy_that_collects_streams_speaks_against_health_where_nobody_measured_behind_it(name: str, value: str, ids: set[str]) -> None:
    facts = [{"name": name, "value": value, "src": "llm.conf:9"}]
    assert found(config_facts=facts) == ids
    assert found(config_facts=facts, http_exchanges=[{"hop": "client", "status": 200, "ttfb_ms": 240.0, "src": "curl.txt:1"}]) == set()


@pytest.mark.parametrize(
    ("hits", "seconds", "ids"),
    [(28_112, 900.0, {"prompts-read-anew"}), (1_828_112, 900.0, set()), (28_112, 90.0, set())],
    ids=["none found and late", "half of it found", "none found and soon"],
)
def test_prompts_that_are_read_anew_and_late_speak_against_health(hits: int, seconds: float, ids: set[str]) -> None:
    samples = [
        {"seen_at": "2026-11-26 14:00:00", "prefix_queries_total": 91_204_410, "prefix_hits_total": 28_112, "src": "a.prom:9"},
        {"seen_at": "2026-11-26 14:20:00", "prefix_queries_total": 94_784_918, "prefix_hits_total": hits, "src": "b.prom:9"},
    ]
    firsts = [
        {"seen_at": at, "name": "vllm:time_to_first_token_seconds", "value": value, "buckets": [4.0], "counts": [n, 0], "src": src}
        for at, value, n, src in (
            ("2026-11-26 14:00:00", 100.0, 6000, "a.prom:12"),
            ("2026-11-26 14:20:00", 100.0 + seconds, 6200, "b.prom:12"),
        )
    ]
    assert found(engine_samples=samples, points=firsts) == ids


def test_a_first_token_that_is_as_late_as_its_prompt_is_long_speaks_not_against_health() -> None:
    short = {"hop": "client", "status": 200, "model": "m", "ttfb_ms": 240.0, "prompt_tokens": 660, "src": "a:1"}
    late = {**short, "ttfb_ms": 3640.0, "src": "a:2"}
    assert found(http_exchanges=[short, {**late, "prompt_tokens": 12_210}]) == set()
    assert found(http_exchanges=[short, {**late, "prompt_tokens": 800}]) == {"first-tokens-late"}


@pytest.mark.parametrize(
    "line",
    [
        "Half of the answers end in the middle of a sentence",
        "# the JSON comes back truncated for long invoices",
        "the bill has doubled since we moved",
        "the vendor said turn 2 should be nearly free",
        "Seit Montag ist alles langsamer",
        "les réponses sont coupées",
        "las respuestas llegan cortadas",
        "上线以后回答变慢了",
        "応答が途中で切れる",
    ],
)
def test_a_complaint_is_heard(line: str) -> None:
    assert complains(line)


@pytest.mark.parametrize(
    "line",
    [
        "nobody says that answers are cut",
        "die Antworten sind nicht langsamer geworden",
        "没有人说变慢",
        "遅くない",
        "logs are truncated after 7 days",
        "cost per token: 0.2",
    ],
)
def test_what_nobody_complains_of_is_no_complaint(line: str) -> None:
    assert not complains(line)


def counted(kind: str, per: str, *values: float) -> list[dict[str, Any]]:
    labels = f'{{"class": "{kind}", "per": "{per}"}}'
    return [
        {"seen_at": f"2026-11-25 10:0{at}:00", "name": "lensd.http.answers", "labels": labels, "value": value, "src": f"t.csv:{at + 2}"}
        for at, value in enumerate(values)
    ]


@pytest.mark.parametrize(
    ("points", "ids"),
    [
        (counted("all", "interval", 100, 100) + counted("5xx", "interval", 0, 5), {"calls-failed"}),
        (counted("all", "interval", 1000, 1000) + counted("5xx", "interval", 0, 5), set()),
        (counted("failed", "total", 3, 3, 3), set()),
        (counted("failed", "total", 3, 3, 4), {"calls-failed"}),
        (counted("failed", "share", 0.001, 0.02), {"calls-failed"}),
        (counted("all", "interval", 100) + counted("4xx", "interval", 6), {"calls-refused"}),
        (counted("all", "interval", 100) + counted("4xx", "interval", 4), set()),
    ],
    ids=["5 of 100", "5 of 1000", "a counter that stands", "a counter that rises", "a share", "6 refused of 100", "4 refused of 100"],
)
def test_failures_that_a_table_counts_speak_against_health(points: list[dict[str, Any]], ids: set[str]) -> None:
    assert found(points=points) == ids


@pytest.mark.parametrize(
    ("name", "values", "ids"),
    [
        ("ttft_p95", (400, 410, 12_000), {"first-tokens-late"}),
        ("queue_p95", (40, 40, 3000), {"first-tokens-late"}),
        ("ttft_p95", (400, 410, 480), set()),
        ("tpot_p50", (28, 29, 80), {"tokens-slow"}),
        ("e2e_p95", (4200, 4300, 15_000), {"stages-slow"}),
        ("e2e_p95", (4200, 4300, 4900), set()),
    ],
)
def test_percentiles_that_rise_in_a_table_speak_against_health(name: str, values: tuple[float, ...], ids: set[str]) -> None:
    points = [
        {"seen_at": f"2026-11-25 10:0{at}:00", "name": f"lensd.latency.{name}", "value": value, "src": f"t.csv:{at + 2}"}
        for at, value in enumerate(values)
    ]
    assert found(points=points) == ids
