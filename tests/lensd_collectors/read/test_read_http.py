"""Copied exchanges and client tracebacks → what was decided, by whom, within which limit; never an answer's content."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lensd_collectors.read.http_exchange import read_http
from lensd_collectors.rows import ConfigFact, Event, HttpExchange

CAPTURES = Path(__file__).parents[2] / "captures" / "vllm-0.32.0"


def rows(text: str) -> list[HttpExchange]:
    return [one.row for one in read_http(text, name="x.txt").exchanges]


@pytest.mark.parametrize(
    ("name", "status", "shape", "model"),
    [
        ("err-key-wrong", 401, "key_unknown", "tiny-llama"),
        ("err-model-unknown", 404, "model_unknown", "nope-70b"),
        ("err-prompt-too-long", 400, "context_too_long", "tiny-llama"),
        ("err-404-path", 404, "path_unknown", "tiny-llama"),
        ("err-405", 405, "method_not_allowed", None),
        ("err-bad-type", 400, "body_malformed", "tiny-llama"),
        ("err-admission-queue-full", 503, "engine_busy", "tiny-llama"),
        ("health-after", 503, "engine_dead", None),
        ("ok-chat-nonstream", 200, None, "tiny-llama"),
    ],
)
def test_real_answers_of_vllm(name: str, status: int, shape: str | None, model: str | None) -> None:
    text = (CAPTURES / "http" / f"{name}.json").read_text()
    [row] = rows(text)
    assert (row.status, row.body_shape, row.model, row.hop) == (status, shape, model, "client")
    assert row.duration_ms is not None
    assert row.seen_at is not None
    assert "the server waits for" not in str(row)  # the prompt
    if status == 200:
        assert row.error_message is None
    assert text.split("\n")[int(str(row.src).rsplit(":", 1)[1]) - 1].strip() == f'"status": {status},'


def test_an_error_inside_a_stream_that_began_with_200() -> None:
    [row] = rows((CAPTURES / "kill9-raw-stream.bin").read_text())
    assert (row.status, row.body_shape, row.request_id) == (200, "engine_dead", "lens-kill-stream")


def test_listed_models_are_facts() -> None:
    found = read_http((CAPTURES / "http" / "models.json").read_text(), name="models.json")
    assert [(fact.name, fact.value) for fact in found.facts if isinstance(fact, ConfigFact)] == [
        ("served_model_name", "tiny-llama"),
        ("max_model_len", "512"),
    ]


CURL_V = """$ curl -v http://llm:8000/v1/chat/completions?x=1 -H "Authorization: Bearer sk-abcdefgh12" -d '{"model":"m","prompt":"tell me"}'
> POST /v1/chat/completions?x=1 HTTP/1.1
> Host: llm:8000
>
< HTTP/1.1 100 Continue
< HTTP/1.1 404 Not Found
< x-request-id: abc
< content-type: application/json
<
* Connection #0 to host llm left intact
{"error":{"message":"The model `m` does not exist.","type":"NotFoundError","param":"model","code":404}}
"""


def test_curl_verbose() -> None:
    [row] = rows(CURL_V)
    assert (row.method, row.path, row.status, row.request_id) == ("POST", "/v1/chat/completions", 404, "abc")
    assert (row.body_shape, row.error_code) == ("model_unknown", "NotFoundError")
    assert "tell me" not in str(row)


TRACEBACK = """Traceback (most recent call last):
  File "/app/main.py", line 12, in <module>
    client = OpenAI(base_url=BASE, timeout=30.0, max_retries=0)
  File "httpcore/_exceptions.py", line 14, in map_exceptions
    raise to_exc(exc) from exc
httpcore.ReadTimeout: timed out

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
httpx.ReadTimeout: timed out

The above exception was the direct cause of the following exception:

Traceback (most recent call last):
openai.APITimeoutError: Request timed out.
"""


def test_one_failure_in_three_libraries_words_is_one() -> None:
    [row] = rows(TRACEBACK)
    assert (row.status, row.error_code, row.limit_ms, row.hop) == (None, "timeout", 30_000.0, "client")
    assert row.src == "x.txt:16"


def test_two_failures_are_two() -> None:
    found = rows("httpx.ReadTimeout: timed out\nsome time later\nhttpx.ReadTimeout: timed out\n")
    assert [row.error_code for row in found] == ["read_timeout", "read_timeout"]


def test_requests_names_its_limit() -> None:
    [row] = rows("requests.exceptions.ReadTimeout: HTTPConnectionPool(host='llm', port=8000): Read timed out. (read timeout=30)")
    assert (row.error_code, row.limit_ms) == ("read_timeout", 30_000.0)


def test_an_answer_after_a_status_line_without_body_is_kept() -> None:
    [first, second] = rows(
        "GET /health\nHTTP/1.1 503 Service Unavailable\n\nPOST /v1/completions\nHTTP/1.1 502 Bad Gateway\n\n<html>nginx</html>\n"
    )
    assert (first.path, first.status, first.body_shape) == ("/health", 503, "engine_dead")
    assert (second.path, second.status, second.body_shape) == ("/v1/completions", 502, None)


def test_a_bare_error_body_is_an_answer() -> None:
    [row] = rows('{"error":{"message":"The model `m` does not exist.","type":"NotFoundError","param":"model","code":404}}')
    assert row.body_shape == "model_unknown"


@settings(max_examples=200, deadline=None)
@given(
    st.one_of(
        st.text(),
        st.lists(st.sampled_from(CURL_V.split("\n") + TRACEBACK.split("\n") + ['{"request": 1, "status": "x"}', "[[", "{"])).map("\n".join),
    )
)
def test_no_text_makes_it_raise(text: str) -> None:
    for one in read_http(text, name="x").exchanges:
        assert one.row.error_message is None or len(one.row.error_message) <= 500


def test_answers_below_somebodys_remark_are_read():
    text = (
        "# last line of each stream\n"
        '{"model": "m", "done": true, "done_reason": "stop", "total_duration": 90000000000, "prompt_eval_count": 50000,'
        ' "prompt_eval_duration": 80000000000, "eval_count": 100, "eval_duration": 9000000000}\n'
    )
    found = read_http(text, name="calls.jsonl")
    [row] = [one.row for one in found.exchanges]
    assert (row.src, row.prompt_tokens, row.ttfb_ms) == ("calls.jsonl:2", 50000, 80000.0)
    told = [row for row in found.rows if isinstance(row, Event)]
    assert [(event.name, event.src) for event in told] == [("request.prefill", "calls.jsonl:2"), ("request.decode", "calls.jsonl:2")]


def test_a_failure_of_a_call_that_told_of_itself_when_it_began():
    text = (
        "2026-11-03 14:02:09,000 INFO start doc=7/9 model=m prompt_tokens=45207 timeout=600\n"
        "2026-11-03 14:12:09,500 ERROR doc=7/9 failed: openai.APITimeoutError: Request timed out.\n"
    )
    [row] = rows(text)
    assert (row.prompt_tokens, row.duration_ms, row.error_code) == (45207, 600500.0, "timeout")


def test_a_gateways_records_say_who_left_and_what_was_read_all_the_same():
    text = (
        '{"time":"2026-11-24T10:02:29.601Z","level":"WARN","msg":"downstream gone","req":"g-90117","err":"context canceled"}\n'
        '{"time":"2026-11-24T10:06:10.507Z","level":"INFO","msg":"upstream response","req":"g-90117","status":200,"completion_tokens":98}\n'
    )
    told = [row for row in read_http(text, name="edge.jsonl").rows if isinstance(row, Event)]
    assert [(event.name, event.request_id, event.src) for event in told] == [
        ("gateway.disconnected", "g-90117", "edge.jsonl:1"),
        ("gateway.upstream_done", "g-90117", "edge.jsonl:2"),
    ]
    assert told[1].line == text.splitlines()[1]


def test_an_error_whose_parts_node_prints_on_lines_of_their_own_is_an_answer() -> None:
    text = (
        "[t] POST http://10.1.2.3:8000/v1/chat/completions model=m\nAI_APICallError: Not Found\n  statusCode: 404,\n"
        '  responseBody: \'{"error":{"message":"The model `m` does not exist.","type":"NotFoundError","param":"model","code":404}}\'\n'
    )
    [row] = rows(text)
    assert (row.status, row.path, row.body_shape, row.model) == (404, "/v1/chat/completions", "model_unknown", "m")


def test_a_command_inside_a_shells_quotes_is_a_call() -> None:
    text = (
        "$ kubectl exec deploy/debug -- sh -c 'curl -s http://llm:8000/v1/chat/completions -d @q.json'\n"
        '{"error":{"message":"The model `m` does not exist.","type":"NotFoundError","param":"model","code":404}}\n'
    )
    [row] = rows(text)
    assert (row.status, row.path, row.body_shape) == (404, "/v1/chat/completions", "model_unknown")


def test_calls_as_a_browser_exports_them() -> None:
    def entry(at: str, ms: float, status: int, body: str, wait: float) -> dict[str, object]:
        asked = {"mimeType": "application/json", "text": '{"model":"glm","stream":false}'}
        return {
            "startedDateTime": at,
            "time": ms,
            "request": {"method": "POST", "url": "https://ai.example/v1/chat/completions?x=1", "headers": [], "postData": asked},
            "response": {"status": status, "headers": [{"name": "x-request-id", "value": "r"}], "content": {"text": body}},
            "timings": {"wait": wait},
        }

    gone = "<html><head><title>504 Gateway Time-out</title></head></html>"
    entries = [entry("2026-11-14T08:31:20.114Z", 60013.25, 504, gone, 60012.5), entry("2026-11-14T08:40:20.114Z", 400, 0, "", -1)]
    text = json.dumps({"log": {"version": "1.2", "entries": entries}}, indent=1)
    cut, aborted = rows(text)
    assert (cut.path, cut.status, cut.duration_ms, cut.ttfb_ms) == ("/v1/chat/completions", 504, 60013.25, 60012.5)
    assert (cut.model, cut.streaming, cut.request_id, cut.hop) == ("glm", False, "r", "client")
    assert text.split("\n")[int((cut.src or "").rpartition(":")[2]) - 1].strip().startswith('"status": 504')
    assert (aborted.status, aborted.ttfb_ms, aborted.duration_ms) == (None, None, 400.0)


@pytest.mark.parametrize(
    ("text", "status", "duration_ms"),
    [
        ("08:15:33.414Z HTTP/1.1 503 Service Unavailable after 30.0 s", 503, 30000.0),
        ("[09:20:31 ERR] Response status code does not indicate success: 504 (Gateway Time-out). elapsed=00:01:00.0131", 504, 60013.1),
    ],
)
def test_an_answer_of_which_one_line_tells(text: str, status: int, duration_ms: float) -> None:
    [row] = rows(text)
    assert (row.status, row.duration_ms) == (status, duration_ms)


def test_an_hour_whose_zone_stands_apart_is_an_instant() -> None:
    [row] = rows("2026-11-03 10:04:40.122 +00:00 [ERR] failed after 00:00:30.0021\nSystem.TimeoutException: no\nhttpx.ReadTimeout\n")
    assert row.seen_at == 1793700280122000


def test_an_access_log_of_a_form_of_its_own_names_its_instants_as_web_servers_do() -> None:
    line = '10.2.3.134 [28/Nov/2026:14:03:04 +0800] "POST /v1/chat/completions HTTP/1.1" 499 0 rt=4.687 urt=4.687 rid=488e'
    [row] = rows(line)
    assert (row.seen_at, row.request_id, row.status, row.duration_ms) == (1795845784000000, "488e", 499, 4687)


def test_a_proxy_of_ones_own_says_how_long_its_calls_took() -> None:
    cut, served = rows(
        "2026/11/10 10:14:31 http: proxy error: net/http: timeout awaiting response headers\n"
        "2026/11/10 10:14:31 POST /v1/chat/completions 502 1m30.0012s\n"
        "2026/11/10 10:24:40 POST /v1/chat/completions 200 3m11.8s\n"
    )
    assert (cut.hop, cut.status, cut.duration_ms, cut.limit_kind) == ("proxy", 502, 90001.2, "first_byte")
    assert (served.hop, served.status, served.duration_ms) == ("proxy", 200, 191800.0)


def test_how_long_another_call_took_is_not_the_failed_ones() -> None:
    failed, direct = rows("openai.InternalServerError: Error code: 524 - error code: 524\ndirect, same prompt: 200 after 128 s\n")
    assert (failed.status, failed.duration_ms) == (524, None)
    assert (direct.status, direct.duration_ms) == (200, 128000.0)


def test_a_remark_on_a_refusal_that_was_put_right_tells_of_no_failed_call() -> None:
    refused = (
        '# etl, by hand with max_tokens=60000: HTTP/1.1 400 {"object":"error","message":"too long","type":"BadRequestError","code":400}'
    )
    [row] = rows(f"{refused}\n")
    assert row.status == 400
    assert rows(f"{refused}; 08:17:10 with max_tokens=600: HTTP/1.1 200\n") == []


def test_a_web_frameworks_console_tells_of_calls() -> None:
    failed, refused, served = rows(
        " ⨯ [TimeoutError: The operation was aborted due to timeout] { code: 23 }\n"
        " POST /api/chat 500 in 25012ms\n POST /api/chat 200 in 18111ms\n"
    )
    assert (failed.error_code, failed.status) == ("timeout", None)
    assert [(one.path, one.status, one.duration_ms) for one in (refused, served)] == [
        ("/api/chat", 500, 25012.0),
        ("/api/chat", 200, 18111.0),
    ]


def test_a_recorders_signs_of_direction_are_curls() -> None:
    [row] = rows(
        "POST http://10.0.0.4:8012/infill HTTP/1.1\nhost: 10.0.0.4:8012\n<< HTTP/1.1 401 Unauthorized\n"
        '<< Content-Type: application/json\n<< {"error":{"message":"Invalid API Key","code":401}}\n'
    )
    assert (row.method, row.path, row.status, row.body_shape) == ("POST", "/infill", 401, "key_unknown")


@pytest.mark.parametrize("status_first", [False, True])
def test_where_a_call_went_is_a_member_of_the_error_that_node_prints(status_first: bool) -> None:
    members = ["  url: 'http://10.0.0.4:11434/v1/chat'", "  statusCode: 404"]
    members = members[::-1] if status_first else members
    [row] = rows("\n".join(["AI_APICallError: Not Found", *members, "  responseBody: '404 page not found'", ""]))
    assert (row.path, row.upstream, row.status, row.body_shape) == ("/v1/chat", "10.0.0.4:11434", 404, "path_unknown")


def test_a_call_that_names_itself_lasts_from_its_sending_to_its_end() -> None:
    served, failed = rows(
        "2026-11-20T10:00:00.000Z job=a POST /v1/chat/completions stream=false max_tokens=900\n"
        "2026-11-20T10:00:41.000Z job=a ok in 41.0s\n"
        "2026-11-20T10:01:00.000Z job=b POST /v1/chat/completions stream=false max_tokens=900\n"
        "2026-11-20T10:02:00.500Z job=b error=fetch failed cause=HeadersTimeoutError: Headers Timeout Error\n"
    )
    assert (served.status, served.duration_ms, served.max_tokens) == (200, 41000.0, 900)
    assert (failed.error_code, failed.duration_ms, failed.path) == ("read_timeout", 60500.0, "/v1/chat/completions")


def test_an_errors_body_stands_behind_its_status_or_on_the_line_below() -> None:
    busy, refused = rows(
        '10:00:01 POST /v1/chat/completions 503 in 3 ms {"detail":{"msg":"Server is busy","type":"service_unavailable"}}\n'
        '[hub] path=/v1/chat/completions status=401 latency_ms=12\n[hub] body={"error":"Invalid API key","type":"auth"}\n'
    )
    assert (busy.status, busy.body_shape) == (503, "engine_busy")
    assert (refused.status, refused.body_shape) == (401, "key_unknown")


def test_a_body_whose_status_nobody_copied_has_the_usual_one() -> None:
    [row] = rows('$ curl -s http://llm:8000/v1/chat/completions -d @q.json\n{"detail":"Unknown model: phi-4"}\n')
    assert (row.status, row.body_shape, row.model) == (404, "model_unknown", "phi-4")


def test_figures_are_read_by_whichever_form_knows_them() -> None:
    [row] = rows(
        'HTTP/1.1 400 Bad Request\n\n{"error":{"message":"Requested tokens (9120) exceed context window of 4096",'
        '"code":"context_length_exceeded"}}\n'
    )
    assert (row.body_shape, row.prompt_tokens, row.context_limit) == ("context_too_long", 9120, 4096)


def test_a_line_that_begins_with_the_call_tells_of_its_answer_too() -> None:
    refused, served = rows(
        '2026-11-20T10:01:01Z POST http://ovms:8000/v1/chat/completions 404 {"error":"Invalid request URL"}\n'
        "2026-11-20T10:03:07Z POST http://ovms:8000/v3/chat/completions 200\n"
    )
    assert (refused.path, refused.status, refused.body_shape) == ("/v1/chat/completions", 404, "path_unknown")
    assert (served.path, served.status) == ("/v3/chat/completions", 200)


ANSWER = '{"id":"%s","choices":[{"message":{"content":%s},"finish_reason":"%s"}],"usage":{"prompt_tokens":9,"completion_tokens":64}}'


def test_each_answer_below_a_remark_of_its_own_is_read_with_what_the_remark_says_was_asked() -> None:
    whole, cut = json.dumps('{"rows": [{"n": 1}, ... ]}'), json.dumps('{"rows": [{"n": 1}, ... ,{"n": 31')
    text = (
        f"### A-1 request: {{...}}\n{ANSWER % ('c-1', whole, 'stop')}\n"
        f'### A-2 request: {{"model":"m","max_tokens":64,"messages":[...2]}}\n{ANSWER % ("c-2", cut, "length")}\n'
    )
    told = [(one.src, one.finish_reason, one.max_tokens, one.json_broken) for one in rows(text)]
    assert told == [("x.txt:2", "stop", None, False), ("x.txt:4", "length", 64, True)]


def test_what_follows_documents_and_is_none_is_read_as_text() -> None:
    text = f"{ANSWER % ('c-1', json.dumps('well'), 'stop')}\nHTTP/1.1 503 Service Unavailable\n"
    assert [(one.src, one.status) for one in rows(text)] == [("x.txt:1", 200), ("x.txt:2", 503)]
