"""Leaks and what never fits, mailed in: named on the numbers that show it, and not named where they only look like it."""

import pytest
from incident_shape import Incident
from leak_incidents import NAMED, UNNAMED
from triage_folder import run, write


@pytest.mark.parametrize("incident", NAMED, ids=lambda one: one.name)
def test_what_is_not_given_back_is_named(incident: Incident, tmp_path) -> None:
    found = run(write(tmp_path, incident.files))
    assert (found.verdict.label, found.verdict.stage) == (incident.label, incident.stage), found.verdict.cause
    quotes = "\n".join(line.quote or "" for finding in found.findings for line in finding.evidence)
    assert [text for text in incident.says if text not in quotes] == []


@pytest.mark.parametrize("incident", UNNAMED, ids=lambda one: one.name)
def test_what_is_given_back_or_fits_is_not_named(incident: Incident, tmp_path) -> None:
    found = run(write(tmp_path, incident.files))
    assert [finding.label for finding in found.findings if finding.kind == "cause"] == [], found.verdict.cause
