"""What a missing thing does: skipped and named, or failed where LENSD_REQUIRE names it; and a run that starts too many engines fails."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from checkout import ENGINE_STARTS_LIMIT, ROOT, serving

PLANTED = """
import os
import pytest

@pytest.mark.engine
def test_marked():
    raise AssertionError("ran without an engine")

def test_asking(require):
    require("engine")
    raise AssertionError("ran without an engine")

def test_starts():
    with open(os.environ["LENSD_ENGINE_STARTS"], "a") as counted:
        counted.write("127.0.0.1:1 serve\\n" * int(os.environ["PLANTED_STARTS"]))
"""


@pytest.fixture
def outcome(tmp_path: Path) -> "Outcome":
    return Outcome(tmp_path)


class Outcome:
    """A run of the planted tests with this checkout's conftest, where no engine is."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "test_planted.py").write_text(PLANTED)

    def run(self, require: str = "", starts: int = 0, chosen: str = "") -> tuple[int, str]:
        env = {
            name: value for name, value in os.environ.items() if name not in ("LENSD_REQUIRE", serving.STARTS_FILE, "PYTEST_CURRENT_TEST")
        }
        env |= {"LENSD_REQUIRE": require, "LENSD_ENGINE_DIR": str(self.folder / "none"), "PLANTED_STARTS": str(starts)}
        command = [sys.executable, "-m", "pytest", "-p", "conftest", "-p", "no:cacheprovider", "-q", "-k", chosen, str(self.folder)]
        env["PYTHONPATH"] = str(ROOT / "tests")
        done = subprocess.run(command, capture_output=True, text=True, cwd=self.folder, env=env, timeout=60)
        return done.returncode, done.stdout + done.stderr


def test_a_missing_engine_skips_and_is_named_with_what_to_do(outcome: Outcome) -> None:
    status, said = outcome.run()
    assert status == 0
    assert "1 passed, 2 skipped" in said
    section = said.partition("did not run")[2]
    assert "run `make engine`" in section
    assert "test_planted.py::test_marked" in section
    assert "test_planted.py::test_asking" in section


def test_a_required_engine_that_is_missing_fails(outcome: Outcome) -> None:
    status, said = outcome.run(require="engine,chromium")
    assert status == 1
    assert "LENSD_REQUIRE names engine: no CPU vLLM" in said
    assert "ran without an engine" not in said


def test_an_unknown_requirement_is_a_usage_error(outcome: Outcome) -> None:
    status, said = outcome.run(require="engin")
    assert status == pytest.ExitCode.USAGE_ERROR
    assert "LENSD_REQUIRE names engin: known are engine, chromium" in said


@pytest.mark.parametrize(("starts", "status"), [(0, 0), (ENGINE_STARTS_LIMIT, 0), (ENGINE_STARTS_LIMIT + 1, 1)])
def test_more_engine_starts_than_allowed_fail_the_run(outcome: Outcome, starts: int, status: int) -> None:
    got, said = outcome.run(starts=starts, chosen="starts")
    assert got == status
    assert (f"engine starts: {starts} of at most {ENGINE_STARTS_LIMIT}" in said) is (starts > 0)
