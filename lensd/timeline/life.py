"""Whether a request is open, lost, ended or settled, and when to look at it again."""

from typing import NamedTuple

from lensd_collectors import conventions as c
from lensd_collectors.conventions import Decision, Outcome

from lensd.timeline.evidence import RequestEvidence, Span
from lensd.timeline.instants import clock_skew

SETTLE_AFTER_US = 10_000_000  # an engine's span leaves it up to 5 s after the end
SILENT_AFTER_US = 30_000_000  # six progress events
ABORTED, FAILED = "request.aborted", "request.failed"  # lines of an engine's log

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
    server = entry.end if entry is not None else None
    if server is None and (extent := request.server_extent) is not None:
        server = extent[1]
    seen = [server, client.end - clock_skew(request) if client is not None else None]
    return max(at for at in seen if at is not None)


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
        return _as_client_says(client)
    return _as_engine_says(request)


def _as_client_says(client: Span) -> str:
    said = f"{client.attributes.get(c.ERROR_TYPE) or ''} {client.status_message or ''}".lower()
    if any(each in said for each in ("timeout", "timed out", "cancelled")):
        return Outcome.CALLER_GONE
    status = client.attributes.get(c.HTTP_STATUS)
    return Outcome.REFUSED if isinstance(status, int) and 400 <= status < 500 else Outcome.FAILED


def _as_engine_says(request: RequestEvidence) -> str:
    """Where nobody outside the engine tells how it ended: the reason in its own records, or in its log."""
    reasons = [_reason(record.fields.get(c.FINISH_REASONS)) for record in request.engine_records]
    reasons += [str(span.attributes.get("finish_reason", "")) for span in request.engine_spans]
    ends = {line.name for line in request.logged}
    if "abort" in reasons or ABORTED in ends:
        return Outcome.CALLER_GONE
    return Outcome.FAILED if "error" in reasons or FAILED in ends else Outcome.OK


def _reason(told: object) -> str:
    return str(told[0]) if isinstance(told, list) and told else str(told or "")
