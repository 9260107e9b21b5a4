"""The 18 labelled incidents, handed over as a stranger would: artefacts only, in a folder without a telling name."""

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from lensd.diagnosis.runbook import load
from lensd.diagnosis.triage import triage
from lensd.records import Diagnosis
from lensd.timeline.limits import Limits

HERE = Path(__file__).parent
CASES = sorted(path.parent.name for path in HERE.glob("*/case.json"))
BOOKS = load()
NAMED = {book.label for book in BOOKS.values() if book.kind == "cause"} - {"engine-crash"}
NEGATIVE = {"no-incident", "benign-noise"}
ALLOWED_ELSEWHERE = {"inconclusive", "engine-crash"}
OUT_OF_REACH: dict[str, set[str]] = {}
"""Of the cases whose label has a runbook: what must be cited and cannot be yet."""


def truth(case: str) -> dict[str, object]:
    return dict(json.loads((HERE / case / "case.json").read_text())["truth"])


HaveLabel = [case for case in CASES if truth(case)["label"] in NAMED]


@pytest.fixture(scope="session")
def diagnosed(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Diagnosis]:
    done: dict[str, Diagnosis] = {}

    def one(case: str) -> Diagnosis:
        if case not in done:
            folder = tmp_path_factory.mktemp("handed-over")
            for artefact in sorted(
                json.loads((HERE / case / "case.json").read_text())["artefacts"], key=lambda one: str(one["file"])[::-1]
            ):
                shutil.copyfile(HERE / case / artefact["file"], folder / artefact["file"])
            done[case] = triage([folder], BOOKS, {}, Limits())
        return done[case]

    return one


def quotes(found: Diagnosis) -> list[str]:
    return [line.quote for finding in found.findings for line in finding.evidence if line.quote]


def test_the_corpus_is_whole() -> None:
    assert sorted(json.loads((HERE / "SPLIT.json").read_text())["given"]) == CASES
    assert len(HaveLabel) == 11


@pytest.mark.parametrize("case", HaveLabel)
def test_a_case_whose_label_has_a_runbook_is_named(case: str, diagnosed: Callable[[str], Diagnosis]) -> None:
    found, true = diagnosed(case), truth(case)
    assert (found.verdict.label, found.verdict.stage) == (true["label"], true["stage"]), found.verdict.cause
    said = "\n".join(quotes(found))
    assert {text for text in true["must_cite"] if text not in said} == OUT_OF_REACH.get(case, set())  # type: ignore[attr-defined]


@pytest.mark.parametrize("case", [case for case in CASES if case not in HaveLabel])
def test_another_case_is_not_given_a_cause_it_does_not_have(case: str, diagnosed: Callable[[str], Diagnosis]) -> None:
    found, true = diagnosed(case), truth(case)
    assert found.verdict.label in ALLOWED_ELSEWHERE, found.verdict.cause
    assert {finding.label for finding in found.findings} <= {"engine-crash"}
    assert found.verdict.label not in true["wrong_traps"]  # type: ignore[operator]


def test_the_score(diagnosed: Callable[[str], Diagnosis], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The scorer's own line. It counts an inconclusive negative as a false alarm; held at none is a cause named where there is none."""
    predictions = {}
    for case in CASES:
        found = diagnosed(case)
        labels = list(dict.fromkeys([found.verdict.label, *(finding.label for finding in found.findings)]))
        predictions[case] = {"labels": labels, "stage": found.verdict.stage, "citations": quotes(found)}
    given = tmp_path / "predictions.json"
    given.write_text(json.dumps(predictions))
    run = subprocess.run([sys.executable, HERE / "score.py", given, "--split", "given"], capture_output=True, text=True, check=True)
    line = run.stdout.splitlines()[0]
    with capsys.disabled():
        print(f"\n{line}")
    figures = dict(re.findall(r"(\S+)=(\S+)", line))
    assert float(figures["trap_rate"]) == 0.0
    assert figures["missed_as_benign"].startswith("0/")
    assert float(figures["top1"]) >= 0.611
    assert [case for case in CASES if truth(case)["stage"] == "none" and any(f.kind != "negative" for f in diagnosed(case).findings)] == []
