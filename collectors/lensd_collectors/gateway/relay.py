"""Takes one attempt's reply to the caller: the bytes come back unchanged and are read in passing."""

from collections.abc import Callable
from typing import Final

import msgspec

from lensd_collectors.conventions import Decision, Outcome, SaidBy
from lensd_collectors.gateway.decisions import Refused
from lensd_collectors.gateway.ending import finish_stream, refuse
from lensd_collectors.gateway.faults import Fault, read_fault
from lensd_collectors.gateway.frames import error_frames
from lensd_collectors.gateway.http1 import BrokenError
from lensd_collectors.gateway.outcome import blame, judge_stream
from lensd_collectors.gateway.record import Record
from lensd_collectors.gateway.reply import Sender, engine_headers, send_start
from lensd_collectors.gateway.sse import Scanner, read_reply
from lensd_collectors.gateway.upstream import Clock, Reply

MAX_HELD_BYTES: Final = 8 << 20  # of a reply that is not a stream; beyond it the bytes pass unread

Passed = Callable[[int], None]  # a byte of the engine's came, at this instant


class EngineError(msgspec.Struct, frozen=True):
    """An engine's own error reply, whole and not yet passed on."""

    reply: Reply
    body: bytes
    fault: Fault


class Relay:
    """Raises Refused where the engine broke off before a byte had reached the caller."""

    def __init__(self, record: Record, send: Sender, clock: Clock, passed: Passed) -> None:
        self._record, self._send, self._clock, self._passed = record, send, clock, passed

    async def run(self, reply: Reply) -> EngineError | None:
        """Passes the reply on to its end; an error reply is given back instead, for the caller of this to decide about."""
        if reply.status < 300 and _is_stream(reply):
            await self._stream(reply)
            return None
        body = reply.whole()
        if body is not None and len(body) <= MAX_HELD_BYTES:
            self._stamp(self._clock())
        else:
            body = await self._hold(reply)
        if body is None:
            return None
        if reply.status >= 300:
            return EngineError(reply, body, read_fault(reply.status, body))
        record = self._record
        if record.started_out:
            await self._refuse_whole()
            return None
        record.facts = read_reply(body)
        record.outcome, record.said_by = Outcome.OK, SaidBy.ENGINE
        await self._deliver(reply, body)
        return None

    async def deliver_error(self, error: EngineError) -> None:
        """The engine's error is the answer: as it came, or as a frame where a stream was committed already."""
        record, fault = self._record, error.fault
        blame(record, fault)
        if record.started_out:
            await finish_stream(record, self._send, error_frames(Refused(fault.decision, fault.message, code=fault.code), record))
            return
        await self._deliver(error.reply, error.body)

    async def _stream(self, reply: Reply) -> None:
        record, send, clock, passed = self._record, self._send, self._clock, self._passed
        record.streaming = True
        scanner = record.scanner = Scanner()
        facts, feed = scanner.facts, scanner.feed
        record.facts = facts

        def see(data: bytes) -> int:
            now = clock()
            passed(now)
            if not record.first_byte:
                record.first_byte = now
            elif now - record.waits_since > record.max_gap:
                record.max_gap = now - record.waits_since
            record.last_byte = now
            feed(data)
            if facts.has_content and not record.first_content:
                record.first_content = now
            return now

        def pass_on(data: bytes) -> bool:
            now = see(data)
            send.pass_on(data)
            record.bytes_out += len(data)
            record.waits_since = record.last_out = now
            return not send.is_full

        why = ""
        try:
            while data := await reply.read():
                see(data)
                if not record.first_out:
                    if not record.started_out:
                        record.is_sse = True
                        await send_start(record, send, reply.status, engine_headers(record, reply, length=None))
                    record.first_out = clock()
                record.is_sending = True
                await send({"type": "http.response.body", "body": data, "more_body": True})
                record.is_sending = False
                record.bytes_out += len(data)
                record.waits_since = record.last_out = clock()
                if not send.is_full:
                    await reply.hand_on(pass_on)
        except BrokenError as broken:
            why = f"{record.engine}: {broken}"
        if not record.first_byte:
            raise Refused(Decision.ENGINE_ERROR, "the engine closed the connection before the first byte of its stream", reason=why)
        frames = b""
        scanner.finish()
        if facts.has_content and not record.first_content:  # in a last event that was never closed
            record.first_content = record.last_byte
        if not judge_stream(record, is_whole=not why):
            record.error_message += f"; {why}" if why else ""
            frames = error_frames(Refused(Decision.ENGINE_ERROR, "the engine's stream broke off before its end", code="stream_cut"), record)
        await finish_stream(record, send, frames)

    async def _hold(self, reply: Reply) -> bytes | None:
        """The whole body, held back so that a reply that breaks off can still become an error; None: too large, passed on instead."""
        record, clock = self._record, self._clock
        parts: list[bytes] = []
        held = 0
        try:
            while held <= MAX_HELD_BYTES and (data := await reply.read()):
                self._stamp(clock())
                parts.append(data)
                held += len(data)
        except BrokenError as error:
            said = "the engine closed the connection in the middle of its reply"
            raise Refused(Decision.ENGINE_ERROR, said, reason=f"{record.engine}: {error}") from error
        if held > MAX_HELD_BYTES:
            await (self._refuse_whole() if record.started_out else self._pass_on(reply, parts))
            return None
        if not record.last_byte:  # no body: its headers were all
            record.first_byte = record.last_byte = clock()
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _stamp(self, now: int) -> None:
        record = self._record
        record.last_byte = record.waits_since = now
        record.first_byte = record.first_byte or now
        self._passed(now)

    async def _refuse_whole(self) -> None:
        """A stream was begun by a heartbeat, and what the engine sends is none."""
        refusal = Refused(Decision.ENGINE_ERROR, "the engine did not answer with a stream, which had been begun already")
        await refuse(self._record, self._send, refusal)

    async def _deliver(self, reply: Reply, body: bytes) -> None:
        record, send = self._record, self._send
        record.first_out = self._clock()
        headers = engine_headers(record, reply, length=len(body))
        if send.is_full:  # with what an earlier request of the connection was answered
            await send_start(record, send, reply.status, headers)
            record.is_sending = True
            await send({"type": "http.response.body", "body": body})
            record.is_sending = False
        else:
            record.started_out, record.status = True, reply.status
            send.reply(reply.status, headers, body)
        record.bytes_out = len(body)
        record.last_out = self._clock()

    async def _pass_on(self, reply: Reply, parts: list[bytes]) -> None:
        """A reply too large to hold; chunked, so that breaking it off shows."""
        record, clock = self._record, self._clock
        record.first_out = clock()
        record.outcome, record.said_by = Outcome.OK, SaidBy.ENGINE
        headers = [each for each in engine_headers(record, reply, length=0) if each[0] != b"content-length"]
        await send_start(record, self._send, reply.status, headers)
        try:
            data = b"".join(parts)
            parts.clear()
            while data:
                record.is_sending = True
                await self._send({"type": "http.response.body", "body": data, "more_body": True})
                record.is_sending = False
                record.bytes_out += len(data)
                record.waits_since = record.last_out = clock()
                data = await reply.read()
                record.last_byte = clock()
                self._passed(record.last_byte)
        except BrokenError:
            record.outcome, record.decision, record.error_type = Outcome.CUT, Decision.ENGINE_ERROR, "reply_cut"
            return  # without an end: the server closes the connection, which is all that can be said now
        await finish_stream(record, self._send, b"")


def _is_stream(reply: Reply) -> bool:
    content_type = dict(reversed(reply.headers)).get(b"content-type", b"")
    return content_type.lstrip().lower().startswith(b"text/event-stream")
