"""What became of a request that an engine answered, from what was seen of the answer: the gateway and the middleware ask the same."""

from typing import Final

from lensd_collectors.conventions import Decision, Outcome, SaidBy
from lensd_collectors.gateway.faults import Fault, read_stream_fault
from lensd_collectors.gateway.record import Record
from lensd_collectors.gateway.replies import MAX_FINISH_REASONS

_SAY_WHEN_DONE: Final = ("/chat/completions", "/completions", "/responses", "/messages")  # paths of streams with a closing event


def blame(record: Record, fault: Fault) -> None:
    """The engine's error is the request's end."""
    record.said_by = SaidBy.ENGINE
    record.decision, record.outcome = fault.decision, fault.outcome
    record.error_type, record.error_message = fault.code, fault.message


def judge_stream(record: Record, *, is_whole: bool) -> bool:
    """Sets how an engine's stream ended; False where it broke off and the caller has not been told.

    `is_whole`: its bytes came to a proper end.
    """
    scanner, facts = record.scanner, record.facts
    record.said_by = SaidBy.ENGINE
    if facts.error is not None:
        blame(record, read_stream_fault(facts.error))
        facts.error = None
        return True
    # Some engines leave [DONE] out: with all finish reasons and a clean end nothing is missing. Other APIs never say that they are done.
    wanted = min(facts.choices, MAX_FINISH_REASONS) or 1
    is_enough = len(facts.finish_reasons) >= wanted or not record.route.endswith(_SAY_WHEN_DONE)
    if scanner is not None and (scanner.done_seen or (is_whole and is_enough)):
        record.outcome = Outcome.OK
        return True
    record.outcome, record.decision = Outcome.CUT, Decision.ENGINE_ERROR
    record.error_type = "stream_cut"
    record.error_message = "the stream ended without [DONE]" + ("" if facts.finish_reasons else " and without a finish reason")
    return False
