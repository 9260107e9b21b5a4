"""The OTLP/HTTP door: a raw ASGI application that takes traces, metrics and logs and answers 200 once the journal has them on disk."""

import asyncio
import hmac
import logging
import time
import zlib
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from typing import Any, Final

import msgspec

from lensd.errors import BadBodyError, BodyTooLargeError, FullError, ReceiveError, UnauthorizedError
from lensd.receive.limits import DoorLimits as DoorLimits
from lensd.receive.parse import parse_json, parse_protobuf
from lensd.receive.scrub import Scrubber
from lensd.store.journal import Journal
from lensd.store.segments import Signal

log = logging.getLogger(__name__)

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]

PROTOBUF: Final = "application/x-protobuf"
JSON: Final = "application/json"
PATHS: Final = {"/v1/traces": Signal.TRACES, "/v1/metrics": Signal.METRICS, "/v1/logs": Signal.LOGS}
_GRPC_CODES: Final = {400: 3, 401: 16, 413: 8, 429: 8, 503: 14}
_TEMPORARY: Final = frozenset({429, 503})


class DoorCounts(msgspec.Struct, kw_only=True):
    """What the door has done since it was made."""

    accepted: Counter[str] = msgspec.field(default_factory=Counter)  # by signal
    refused: Counter[str] = msgspec.field(default_factory=Counter)  # by error code
    body_bytes: int = 0


class UnsupportedError(ReceiveError):
    code = "unsupported-media-type"
    status = 415


class OtlpDoor:
    """ASGI application for `POST /v1/traces|metrics|logs` and `GET /healthz`. An empty token lets everyone in."""

    def __init__(
        self,
        journal: Journal,
        token: str,
        limits: DoorLimits | None = None,
        *,
        scrubber: Scrubber | None = None,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._journal, self._limits, self._clock = journal, limits or DoorLimits(), clock
        self._bearer = f"Bearer {token}".encode() if token else b""
        self._in_flight = 0
        self.scrubber = scrubber or Scrubber()
        self.counts = DoorCounts()

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
            await self._take(signal, encoding, headers, receive)
        except ReceiveError as error:
            self.counts.refused[error.code] += 1
            if error.status != 401:
                log.warning("refused a body of %s: %s", signal.name.lower(), error)
            await self._refuse(send, encoding, error)
        else:
            self.counts.accepted[signal.name.lower()] += 1
            await _answer(send, 200, encoding, b"{}" if encoding == JSON else b"")  # an empty response message
        return None

    async def _take(self, signal: Signal, encoding: str, headers: Mapping[bytes, bytes], receive: Receive) -> None:
        if self._bearer and not hmac.compare_digest(headers.get(b"authorization", b""), self._bearer):
            raise UnauthorizedError("bearer token missing or wrong: send `Authorization: Bearer <token>` with the token of token_file")
        if encoding not in (PROTOBUF, JSON):
            raise UnsupportedError(f"content-type {encoding[:60]!r}: send {PROTOBUF} or {JSON}")
        if self._in_flight >= self._limits.max_in_flight:
            raise FullError(f"{self._in_flight} bodies are at work already: try again later")
        self._in_flight += 1
        try:
            body = await self._body(headers, receive)
            self.counts.body_bytes += len(body)
            payload = self._scrubbed(signal, encoding, body)
            await asyncio.wrap_future(self._journal.append(signal, int(self._clock() * 1e6), payload))
        finally:
            self._in_flight -= 1

    def _scrubbed(self, signal: Signal, encoding: str, body: bytes) -> bytes:
        """The body as the journal keeps it: protobuf, without content and keys."""
        message = parse_json(signal, body) if encoding == JSON else parse_protobuf(signal, body)
        changed = self.scrubber.scrub(signal, message)
        # Fields that the parser does not know are not looked into, so they are not kept.
        message.DiscardUnknownFields()
        if changed or encoding == JSON or message.ByteSize() != len(body):
            return bytes(message.SerializeToString())
        return body

    async def _body(self, headers: Mapping[bytes, bytes], receive: Receive) -> bytes:
        limit = self._limits.max_body_bytes
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
                break
        return self._unpacked(headers.get(b"content-encoding", b"").strip().lower(), b"".join(parts))

    def _unpacked(self, coding: bytes, body: bytes) -> bytes:
        if coding in (b"", b"identity"):
            return body
        if coding != b"gzip":
            raise UnsupportedError(f"content-encoding {coding.decode('latin-1')[:40]!r}: send gzip or none")
        limit = self._limits.max_decoded_bytes
        unpacker = zlib.decompressobj(wbits=31)
        try:
            unpacked = unpacker.decompress(body, limit + 1)
        except zlib.error as error:
            raise BadBodyError("body is not gzip, though content-encoding says so") from error
        if len(unpacked) > limit:
            raise BodyTooLargeError(f"body is over {limit} bytes once unpacked: send smaller batches")
        if not unpacker.eof or unpacker.unused_data:
            raise BadBodyError("gzip body is cut short or has something after its end")
        return unpacked

    async def _refuse(self, send: Send, encoding: str, error: ReceiveError) -> None:
        code, text = _GRPC_CODES.get(error.status, 2), str(error)
        more = {"retry-after": str(self._limits.retry_after_s)} if error.status in _TEMPORARY else {}
        if error.status == 401:
            more["www-authenticate"] = "Bearer"
        if encoding == PROTOBUF:
            await _answer(send, error.status, PROTOBUF, _status_protobuf(code, text), more)
        else:
            await _answer(send, error.status, JSON, _status_json(code, text), more)


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


def _status_json(code: int, text: str) -> bytes:
    return msgspec.json.encode({"code": code, "message": text})


def _status_protobuf(code: int, text: str) -> bytes:
    """A google.rpc.Status, which OTLP asks for in an answer that refuses: code (field 1) and message (field 2)."""
    raw = text.encode()[:16_000]
    length, size = [], len(raw)
    while size > 127:
        length.append(size & 127 | 128)
        size >>= 7
    return bytes([8, code, 18, *length, size]) + raw
