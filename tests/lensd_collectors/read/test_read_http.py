"""Copied exchanges and client tracebacks → what was decided, by whom, within which limit; never an answer's content."""

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
