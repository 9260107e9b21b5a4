"""Tables as dashboards, spreadsheets and shells export them → the same rows that live sources give."""

from pathlib import Path

import pytest
from lensd_collectors.read.lines import rfc3339
from lensd_collectors.read.recognise import FileRows, read
from lensd_collectors.rows import EngineSample, GpuSample, HttpExchange, Point

FIRST, SECOND = rfc3339("2026-11-25T10:00:00Z"), rfc3339("2026-11-25T10:01:00Z")
SERIES = {
    "metrics with labels as columns": (
        '"Time","vllm:num_requests_running{model_name=""q""}","vllm:num_requests_waiting{model_name=""q""}","vllm:kv_cache_usage_perc{model_name=""q""}"\n'
        "2026-11-25 10:00:00,12,0,0.31\n2026-11-25 10:01:00,16,84,0.98\n"
    ),
    "units in the cells": '"Time","Running","Waiting","KV cache"\n2026-11-25 10:00:00,12,0,31%\n2026-11-25 10:01:00,16,84,98 %\n',
    "semicolons, decimal commas, days first": (
        "Zeit;Laufende Anfragen;Wartende Anfragen;KV-Auslastung [%]\n25.11.2026 10:00;12;0;31,0\n25.11.2026 10:01;16;84;98,0\n"
    ),
    "another language": "时间,运行中,排队,KV使用率\n2026-11-25 10:00:00,12,0,31\n2026-11-25 10:01:00,16,84,98\n",
    "between bars": (
        "| time | running | waiting | kv_usage |\n|---|---|---|---|\n"
        "| 2026-11-25 10:00 | 12 | 0 | 0.31 |\n| 2026-11-25 10:01 | 16 | 84 | 0.98 |\n"
    ),
    "a day and an hour apart": ("date,time,running,waiting,kv_usage\n2026-11-25,10:00:00,12,0,0.31\n2026-11-25,10:01:00,16,84,0.98\n"),
    "an answer of a range query": (
        '{"status":"success","data":{"resultType":"matrix","result":['
        '{"metric":{"__name__":"vllm:num_requests_running"},"values":[[1795600800,"12"],[1795600860,"16"]]},'
        '{"metric":{"__name__":"vllm:num_requests_waiting"},"values":[[1795600800,"0"],[1795600860,"84"]]},'
        '{"metric":{"__name__":"vllm:kv_cache_usage_perc"},"values":[[1795600800,"0.31"],[1795600860,"0.98"],["late"]]}]}}'
    ),
}


def rows_of(text: str, tmp_path: Path) -> FileRows:
    path = tmp_path / "mailed"
    path.write_text(text, encoding="utf-8")
    return read(path)


@pytest.mark.parametrize("form", SERIES)
def test_an_engines_course_is_the_same_in_every_form(form: str, tmp_path: Path) -> None:
    samples = [row for row in rows_of(SERIES[form], tmp_path).rows["engine_samples"] if isinstance(row, EngineSample)]
    assert [(row.seen_at, row.running, row.waiting, row.kv_usage) for row in samples] == [(FIRST, 12, 0, 0.31), (SECOND, 16, 84, 0.98)]


def test_a_measure_a_line(tmp_path: Path) -> None:
    found = rows_of("timestamp,metric,value\n2026-11-25T10:00:00Z,vllm.num_requests.waiting,84\n", tmp_path)
    [row] = found.rows["engine_samples"]
    assert isinstance(row, EngineSample)
    assert (row.seen_at, row.waiting) == (FIRST, 84)


def test_answers_by_status_class_and_percentiles(tmp_path: Path) -> None:
    found = rows_of("minute,requests,2xx,4xx,5xx,p95_ttft_ms\n2026-11-25 10:00,137,130,2,5,410\n", tmp_path)
    points = {(row.name, row.labels): row.value for row in found.rows["points"] if isinstance(row, Point)}
    assert points == {
        ("lensd.http.answers", '{"class":"all","per":"interval"}'): 137,
        ("lensd.http.answers", '{"class":"2xx","per":"interval"}'): 130,
        ("lensd.http.answers", '{"class":"4xx","per":"interval"}'): 2,
        ("lensd.http.answers", '{"class":"5xx","per":"interval"}'): 5,
        ("lensd.latency.ttft_p95", "{}"): 410,
    }


def test_a_share_without_a_sign_is_a_percent_where_any_line_is_above_one(tmp_path: Path) -> None:
    found = rows_of("time,kv_cache_usage,running\n2026-11-25 10:00:00,0.8,1\n2026-11-25 10:01:00,98,4\n", tmp_path)
    assert [row.kv_usage for row in found.rows["engine_samples"] if isinstance(row, EngineSample)] == [0.008, 0.98]


def test_cards_and_processes_beside_the_engine(tmp_path: Path) -> None:
    found = rows_of("ts,gpu0_mem_used_mib,gpu0_total_mib,proc_rss_mib,requests_running\n2026-11-25 10:00,1024,2048,512,5\n", tmp_path)
    cards = [row for row in found.rows["gpu_samples"] if isinstance(row, GpuSample)]
    assert {(row.gpu, row.process, row.used_bytes, row.total_bytes, row.rss_bytes) for row in cards} == {
        ("0", None, 1 << 30, 1 << 31, None),
        (None, "proc", None, None, 512 << 20),
    }


def test_calls_with_an_instant_in_another_language(tmp_path: Path) -> None:
    [row] = rows_of("zeit,client,status,request_time\n2026-11-25 10:00:00,10.0.0.1,499,0.251\n", tmp_path).rows["http_exchanges"]
    assert isinstance(row, HttpExchange)
    assert (row.seen_at, row.status, row.duration_ms) == (FIRST, 499, 251.0)


@pytest.mark.parametrize(
    "text",
    [
        "name,value\na,1\n",
        "time,price,stock\n2026-11-25 10:00,3,4\n",
        '{"resultType":"matrix"',
        '{"data":{"resultType":"vector","result":[1]}}',
    ],
)
def test_somebody_elses_table_gives_nothing(text: str, tmp_path: Path) -> None:
    assert rows_of(text, tmp_path).rows == {}


def test_a_table_of_several_replicas_says_whose_each_line_is(tmp_path: Path) -> None:
    text = (
        "ts,instance,vllm:num_requests_running,vllm:num_requests_waiting,vllm:kv_cache_usage_perc,DCGM_FI_DEV_FB_USED\n"
        "2026-11-25 10:00,a,1,0,0.2,100\n2026-11-25 10:00,b,2,0,0.3,100\n"
    )
    samples = rows_of(text, tmp_path).rows["engine_samples"]
    assert [(row.engine, row.running) for row in samples if isinstance(row, EngineSample)] == [("a", 1.0), ("b", 2.0)]


def test_what_a_process_has_allocated_stands_beside_what_runs(tmp_path: Path) -> None:
    text = "sample_time,torch_allocated_gib,running,waiting,kv_usage_perc\n2026-11-25 10:00:00,2,0,0,0.0\n2026-11-25 10:01:00,3,0,0,0.0\n"
    points = rows_of(text, tmp_path).rows["points"]
    assert [(row.seen_at, row.value) for row in points if isinstance(row, Point)] == [(FIRST, 2 * 2.0**30), (SECOND, 3 * 2.0**30)]
