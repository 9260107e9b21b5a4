# ruff: noqa: E501  (lines as programs print them)
"""Calls and samples a line each, in JSON, CSV or pairs, whoever wrote them → exchanges and samples with one meaning a column."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lensd_collectors.read import Kind, read
from lensd_collectors.read.calls import read_calls
from lensd_collectors.read.cite import quote
from lensd_collectors.read.lines import Clock, rfc3339
from lensd_collectors.rows import EngineSample, Event, GpuSample, HttpExchange, Point

ENVOY = '{"start_time": "2026-11-05T14:00:52.520Z", "method": "POST", "x-envoy-origin-path": "/v1/chat/completions?x=1", "response_code": 504, "response_flags": "UT", "duration": 15001, "bytes_sent": 24, "upstream_host": "10.18.2.31:8000", "x-request-id": "r-1"}'
TRAEFIK = '{"ClientHost": "10.12.0.77", "DownstreamContentSize": 1104441, "DownstreamStatus": 200, "Duration": 120001594747, "OriginDuration": 120000953984, "OriginStatus": 200, "RequestMethod": "POST", "RequestPath": "/v1/chat/completions", "ServiceURL": "http://10.42.0.3:8000", "StartUTC": "2026-11-15T11:20:41.31Z"}'
CADDY = '{"level":"info","ts":1794481264.5,"logger":"http.log.access","msg":"handled request","request":{"remote_ip":"10.1.2.3","method":"POST","uri":"/v1/completions"},"duration":60.0012,"size":0,"status":502}'
NGINX = '{"time_iso8601":"2026-11-05T14:00:52+00:00","remote_addr":"10.1.2.3","request_method":"POST","request_uri":"/v1/completions","status":"499","body_bytes_sent":"0","request_time":"45.003","upstream_addr":"10.0.0.9:8000","upstream_response_time":"45.003"}'
CLIENT = '{"ts": "2026-10-30T19:41:18.375Z", "status": 200, "ttft_s": 14.75, "usage": {"prompt_tokens": 14210, "completion_tokens": 49, "prompt_tokens_details": {"cached_tokens": 0}}}'


def calls(text: str) -> list[HttpExchange]:
    return [row for row in read_calls(text, name="x").rows if isinstance(row, HttpExchange)]


@pytest.mark.parametrize(
    ("line", "hop", "path", "status", "duration_ms", "peer", "upstream"),
    [
        (ENVOY, "proxy", "/v1/chat/completions", 504, 15001.0, None, "10.18.2.31:8000"),
        (TRAEFIK, "proxy", "/v1/chat/completions", 200, 120001.595, "10.12.0.77", "10.42.0.3:8000"),
        (CADDY, "proxy", "/v1/completions", 502, 60001.2, "10.1.2.3", None),
        (NGINX, "proxy", "/v1/completions", 499, 45003.0, "10.1.2.3", "10.0.0.9:8000"),
    ],
    ids=["envoy", "traefik", "caddy", "nginx"],
)
def test_access_logs_in_json(
    line: str, hop: str, path: str, status: int, duration_ms: float, peer: str | None, upstream: str | None, tmp_path: Path
) -> None:
    [row] = calls(line)
    assert (row.hop, row.path, row.status, row.duration_ms, row.peer, row.upstream) == (hop, path, status, duration_ms, peer, upstream)
    assert row.seen_at is not None
    log = tmp_path / "access.json"
    log.write_text(f"{line}\n{line}\n")
    assert read(log).kind is Kind.CALLS
    assert quote("access.json:2", "status", tmp_path)[0] in line


def test_what_a_client_wrote_of_its_call() -> None:
    [row] = calls(CLIENT)
    assert (row.hop, row.ttfb_ms, row.prompt_tokens, row.cached_tokens, row.completion_tokens) == ("client", 14750.0, 14210, 0, 49)


@pytest.mark.parametrize(("header", "each"), [("tpot_ms", "20.5"), ("itl_s", "0.0205"), ("time_per_output_token_ms", "20.5")])
def test_how_long_an_answer_took_is_told_by_its_first_token_and_its_pace(header: str, each: str) -> None:
    [row] = calls(f"time,status,completion_tokens,ttft_ms,{header}\n2026-11-18T10:00:12Z,200,101,250.0,{each}\n")
    assert (row.ttfb_ms, row.duration_ms) == (250.0, 2300.0)


def test_a_table_of_results_with_hours_alone() -> None:
    day = Clock(rfc3339("2026-11-05T12:00:00Z"), dated=True)
    found = read_calls("time,item,status,latency_ms\n15:03:05.000,doc-0,200,1681\n15:03:06.000,doc-1,429,7\n", name="x", clock=day).rows
    assert [(row.seen_at, row.status, row.duration_ms) for row in found if isinstance(row, HttpExchange)] == [
        (rfc3339("2026-11-05T15:03:05Z"), 200, 1681.0),
        (rfc3339("2026-11-05T15:03:06Z"), 429, 7.0),
    ]


def test_a_status_that_is_a_word_stands_beside_one_that_is_a_number() -> None:
    line = '{"request_id": "58-95", "startTime": "14:03:03", "endTime": "14:04:04", "status": "success", "completion_tokens": 2817, "http_status": 200}'
    [row] = [
        one
        for one in read_calls(line, name="x", clock=Clock(rfc3339("2026-11-28T12:00:00Z"), dated=True)).rows
        if isinstance(one, HttpExchange)
    ]
    assert (row.request_id, row.status, row.duration_ms, row.completion_tokens) == ("58-95", 200, 61_000, 2817)


def test_a_record_that_tells_of_no_call_is_none() -> None:
    assert not calls('{"alerts": [], "status": "firing"}\n{"status": 200}\n{"path": "/x"}\nsome words\n')


def test_statistics_of_tensorrt_llm() -> None:
    line = '{"iter": 61022, "numActiveRequests": 5, "numQueuedRequests": 2, "maxNumActiveRequests": 8, "kvCacheStats": {"maxNumBlocks": 5760, "usedNumBlocks": 576}, "timestamp": "10-29-2026 16:04:00.5"}'
    [row] = read_calls(line, name="x").rows
    assert isinstance(row, EngineSample)
    assert (row.running, row.waiting, row.slots, row.kv_usage, row.seen_at) == (5, 2, 8, 0.1, rfc3339("2026-10-29T16:04:00.5Z"))


def test_memory_as_somebody_recorded_it() -> None:
    text = "ts,num_requests_running,allocated_gib,reserved_gib,num_ooms\n2026-10-20T18:10:00,1,2.0,3.0,0\n"
    rows = read_calls(text, name="x").rows
    assert {row.name: row.value for row in rows if isinstance(row, Point)} == {
        "lensd.torch.allocated": 2.0 * 1024**3,
        "lensd.torch.reserved": 3.0 * 1024**3,
        "lensd.torch.ooms": 0.0,
    }
    assert [row.running for row in rows if isinstance(row, EngineSample)] == [1.0]
    held = read_calls("time,rss_worker_4471_mib,container_memory_current_mib\n2026-10-30T18:00:00Z,10,20\n", name="x").rows
    assert [(row.process, row.pid, row.rss_bytes) for row in held if isinstance(row, GpuSample)] == [
        ("worker", 4471, 10 << 20),
        ("container", None, 20 << 20),
    ]


@settings(max_examples=150, deadline=None)
@given(
    st.one_of(
        st.text(), st.lists(st.sampled_from([ENVOY, TRAEFIK, CADDY, CLIENT[:40], "a,b,c", "1,2", "{", '{"status": 1e400}'])).map("\n".join)
    )
)
def test_no_text_makes_it_raise(text: str) -> None:
    for row in read_calls(text, name="x").rows:
        assert row.src is not None


def test_a_line_of_a_megabyte_is_not_understood() -> None:
    found = read_calls(json.dumps({"status": 200, "path": "/" + "x" * (1 << 20)}) + "\n" + ENVOY, name="x")
    assert (len(found.rows), found.unread_lines) == (1, 1)


def test_rows_whose_last_cells_are_empty_are_calls_and_an_error_text_says_what_was_decided() -> None:
    limit = "`inputs` tokens + `max_new_tokens` must be <= 2048. Given: 5100 `inputs` tokens and 200 `max_new_tokens`"
    text = f"ts,status,ms,prompt_tokens,retry_after,message\n2026-11-02T04:20:00Z,200,3362,2418,,\n2026-11-02T04:20:09Z,422,9,,,{limit}\n"
    served, refused = calls(text)
    assert (served.status, served.duration_ms, served.prompt_tokens) == (200, 3362.0, 2418)
    assert (refused.body_shape, refused.prompt_tokens, refused.context_limit, refused.max_tokens) == ("context_too_long", 5100, 2048, 200)


GO_PROXY = """\
{"level":"info","ts":"2026-10-21T08:00:04.118Z","logger":"edge-proxy","msg":"starting","listen":":8088","response_header_timeout":"45s"}
{"level":"error","ts":"2026-10-21T08:15:33.412Z","logger":"edge-proxy","msg":"dispatch failed","request_id":"r-1","backend":"qwen","stream":false,"duration":"45.001s","bytes_out":0,"error":"Post \\"http://qwen:8080/v1/chat/completions\\": net/http: timeout awaiting response headers"}
{"level":"info","ts":"2026-10-21T08:17:58.940Z","logger":"edge-proxy","msg":"request completed","request_id":"r-2","backend":"qwen","stream":true,"status":200,"duration":"86.377s","bytes_out":488102}
"""


def test_a_log_of_calls_is_one_though_its_errors_speak_as_clients_do(tmp_path: Path) -> None:
    (tmp_path / "log").write_text(GO_PROXY)
    found = read(tmp_path / "log")
    failed, served = [row for row in found.rows["http_exchanges"] if isinstance(row, HttpExchange)]
    assert (found.kind, found.unread_lines) == (Kind.CALLS, 0)
    assert (failed.hop, failed.duration_ms, failed.status, failed.error_code) == ("proxy", 45001.0, None, "read_timeout")
    assert (failed.limit_kind, failed.streaming) == ("first_byte", False)
    assert (served.hop, served.duration_ms, served.streaming) == ("proxy", 86377.0, True)
    [limit] = found.rows["config_facts"]
    assert (getattr(limit, "name", None), getattr(limit, "value", None)) == ("response_header_timeout_ms", "45000")


def test_who_tries_once_more_says_so() -> None:
    text = '{"ts":"2026-11-05T10:00:00Z","item":"inv-1","attempt":%d,"elapsed_ms":120004,"error":"TimeoutError: The operation was aborted due to timeout"}'
    rows = read_calls("\n".join(text % number for number in (1, 2, 3)), name="x").rows
    assert [row.error_code for row in rows if isinstance(row, HttpExchange)] == ["timeout"] * 3
    assert [(row.name, row.fields, row.src) for row in rows if isinstance(row, Event)] == [
        ("client.retry", '{"number":2}', "x:2"),
        ("client.retry", '{"number":3}', "x:3"),
    ]


@pytest.mark.parametrize(
    ("line", "duration_ms", "ttfb_ms"),
    [
        (
            '{"request":{"method":"POST","uri":"/v1/chat/completions","size":512},"response":{"status":504,"size":88},"latencies":{"kong":3,"proxy":60001,"request":60004},"client_ip":"10.9.1.4","started_at":1793873523118}',
            60004.0,
            60001.0,
        ),
        (
            '{"request":{"uri":"/v1/chat/completions","method":"POST"},"response":{"status":504},"latency":60012.25,"apisix_latency":2.1,"upstream_latency":60010,"client_ip":"10.3.0.9","upstream":"10.42.1.9:8000"}',
            60012.25,
            None,
        ),
    ],
    ids=["kong", "apisix"],
)
def test_gateways_that_count_in_milliseconds(line: str, duration_ms: float, ttfb_ms: float | None) -> None:
    [row] = calls(line)
    assert (row.hop, row.status, row.duration_ms, row.ttfb_ms) == ("proxy", 504, duration_ms, ttfb_ms)


def test_an_instant_is_no_duration_and_a_servers_own_log_is_its() -> None:
    [row] = calls(
        '{"level":30,"time":1795083172941,"pid":7,"reqId":"q-11","res":{"statusCode":200},"responseTime":50821,"msg":"request completed"}'
    )
    assert (row.seen_at, row.duration_ms, row.status, row.hop, row.request_id) == (1795083172941000, 50821.0, 200, "proxy", "q-11")
    assert calls('{"level":30,"time":1795083172941,"reqId":"q-11","msg":"incoming request","req":{"method":"POST","url":"/v1/x"}}') == []


def test_an_exceptions_name_in_a_record_of_telemetry_is_a_timeout() -> None:
    [row] = calls(
        '{"timestamp":"2026-11-19T11:00:45Z","body":"failed","attributes":{"doc":"a","error.type":"ReadTimeout","duration_ms":60003}}'
    )
    assert (row.error_code, row.error_message, row.duration_ms, row.hop) == ("timeout", "ReadTimeout", 60003.0, "client")


@pytest.mark.parametrize(
    ("line", "status", "duration_ms", "ttfb_ms", "upstream_ms"),
    [
        (
            '{"ClientIP":"203.0.113.9","ClientRequestMethod":"POST","ClientRequestURI":"/v1/chat/completions","EdgeStartTimestamp":"2026-11-12T09:20:31Z","EdgeEndTimestamp":"2026-11-12T09:22:11Z","EdgeResponseStatus":524,"OriginResponseStatus":0,"EdgeTimeToFirstByteMs":100012,"OriginResponseDurationMs":100009}',
            524,
            100000.0,
            100012.0,
            100009.0,
        ),
        (
            '{"requestId":"f","ip":"10.9.1.1","requestTime":"12/Nov/2026:09:20:31 +0000","httpMethod":"POST","resourcePath":"/v1/chat/completions","status":"504","responseLatency":"29004","integrationLatency":"29000"}',
            504,
            29004.0,
            None,
            29000.0,
        ),
        (
            '{"timestamp":"2026-11-12T09:27:12Z","httpRequest":{"requestMethod":"POST","requestUrl":"https://llm/v1/chat/completions","status":200,"latency":"12.41s","remoteIp":"10.3.0.9"},"jsonPayload":{"statusDetails":"response_sent_by_backend"}}',
            200,
            12410.0,
            None,
            None,
        ),
    ],
    ids=["cloudflare", "api-gateway", "google"],
)
def test_clouds_and_their_balancers(line: str, status: int, duration_ms: float, ttfb_ms: float | None, upstream_ms: float | None) -> None:
    [row] = calls(line)
    assert (row.hop, row.path, row.status, row.error_code) == ("proxy", "/v1/chat/completions", status, None)
    assert (row.duration_ms, row.ttfb_ms, row.upstream_ms) == (duration_ms, ttfb_ms, upstream_ms)
