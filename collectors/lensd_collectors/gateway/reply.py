"""Writes the gateway's replies over ASGI: its own, and an engine's with our ids on it."""

from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import aiohttp

from lensd_collectors.conventions import Decision, SaidBy
from lensd_collectors.gateway.decisions import Refused, error_body
from lensd_collectors.gateway.heads import HOP_BY_HOP, Header
from lensd_collectors.gateway.ids import write_traceparent
from lensd_collectors.gateway.record import Record

Message = MutableMapping[str, Any]
Send = Callable[[Message], Awaitable[None]]
Receive = Callable[[], Awaitable[Message]]

_REPLACED = HOP_BY_HOP | {b"content-length", b"date", b"server", b"x-request-id", b"traceparent", b"x-lensd-said-by"}
_SSE = ((b"cache-control", b"no-cache"), (b"x-accel-buffering", b"no"))


def own_headers(record: Record, said_by: SaidBy) -> list[Header]:
    """On every reply: the ids to ask about it with, and who gave it."""
    return [
        (b"x-request-id", record.request_id.encode()),
        (b"traceparent", write_traceparent(record.trace_id, record.span_id).encode()),
        (b"x-lensd-said-by", said_by.value.encode()),
    ]


def engine_headers(record: Record, response: aiohttp.ClientResponse, *, length: int | None) -> list[Header]:
    """The engine's headers with ours; `length` where the body is known whole, None for a stream."""
    dropped = _REPLACED if length is not None else _REPLACED | {name for name, _ in _SSE}
    kept = [(name.lower(), value) for name, value in response.raw_headers if name.lower() not in dropped]
    kept += own_headers(record, SaidBy.ENGINE)
    kept += [(b"content-length", str(length).encode())] if length is not None else _SSE
    return kept


async def send_start(record: Record, send: Send, status: int, headers: list[Header]) -> None:
    record.started_out, record.status = True, status
    await send({"type": "http.response.start", "status": status, "headers": headers})


async def send_json(record: Record, send: Send, body: bytes) -> None:
    """A reply of the gateway's own, other than an error."""
    headers = [*own_headers(record, SaidBy.GATEWAY), (b"content-type", b"application/json"), (b"content-length", str(len(body)).encode())]
    await send_start(record, send, 200, headers)
    await send({"type": "http.response.body", "body": body})


async def send_refusal(record: Record, send: Send, refusal: Refused) -> None:
    body = error_body(refusal)
    headers = [
        *own_headers(record, SaidBy.GATEWAY),
        (b"x-lensd-stage", refusal.answer.stage.encode()),
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
    ]
    if refusal.answer.retry_after_s is not None:
        headers.append((b"retry-after", str(refusal.answer.retry_after_s).encode()))
    if refusal.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if refusal.decision is Decision.UPSTREAM_CREDENTIAL_REFUSED:
        headers.append((b"x-should-retry", b"false"))  # clients of OpenAI's make try a 502 again, to no end here
    await send_start(record, send, refusal.status, headers)
    await send({"type": "http.response.body", "body": body})
