"""What each library's requests carry, what is told of them, and what an error says."""

import contextlib
import re
from collections.abc import Callable
from typing import Any

import aiohttp
import httpx
import httpx2
import openai
import pytest
import requests
from llm_callers import CALLERS
from llm_server import ANSWER, PROMPT, LlmServer

Spans = Callable[[], list[dict[str, Any]]]
CALLER_IDS = pytest.mark.parametrize("caller", CALLERS)
STREAMED = pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])

READ_TIMEOUTS = {
    "httpx": httpx.ReadTimeout,
    "httpx-async": httpx.ReadTimeout,
    "httpx2": httpx2.ReadTimeout,
    "httpx2-async": httpx2.ReadTimeout,
    "requests": requests.ReadTimeout,
    "aiohttp": aiohttp.SocketTimeoutError,
    "openai": openai.APITimeoutError,
    "openai-async": openai.APITimeoutError,
}


def only(spans: Spans) -> dict[str, Any]:
    [span] = spans()
    return span


@CALLER_IDS
@STREAMED
def test_a_request_has_its_id_and_trace_before_it_is_sent_and_one_span(server: LlmServer, spans: Spans, caller: str, stream: bool) -> None:
    CALLERS[caller](server.url, "ok", stream)
    [seen], span = server.seen, only(spans)
    assert seen.request_id == seen.trace_id == span["traceId"] == span["attributes"]["lensd.request.id"]
    assert seen.parent_span_id == span["spanId"]
    assert span.get("parentSpanId") is None
    assert (span["name"], span["kind"], span["scope"], span["status"]["code"]) == ("lensd.client.request", 3, "lensd.client", 1)
    said = span["attributes"]
    assert (said["gen_ai.request.model"], said["gen_ai.request.max_tokens"], said["gen_ai.response.id"]) == ("ok", 16, "chatcmpl-1")
    assert (said["http.response.status_code"], said["lensd.client.attempt"]) == (200, 1)
    assert said["lensd.client.timeout_ms"] == 5000 == float(seen.headers["x-lensd-client-timeout-ms"])
    assert said["lensd.request.streaming"] is stream
    assert "error.type" not in said
    if not stream:
        assert said["gen_ai.usage.output_tokens"] == 3


@CALLER_IDS
def test_the_times_are_those_of_the_server(server: LlmServer, spans: Spans, caller: str) -> None:
    CALLERS[caller](server.url, "gap", True)
    said = only(spans)["attributes"]
    headers, first, gap = (said[f"lensd.client.{name}_ms"] for name in ("headers", "first_content", "max_gap"))
    assert 200 <= first - headers < 2000  # the first event has no text in it; bounds are wide, for a machine that is busy
    assert 400 <= gap < 3000
    assert said["lensd.stream.done_seen"] is True
    took = (int(only(spans)["endTimeUnixNano"]) - int(only(spans)["startTimeUnixNano"])) / 1e6
    assert first + gap <= took + 1


@CALLER_IDS
@pytest.mark.parametrize(("model", "stream", "limit"), [("slow", False, 0.2), ("slow", True, 0.2), ("stall", True, 0.4)])
def test_a_time_out_names_the_request_in_its_text_and_keeps_its_type(
    server: LlmServer, spans: Spans, caller: str, model: str, stream: bool, limit: float
) -> None:
    with pytest.raises(Exception) as late:
        CALLERS[caller](server.url, model, stream, limit)
    assert type(late.value) is (requests.ConnectionError if (caller, model) == ("requests", "stall") else READ_TIMEOUTS[caller])
    assert str(late.value).count(server.seen[-1].request_id) == 1
    said = only(spans)["attributes"]
    assert (said["error.type"], said["lensd.client.timeout_ms"]) == ("read_timeout", limit * 1000)
    assert only(spans)["status"]["code"] == 2
    if model == "stall":
        assert limit * 500 <= said["lensd.client.max_gap_ms"] < 2000


@CALLER_IDS
def test_a_stream_that_breaks_off_names_the_request(server: LlmServer, spans: Spans, caller: str) -> None:
    with pytest.raises(Exception) as broken:
        CALLERS[caller](server.url, "cut", True)
    assert server.seen[-1].request_id in str(broken.value)
    assert only(spans)["attributes"]["error.type"] == "unexpected_eof"


@CALLER_IDS
@STREAMED
def test_a_refusal_is_told_and_its_error_names_the_request(server: LlmServer, spans: Spans, caller: str, stream: bool) -> None:
    with pytest.raises(Exception) as refused:
        CALLERS[caller](server.url, "refuse", stream)
    assert str(refused.value).count(server.seen[-1].request_id) == 1
    said = only(spans)["attributes"]
    assert (said["http.response.status_code"], said["error.type"]) == (400, "400")


@CALLER_IDS
def test_a_server_that_is_not_there_names_the_request(server: LlmServer, spans: Spans, caller: str) -> None:
    with pytest.raises(Exception) as missing:
        CALLERS[caller]("http://127.0.0.1:1", "ok", True)
    span = only(spans)
    assert span["attributes"]["lensd.request.id"] in str(missing.value)
    assert span["attributes"]["error.type"] == "connection_refused"


@CALLER_IDS
def test_a_stream_that_ends_without_its_last_event_is_told(server: LlmServer, spans: Spans, caller: str) -> None:
    CALLERS[caller](server.url, "silent-end", True)
    said = only(spans)["attributes"]
    assert (said["error.type"], said["lensd.stream.done_seen"]) == ("unexpected_eof", False)


def test_an_error_inside_a_stream_is_told_and_openai_names_the_request(server: LlmServer, spans: Spans) -> None:
    for caller in ("openai", "openai-async"):
        with pytest.raises(Exception, match="engine died") as inside:
            CALLERS[caller](server.url, "error", True)
        assert server.seen[-1].request_id in str(inside.value)
    assert {span["attributes"]["error.type"] for span in spans()} == {"stream_error"}


@CALLER_IDS
def test_ids_that_the_caller_made_are_kept(server: LlmServer, spans: Spans, caller: str) -> None:
    trace_id, above = "a" * 32, "b" * 16
    given = {"X-Request-Id": "mine-7", "traceparent": f"00-{trace_id}-{above}-01", "tracestate": "v=1", "X-Session-Id": "s1"}
    CALLERS[caller](server.url, "ok", False, headers=given)
    [seen], span = server.seen, only(spans)
    assert (seen.request_id, seen.headers["tracestate"]) == ("mine-7", "v=1")
    assert (seen.trace_id, seen.parent_span_id) == (trace_id, span["spanId"])
    assert (span["traceId"], span["parentSpanId"]) == (trace_id, above)
    assert span["attributes"]["gen_ai.conversation.id"] == "s1"


@CALLER_IDS
def test_no_prompt_and_no_answer_leaves(server: LlmServer, spans: Spans, caller: str) -> None:
    for model, stream in (("ok", False), ("ok", True), ("error", True), ("refuse", False)):
        with contextlib.suppress(Exception):
            CALLERS[caller](server.url, model, stream)
    assert len(spans()) == 4
    sent = b"".join(server.bodies).decode()
    assert PROMPT not in sent
    assert ANSWER not in sent
    assert not re.search(r"authorization|api[_-]key", sent, re.IGNORECASE)
