"""Incidents as rows of the store, and back."""

import msgspec
from lensd_collectors.rows import IncidentRow, Instant

from lensd.incidents.subject import SUBJECT
from lensd.records import Confidence, Incident


def to_row(incident: Incident) -> IncidentRow:
    return IncidentRow(
        **{name: getattr(incident, name) for name in ("incident_id", "revision", "state", "stage", *SUBJECT, "cause", "fix")},
        severity=incident.severity.value,
        confidence=incident.confidence.value,
        opened_at=Instant(incident.opened_at),
        last_seen_at=Instant(incident.last_seen_at),
        resolved_at=None if incident.resolved_at is None else Instant(incident.resolved_at),
        requests_hit=incident.requests_hit,
        typical_requests=msgspec.json.encode(incident.typical_requests).decode(),
        evidence=msgspec.json.encode(incident.evidence).decode(),
        src="incidents",
    )


def from_row(row: IncidentRow) -> Incident:
    """The incident a stored row stands for; raises msgspec.ValidationError for a row that is none."""
    plain = msgspec.to_builtins(row)
    lists = {
        "requests_hit": row.requests_hit or 0,
        "typical_requests": msgspec.json.decode(row.typical_requests or "[]"),
        "evidence": msgspec.json.decode(row.evidence or "[]"),
        "confidence": row.confidence or Confidence.POSSIBLE.value,
        "cause": row.cause or row.label,
        "fix": row.fix or "",
    }
    return msgspec.convert(plain | lists, Incident)
