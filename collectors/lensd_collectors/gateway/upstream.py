"""One attempt at an engine: the request goes out unchanged, the reply's bytes come back unchanged and are read in passing."""

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, Final

import aiohttp
from yarl import URL

from lensd_collectors.conventions import Decision, Outcome, SaidBy
from lensd_collectors.gateway.decisions import Refused, error_frames
from lensd_collectors.gateway.ending import blame, finish_stream, judge_stream
from lensd_collectors.gateway.faults import read_fault
from lensd_collectors.gateway.record import Record
from lensd_collectors.gateway.reply import Send, engine_headers, send_start
from lensd_collectors.gateway.routes import Target
from lensd_collectors.gateway.sse import Scanner, read_reply

MAX_HELD_BYTES: Final = 8 << 20  # of a reply that is not a stream; beyond it the bytes pass unread
POOL_IDLE_S: Final = 4.0  # below the 5 s after which uvicorn, so vLLM, closes an idle connection

MAX_ATTEMPTS: Final = 3  # of one request, as long as each met a connection that was going stale

Clock = Callable[[], int]
Header = tuple[str, str]


def open_session(clock: Clock) -> aiohttp.ClientSession:
    """The client side, without limits of its own: the gateway's ticker holds all of them."""
    traces = aiohttp.TraceConfig()

    def connected(reused: bool) -> Callable[[aiohttp.ClientSession, SimpleNamespace, Any], Awaitable[None]]:
        async def note(_: aiohttp.ClientSession, context: SimpleNamespace, __: Any) -> None:
            record = context.trace_request_ctx
            if record is not None:
                record.sent, record.reused = clock(), reused

        return note

    traces.on_connection_create_end.append(connected(False))
    traces.on_connection_reuseconn.append(connected(True))
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=POOL_IDLE_S, force_close=False),
        timeout=aiohttp.ClientTimeout(total=None, connect=None, sock_connect=None, sock_read=None),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
        skip_auto_headers=("Accept", "Accept-Encoding", "Content-Type", "User-Agent"),
        trace_configs=[traces],
    )


class Relay:
    """Takes one request to its engine and the reply to its caller. Raises Refused for what the gateway must answer itself."""

    def __init__(self, record: Record, send: Send, clock: Clock) -> None:
        self._record, self._send, self._clock = record, send, clock

    async def run(self, session: aiohttp.ClientSession, target: Target, body: bytes, headers: list[Header]) -> None:
        record = self._record
        record.connecting = self._clock()
        response = await self._post(session, target.urls[record.route], body, headers)
        record.waits_since = self._clock()
        try:
            if response.status < 400 and response.content_type == "text/event-stream":
                await self._stream(response)
            else:
                await self._whole(response)
        finally:
            response.close()  # a reply read to its end has given its connection back already; any other is broken off here

    async def _post(self, session: aiohttp.ClientSession, url: URL, body: bytes, headers: list[Header]) -> aiohttp.ClientResponse:
        """The reply's head. An idle connection may be closed by the engine just as it is used again: then it is asked once more."""
        record = self._record
        while True:
            record.attempts, record.reused = record.attempts + 1, False
            try:
                return await session.post(url, data=body, headers=headers, allow_redirects=False, trace_request_ctx=record)
            except aiohttp.ClientConnectorError as error:
                raise Refused(Decision.NO_UPSTREAM, "the engine for this model does not take connections") from error
            except (aiohttp.ClientError, OSError, asyncio.IncompleteReadError) as error:
                if not record.reused or record.attempts >= MAX_ATTEMPTS:
                    raise Refused(Decision.ENGINE_ERROR, "the engine closed the connection before it answered") from error

    async def _stream(self, response: aiohttp.ClientResponse) -> None:
        record, send, clock = self._record, self._send, self._clock
        record.streaming = True
        scanner = record.scanner = Scanner()
        facts = record.facts = scanner.facts
        read = response.content.readany
        is_whole = True
        try:
            while data := await read():
                now = clock()
                if not record.first_byte:
                    record.first_byte = record.last_byte = now
                    await send_start(record, send, response.status, engine_headers(record, response, length=None))
                    record.first_out = clock()
                elif now - record.waits_since > record.max_gap:
                    record.max_gap = now - record.waits_since
                record.last_byte = now
                scanner.feed(data)
                if facts.has_content and not record.first_content:
                    record.first_content = now
                record.is_sending = True
                await send({"type": "http.response.body", "body": data, "more_body": True})
                record.is_sending = False
                record.bytes_out += len(data)
                record.waits_since = record.last_out = clock()
        except (aiohttp.ClientError, OSError):
            is_whole = False
        if not record.started_out:
            raise Refused(Decision.ENGINE_ERROR, "the engine closed the connection before the first byte of its stream")
        at_boundary = scanner.at_boundary
        scanner.finish()
        frames = b""
        if not judge_stream(record, is_whole=is_whole):
            frames = error_frames(Refused(Decision.ENGINE_ERROR, "the engine's stream broke off before its end"), at_boundary=at_boundary)
        await finish_stream(record, send, frames)

    async def _whole(self, response: aiohttp.ClientResponse) -> None:
        """Held back until it is whole, so that a reply that breaks off can still become an error."""
        record, clock = self._record, self._clock
        parts: list[bytes] = []
        held = 0
        try:
            while held <= MAX_HELD_BYTES and (data := await response.content.readany()):
                record.last_byte = record.waits_since = clock()
                record.first_byte = record.first_byte or record.last_byte
                parts.append(data)
                held += len(data)
        except (aiohttp.ClientError, OSError) as error:
            raise Refused(Decision.ENGINE_ERROR, "the engine closed the connection in the middle of its reply") from error
        if held > MAX_HELD_BYTES:
            await self._pass_on(response, parts)
            return
        body = b"".join(parts)
        if not record.last_byte:  # no body: its headers were all
            record.first_byte = record.last_byte = clock()
        if response.status >= 400:
            await self._fault(response, body)
            return
        record.facts = read_reply(body)
        record.outcome, record.said_by = Outcome.OK, SaidBy.ENGINE
        await self._deliver(response, body)

    async def _fault(self, response: aiohttp.ClientResponse, body: bytes) -> None:
        fault = read_fault(response.status, body)
        if fault.decision is Decision.UPSTREAM_CREDENTIAL_REFUSED:
            raise Refused(fault.decision)
        blame(self._record, fault)
        await self._deliver(response, body)

    async def _deliver(self, response: aiohttp.ClientResponse, body: bytes) -> None:
        record = self._record
        record.first_out = self._clock()
        await send_start(record, self._send, response.status, engine_headers(record, response, length=len(body)))
        record.is_sending = True
        await self._send({"type": "http.response.body", "body": body})
        record.is_sending = False
        record.bytes_out = len(body)
        record.last_out = self._clock()

    async def _pass_on(self, response: aiohttp.ClientResponse, parts: list[bytes]) -> None:
        """A reply too large to hold; chunked, so that breaking it off shows."""
        record, clock = self._record, self._clock
        record.first_out = clock()
        record.outcome, record.said_by = Outcome.OK, SaidBy.ENGINE
        headers = [each for each in engine_headers(record, response, length=0) if each[0] != b"content-length"]
        await send_start(record, self._send, response.status, headers)
        try:
            data = b"".join(parts)
            parts.clear()
            while data:
                record.is_sending = True
                await self._send({"type": "http.response.body", "body": data, "more_body": True})
                record.is_sending = False
                record.bytes_out += len(data)
                record.waits_since = record.last_out = clock()
                data = await response.content.readany()
                record.last_byte = clock()
        except (aiohttp.ClientError, OSError):
            record.outcome, record.decision, record.error_type = Outcome.CUT, Decision.ENGINE_ERROR, "reply_cut"
            return  # without an end: the server closes the connection, which is all that can be said now
        await self._send({"type": "http.response.body", "body": b""})
