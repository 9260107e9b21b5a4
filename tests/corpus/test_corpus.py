"""The 18 labelled incidents, handed over as a stranger would: artefacts only, in a folder without a telling name."""

import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from checkout import ROOT, load_by_path

from lensd.records import Diagnosis

scoring = load_by_path("scoring", ROOT / "tests" / "incidents" / "scoring.py")
HERE = Path(__file__).parent
INCIDENTS = scoring.incidents({"given"})
NAMEABLE = {book.label for book in scoring.BOOKS.values()}
HAVE_RUNBOOK = [one for one in INCIDENTS if one.truth.label in NAMEABLE]
CAUSES = {book.label for book in scoring.BOOKS.values() if book.kind == "cause"}
Diagnosed = Callable[[str], Diagnosis]


@pytest.fixture(scope="session")
def diagnosed() -> Diagnosed:
    done: dict[str, Diagnosis] = {}
    incidents = {one.id: one for one in INCIDENTS}

    def one(case: str) -> Diagnosis:
        if case not in done:
            done[case] = scoring.diagnose(incidents[case])
        return done[case]

    return one


def test_the_corpus_is_whole() -> None:
    assert sorted(json.loads((HERE / "SPLIT.json").read_text())["given"]) == [one.id for one in INCIDENTS]


@pytest.mark.parametrize("case", HAVE_RUNBOOK, ids=lambda case: case.id)
def test_a_case_whose_label_has_a_runbook_is_named(case, diagnosed: Diagnosed) -> None:
    found, true = diagnosed(case.id), case.truth
    assert (found.verdict.label, found.verdict.stage) == (true.label, true.stage), found.verdict.cause
    assert set(true.must_cite) - set(scoring.Judged(case, scoring.prediction(found)).cited) == set()


@pytest.mark.parametrize("case", [one for one in INCIDENTS if one not in HAVE_RUNBOOK], ids=lambda case: case.id)
def test_another_case_is_not_given_a_cause_it_does_not_have(case, diagnosed: Diagnosed) -> None:
    found, true = diagnosed(case.id), case.truth
    assert found.verdict.label not in (CAUSES | scoring.NEGATIVE) - {true.label, *true.also_accept}, found.verdict.cause
    assert found.verdict.label not in true.traps


def test_the_score(diagnosed: Diagnosed, tmp_path: Path, record_property: Callable[[str, str], None]) -> None:
    """The scorer's own line, which ours must agree with. No trap, nothing missed, no cause where there is none."""
    judged = [scoring.Judged(one, scoring.prediction(diagnosed(one.id))) for one in INCIDENTS]
    predictions = {
        one.incident.id: {"labels": one.prediction.labels, "stage": one.prediction.stage, "citations": one.prediction.citations}
        for one in judged
    }
    given = tmp_path / "predictions.json"
    given.write_text(json.dumps(predictions))
    run = subprocess.run([sys.executable, HERE / "score.py", given, "--split", "given"], capture_output=True, text=True, check=True)
    line = run.stdout.splitlines()[0]
    record_property("figures", line)
    figures = dict(re.findall(r"(\S+)=(\S+)", line))
    ours = scoring.score(judged)
    for name in ("top1", "top3", "kind", "stage", "trap_rate", "cite_recall"):
        assert float(figures[name]) == pytest.approx(getattr(ours, name), abs=0.0006), name
    assert figures["top1+half"] == f"{ours.half:.3f}"
    assert figures["false_alarm"] == f"{ours.false_alarms}/{ours.negatives}"
    assert figures["missed_as_benign"] == f"{ours.missed}/{ours.n - ours.negatives}"
    assert (ours.trap_rate, ours.missed) == (0.0, 0)
    assert ours.top1 >= 0.944
    for one in judged:
        if one.incident.truth.stage == "none":
            assert [f.label for f in diagnosed(one.incident.id).findings if f.kind != "negative"] == []
