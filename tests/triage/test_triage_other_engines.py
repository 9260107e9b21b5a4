"""What other engines say when memory runs out is named by the same stages, and what looks like it stays unnamed."""

import pytest
from incident_shape import Incident
from other_engine_incidents import OTHERS, OUTSIDE, SOUND
from sglang_incidents import SGLANG
from triage_folder import run, write


@pytest.mark.parametrize("incident", [*SGLANG, *OTHERS, *OUTSIDE], ids=lambda one: one.name)
def test_it_is_named_by_its_stage_on_what_shows_it(incident: Incident, tmp_path) -> None:
    found = run(write(tmp_path, incident.files))
    assert (found.verdict.label, found.verdict.stage) == (incident.label, incident.stage), found.verdict.cause
    quotes = "\n".join(line.quote or "" for finding in found.findings for line in finding.evidence)
    assert [text for text in incident.says if text not in quotes] == []


@pytest.mark.parametrize("incident", [*SGLANG, *OTHERS, *OUTSIDE], ids=lambda one: one.name)
def test_everything_else_stands_under_it(incident: Incident, tmp_path) -> None:
    found = run(write(tmp_path, incident.files))
    assert [one.label for one in found.findings if one.kind == "cause" and one.explained_by is None] == [incident.label]


@pytest.mark.parametrize("incident", SOUND, ids=lambda one: one.name)
def test_what_only_looks_like_it_is_not_named(incident: Incident, tmp_path) -> None:
    found = run(write(tmp_path, incident.files))
    assert {one.label for one in found.findings if one.kind == "cause"} <= {"engine-crash"}


def test_an_orderly_stop_is_no_crash(tmp_path) -> None:
    [stopped] = [one for one in SOUND if one.name == "SGLang that is asked to stop"]
    assert [one.label for one in run(write(tmp_path, stopped.files)).findings if one.kind != "negative"] == []


def test_a_traceback_after_a_framed_line_is_read(tmp_path) -> None:
    [incident] = [one for one in SGLANG if one.name == "SGLang: the weights are too large"]
    [file] = run(write(tmp_path, incident.files)).files
    assert file.unread_lines == 0
