"""A short soak, and what the soak makes of what it finds: whatever is left over, or not accounted for, never passes."""

import json
import subprocess
import sys
from dataclasses import dataclass

import pytest
from checkout import ROOT, load_by_path

verdict = load_by_path("soak_verdict", ROOT / "bench" / "gateway" / "soak" / "verdict.py")

GOOD = verdict.Found(
    sent=100_000, counted=100_000, silent=0, broken=0, wrong=0, open_requests=0, in_flight=0, key_in_flight=0, tasks=0, files=-2,
    early_mib=60.0, late_mib=67.0, recorded=99_000, dropped=1_000, complaints=0, exit_status=0,
)  # fmt: skip


def failing(found) -> list[str]:
    return [budget.name for budget in verdict.budgets(found) if not budget.held]


def test_a_good_soak():
    assert failing(GOOD) == []


@pytest.mark.parametrize(
    ("change", "budget"),
    [
        ({"sent": 100_001}, "requests sent that the gateway did not count, or counted twice"),
        ({"sent": 99_999}, "requests sent that the gateway did not count, or counted twice"),
        ({"silent": 1}, "requests that were never answered"),
        ({"broken": 1}, "replies without an end"),
        ({"wrong": 1}, "answers that may not be"),
        ({"open_requests": 1}, "open requests left"),
        ({"in_flight": 1}, "requests left with engines"),
        ({"key_in_flight": 1}, "places of keys still taken"),
        ({"in_flight": -1}, "requests left with engines"),
        ({"key_in_flight": -1}, "places of keys still taken"),
        ({"tasks": 1}, "tasks left"),
        ({"files": 1}, "sockets and files left"),
        ({"late_mib": 68.1}, "growth of memory, MiB"),
        ({"early_mib": 200.0, "late_mib": 220.1}, "growth of memory, MiB"),
        ({"recorded": 98_999}, "requests without a record, and not counted as dropped"),
        ({"dropped": 1_001}, "requests without a record, and not counted as dropped"),
        ({"complaints": 1}, "lines that should not be in its log"),
        ({"exit_status": -9}, "exit status after SIGTERM"),
    ],
)
def test_each_budget_is_decided_by_its_own_figure(change, budget):
    assert failing(GOOD._replace(**change)) == [budget]


def test_memory_of_a_short_run_decides_nothing():
    short = {"sent": 900, "counted": 900, "recorded": 900, "dropped": 0}
    assert failing(GOOD._replace(late_mib=600.0, **short)) == []
    assert failing(GOOD._replace(late_mib=600.0)) == ["growth of memory, MiB"]


@dataclass
class Memory:
    share: float
    resident: int


@pytest.mark.parametrize(
    ("samples", "early", "late"),
    [
        ([(0.0, 10), (0.19, 20), (0.21, 30), (0.25, 31), (0.39, 90), (0.5, 99), (0.81, 99), (0.95, 40), (1.0, 42)], 30, 40),
        ([(0.0, 10), (0.5, 30), (1.0, 40)], 30, 40),
        ([(0.1, 10)], 10, 10),
    ],
)
def test_memory_is_that_of_two_stretches(samples, early, late):
    assert verdict.memory([Memory(share, mib << 20) for share, mib in samples]) == (early, late)


def test_nothing_is_left_after_a_short_soak():
    """Every kind of request at least once, under `python -X dev`."""
    done = subprocess.run(
        [sys.executable, str(ROOT / "bench" / "soak_gateway.py"), "--requests", "0", "--dev", "1200"],
        capture_output=True,
        text=True,
        timeout=150,
        check=False,
    )
    said = json.loads(done.stdout.splitlines()[-1]) if done.stdout else {}
    assert [each for each in said.get("budgets", []) if not each["held"]] == [], done.stdout
    assert done.returncode == 0, done.stderr
    assert said["figures"]["dev_requests"]["value"] > 1150
    assert said["figures"]["dev_outcome_ok"]["value"] > 300
