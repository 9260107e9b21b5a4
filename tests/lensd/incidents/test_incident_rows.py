from hypothesis import given
from hypothesis import strategies as st

from lensd.incidents import from_row, to_row
from lensd.records import Confidence, Evidence, Incident, Severity

names = st.none() | st.text(max_size=8)
instants = st.integers(0, 2**52)
incidents = st.builds(
    Incident,
    incident_id=st.text(min_size=1, max_size=8),
    revision=st.integers(1, 9),
    label=st.text(max_size=8),
    state=st.sampled_from(["open", "acknowledged", "resolved"]),
    severity=st.sampled_from(Severity),
    stage=st.sampled_from(["queue", "engine", "none"]),
    engine=names,
    model=names,
    gpu=names,
    key_id=names,
    confidence=st.sampled_from(Confidence),
    cause=st.text(min_size=1, max_size=8),
    fix=st.text(max_size=8),
    opened_at=instants,
    last_seen_at=instants,
    resolved_at=st.none() | instants,
    requests_hit=st.integers(0, 9),
    typical_requests=st.lists(st.text(max_size=4), max_size=3).map(tuple),
    evidence=st.lists(st.builds(Evidence, text=st.text(max_size=4), quote=names, source=names), max_size=3).map(tuple),
)


@given(incidents)
def test_an_incident_survives_its_row(incident: Incident) -> None:
    assert from_row(to_row(incident)) == incident
