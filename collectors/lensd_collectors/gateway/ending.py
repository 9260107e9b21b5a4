"""How a request ended: the record's outcome, and the last words to the caller where there is still one."""

import asyncio
import contextlib
from collections.abc import Awaitable
from typing import Final

from lensd_collectors.conventions import Decision, Outcome, SaidBy, TimeoutKind
from lensd_collectors.gateway.decisions import Refused
from lensd_collectors.gateway.frames import error_frames
from lensd_collectors.gateway.outcome import judge_stream
from lensd_collectors.gateway.record import Limits, Record, Stop
from lensd_collectors.gateway.reply import Send, send_refusal

_TIMEOUTS: Final = {
    Stop.CONNECT: (TimeoutKind.CONNECT, "the engine did not take the connection within {:g} s"),
    Stop.FIRST_BYTE: (TimeoutKind.FIRST_BYTE, "the engine sent no byte within {:g} s: the request was in its queue or in prefill"),
    Stop.IDLE: (TimeoutKind.IDLE, "the engine's reply stood still for {:g} s in decode"),
    Stop.TOTAL: (TimeoutKind.TOTAL, "the request was not done within {:g} s"),
}
_WHOLE: Final = "the engine sent no byte within {:g} s: its reply comes whole, so the request was in its queue, in prefill or in decode"
LAST_WORDS_S: Final = 1.0  # how long a caller may take to read them: nothing else can end the request any more
_CALLER_LEFT: Final = (Stop.CALLER_GONE, Stop.CALLER_STUCK)


async def refuse(record: Record, send: Send, refusal: Refused, allow: str = "") -> None:
    """The gateway's own answer is the request's end, and is sent: as a reply, or as a frame where a stream was committed already."""
    record.said_by, record.decision, record.outcome = SaidBy.GATEWAY, refusal.decision, refusal.answer.outcome
    record.error_type, record.error_message = refusal.code, refusal.reason
    if refusal.prompt_tokens is not None:
        record.facts.prompt_tokens = refusal.prompt_tokens
    if record.started_out:
        await finish_stream(record, send, error_frames(refusal, record))
    else:
        await send_refusal(record, send, refusal, allow)


async def finish_stream(record: Record, send: Send, frames: bytes) -> None:
    """Closes a stream that has begun, after frames of the gateway's own where there are any."""
    record.is_sending = True  # a caller that does not read holds this up like all else
    await send({"type": "http.response.body", "body": frames})
    record.is_sending = False
    record.bytes_out += len(frames)


async def interrupted(record: Record, send: Send, limits: Limits) -> None:
    """Says what became of a request that was stopped from outside, and tells the caller where it can be told."""
    stop = record.stop = record.stop or Stop.SHUTDOWN
    was_sending, record.is_sending = record.is_sending, False
    if stop in _CALLER_LEFT:
        _caller_left(record, stop, limits, was_sending)
        return
    if _has_ended(record) and not was_sending:
        judge_stream(record, is_whole=True)  # only the engine's connection was still open
        await _say_last(finish_stream(record, send, b""))
        return
    refusal = _refusal(record, stop, limits)
    if stop is not Stop.SHUTDOWN:
        record.timeout_kind, record.timeout_ms = _TIMEOUTS[stop][0], limits.ms(stop)
    if not record.started_out:
        await _say_last(refuse(record, send, refusal))
    else:
        record.said_by, record.decision = SaidBy.GATEWAY, refusal.decision
        record.error_type, record.error_message = refusal.code, refusal.reason
        if record.is_sse and not was_sending:  # a caller that does not read would hold this up too
            await _say_last(finish_stream(record, send, error_frames(refusal, record)))
    if stop is Stop.SHUTDOWN:
        record.outcome = Outcome.CUT if record.first_out else Outcome.FAILED
    else:
        record.outcome = Outcome.TIMED_OUT


async def _say_last(words: Awaitable[None]) -> None:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(LAST_WORDS_S):
            await words


def _has_ended(record: Record) -> bool:
    """The engine's stream has said so, or that it failed: nothing that matters can follow."""
    return record.scanner is not None and (record.scanner.done_seen or record.facts.error is not None)


def _caller_left(record: Record, stop: Stop, limits: Limits, was_sending: bool) -> None:
    if _has_ended(record) and not was_sending:
        judge_stream(record, is_whole=True)  # clients close as soon as they have read [DONE] or an error: nothing was missed
        return
    record.outcome, record.said_by, record.decision = Outcome.CALLER_GONE, SaidBy.CLIENT, Decision.CALLER_GONE
    record.status, record.error_type, record.error_message = 499, stop.value, ""
    if stop is Stop.CALLER_STUCK:
        record.timeout_kind, record.timeout_ms = TimeoutKind.IDLE, limits.ms(stop)


def _refusal(record: Record, stop: Stop, limits: Limits) -> Refused:
    if stop is Stop.SHUTDOWN:
        return Refused(Decision.GATEWAY_STOPPING)
    if not record.body_read:
        said = "no more of the body came for {:g} s" if stop is Stop.IDLE else "the body had not arrived within {:g} s"
        return Refused(Decision.BODY_TIMEOUT, said.format(limits.ms(stop) / 1000))
    said = _WHOLE if stop is Stop.FIRST_BYTE and not record.streaming else _TIMEOUTS[stop][1]
    message = said.format(limits.ms(stop) / 1000)
    if not record.connecting and stop is Stop.TOTAL:
        message += f"; it waited between attempts, {record.attempts} were made" if record.attempts else ""
    return Refused(Decision.UPSTREAM_TIMEOUT, message)
