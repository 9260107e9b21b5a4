"""Whether a request is open, lost, ended or settled, and when to look at it again."""

from typing import NamedTuple

from lensd_collectors import conventions as c
from lensd_collectors.conventions import Decision, Outcome

from lensd.timeline.evidence import RequestEvidence
from lensd.timeline.layout import clock_skew

SETTLE_AFTER_US = 10_000_000  # an engine's span leaves it up to 5 s after the end
SILENT_AFTER_US = 30_000_000  # six progress events

_NO_ENGINE_RECORD = frozenset(Decision) - {Decision.ALLOWED, Decision.UPSTREAM_TIMEOUT, Decision.CALLER_GONE}


class Life(NamedTuple):
    """`ended_at` in microseconds since the epoch; `look_again` is when time alone can change the state.

    `early`: too early to say that this is a request of its own: a gateway's spans that take it in may be on their way.
    """

    outcome: str
    ended_at: int | None
    settled: bool
    look_again: int | None
    early: bool = False


def last_sign(request: RequestEvidence) -> int:
    """The latest instant its sender gave: the end, or the last event of an open request."""
    return ended_at(request) if has_ended(request) else request.signals[-1].at


def ended_at(request: RequestEvidence) -> int:
    """When a request that has ended did so, by its server's clock where a server saw it."""
    client, entry = request.client, request.entry
    if entry is None:
        return max(s.end for s in (client, *request.engine_spans) if s is not None)
    return max(entry.end, client.end - clock_skew(request)) if client is not None else entry.end


def life(request: RequestEvidence, now: int, heard_at: int | None = None) -> Life:
    """State of a request at `now`; one without an end is lost when its sender is silent for too long or has a successor.

    `heard_at`: when its last sign came, by our own clock; None takes its sender's word for that. All in microseconds since the
    epoch.
    """
    since = heard_at if heard_at is not None else last_sign(request)
    due = since + SETTLE_AFTER_US
    early = request.may_be_anothers and now < due
    if not has_ended(request):
        return _of_open(request, since, now, due if early else None)
    complete = request.engine_times() is not None or str(request.value(c.DECISION)) in _NO_ENGINE_RECORD
    settled = not early and (complete or now >= due)
    return Life(_outcome(request), ended_at(request), settled, None if settled else due, early)


def has_ended(request: RequestEvidence) -> bool:
    return request.entry is not None or not request.signals


def _of_open(request: RequestEvidence, since: int, now: int, due: int | None) -> Life:
    silent_at = since + SILENT_AFTER_US
    gone = request.successor is not None and due is None
    if gone or now >= silent_at:
        return Life(Outcome.LOST, request.signals[-1].at, True, None)
    return Life(Outcome.OPEN, None, False, due or silent_at, due is not None)


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
