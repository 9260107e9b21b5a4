"""One subject on its way into an incident and out of it."""

from collections import deque
from dataclasses import dataclass, field
from typing import Final

import msgspec

from lensd.incidents.rules import Gate
from lensd.incidents.subject import Subject, subject_of
from lensd.records import CONFIDENCE_RANK, Evidence, Finding, Incident

TYPICAL: Final = 20  # request ids kept on an incident: the first ten and the latest ten
LINES: Final = 4  # of evidence kept from the first finding, and as many from the latest
EFFECTS: Final = 8  # labels it explains that are noted
CLOSE_AFTER_US: Final = 300_000_000  # for a stored incident whose runbook is gone
MAX_REQUESTS: Final = 4096  # ids remembered of one group


@dataclass(slots=True)
class Requests:
    """Distinct requests hit: their number, and some of their ids. Ids repeat, keys do not; without a key a request goes by its id."""

    count: int = 0
    first: list[str] = field(default_factory=list)
    latest: deque[str] = field(default_factory=lambda: deque(maxlen=TYPICAL // 2))
    known: dict[str | int, None] = field(default_factory=dict)

    def add(self, request_id: str, key: int | None) -> bool:
        """Whether it is a new one."""
        if key is not None and self.known.pop(request_id, self) is None:
            self.known[key] = None  # a former process knew it by its id
            return False
        name = request_id if key is None else key
        if name in self.known:
            return False
        self.known[name] = None
        if len(self.known) > MAX_REQUESTS:
            del self.known[next(iter(self.known))]
        self.count += 1
        if request_id not in self.first and request_id not in self.latest:
            (self.first if len(self.first) < TYPICAL // 2 else self.latest).append(request_id)
        return True


@dataclass(slots=True)
class Group:
    """One subject: on its way to an incident, in one, or closed by a person while it goes on."""

    subject: Subject
    close_after: int = CLOSE_AFTER_US
    open_after: int | None = None  # of the window rule that feeds it
    stood_since: int | None = None  # the window rule has fired at every tick since
    stood_at: int = 0  # the last tick at which it did
    gate: Gate | None = None  # of the request rule that feeds it
    hits: deque[tuple[int, str, int | None]] = field(default_factory=lambda: deque(maxlen=MAX_REQUESTS))
    seen_at: int = 0
    quiet_since: int = 0  # last instant at which it was not known to be absent; 0: none since the start
    finding: Finding | None = None
    first: tuple[Evidence, ...] = ()
    effects: tuple[Evidence, ...] = ()
    requests: Requests = field(default_factory=Requests)
    incident: Incident | None = None
    written_at: int = 0
    closed_at: int | None = None  # by a person


def restored(incident: Incident, close_after: int) -> Group:
    requests = Requests()
    for request_id in incident.typical_requests:
        requests.add(request_id, None)
    requests.count = max(requests.count, incident.requests_hit)
    return Group(
        subject_of(incident),
        close_after=close_after,
        seen_at=incident.last_seen_at,
        first=incident.evidence[: LINES + EFFECTS],
        requests=requests,
        incident=incident if incident.resolved_at is None else None,
        closed_at=incident.resolved_at,
    )


def with_state(incident: Incident, group: Group) -> Incident:
    """The incident with what its group has seen by now; what receivers pair by stays as it was."""
    finding = group.finding
    latest = () if finding is None else tuple(line for line in finding.evidence[:LINES] if line not in group.first)
    best = incident.confidence
    if finding is not None and CONFIDENCE_RANK[finding.confidence] > CONFIDENCE_RANK[best]:
        best = finding.confidence
    return msgspec.structs.replace(
        incident,
        confidence=best,
        cause=incident.cause if finding is None else finding.cause,
        fix=incident.fix if finding is None else finding.fix,
        last_seen_at=max(incident.last_seen_at, group.seen_at),
        requests_hit=group.requests.count,
        typical_requests=(*group.requests.first, *group.requests.latest),
        evidence=(*group.first, *group.effects, *latest),
    )
