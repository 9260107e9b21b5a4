"""Every built-in runbook does what its cases say; a case that does not hold says why."""

from pathlib import Path

import msgspec
import pytest
from one_store import one_store
from runbook_files import CASES, write

from lensd.diagnosis.cases import cases_path, load_cases, run_case, run_folders
from lensd.diagnosis.runbook import files, load, parse

BOOKS = {name: parse(path) for name, path in files().items()}
ALL = [(book, case) for book in BOOKS.values() for case in load_cases(cases_path(Path(book.path)))]


@pytest.mark.parametrize(("book", "case"), ALL, ids=[f"{book.id}: {case.case}" for book, case in ALL])
def test_built_in_case(book, case):
    assert run_case(book, case, one_store()).why == ""


def test_run_folders_runs_users_cases_too(tmp_path):
    write(tmp_path, cases=CASES.replace("expect: fires", "expect: quiet", 1))
    failed = [result for result in run_folders([tmp_path]) if not result.ok]
    assert [(result.runbook, result.case) for result in failed] == [("thing", "a")]
    assert failed[0].why.startswith("expected quiet, got fires")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"confidence": "certain"}, "expected confidence certain, got likely"),
        ({"stage": "decode"}, "expected stage decode, got queue"),
        ({"evidence": ("waited 1 ms",)}, "expected evidence ('waited 1 ms',), got ('waited 100 ms',)"),
        ({"expect": "unknown"}, "expected unknown, got fires"),
    ],
)
def test_a_case_that_does_not_hold_says_why(tmp_path, change, why):
    path = write(tmp_path)
    case = load_cases(cases_path(path))[0]
    assert run_case(parse(path), msgspec.structs.replace(case, **change)).why.startswith(why)


def test_missing_names_are_compared(tmp_path):
    path = write(tmp_path)
    case = load_cases(cases_path(path))[2]
    assert run_case(parse(path), msgspec.structs.replace(case, missing=("subjects.src",))).why.startswith("expected missing")


def test_every_runbook_is_stable_and_labels_are_in_place():
    books = load()
    assert all(book.status == "stable" for book in books.values())
    assert all(book.label == book.id.partition("@")[0] for book in books.values())
    assert books["engine-crash"].precedence == books["engine-crash@window"].precedence == 0
