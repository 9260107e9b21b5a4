"""Out of memory in the night after `max_model_len` 4096 -> 32768 in the evening: the change is the root, and what fits is said."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from judged_house import House
from night_story import AFTER, BEFORE, EVENING, FREE_GIB, MODEL, MORNING, NIGHT, PROMPT, WANT_GIB, Told, changes, script, start, stop, whole
from nvml_stub.build import built, compiler_missing, environment, python

from lensd.diagnosis.runbook import load
from lensd.diagnosis.triage import triage
from lensd.records import Diagnosis
from lensd.timeline.limits import Limits

FITS = int(PROMPT * FREE_GIB / WANT_GIB) // 16 * 16
FITS_BY_LOG = int(AFTER * FREE_GIB / WANT_GIB) // 16 * 16


@pytest.fixture(scope="module")
def readings(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What the unmodified binding reads from a library of our own, as the sampler sends it."""
    if reason := compiler_missing():
        if os.environ.get("LENSD_REQUIRE"):
            pytest.fail(reason, pytrace=False)
        pytest.skip(reason)
    folder = tmp_path_factory.mktemp("night")
    (folder / "script").write_text(script())
    player = Path(__file__).parents[1] / "nvml_stub" / "player.py"
    process = python([str(player), "18", "--seconds", "10", "--engine", "4471=e0"], environment(built(folder), folder / "script"))
    try:
        out, err = process.communicate(timeout=60)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
    assert process.returncode == 0, err
    return [json.loads(line) for line in out.splitlines()]


def roots(found: Diagnosis) -> set[str]:
    return {finding.label for finding in found.findings if finding.kind == "cause" and finding.explained_by is None}


def under(found: Diagnosis, label: str) -> set[str]:
    return {finding.label for finding in found.findings if finding.explained_by == label}


def lived(house: House, readings: list[dict[str, Any]]) -> Told:
    """The night as it comes in, with ticks in between."""
    told = Told(house)
    lines = whole()
    told.log(one for one in lines if one[0] < EVENING)
    told.model(MORNING + 45)
    house.tick(EVENING - 60)
    told.log(one for one in lines if EVENING <= one[0] < NIGHT - 60)
    house.tick(EVENING + 50)
    told.card(readings, NIGHT)
    told.log(one for one in lines if one[0] >= NIGHT - 60)
    return told


def test_live_the_change_is_the_root_and_what_fits_is_said(house: House, readings: list[dict[str, Any]]) -> None:
    told = lived(house, readings)
    told.caller()
    house.tick(NIGHT + 3)
    house.tick(NIGHT + 15)
    [incident] = house.judge.all()
    assert (incident.label, incident.engine, incident.stage, incident.state) == ("config-drift", "e0", "gpu", "open")
    assert f"max_model_len {BEFORE} -> {AFTER}" in incident.cause
    assert incident.fix == f"set --max-model-len back to {BEFORE}; up to {FITS} fit"
    found = house.diagnose(house.one())
    assert found.verdict.label == "config-drift"
    assert str(FITS) in found.verdict.fix
    assert roots(found) == {"config-drift"}
    assert {label for label in under(found, "config-drift") if label.startswith("oom-")}, "the failure stands under its cause"
    quotes = [line.quote or "" for finding in found.findings if finding.label == "config-drift" for line in finding.evidence]
    assert f"max_model_len={AFTER}" in quotes
    assert any("CUDA out of memory" in quote for quote in quotes)


def test_the_change_is_an_event_at_its_start_and_no_alarm(house: House, readings: list[dict[str, Any]]) -> None:
    """The cache holds one request of the new length: nothing is wrong yet, and the charts show what was changed."""
    told = Told(house)
    told.log(start(MORNING, BEFORE))
    told.model(MORNING + 45)
    told.log([*stop(EVENING - 30), *start(EVENING, AFTER)])
    house.tick(EVENING + 50)
    events = house.rows("select fields, seen_at from events where name = 'lensd.config.changed'")
    assert changes(events) == [("max_model_len", str(BEFORE), str(AFTER))]
    assert json.loads(events[0]["fields"])["over_budget"] is False
    assert house.judge.all() == []


def test_what_cannot_fit_is_flagged_before_anything_fails(house: House) -> None:
    told = Told(house)
    told.log(start(MORNING, BEFORE, cache_gib=8.0))
    told.model(MORNING + 45)
    house.tick(EVENING - 60)
    told.log([*stop(EVENING - 30), *start(EVENING, AFTER)[:2]])
    house.tick(EVENING + 2)
    [incident] = house.judge.all()
    assert (incident.label, incident.severity) == ("config-drift", "critical")
    assert incident.fix == "set --max-model-len to 16368 or less"
    assert any("needs 16.00 GiB of KV cache, and there are 8.00 GiB" in line.text for line in incident.evidence)


def test_the_same_settings_in_the_evening_leave_the_failure_its_own_name(house: House, readings: list[dict[str, Any]]) -> None:
    told = Told(house)
    lines = whole(after=BEFORE)
    told.log(lines)
    told.card(readings, NIGHT)
    house.tick(NIGHT + 3)
    [incident] = house.judge.all()
    assert incident.label.startswith("oom-")
    assert house.rows("from events where name = 'lensd.config.changed'") == []


def sent_in(root: Path, after: int = AFTER) -> Diagnosis:
    (root / "engine.log").write_text("".join(f"{said}\n" for _, said in whole(after)))
    (root / "config.json").write_text(json.dumps(MODEL, indent=1))
    return triage([root], load(), {}, Limits())


def test_from_files_the_change_is_the_root_and_what_fits_is_said(tmp_path: Path) -> None:
    found = sent_in(tmp_path)
    assert (found.verdict.label, found.verdict.stage) == ("config-drift", "gpu")
    assert found.verdict.fix == f"set --max-model-len back to {BEFORE}; up to {FITS_BY_LOG} fit"
    assert roots(found) == {"config-drift"}
    assert {label for label in under(found, "config-drift") if label.startswith("oom-")}
    text = (tmp_path / "engine.log").read_text().splitlines()
    [drift] = [finding for finding in found.findings if finding.label == "config-drift"]
    for line in drift.evidence[:3]:
        assert line.source is not None
        assert line.quote in text[int(line.source.rpartition(":")[2]) - 1]


def test_from_files_without_a_change_the_failure_has_its_own_name(tmp_path: Path) -> None:
    found = sent_in(tmp_path, after=BEFORE)
    assert found.verdict.label.startswith("oom-")
    assert "config-drift" not in {finding.label for finding in found.findings}
