"""Names of columns → what they measure, whatever the order of their words, their language and their unit."""

import pytest
from lensd_collectors.read.columns import ANSWERS, Table, is_when, measure_of

MEASURED = {
    "vllm:num_requests_running": (Table.ENGINE, "running", 1.0),
    "trtllm_kv_cache_utilization": (Table.ENGINE, "kv_usage", None),
    "KV-Cache-Auslastung [%]": (Table.ENGINE, "kv_usage", 0.01),
    "运行中": (Table.ENGINE, "running", 1.0),
    "Wartende Anfragen": (Table.ENGINE, "waiting", 1.0),
    "gen_tok_s": (Table.ENGINE, "generation_tps", 1.0),
    "maxNumActiveRequests": (Table.ENGINE, "slots", 1.0),
    "gpu3_mem_used_mib": (Table.CARD, "used_bytes", 1 << 20),
    "GPU 1 Temp (°C)": (Table.CARD, "temp_c", 1.0),
    "proc_rss_mib": (Table.CARD, "rss_bytes", 1 << 20),
    "p95_ttft_ms": (Table.POINT, "lensd.latency.ttft_p95", 1.0),
    "TTFT p95 (s)": (Table.POINT, "lensd.latency.ttft_p95", 1000.0),
    "首token p95(ms)": (Table.POINT, "lensd.latency.ttft_p95", 1.0),
    "queue_p95_s": (Table.POINT, "lensd.latency.queue_p95", 1000.0),
    "host_avail_mib": (Table.POINT, "lensd.host.memory.available", 1 << 20),
    "5xx": (Table.POINT, ANSWERS, 1.0),
    "errors %": (Table.POINT, ANSWERS, 0.01),
}


@pytest.mark.parametrize("name", MEASURED)
def test_a_name_says_what_its_column_measures(name: str) -> None:
    measure = measure_of(name)
    assert measure is not None
    assert (measure.table, measure.column, measure.factor) == MEASURED[name]


@pytest.mark.parametrize(
    "name",
    [
        "arrivals_per_min",
        "p50_prompt_tokens",
        "t_ms_since_request",
        "request_queue_time_sum",
        "duration_ms",
        "status",
        "tokens",
        "timeout_s",
        "",
    ],
)
def test_a_name_that_is_not_known_is_left(name: str) -> None:
    assert measure_of(name) is None


@pytest.mark.parametrize(
    ("name", "labels"),
    {
        "errors_total": {"class": "failed", "per": "total"},
        "5xx/min": {"class": "5xx", "per": "60"},
        "HTTP 503": {"class": "5xx", "per": "interval"},
        "Failures/s": {"class": "failed", "per": "1"},
        "错误 (%)": {"class": "failed", "per": "share"},
        "gpu0_util_pct": {"gpu": "0"},
        "vram_used_gib": {"gpu": "#0"},
        "api_server_rss_gib": {"process": "api_server"},
    }.items(),
)
def test_what_is_counted_and_whose_it_is_stands_in_the_labels(name: str, labels: dict[str, str]) -> None:
    measure = measure_of(name)
    assert measure is not None
    assert dict(measure.labels) == labels


def test_a_column_of_instants_is_known_in_several_languages() -> None:
    assert [name for name in ("Time", "Zeit", "时间", "@timestamp", "minute", "request_time", "timeout") if is_when(name)] == [
        "Time",
        "Zeit",
        "时间",
        "@timestamp",
        "minute",
    ]
