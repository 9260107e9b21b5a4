"""What bench-gateway makes of its measurements: a budget that could not be measured, or was not held, never passes."""

import json
import math

import pytest
from checkout import ROOT, load_by_path

figures = load_by_path("bench_gateway_figures", ROOT / "bench" / "gateway" / "figures.py")

GOOD = {"added_p50": 0.4, "requests_core": 8000.0, "chunk_cpu": 41.0, "gone_mid_max": 3.0, "gone_before_max": 4.0, "recorded": 100.0}
SLOW = {"added_p50": 12.0, "requests_core": 80.0, "chunk_cpu": 900.0}


@pytest.mark.parametrize(
    ("share", "expected"),
    [(0.5, 50), (0.99, 99), (1.0, 100), (0.0, 1)],
)
def test_percentile_is_one_of_the_values(share: float, expected: int) -> None:
    assert figures.percentile([*range(100, 0, -1)], share) == expected


def test_all_held() -> None:
    assert [each["held"] for each in figures.budgets([{"ours": GOOD, "litellm": SLOW}] * 3)] == [True] * len(figures.BUDGETS)


@pytest.mark.parametrize(
    ("change", "failing"),
    [
        ({"added_p50": 0.5}, {"added_p50"}),
        ({"added_p50": 0.0}, set()),
        ({"requests_core": 6000.0}, {"requests_core"}),
        ({"recorded": 98.0}, {"recorded"}),
        ({"chunk_cpu": 50.1}, {"chunk_cpu"}),
        ({"gone_mid_max": math.inf}, {"gone_mid_max"}),
        ({"gone_before_max": 50.0}, set()),
    ],
)
def test_each_budget_is_decided_by_its_own_figure(change: dict[str, float], failing: set[str]) -> None:
    decided = figures.budgets([{"ours": GOOD | change, "litellm": SLOW}])
    assert {limit.figure for limit, each in zip(figures.BUDGETS, decided, strict=True) if not each["held"]} == failing


def test_what_was_not_measured_is_not_held() -> None:
    alone = figures.budgets([{"ours": GOOD}])
    assert [(each["value"], each["held"]) for each in alone[:2]] == [(None, False)] * 2
    assert all(not each["held"] for each in figures.budgets([{"direct": {"p50": 0.03}}]))
    assert all(not each["held"] for each in figures.budgets([]))


def test_one_bad_round_of_three_decides_nothing() -> None:
    rounds = [{"ours": GOOD, "litellm": SLOW}, {"ours": GOOD | {"chunk_cpu": 400.0}, "litellm": SLOW}, {"ours": GOOD, "litellm": SLOW}]
    assert all(each["held"] for each in figures.budgets(rounds))


def test_a_ratio_is_that_of_each_round() -> None:
    """A machine that is twice as slow in a round is so for both."""
    slower = {name: value * 2 for name, value in GOOD.items()}, {name: value * 2 for name, value in SLOW.items()}
    rounds = [{"ours": GOOD, "litellm": SLOW}, {"ours": slower[0], "litellm": slower[1]}]
    assert figures.times_better(rounds, "added_p50", "litellm") == pytest.approx(30)
    assert figures.times_better(rounds, "requests_core", "litellm") == pytest.approx(100)


def test_a_round_without_the_other_stack_leaves_the_ratio_open() -> None:
    assert figures.times_better([{"ours": GOOD, "litellm": SLOW}, {"ours": GOOD}], "added_p50", "litellm") is None


def test_what_was_not_seen_is_said_to_people_and_no_number_to_programs() -> None:
    found = {"litellm": {"gone_before_max": math.inf}}
    assert "not seen" in figures.table(found)
    assert json.dumps(figures.finite(math.inf, 2), allow_nan=False) == "null"
