"""A real HTTP server on a free port of this machine that answers like an LLM's, and takes lensd's spans on the same port.

The model's name says what it does: `ok`, `slow` (no headers), `gap` (0.3 s to the first text, then 0.6 s of silence), `stall`
(silent after one token), `cut` (the connection breaks after one token), `silent-end` (ends without [DONE]), `error` (an error in
the stream), `gzip` (a packed stream), `busy`, `refuse`.
"""

import asyncio
import gzip
import json
import socket
import threading
import time
from typing import Any, NamedTuple

import uvicorn

DONE = b"data: [DONE]\n\n"
PROMPT, ANSWER = "a prompt nobody may keep", "an answer nobody may keep"


class Seen(NamedTuple):
    path: str
    headers: dict[str, str]
    body: dict[str, Any]

    @property
    def request_id(self) -> str:
        return self.headers.get("x-request-id", "")

    @property
    def trace_id(self) -> str:
        return self.headers["traceparent"].split("-")[1]

    @property
    def parent_span_id(self) -> str:
        return self.headers["traceparent"].split("-")[2]


class LlmServer:
    """`answers`: statuses that the next requests are answered with, whatever their model; then the model decides."""

    def __init__(self) -> None:
        self.seen: list[Seen] = []
        self.bodies: list[bytes] = []  # of OTLP
        self.answers: list[int] = []
        self.headers: list[tuple[bytes, bytes]] = []  # added to error replies
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._socket.getsockname()[1]}"
        self._server = uvicorn.Server(
            uvicorn.Config(self._app, interface="asgi3", log_level="critical", lifespan="off", timeout_graceful_shutdown=1)
        )
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._socket]}, daemon=True)

    def start(self) -> None:
        self._thread.start()
        while not self._server.started:
            time.sleep(0.01)

    def stop(self) -> None:
        self._server.should_exit = True
        self._thread.join(10)
        self._socket.close()

    def spans(self) -> list[dict[str, Any]]:
        """What was sent to the OTLP door, attributes as plain values."""
        found = []
        for body in self.bodies:
            for resource in json.loads(body)["resourceSpans"]:
                for scope in resource["scopeSpans"]:
                    for span in scope["spans"]:
                        found.append({**span, "scope": scope["scope"]["name"], "attributes": _plain(span["attributes"])})
        return found

    async def _app(self, scope: Any, receive: Any, send: Any) -> None:
        body = b""
        while (message := await receive())["type"] == "http.request":
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        if scope["path"] == "/v1/traces":
            self.bodies.append(body)
            await _whole(send, 200, b"{}")
            return
        headers = {name.decode(): value.decode("latin-1") for name, value in scope["headers"]}
        try:
            asked = json.loads(body or b"{}")
        except ValueError:
            asked = {}
        self.seen.append(Seen(scope["path"], headers, asked))
        status = self.answers.pop(0) if self.answers else {"busy": 503, "refuse": 400}.get(asked.get("model"), 200)
        if status != 200:
            said = json.dumps({"error": {"message": f"no: {ANSWER}", "type": "x", "code": status}}).encode()
            await _whole(send, status, said, self.headers)
        elif asked.get("model") == "slow":
            await _gone(receive)
        elif asked.get("model") == "gzip":
            packed = gzip.compress(b"".join(_written(each) for each in (_chunk({"content": ANSWER}), _chunk({}, "stop"))) + DONE)
            await _whole(send, 200, packed, [(b"content-encoding", b"gzip")], b"text/event-stream")
        elif asked.get("stream"):
            await self._stream(asked["model"], receive, send)
        else:
            await _whole(send, 200, json.dumps(_reply()).encode())

    @staticmethod
    async def _stream(model: str, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})
        await asyncio.sleep(0.05)
        await _event(send, _chunk({"role": "assistant", "content": ""}))
        await asyncio.sleep(0.3 if model == "gap" else 0.05)
        await _event(send, _chunk({"content": ANSWER}))
        if model == "stall":
            await _gone(receive)
            return
        if model == "cut":
            raise RuntimeError("the server breaks off")
        if model == "gap":
            await asyncio.sleep(0.6)
        if model == "error":
            await _event(send, {"error": {"message": "engine died", "type": "InternalServerError", "code": 500}})
        elif model != "silent-end":
            await _event(send, _chunk({}, finish="stop"))
            await send({"type": "http.response.body", "body": DONE, "more_body": True})
        await send({"type": "http.response.body", "body": b""})


async def _gone(receive: Any) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def _event(send: Any, value: object) -> None:
    await send({"type": "http.response.body", "body": _written(value), "more_body": True})


def _written(value: object) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"


async def _whole(send: Any, status: int, body: bytes, headers: Any = (), kind: bytes = b"application/json") -> None:
    fixed = [(b"content-type", kind), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": [*fixed, *headers]})
    await send({"type": "http.response.body", "body": body})


def _chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]}


def _reply() -> dict[str, Any]:
    choice = {"index": 0, "message": {"role": "assistant", "content": ANSWER}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 7, "completion_tokens": 3, "total_tokens": 10}
    return {"id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice], "usage": usage}


def _plain(pairs: list[dict[str, Any]]) -> dict[str, Any]:
    found = {}
    for pair in pairs:
        [(kind, value)] = pair["value"].items()
        if kind == "intValue":
            value = int(value)
        elif kind == "arrayValue":
            value = [each["stringValue"] for each in value["values"]]
        found[pair["key"]] = value
    return found
