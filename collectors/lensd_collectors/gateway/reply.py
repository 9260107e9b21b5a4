"""Writes the gateway's replies over ASGI: its own, and an engine's with our ids on it."""

import asyncio
import math
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final, Protocol

from lensd_collectors.conventions import Decision, SaidBy
from lensd_collectors.gateway.decisions import Refused, error_body
from lensd_collectors.gateway.heads import HOP_BY_HOP, Header
from lensd_collectors.gateway.ids import write_traceparent
from lensd_collectors.gateway.record import Record
from lensd_collectors.gateway.upstream import Reply

Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]
Receive = Callable[[], Awaitable[Message]]


class Sender(Protocol):
    """ASGI's send with what a server of ours knows of the request beside it; see sending.Cycle."""

    task: asyncio.Task[None] | None

    async def __call__(self, message: Message, /) -> None: ...

    @property
    def is_full(self) -> bool:
        """What is sent next waits until the caller has read on."""

    def reply(self, status: int, headers: list[Header], body: bytes) -> None:
        """A whole reply, without waiting."""

    def pass_on(self, data: bytes) -> None:
        """A part of a body that has begun, without waiting."""

    def whole_body(self) -> bytes | None:
        """The request's body, if all of it has come."""


_OURS: Final = frozenset(
    (
        b"x-request-id",
        b"traceparent",
        b"x-lensd-said-by",
        b"x-lensd-stage",
        b"x-lensd-model",
        b"x-lensd-attempts",
        b"x-lensd-degraded",
        b"x-lensd-timeout",
    )
)
_REPLACED: Final = HOP_BY_HOP | _OURS | {b"content-length", b"date", b"server"}
_SSE: Final = ((b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no"))
_REPLACED_IN_STREAM: Final = _REPLACED | {name for name, _ in _SSE}
# Trying these again soon leads nowhere, or was done by the gateway already.
_NOT_AGAIN: Final = frozenset((Decision.UPSTREAM_CREDENTIAL_REFUSED, Decision.GATEWAY_ERROR))


def own_headers(record: Record, said_by: SaidBy) -> list[Header]:
    """On every reply: the ids to ask about it with, and who gave it; and what was done to the request, where something was."""
    headers = [
        (b"x-request-id", record.request_id.encode()),
        (b"traceparent", write_traceparent(record.trace_id, record.span_id).encode()),
        (b"x-lensd-said-by", said_by.encode()),
    ]
    if record.dispatched_model and record.dispatched_model != record.model:
        headers.append((b"x-lensd-model", record.dispatched_model.encode("latin-1", "replace")))
    if record.attempts > 1:
        headers.append((b"x-lensd-attempts", str(record.attempts).encode()))
    if record.is_last:
        headers.append((b"connection", b"close"))
    if record.degraded:
        headers.append((b"x-lensd-degraded", record.degraded.encode()))
    return headers


def engine_headers(record: Record, reply: Reply, *, length: int | None) -> list[Header]:
    """The engine's headers with ours; `length` where the body is known whole, None for a stream."""
    dropped = _REPLACED if length is not None else _REPLACED_IN_STREAM
    kept = [each for each in reply.headers if each[0] not in dropped]
    kept += own_headers(record, SaidBy.ENGINE)
    kept += [(b"content-length", str(length).encode())] if length is not None else _SSE
    if record.waited and reply.status >= 400:
        kept.append((b"x-should-retry", b"false"))
    return kept


async def send_start(record: Record, send: Send, status: int, headers: list[Header]) -> None:
    record.started_out, record.status = True, status
    await send({"type": "http.response.start", "status": status, "headers": headers})


async def send_stream_start(record: Record, send: Send) -> None:
    """Commits a stream before the engine has said anything."""
    record.is_sse = True
    headers = [*own_headers(record, SaidBy.GATEWAY), (b"content-type", b"text/event-stream; charset=utf-8"), *_SSE]
    await send_start(record, send, 200, headers)


async def send_whole(record: Record, send: Send, status: int, body: bytes, content_type: bytes = b"application/json") -> None:
    """A reply of the gateway's own, other than an error."""
    headers = [*own_headers(record, SaidBy.GATEWAY), (b"content-type", content_type), (b"content-length", str(len(body)).encode())]
    await send_start(record, send, status, headers)
    await send({"type": "http.response.body", "body": b"" if record.method == "HEAD" else body})


async def send_refusal(record: Record, send: Send, refusal: Refused, allow: str = "") -> None:
    body = error_body(refusal)
    headers = [
        *own_headers(record, SaidBy.GATEWAY),
        (b"x-lensd-stage", refusal.answer.stage.encode()),
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
    ]
    if refusal.retry_after_s is not None:
        headers.append((b"retry-after", str(max(1, math.ceil(refusal.retry_after_s))).encode()))
    if refusal.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if record.timeout_kind is not None:
        headers.append((b"x-lensd-timeout", record.timeout_kind.value.encode()))
    if allow:
        headers.append((b"allow", allow.encode()))
    if record.waited or refusal.shown in _NOT_AGAIN:
        headers.append((b"x-should-retry", b"false"))  # clients of OpenAI's make try 429 and 5xx again
    await send_start(record, send, refusal.status, headers)
    await send({"type": "http.response.body", "body": b"" if record.method == "HEAD" else body})
