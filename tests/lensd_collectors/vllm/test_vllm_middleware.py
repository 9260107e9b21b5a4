"""One span a request, told from what passed; the app and the caller notice nothing but the ids."""

import asyncio
import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lensd_collectors.vllm import middleware as middleware_module
from lensd_collectors.vllm import sender as sender_module
from lensd_collectors.vllm.middleware import LensdMiddleware
from lensd_collectors.vllm.sender import Sender
from middleware_calls import (
    BUSY,
    CHUNK,
    DONE,
    ENGINE_DEAD,
    ERROR,
    JSON,
    LAST,
    NO_MODEL,
    ROLE,
    SSE,
    TEXT,
    TOO_LONG,
    USAGE,
    App,
    Kept,
    answer,
    call,
    said,
)
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, StreamingResponse
from starlette.routing import Route


@pytest.fixture
def kept() -> Kept:
    return Kept()


def test_stream(kept: Kept) -> None:
    _, sent = call(kept, answer(200, SSE, CHUNK, CHUNK, CHUNK, DONE))
    assert [message["body"] for message in sent[1:]] == [CHUNK, CHUNK, CHUNK, DONE, b""]
    [span] = kept.written
    attributes = said(kept)
    assert (span["name"], span["kind"], span["status"]) == ("POST /v1/chat/completions", 2, {"code": 1})
    assert attributes["lensd.outcome"] == "ok"
    assert attributes["lensd.said_by"] == "engine"
    assert attributes["lensd.engine"] == "e0"
    assert (attributes["gen_ai.response.id"], attributes["gen_ai.response.model"]) == ("chatcmpl-r1", "tiny-llama")
    assert (attributes["lensd.stream.chunks"], attributes["lensd.stream.done_seen"]) == ("3", True)
    assert (attributes["lensd.decision"], attributes["lensd.request.streaming"]) == ("allowed", True)
    assert attributes["lensd.bytes_sent"] == str(3 * len(CHUNK) + len(DONE))
    assert 0 <= attributes["lensd.upstream.first_byte_ms"] <= attributes["lensd.upstream.last_byte_ms"]
    assert "error.type" not in attributes


def test_a_stream_tells_what_the_gateway_tells_of_one(kept: Kept) -> None:
    call(kept, answer(200, SSE, ROLE, TEXT, TEXT, LAST, USAGE, DONE))
    attributes = said(kept)
    usage = [attributes[f"gen_ai.usage.{name}"] for name in ("input_tokens", "output_tokens", "cache_read.input_tokens")]
    assert (attributes["gen_ai.response.finish_reasons"], usage) == (["length"], ["7", "2", "4"])
    first_byte, first_content, last_content, last_byte = (
        attributes[f"lensd.upstream.{name}_ms"] for name in ("first_byte", "first_content", "last_content", "last_byte")
    )
    assert first_byte < first_content < last_content < last_byte
    assert 0 < attributes["lensd.stream.max_gap_ms"] <= last_byte - first_byte


def test_without_text_there_is_no_first_content(kept: Kept) -> None:
    call(kept, answer(200, SSE, b": keep-alive\n\n", ROLE, LAST, DONE))
    attributes = said(kept)
    assert (attributes["lensd.outcome"], attributes["lensd.stream.chunks"]) == ("ok", "2")
    assert not {"lensd.upstream.first_content_ms", "lensd.upstream.last_content_ms"} & set(attributes)


def test_text_in_an_event_that_was_not_closed_came_with_the_last_byte(kept: Kept) -> None:
    call(kept, answer(200, SSE, ROLE, TEXT.rstrip(b"\n")))
    attributes = said(kept)
    times = {attributes[f"lensd.upstream.{name}_ms"] for name in ("first_content", "last_content", "last_byte")}
    assert len(times) == 1


@given(st.lists(st.integers(0, 900), max_size=8))
def test_where_the_app_cuts_its_stream_makes_no_difference(cuts: list[int]) -> None:
    stream = b"".join((ROLE, TEXT, TEXT, LAST, USAGE, DONE))
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    kept = Kept()
    _, sent = call(kept, answer(200, SSE, *(stream[a:b] for a, b in itertools.pairwise(edges))))
    assert b"".join(message.get("body", b"") for message in sent) == stream
    attributes = said(kept)
    assert (attributes["lensd.stream.chunks"], attributes["gen_ai.usage.output_tokens"], attributes["lensd.outcome"]) == ("5", "2", "ok")
    assert attributes["lensd.bytes_sent"] == str(len(stream))


@pytest.mark.parametrize(
    ("app", "outcome", "decision", "code", "message"),
    [
        (answer(200, JSON, b'{"id":"chatcmpl-1"}'), "ok", "allowed", None, None),
        (answer(200, JSON, b'{"id":', ends=False), "cut", "engine_error", "reply_cut", None),
        (answer(200, SSE, CHUNK), "cut", "engine_error", "stream_cut", "the stream ended without [DONE]"),
        (answer(200, SSE, CHUNK, LAST), "ok", "allowed", None, None),
        (answer(200, SSE, CHUNK, LAST, ends=False), "cut", "engine_error", "stream_cut", "the stream ended"),
        (answer(200, SSE, CHUNK, LAST, DONE, ends=False), "ok", "allowed", None, None),
        (answer(200, SSE, CHUNK, ERROR, DONE), "failed", "engine_dead", "InternalServerError", ENGINE_DEAD),
        (answer(401, JSON, b'{"error":"Unauthorized"}'), "refused", "key_missing", "401", "Unauthorized"),
        (answer(404, JSON, b'{"detail":"Not Found"}'), "refused", "path_unknown", "404", "Not Found"),
        (answer(404, JSON, NO_MODEL), "refused", "model_unknown", "NotFoundError", "The model `x` does not exist."),
        (answer(400, JSON, TOO_LONG), "refused", "body_malformed", "BadRequestError", "too long"),
        (answer(503, JSON, BUSY), "refused", "engine_busy", "Service Unavailable", "busy"),
        (answer(500, [], b""), "failed", "engine_error", "500", None),
        (answer(500, JSON, b"not json"), "failed", "engine_error", "500", None),
    ],
)  # fmt: skip
def test_outcomes(kept: Kept, app: App, outcome: str, decision: str, code: str | None, message: str | None) -> None:
    call(kept, app)
    attributes = said(kept)
    assert (attributes["lensd.outcome"], attributes["lensd.decision"], attributes.get("error.type")) == (outcome, decision, code)
    assert (attributes.get("lensd.error.message") or "").startswith(message or "")
    assert bool(attributes.get("lensd.error.message")) == bool(message)


def test_a_refused_key_is_the_callers(kept: Kept) -> None:
    call(kept, answer(401, JSON, b'{"error":"Unauthorized"}'), headers=[(b"authorization", b"Bearer k")])
    assert said(kept)["lensd.decision"] == "key_unknown"


def response_event(kind: str, status: str) -> bytes:
    return b'event: %b\ndata: {"type":"%b","response":{"id":"resp_1","object":"response","status":"%b"}}\n\n' % (
        kind.encode(), kind.encode(), status.encode(),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("path", "last", "outcome"),
    [
        ("/v1/responses", response_event("response.completed", "completed"), "ok"),
        ("/v1/responses", response_event("response.failed", "failed"), "failed"),
        ("/v1/responses", b"", "cut"),
        ("/v1/audio/transcriptions", b"", "ok"),
    ],
)
def test_streams_of_other_apis_end_in_their_own_way(kept: Kept, path: str, last: bytes, outcome: str) -> None:
    call(kept, answer(200, SSE, response_event("response.created", "in_progress"), last), path=path)
    attributes = said(kept)
    assert (attributes["lensd.outcome"], attributes["gen_ai.response.id"]) == (outcome, "resp_1")


def test_a_reply_in_parts_is_read_and_one_too_large_is_not(kept: Kept) -> None:
    reply = b'{"id":"embd-1","model":"e","data":["%b"],"usage":{"prompt_tokens":9}}'
    call(kept, answer(200, JSON, (reply % b"x")[:20], (reply % b"x")[20:]), path="/v1/embeddings")
    call(kept, answer(200, JSON, reply % (b"x" * 500_000), b" " * 600_000, b" "), path="/v1/embeddings")
    small, large = kept.said(0), kept.said(1)
    assert (small["gen_ai.response.id"], small["gen_ai.usage.input_tokens"], small["lensd.outcome"]) == ("embd-1", "9", "ok")
    assert ("gen_ai.response.id" in large, large["lensd.outcome"]) == (False, "ok")


def test_caller_gone(kept: Kept) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert (await receive())["type"] == "http.disconnect"
        await send({"type": "http.response.start", "status": 200, "headers": JSON})
        await send({"type": "http.response.body", "body": b"null", "more_body": False})

    call(kept, app, disconnects=True)
    attributes = said(kept)
    assert (attributes["lensd.outcome"], attributes["lensd.said_by"]) == ("caller_gone", "client")
    assert (attributes["http.response.status_code"], attributes["lensd.bytes_sent"]) == ("499", "0")  # nobody had the body
    assert "lensd.upstream.first_byte_ms" not in attributes


def test_what_had_come_before_the_caller_left_counts(kept: Kept) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await answer(200, SSE, TEXT, TEXT, ends=False)(scope, receive, send)
        await receive()
        await send({"type": "http.response.body", "body": TEXT, "more_body": True})

    call(kept, app, disconnects=True)
    attributes = said(kept)
    assert (attributes["lensd.stream.chunks"], attributes["lensd.bytes_sent"]) == ("2", str(2 * len(TEXT)))


def test_a_disconnect_after_the_end_is_only_the_end(kept: Kept) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await answer(200, SSE, CHUNK, DONE)(scope, receive, send)
        await receive()

    call(kept, app, disconnects=True)
    assert said(kept)["lensd.outcome"] == "ok"


@pytest.mark.parametrize(("last", "outcome"), [(DONE, "ok"), (ERROR, "failed"), (TEXT, "caller_gone")])
def test_a_caller_that_leaves_with_all_it_wanted_is_not_gone(kept: Kept, last: bytes, outcome: str) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await answer(200, SSE, TEXT, last, ends=False)(scope, receive, send)
        await receive()
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        call(kept, app, disconnects=True)
    assert said(kept)["lensd.outcome"] == outcome


def test_an_error_of_the_app_passes_through_and_is_told(kept: Kept) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        call(kept, app)
    attributes = said(kept)
    assert (attributes["lensd.outcome"], attributes["error.type"]) == ("failed", "ZeroDivisionError")


def test_route_and_tokens_that_the_engine_left_in_the_scope(kept: Kept) -> None:
    class Leaves:
        prompt_tokens, completion_tokens = 12, 16
        path = "/v1/chat/{kind}"

        @property
        def final_usage_info(self) -> "Leaves":
            return self

    async def app(scope: Any, receive: Any, send: Any) -> None:
        scope["route"] = Leaves()
        scope["state"]["request_metadata"] = Leaves()
        await answer(200, JSON, b"{}")(scope, receive, send)

    call(kept, app)
    attributes = said(kept)
    assert (attributes["http.route"], attributes["gen_ai.usage.input_tokens"], attributes["gen_ai.usage.output_tokens"]) == (
        "/v1/chat/{kind}",
        "12",
        "16",
    )


@pytest.mark.parametrize(
    ("method", "path", "paths", "is_observed"),
    [
        ("POST", "/v1/chat/completions", None, True),
        ("POST", "/v1/v1/embeddings", None, True),
        ("POST", "/chat/completions", None, True),  # /v1 was left out: a 404 worth knowing
        ("POST", "/tokenize", None, False),
        ("POST", "/v1", None, False),
        ("GET", "/v1/models", None, False),
        ("POST", "/generate", ("/generate", "/api/*"), True),
        ("POST", "/api/chat", ("/generate", "/api/*"), True),
        ("POST", "/generate/x", ("/generate", "/api/*"), False),
        ("POST", "/v1/chat/completions", ("/generate", "/api/*"), False),
        ("POST", "/any", ("*",), True),
        ("POST", "/metrics", ("*",), False),
    ],
)
def test_which_requests_are_looked_at(kept: Kept, method: str, path: str, paths: Any, is_observed: bool) -> None:
    given = {} if paths is None else {"paths": paths}
    scope, _ = call(kept, answer(404, JSON, b"{}"), method=method, path=path, **given)
    assert (len(kept.written), bool(scope["headers"])) == (int(is_observed), is_observed)


def test_content_and_keys_go_nowhere(kept: Kept) -> None:
    error = {
        "error": {
            "message": "1 validation error:\n  {'type': 'int_parsing', 'input': 'planted prompt'} Bearer planted-key-1",
            "type": "Bad Request",
        }
    }
    headers = [(b"authorization", b"Bearer planted-key-1")]
    call(kept, answer(400, JSON, json.dumps(error).encode()), headers=headers)
    call(kept, answer(200, SSE, CHUNK.replace(b"[]", b'[{"delta":{"content":"planted text"}}]'), DONE), headers=headers)
    call(kept, answer(200, JSON, b'{"id":"a","choices":[{"message":{"content":"planted text"}}]}'), headers=headers)
    assert "planted" not in repr(kept.written)


def test_websockets_and_lifespan_pass_untouched(kept: Kept) -> None:
    seen = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append((scope, receive, send))

    made = LensdMiddleware(app, made=Sender(kept, {}))
    for kind in ("lifespan", "websocket"):
        asyncio.run(made({"type": kind}, "receive", "send"))  # type: ignore[arg-type]
    assert seen == [({"type": "lifespan"}, "receive", "send"), ({"type": "websocket"}, "receive", "send")]


def test_without_a_receiver_it_hands_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LENSD_OTLP", raising=False)
    seen = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append((scope, send))

    scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": []}
    asyncio.run(LensdMiddleware(app)(scope, "receive", "send"))  # type: ignore[arg-type]
    assert seen == [(scope, "send")]


def test_an_app_says_in_arguments_where_to_send_to(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[str, Any]] = []
    monkeypatch.setattr(sender_module, "Exporter", lambda endpoint, **given: made.append((endpoint, given)) or Kept())
    monkeypatch.setattr(sender_module, "_made", {})
    monkeypatch.setenv("LENSD_OTLP", "http://127.0.0.1:1")
    app = Starlette(routes=[Route("/v1/{kind}", lambda request: JSONResponse({"id": "a"}), methods=["POST"])])
    app.add_middleware(LensdMiddleware, endpoint="http://127.0.0.1:2", token="t", service="shop", paths=("/v1/*",))
    for _ in range(2):
        app.build_middleware_stack()
    LensdMiddleware(app)
    assert [(endpoint, given["token"], given["service"]) for endpoint, given in made] == [
        ("http://127.0.0.1:2", "t", "shop"),
        ("http://127.0.0.1:1", None, "lensd-vllm"),
    ]


def test_an_app_of_starlettes(kept: Kept) -> None:
    def ask(request: Request) -> StreamingResponse:
        assert request.headers["x-request-id"]
        return StreamingResponse(iter((TEXT, DONE)), media_type="text/event-stream")

    app = Starlette(routes=[Route("/v1/{kind}/completions", ask, methods=["POST"])])
    app.add_middleware(LensdMiddleware, made=Sender(kept, {}))
    sent: list[Any] = []

    async def receive() -> Any:
        await asyncio.Event().wait()

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "method": "POST", "path": "/v1/chat/completions", "headers": [], "query_string": b"", "root_path": ""}
    asyncio.run(app(scope, receive, send))
    attributes = said(kept)
    assert [message.get("body") for message in sent[1:]] == [TEXT, DONE, b""]
    told = (attributes["http.route"], attributes["lensd.outcome"], attributes["lensd.stream.chunks"])
    assert told == ("/v1/{kind}/completions", "ok", "1")


def test_a_request_that_stays_open_is_told(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(middleware_module, "STARTED_AFTER_NS", 20_000_000)
    monkeypatch.setattr(middleware_module, "PROGRESS_EVERY_NS", 30_000_000)
    monkeypatch.setattr(middleware_module, "TICK_S", 0.01)

    async def wait_for(count: int) -> None:
        async with asyncio.timeout(5):
            while len(kept.events) < count:
                await asyncio.sleep(0.005)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await wait_for(2)
        await send({"type": "http.response.start", "status": 200, "headers": SSE})
        await send({"type": "http.response.body", "body": CHUNK, "more_body": True})
        await wait_for(3)
        await answer(200, SSE, DONE)(scope, receive, send)

    call(kept, app)
    told = [event["attributes"] for event in kept.events]
    assert [event["name"] for event in kept.events[:3]] == ["lensd.request.started", "lensd.request.progress", "lensd.request.progress"]
    assert [each["lensd.progress.stage"] for each in told[:3]] == ["upstream", "upstream", "streaming"]
    assert told[0]["lensd.progress.age_ms"] >= 20
    assert (told[2]["gen_ai.response.id"], told[2]["lensd.engine"]) == ("chatcmpl-r1", "e0")
    [span] = kept.written
    assert {(event["trace_id"], event["span_id"]) for event in kept.events} == {(span["traceId"], span["spanId"])}
