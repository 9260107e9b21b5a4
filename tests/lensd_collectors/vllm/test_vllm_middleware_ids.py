"""Whatever ids a request comes with, the app's own records join ours, and the caller learns the id that holds."""

import asyncio
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lensd_collectors.gateway.ids import IdSource
from lensd_collectors.vllm.headers import read_headers
from lensd_collectors.vllm.middleware import LensdMiddleware
from lensd_collectors.vllm.sender import Sender
from middleware_calls import DONE, JSON, PARENT, SSE, TEXT, TRACE, Kept, answer, call, said

OK = answer(200, JSON, b"{}")
FOREIGN = f"00-{TRACE}-{PARENT}-01".encode()


@pytest.fixture
def kept() -> Kept:
    return Kept()


def only(headers: Any, name: bytes) -> str:
    """The value of a header that must be there once."""
    [value] = [value for found, value in headers if found == name]
    return str(value.decode())


@pytest.mark.parametrize("flags", ["00", "01", "03"])
def test_the_apps_parent_is_our_span_and_ours_the_callers(flags: str, kept: Kept) -> None:
    """An engine that took the caller's span for its parent would stand beside ours; that of an unsampled one it leaves out."""
    headers = [(b"traceparent", f"00-{TRACE}-{PARENT}-{flags}".encode()), (b"tracestate", b"vendor=1")]
    scope, _ = call(kept, OK, headers=headers)
    [span] = kept.written
    assert (span["traceId"], span["parentSpanId"]) == (TRACE, PARENT)
    assert span["spanId"] != PARENT
    assert only(scope["headers"], b"traceparent") == f"00-{TRACE}-{span['spanId']}-01"
    assert only(scope["headers"], b"tracestate") == "vendor=1"


@pytest.mark.parametrize(
    "value",
    [None, b"nonsense", f"00-{'0' * 32}-{PARENT}-01".encode(), f"00-{TRACE}-{'0' * 16}-01".encode(), FOREIGN + b"-more", b"\xff\xfe"],
)
def test_a_request_without_a_trace_of_use_begins_one(value: bytes | None, kept: Kept) -> None:
    scope, _ = call(kept, OK, headers=[] if value is None else [(b"traceparent", value)])
    [span] = kept.written
    assert "parentSpanId" not in span
    assert only(scope["headers"], b"traceparent") == f"00-{span['traceId']}-{span['spanId']}-01"
    assert only(scope["headers"], b"x-request-id") == span["traceId"] == said(kept)["lensd.request.id"]


@pytest.mark.parametrize(
    ("given", "holds"),
    [
        (b"r-1", "r-1"),
        (b"r 1\t", "r1"),
        (b'"quoted"', "quoted"),
        (b"caf\xc3\xa9", "caf"),
        (b"x" * 200, "x" * 128),
    ],
)
def test_the_id_that_we_report_is_the_one_that_the_app_and_the_caller_have(given: bytes, holds: str, kept: Kept) -> None:
    scope, sent = call(kept, OK, headers=[(b"host", b"h"), (b"x-request-id", given), (b"accept", b"*/*")])
    assert only(scope["headers"], b"x-request-id") == said(kept)["lensd.request.id"] == only(sent[0]["headers"], b"x-request-id") == holds
    assert scope["headers"][:2] == [(b"host", b"h"), (b"accept", b"*/*")]


@pytest.mark.parametrize("given", [b"", b" ", b"\xff", b"''"])
def test_an_id_of_which_nothing_is_left_is_the_traces(given: bytes, kept: Kept) -> None:
    scope, sent = call(kept, OK, headers=[(b"x-request-id", given), (b"traceparent", FOREIGN)])
    assert only(scope["headers"], b"x-request-id") == only(sent[0]["headers"], b"x-request-id") == TRACE


def test_of_a_header_sent_twice_the_first_counts(kept: Kept) -> None:
    other = f"00-{'1' * 32}-{'2' * 16}-01".encode()
    headers = [(b"x-request-id", b"a"), (b"x-request-id", b"b"), (b"traceparent", FOREIGN), (b"traceparent", other)]
    scope, _ = call(kept, OK, headers=headers)
    assert only(scope["headers"], b"x-request-id") == "a"
    assert TRACE in only(scope["headers"], b"traceparent")


@pytest.mark.parametrize("status", [200, 401, 404, 500])
def test_every_reply_names_its_request(status: int, kept: Kept) -> None:
    _, sent = call(kept, answer(status, JSON, b"{}"), headers=[(b"x-request-id", b"r-1")])
    assert sent[0]["headers"] == [*JSON, (b"x-request-id", b"r-1")]


@pytest.mark.parametrize("name", [b"x-request-id", b"X-Request-Id"])
def test_a_reply_that_names_its_request_is_left_as_it_is(name: bytes, kept: Kept) -> None:
    headers = [*JSON, (name, b"the app's own")]
    _, sent = call(kept, answer(200, headers, b"{}"))
    assert sent[0]["headers"] == headers


def test_headers_that_can_be_read_only_once_reach_the_caller(kept: Kept) -> None:
    _, sent = call(kept, answer(200, (pair for pair in SSE), TEXT, DONE), headers=[(b"x-request-id", b"r-1")])  # type: ignore[arg-type]
    assert sent[0]["headers"] == [*SSE, (b"x-request-id", b"r-1")]
    assert said(kept)["lensd.stream.chunks"] == "1"


@pytest.mark.parametrize(
    ("headers", "limit_ms"),
    [
        ([(b"x-lensd-client-timeout-ms", b"2500"), (b"x-stainless-timeout", b"1")], 2500.0),
        ([(b"x-stainless-read-timeout", b"600"), (b"x-stainless-timeout", b"1")], 600_000.0),
        ([(b"x-stainless-timeout", b"1.5")], 1500.0),
        ([(b"x-lensd-client-timeout-ms", b"never"), (b"x-stainless-timeout", b"1")], 1000.0),
        ([(b"x-stainless-timeout", b"-1")], None),
        ([(b"x-stainless-timeout", b"inf")], None),
        ([(b"x-stainless-timeout", b"nan")], None),
    ],
)
def test_the_callers_session_and_time_limit(headers: list[tuple[bytes, bytes]], limit_ms: float | None, kept: Kept) -> None:
    call(kept, OK, headers=[*headers, (b"x-session-id", b"agent run 7")])
    attributes = said(kept)
    assert (attributes["gen_ai.conversation.id"], attributes.get("lensd.client.timeout_ms")) == ("agentrun7", limit_ms)


NAMES = st.sampled_from([b"x-request-id", b"traceparent", b"tracestate", b"x-session-id", b"x-stainless-timeout", b"authorization", b"x"])
VALUES = st.binary(max_size=150) | st.sampled_from([FOREIGN, b"600", b"1e999"])


@settings(deadline=None)
@given(st.lists(st.tuples(NAMES, VALUES), max_size=12))
def test_any_headers_give_the_app_one_sane_id_and_one_parent_that_is_ours(raw: list[tuple[bytes, bytes]]) -> None:
    found = read_headers(raw, IdSource(random.Random(1)))
    assert only(found.headers, b"traceparent") == f"00-{found.trace_id}-{found.span_id}-01"
    request_id = only(found.headers, b"x-request-id")
    assert request_id == found.request_id
    assert 1 <= len(request_id) <= 128
    assert request_id.isascii()
    assert request_id.isprintable()
    ours = (b"x-request-id", b"traceparent")
    assert [pair for pair in found.headers if pair[0] not in ours] == [pair for pair in raw if pair[0] not in ours]


def test_an_app_that_says_something_odd_is_passed_on_and_not_stopped(kept: Kept, caplog: pytest.LogCaptureFixture) -> None:
    messages = [
        {"type": "http.response.start", "status": 200, "headers": JSON},
        {"type": "http.response.body", "body": None, "more_body": True},
        {"type": "http.response.body", "body": "text"},
        {"type": "http.response.start"},
        {"type": "http.response.trailers", "headers": []},
    ]

    async def app(scope: Any, receive: Any, send: Any) -> None:
        for message in messages:
            await send(message)

    _, sent = call(kept, app)
    assert sent[1:] == messages[1:]
    assert "lensd could not report a request" in caplog.text


def test_a_request_of_which_nothing_can_be_read_is_passed_on(kept: Kept) -> None:
    seen = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append((scope, receive, send))

    scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": None}
    asyncio.run(LensdMiddleware(app, made=Sender(kept, {}))(scope, "receive", "send"))  # type: ignore[arg-type]
    assert (seen, kept.written) == ([(scope, "receive", "send")], [])


def test_each_request_without_ids_is_a_trace_of_its_own(kept: Kept) -> None:
    made = LensdMiddleware(OK, made=Sender(kept, {}))  # type: ignore[arg-type]

    async def send(message: Any) -> None: ...

    for _ in range(3):
        scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": []}
        asyncio.run(made(scope, None, send))  # type: ignore[arg-type]
    assert len({span["traceId"] for span in kept.written}) == 3
