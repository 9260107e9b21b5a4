"""Requests sent through the middleware by hand, and what it tells of them."""

import asyncio
import json
import random
from collections.abc import Awaitable, Callable
from typing import Any

from lensd_collectors.gateway.ids import IdSource
from lensd_collectors.vllm.middleware import LensdMiddleware
from lensd_collectors.vllm.sender import Sender

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
SSE = [(b"content-type", b"text/event-stream; charset=utf-8")]
JSON = [(b"content-type", b"application/json")]
CHUNK = b'data: {"id":"chatcmpl-r1","object":"chat.completion.chunk","model":"tiny-llama","choices":[]}\n\n'
ROLE = CHUNK.replace(b"[]", b'[{"delta":{"role":"assistant","content":""},"finish_reason":null}]')
TEXT = CHUNK.replace(b"[]", b'[{"delta":{"content":"a"},"finish_reason":null}]')
LAST = CHUNK.replace(b"[]", b'[{"delta":{},"finish_reason":"length"}]')
USAGE = CHUNK.replace(b"[]", b'[],"usage":{"prompt_tokens":7,"completion_tokens":2,"prompt_tokens_details":{"cached_tokens":4}}')
DONE = b"data: [DONE]\n\n"
ENGINE_DEAD = "EngineCore encountered an issue. See stack trace (above) for the root cause."
ERROR = b'data: {"error": {"message": "%s", "type": "InternalServerError", "param": null, "code": 500}}\n\n' % ENGINE_DEAD.encode()
NO_MODEL = b'{"error":{"message":"The model `x` does not exist.","type":"NotFoundError","param":"model","code":404}}'
TOO_LONG = b'{"object":"error","message":"too long","type":"BadRequestError","code":400}'
BUSY = b'{"error":{"message":"busy","type":"Service Unavailable","code":503}}'

App = Callable[[Any, Any, Any], Awaitable[None]]


class Kept:
    """An exporter that keeps what it is given."""

    held = 0

    def __init__(self) -> None:
        self.written: list[dict[str, Any]] = []  # spans in OTLP's JSON
        self.events: list[dict[str, Any]] = []

    def spans(self, make: Callable[[], list[str]], count: int) -> None:
        self.written += [json.loads(span) for span in make()]

    def event(self, name: str, **given: Any) -> None:
        self.events.append({"name": name, **given})

    def close(self, timeout_s: float = 5.0) -> None: ...

    def said(self, number: int = -1) -> dict[str, Any]:
        """Attributes of a span, each of which is there once; whole numbers are the strings of the wire."""
        pairs = self.written[number]["attributes"]
        found = {pair["key"]: plain(pair["value"]) for pair in pairs}
        assert len(found) == len(pairs)
        return found


def plain(value: dict[str, Any]) -> Any:
    [found] = value.values()
    return [plain(each) for each in found["values"]] if "arrayValue" in value else found


def answer(status: int, headers: list[tuple[bytes, bytes]], *bodies: bytes, ends: bool = True) -> App:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": status, "headers": headers})
        for body in bodies:
            await send({"type": "http.response.body", "body": body, "more_body": True})
        if ends:
            await send({"type": "http.response.body", "body": b"", "more_body": False})

    return app


def call(
    kept: Kept,
    app: App,
    method: str = "POST",
    path: str = "/v1/chat/completions",
    headers: Any = (),
    disconnects: bool = False,
    **given: Any,
) -> tuple[dict[str, Any], list[Any]]:
    """The scope as the app left it, and the messages that reached the server."""
    scope = {"type": "http", "method": method, "path": path, "headers": list(headers), "state": {}}
    sent: list[Any] = []

    async def receive() -> Any:
        return {"type": "http.disconnect"} if disconnects else {"type": "http.request", "body": b"{}", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    made = LensdMiddleware(app, made=Sender(kept, {"lensd.engine": "e0"}), ids=IdSource(random.Random(1)), **given)
    asyncio.run(made(scope, receive, send))  # type: ignore[arg-type]
    return scope, sent


def said(kept: Kept) -> dict[str, Any]:
    assert len(kept.written) == 1
    return kept.said()
