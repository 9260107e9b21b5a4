"""Whether a request is open, lost, ended or settled, and when to look at it again."""

from typing import NamedTuple

from lensd_collectors import conventions as c
from lensd_collectors.conventions import Decision, Outcome

from lensd.timeline.evidence import RequestEvidence

SETTLE_AFTER_US = 10_000_000  # an engine's span leaves it up to 5 s after the end
SILENT_AFTER_US = 30_000_000  # six progress events

_NO_ENGINE_RECORD = frozenset(Decision) - {Decision.ALLOWED, Decision.UPSTREAM_TIMEOUT, Decision.CALLER_GONE}


class Life(NamedTuple):
    """`ended_at` in microseconds since the epoch; `look_again` is when time alone can change the state."""

    outcome: str
    ended_at: int | None
    settled: bool
    look_again: int | None


def life(request: RequestEvidence, now: int) -> Life | None:
    """State of a request at `now` (microseconds since the epoch); None: too early to say that it is one.

    A client's span alone, and an engine's whose parent we know nothing of, wait: the gateway's may still be on its way.
    """
    entry = request.entry
    if entry is None and request.signals:
        return _of_open(request, now)
    seen = [s for s in (entry, request.client, *request.engine_spans) if s is not None]
    if not seen:
        return None
    ended_at = max(s.end for s in seen)
    due = ended_at + SETTLE_AFTER_US
    alone = entry is None and (not request.engine_spans or any(s.parent_span_id for s in seen))
    if alone and now < due:
        return None
    outcome = _outcome(request)
    complete = request.engine_times() is not None or request.value(c.DECISION) in _NO_ENGINE_RECORD
    settled = complete or now >= due
    return Life(outcome, ended_at, settled, None if settled else due)


def _of_open(request: RequestEvidence, now: int) -> Life:
    last = request.signals[-1]
    silent_at = last.at + SILENT_AFTER_US
    if now >= silent_at:
        return Life(Outcome.LOST, last.at, True, None)
    return Life(Outcome.OPEN, None, False, silent_at)


def _outcome(request: RequestEvidence) -> str:
    said = request.value(c.OUTCOME)
    if said is not None and said != Outcome.OPEN:
        return str(said)
    client = request.client
    if client is not None and client.status == "error":
        said = f"{client.attributes.get(c.ERROR_TYPE) or ''} {client.status_message or ''}".lower()
        return Outcome.CALLER_GONE if "timeout" in said or "timed out" in said else Outcome.FAILED
    if any(str(s.attributes.get("finish_reason", "")) == "abort" for s in request.engine_spans):
        return Outcome.CALLER_GONE
    return Outcome.OK
