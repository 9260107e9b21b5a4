"""One span a request, told from what passed; the app and the caller notice nothing but the ids."""

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from lensd_collectors.gateway.ids import IdSource
from lensd_collectors.vllm import middleware as middleware_module
from lensd_collectors.vllm.middleware import LensdMiddleware
from lensd_collectors.vllm.sender import Sender

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SSE = [(b"content-type", b"text/event-stream; charset=utf-8")]
JSON = [(b"content-type", b"application/json")]
CHUNK = b'data: {"id":"chatcmpl-r1","object":"chat.completion.chunk","model":"tiny-llama","choices":[]}\n\n'
DONE = b"data: [DONE]\n\n"
ENGINE_DEAD = "EngineCore encountered an issue. See stack trace (above) for the root cause."
ERROR = b'data: {"error": {"message": "%s", "type": "InternalServerError", "param": null, "code": 500}}\n\n' % ENGINE_DEAD.encode()
NO_MODEL = b'{"error":{"message":"The model `x` does not exist.","type":"NotFoundError","param":"model","code":404}}'
TOO_LONG = b'{"object":"error","message":"too long","type":"BadRequestError","code":400}'
BUSY = b'{"error":{"message":"busy","type":"Service Unavailable","code":503}}'

App = Callable[[Any, Any, Any], Awaitable[None]]


def answer(status: int, headers: list[tuple[bytes, bytes]], *bodies: bytes, ends: bool = True) -> App:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": status, "headers": headers})
        for body in bodies:
            await send({"type": "http.response.body", "body": body, "more_body": True})
        if ends:
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    return app


def call(
    recorder: Any, app: App, method: str = "POST", path: str = "/v1/chat/completions", headers: Any = (), disconnects: bool = False
) -> tuple[dict[str, Any], list[Any]]:
    """The scope as the app left it, and the messages that reached the server."""
    scope = {"type": "http", "method": method, "path": path, "headers": list(headers), "state": {}}
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.disconnect"} if disconnects else {"type": "http.request", "body": b"{}", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    made = LensdMiddleware(app, Sender(recorder, {"lensd.engine": "e0"}), IdSource(random.Random(1)))
    asyncio.run(made(scope, receive, send))  # type: ignore[arg-type]
    return scope, sent


def said(recorder: Any) -> dict[str, Any]:
    [span] = recorder.spans
    attributes: dict[str, Any] = recorder.attributes(span)
    return attributes


def test_stream(recorder: Any) -> None:
    _, sent = call(recorder, answer(200, SSE, CHUNK, CHUNK, CHUNK, DONE))
    assert [message["body"] for message in sent[1:]] == [CHUNK, CHUNK, CHUNK, DONE, b""]
    [span] = recorder.spans
    attributes = said(recorder)
    assert (span.name, span.kind, span.status.code) == ("POST /v1/chat/completions", 2, 1)
    assert attributes["lensd.outcome"] == "ok"
    assert attributes["lensd.said_by"] == "engine"
    assert attributes["lensd.engine"] == "e0"
    assert (attributes["gen_ai.response.id"], attributes["gen_ai.response.model"]) == ("chatcmpl-r1", "tiny-llama")
    assert (attributes["lensd.stream.chunks"], attributes["lensd.stream.done_seen"]) == ("3", True)
    assert attributes["lensd.bytes_sent"] == str(3 * len(CHUNK) + len(DONE))
    assert 0 <= attributes["lensd.upstream.first_byte_ms"] <= attributes["lensd.upstream.last_byte_ms"]
    assert "error.type" not in attributes


@pytest.mark.parametrize(
    ("app", "outcome", "code", "message"),
    [
        (answer(200, JSON, b'{"id":"chatcmpl-1"}'), "ok", None, None),
        (answer(200, SSE, CHUNK), "cut", "cut", None),
        (answer(200, SSE, CHUNK, DONE, ends=False), "cut", "cut", None),
        (answer(200, SSE, CHUNK, ERROR, DONE), "failed", "InternalServerError", ENGINE_DEAD),
        (answer(401, JSON, b'{"error":"Unauthorized"}'), "refused", "401", "Unauthorized"),
        (answer(404, JSON, b'{"detail":"Not Found"}'), "refused", "404", "Not Found"),
        (answer(404, JSON, NO_MODEL), "refused", "NotFoundError", "The model `x` does not exist."),
        (answer(400, JSON, TOO_LONG), "refused", "BadRequestError", "too long"),
        (answer(503, JSON, BUSY), "refused", "Service Unavailable", "busy"),
        (answer(500, [], b""), "failed", "500", None),
        (answer(500, JSON, b"not json"), "failed", "500", None),
    ],
)  # fmt: skip
def test_outcomes(recorder: Any, app: App, outcome: str, code: str | None, message: str | None) -> None:
    call(recorder, app)
    attributes = said(recorder)
    assert (attributes["lensd.outcome"], attributes.get("error.type")) == (outcome, code)
    assert (attributes.get("lensd.error.message") or "").startswith(message or "")
    assert bool(attributes.get("lensd.error.message")) == bool(message)


def test_other_streams_need_no_done(recorder: Any) -> None:
    call(recorder, answer(200, SSE, b"event: response.completed\ndata: {}\n\n"), path="/v1/responses")
    attributes = said(recorder)
    assert (attributes["lensd.outcome"], attributes["lensd.stream.chunks"]) == ("ok", "1")


def test_caller_gone(recorder: Any) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        assert (await receive())["type"] == "http.disconnect"
        await send({"type": "http.response.start", "status": 200, "headers": JSON})
        await send({"type": "http.response.body", "body": b"null", "more_body": False})

    call(recorder, app, disconnects=True)
    attributes = said(recorder)
    assert (attributes["lensd.outcome"], attributes["lensd.said_by"]) == ("caller_gone", "client")
    assert attributes["http.response.status_code"] == "499"


def test_a_disconnect_after_the_end_is_only_the_end(recorder: Any) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await answer(200, SSE, CHUNK, DONE)(scope, receive, send)
        await receive()

    call(recorder, app, disconnects=True)
    assert said(recorder)["lensd.outcome"] == "ok"


def test_an_error_of_the_app_passes_through_and_is_told(recorder: Any) -> None:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        call(recorder, app)
    attributes = said(recorder)
    assert (attributes["lensd.outcome"], attributes["error.type"]) == ("failed", "ZeroDivisionError")


def test_ids_are_given_where_there_are_none(recorder: Any) -> None:
    scope, _ = call(recorder, answer(200, JSON, b"{}"), headers=[(b"host", b"h"), (b"traceparent", b"nonsense")])
    [span] = recorder.spans
    given = dict(scope["headers"])
    assert given[b"host"] == b"h"
    assert given[b"x-request-id"].decode() == span.trace_id == said(recorder)["lensd.request.id"]
    assert given[b"traceparent"].decode() == f"00-{span.trace_id}-{span.span_id}-01"
    assert [name for name, _ in scope["headers"]].count(b"traceparent") == 1
    assert span.parent_span_id == ""


def test_ids_are_kept_where_they_are(recorder: Any) -> None:
    headers = [(b"x-request-id", b"r-1"), (b"traceparent", f"00-{TRACE}-{PARENT}-00".encode())]
    scope, _ = call(recorder, answer(200, JSON, b"{}"), headers=headers)
    [span] = recorder.spans
    assert scope["headers"] == headers
    assert (span.trace_id, span.parent_span_id, said(recorder)["lensd.request.id"]) == (TRACE, PARENT, "r-1")


def test_route_and_tokens_that_the_engine_left_in_the_scope(recorder: Any) -> None:
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

    call(recorder, app)
    attributes = said(recorder)
    assert (attributes["http.route"], attributes["gen_ai.usage.input_tokens"], attributes["gen_ai.usage.output_tokens"]) == (
        "/v1/chat/{kind}",
        "12",
        "16",
    )


@pytest.mark.parametrize(
    ("method", "path", "status", "spans"),
    [
        ("GET", "/health", 503, 0),
        ("GET", "/metrics", 200, 0),
        ("GET", "/v1/models", 200, 0),
        ("GET", "/v1/models", 401, 1),
        ("GET", "/wp-login.php", 404, 1),
        ("POST", "/tokenize", 200, 1),
    ],
)
def test_which_requests_get_a_span(recorder: Any, method: str, path: str, status: int, spans: int) -> None:
    call(recorder, answer(status, JSON, b"{}"), method=method, path=path)
    assert len(recorder.spans) == spans


def test_content_and_keys_go_nowhere(recorder: Any) -> None:
    error = {
        "error": {
            "message": "1 validation error:\n  {'type': 'int_parsing', 'input': 'planted prompt'} Bearer planted-key-1",
            "type": "Bad Request",
        }
    }
    headers = [(b"authorization", b"Bearer planted-key-1")]
    call(recorder, answer(400, JSON, json.dumps(error).encode()), headers=headers)
    call(recorder, answer(200, SSE, CHUNK.replace(b"[]", b'[{"delta":{"content":"planted text"}}]'), DONE), headers=headers)
    assert "planted" not in repr(recorder.spans)


def test_websockets_and_lifespan_pass_untouched(recorder: Any) -> None:
    seen = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append((scope, receive, send))

    made = LensdMiddleware(app, Sender(recorder, {}))
    for kind in ("lifespan", "websocket"):
        asyncio.run(made({"type": kind}, "receive", "send"))  # type: ignore[arg-type]
    assert seen == [({"type": "lifespan"}, "receive", "send"), ({"type": "websocket"}, "receive", "send")]


def test_without_a_receiver_it_hands_through(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(middleware_module, "sender", lambda: None)
    seen = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append((scope, send))

    scope = {"type": "http", "method": "POST", "path": "/v1/completions", "headers": []}
    asyncio.run(LensdMiddleware(app)(scope, "receive", "send"))  # type: ignore[arg-type]
    assert seen == [(scope, "send")]


def test_a_request_that_stays_open_is_told(recorder: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(middleware_module, "STARTED_AFTER_NS", 20_000_000)
    monkeypatch.setattr(middleware_module, "PROGRESS_EVERY_NS", 30_000_000)
    monkeypatch.setattr(middleware_module, "TICK_S", 0.01)
    names: Callable[[], list[str]] = lambda: [event.event_name for event in recorder.events]  # noqa: E731

    async def wait_for(count: int) -> None:
        async with asyncio.timeout(5):
            while len(recorder.events) < count:
                await asyncio.sleep(0.005)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await wait_for(2)
        await send({"type": "http.response.start", "status": 200, "headers": SSE})
        await send({"type": "http.response.body", "body": CHUNK, "more_body": True})
        await wait_for(3)
        await answer(200, SSE, DONE)(scope, receive, send)

    call(recorder, app)
    told = [recorder.attributes(event) for event in recorder.events]
    assert names()[:3] == ["lensd.request.started", "lensd.request.progress", "lensd.request.progress"]
    assert [each["lensd.progress.stage"] for each in told[:3]] == ["upstream", "upstream", "streaming"]
    assert told[0]["lensd.progress.age_ms"] >= 20
    assert told[2]["gen_ai.response.id"] == "chatcmpl-r1"
    assert {(event.trace_id, event.span_id) for event in recorder.events} == {(recorder.spans[0].trace_id, recorder.spans[0].span_id)}
