"""Incidents of our own: the cause where there is one to name, and silence where something only looks like it."""

import pytest
from incident_shape import Incident
from incidents import NAMED
from look_alikes import UNNAMED
from triage_folder import run, write

NEGATIVES = {"no-incident", "benign-noise"}


@pytest.mark.parametrize("incident", NAMED, ids=lambda one: one.name)
def test_the_cause_is_named_on_what_shows_it(incident: Incident, tmp_path) -> None:
    found = run(write(tmp_path, incident.files))
    assert (found.verdict.label, found.verdict.stage) == (incident.label, incident.stage), found.verdict.cause
    quotes = "\n".join(line.quote or "" for finding in found.findings for line in finding.evidence)
    assert [text for text in incident.says if text not in quotes] == []


@pytest.mark.parametrize("incident", UNNAMED, ids=lambda one: one.name)
def test_a_look_alike_is_not_named(incident: Incident, tmp_path) -> None:
    found = run(write(tmp_path, incident.files))
    assert found.verdict.label == (incident.label or "inconclusive"), found.verdict.cause
    assert {finding.label for finding in found.findings if finding.kind == "cause"} <= {incident.label}
    assert [text for text in incident.never_said if text in found.verdict.cause] == []
