"""The OTLP/HTTP door: a raw ASGI application that takes traces, metrics and logs and answers 200 once the journal has them on disk."""

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, Final

import msgspec
from google.protobuf import json_format

from lensd.errors import BadBodyError, BodyTooLargeError, ReceiveError, UnsupportedError
from lensd.receive import answers
from lensd.receive.intake import Intake, Taken
from lensd.store.segments import Signal

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

PROTOBUF: Final = "application/x-protobuf"
JSON: Final = "application/json"
PATHS: Final = {"/v1/traces": Signal.TRACES, "/v1/metrics": Signal.METRICS, "/v1/logs": Signal.LOGS}


class OtlpDoor:
    """ASGI application for `POST /v1/traces|metrics|logs` and `GET /healthz`."""

    def __init__(self, intake: Intake) -> None:
        self._intake = intake

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await _lifespan(receive, send)
        if scope["type"] != "http":
            return
        path, method = scope["path"], scope["method"]
        if path == "/healthz":
            return await _answer(send, 200, JSON, b'{"status":"ok"}')
        signal = PATHS.get(path)
        if signal is None:
            return await _answer(send, 404, JSON, _status_json(5, f"no such path: {path[:100]}; OTLP goes to {', '.join(PATHS)}"))
        if method != "POST":
            return await _answer(send, 405, JSON, _status_json(12, f"{method} {path}: use POST"), {"allow": "POST"})
        headers = {name.lower(): value for name, value in scope["headers"]}
        encoding = headers.get(b"content-type", b"").split(b";")[0].strip().lower().decode("latin-1")
        try:
            taken = await self._take(signal, encoding, headers, receive)
        except ReceiveError as error:
            await self._refuse(send, encoding, error)
        else:
            await _answer(send, 200, encoding, _response(signal, encoding, taken))
        return None

    async def _take(self, signal: Signal, encoding: str, headers: Mapping[bytes, bytes], receive: Receive) -> Taken:
        with self._intake.place(signal, headers.get(b"authorization", b"")):
            if encoding not in (PROTOBUF, JSON):
                raise UnsupportedError(f"content-type {encoding[:60]!r}: send {PROTOBUF} or {JSON}")
            body = await self._body(headers, receive)
            coding = headers.get(b"content-encoding", b"").strip().lower()
            return await self._intake.take(signal, body, coding=coding, is_json=encoding == JSON)

    async def _body(self, headers: Mapping[bytes, bytes], receive: Receive) -> bytes:
        limit = self._intake.limits.max_body_bytes
        declared = headers.get(b"content-length", b"")
        if declared.isdigit() and int(declared) > limit:
            raise BodyTooLargeError(f"body of {int(declared)} bytes is over {limit}: send smaller batches")
        parts, size = [], 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise BadBodyError("the sender left before the body was complete")
            parts.append(message.get("body", b""))
            size += len(parts[-1])
            if size > limit:
                raise BodyTooLargeError(f"body is over {limit} bytes: send smaller batches")
            if not message.get("more_body", False):
                return b"".join(parts)

    async def _refuse(self, send: Send, encoding: str, error: ReceiveError) -> None:
        retry_after_s = self._intake.limits.retry_after_s
        more = {"retry-after": str(retry_after_s)} if answers.is_temporary(error) else {}
        if error.status == 401:
            more["www-authenticate"] = "Bearer"
        if encoding == PROTOBUF:
            await _answer(send, error.status, PROTOBUF, answers.status(error, retry_after_s), more)
        else:
            code = answers.GRPC_CODES.get(error.status, answers.UNKNOWN)
            await _answer(send, error.status, JSON, _status_json(code, str(error)), more)


async def _answer(send: Send, status: int, kind: str, body: bytes, more: Mapping[str, str] | None = None) -> None:
    headers = {"content-type": kind, "content-length": str(len(body)), **(more or {})}
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": body})


async def _lifespan(receive: Receive, send: Send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return


def _response(signal: Signal, encoding: str, taken: Taken) -> bytes:
    message = answers.response(signal, taken.left_out, taken.why)
    if encoding == JSON:
        return str(json_format.MessageToJson(message, indent=None)).encode()
    return bytes(message.SerializeToString())


def _status_json(code: int, text: str) -> bytes:
    return msgspec.json.encode({"code": code, "message": text})
