"""How a request ended: the record's outcome, and the last words to the caller where there is still one."""

from typing import Final

from lensd_collectors.conventions import Decision, Outcome, SaidBy, TimeoutKind
from lensd_collectors.gateway.decisions import Refused, error_frames
from lensd_collectors.gateway.faults import Fault, read_stream_fault
from lensd_collectors.gateway.record import Limits, Record, Stop
from lensd_collectors.gateway.reply import Send, send_refusal

_TIMEOUTS: Final = {
    Stop.CONNECT: (TimeoutKind.CONNECT, "the engine did not take the connection within {:g} s"),
    Stop.FIRST_BYTE: (TimeoutKind.FIRST_BYTE, "the engine sent no byte within {:g} s"),
    Stop.IDLE: (TimeoutKind.IDLE, "the engine's reply stood still for {:g} s"),
    Stop.TOTAL: (TimeoutKind.TOTAL, "the request was not done within {:g} s"),
}
_CALLER_LEFT: Final = (Stop.CALLER_GONE, Stop.CALLER_STUCK)


async def refuse(record: Record, send: Send, refusal: Refused) -> None:
    """The gateway's own answer is the request's end, and is sent."""
    record.said_by, record.decision, record.outcome = SaidBy.GATEWAY, refusal.decision, refusal.answer.outcome
    record.error_type, record.error_message = refusal.code, refusal.message
    await send_refusal(record, send, refusal)


def blame(record: Record, fault: Fault) -> None:
    """The engine's error is the request's end."""
    record.said_by = SaidBy.ENGINE
    record.decision, record.outcome = fault.decision, fault.outcome
    record.error_type, record.error_message = fault.code, fault.message


def judge_stream(record: Record, *, is_whole: bool) -> bool:
    """Sets how a stream of the engine's ended, from what was passed on; False where it broke off and the caller has not been told."""
    scanner, facts = record.scanner, record.facts
    record.said_by = SaidBy.ENGINE
    if facts.error is not None:
        blame(record, read_stream_fault(facts.error))
        facts.error = None
        return True
    # Some engines leave [DONE] out: with a finish reason and a clean end nothing is missing.
    if scanner is not None and (scanner.done_seen or (is_whole and facts.finish_reasons)):
        record.outcome = Outcome.OK
        return True
    record.outcome, record.decision = Outcome.CUT, Decision.ENGINE_ERROR
    record.error_type, record.error_message = "stream_cut", "the stream ended without [DONE] and without a finish reason"
    return False


async def finish_stream(record: Record, send: Send, frames: bytes) -> None:
    """Closes a stream that has begun, after frames of the gateway's own where there are any."""
    await send({"type": "http.response.body", "body": frames})
    record.bytes_out += len(frames)


async def interrupted(record: Record, send: Send, limits: Limits) -> None:
    """Says what became of a request that was stopped from outside, and tells the caller where it can be told."""
    stop = record.stop = record.stop or Stop.SHUTDOWN
    was_sending, record.is_sending = record.is_sending, False
    if stop in _CALLER_LEFT:
        _caller_left(record, stop, limits)
        return
    refusal = _refusal(record, stop, limits)
    if not record.started_out:
        await refuse(record, send, refusal)
    else:
        record.said_by, record.decision = SaidBy.GATEWAY, refusal.decision
        record.error_type, record.error_message = refusal.code, refusal.message
        if record.scanner is not None and not was_sending:  # a caller that does not read would hold this up too
            await finish_stream(record, send, error_frames(refusal, at_boundary=record.scanner.at_boundary))
    if stop is Stop.SHUTDOWN:
        record.outcome = Outcome.CUT if record.started_out and record.first_out else Outcome.FAILED
        record.decision = Decision.ALLOWED  # neither the request nor the engine is at fault
    else:
        record.outcome = Outcome.TIMED_OUT
        record.timeout_kind, record.timeout_ms = _TIMEOUTS[stop][0], limits.ms(stop)


def _caller_left(record: Record, stop: Stop, limits: Limits) -> None:
    scanner = record.scanner
    if scanner is not None and (scanner.done_seen or record.facts.error is not None):
        judge_stream(record, is_whole=True)  # clients close as soon as they have read [DONE] or an error: nothing was missed
        return
    record.outcome, record.said_by, record.decision = Outcome.CALLER_GONE, SaidBy.CLIENT, Decision.CALLER_GONE
    record.status, record.error_type = 499, stop.value
    if stop is Stop.CALLER_STUCK:
        record.timeout_kind, record.timeout_ms = TimeoutKind.IDLE, limits.ms(stop)


def _refusal(record: Record, stop: Stop, limits: Limits) -> Refused:
    if stop is Stop.SHUTDOWN:
        return Refused(Decision.ENGINE_BUSY, "the gateway is stopping", code=stop.value)
    message = _TIMEOUTS[stop][1].format(limits.ms(stop) / 1000)
    if not record.connecting:
        return Refused(Decision.BODY_MALFORMED, f"the body had not arrived: {message}", status=408, code="body_timeout")
    return Refused(Decision.UPSTREAM_TIMEOUT, message)
