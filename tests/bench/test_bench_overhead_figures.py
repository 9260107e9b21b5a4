"""What bench-overhead makes of its pairs: an interval that is as wide as it says, and a budget that noise or too few pairs never pass."""

import json
import math
import random

import pytest
from checkout import ROOT, load_by_path

figures = load_by_path("bench_overhead_figures", ROOT / "bench" / "overhead" / "figures.py")

Pair = dict[str, dict[str, float]]


def pair(ratio: float, *, plain: float = 1000.0, recorded: float = 100.0) -> Pair:
    """A pair in which the server made that share of the tokens while it was plugged."""
    both = {"api_cpu": 300.0, "events": 1.0}
    return {
        "plain": {"tokens": plain, "cpu": 1e6 / plain, **both},
        "plugged": {"tokens": plain * ratio, "cpu": 1e6 / (plain * ratio), **both, "recorded": recorded},
    }


def noisy(chance: random.Random, ratio: float, spread: float, number: int = 24) -> list[Pair]:
    return [pair(ratio * math.exp(chance.gauss(0.0, spread))) for _ in range(number)]


@pytest.mark.parametrize(
    ("freedom", "expected"),
    [(1, 12.706), (2, 4.303), (19, 2.093), (23, 2.069), (30, 2.042), (35, 2.042), (40, 2.021), (119, 2.000), (1000, 1.980)],
)
def test_t_is_that_of_the_table_and_never_too_small(freedom: int, expected: float) -> None:
    assert figures.t_975(freedom) == expected


def test_ratio_is_the_geometric_mean_with_students_interval() -> None:
    found = figures.ratio([pair(0.5), pair(2.0), pair(1.0)], "tokens")
    half = 4.303 * math.log(2) / math.sqrt(3)
    assert found == pytest.approx((1.0, math.exp(-half), math.exp(half), 1.0))


def test_interval_holds_the_truth_as_often_as_it_says() -> None:
    chance = random.Random(24)
    held = sum(low <= 0.99 <= high for _, low, high, _ in (figures.ratio(noisy(chance, 0.99, 0.05), "tokens") for _ in range(2000)))
    assert 0.935 < held / 2000 < 0.965


def test_a_pair_on_a_slower_machine_says_the_same() -> None:
    even = [pair(0.98), pair(1.01)] * 12
    uneven = [pair(0.98, plain=400.0), pair(1.01, plain=3000.0)] * 12
    assert figures.ratio(uneven, "tokens") == pytest.approx(figures.ratio(even, "tokens"))


@pytest.mark.parametrize(
    ("pairs", "value", "held"),
    [
        ([pair(1.0)] * 20, 0.0, True),
        ([pair(0.985)] * 20, 1.5, True),
        ([pair(0.98)] * 20, 2.0, False),
        ([pair(1.1)] * 20, -10.0, True),
        ([pair(0.9), pair(1.1)] * 12, 4.72, False),  # as good as no cost, but nobody knows
        ([pair(1.0)] * 18, None, False),
        ([], None, False),
    ],
)
def test_budget_is_held_by_the_worse_end_of_enough_pairs(pairs: list[Pair], value: float | None, held: bool) -> None:
    cost = figures.budgets(pairs)[0]
    assert (cost["value"], cost["held"]) == (value if value is None else pytest.approx(value), held)


def test_a_server_that_tells_nothing_passes_no_budget() -> None:
    silent = [pair(1.0, recorded=0.0)] * 24
    unknown = [{arm: {k: v for k, v in found.items() if k != "recorded"} for arm, found in each.items()} for each in silent]
    assert [each["held"] for each in figures.budgets(silent)] == [True, False]
    assert [(each["value"], each["held"]) for each in figures.budgets(unknown)[1:]] == [(None, False)]


def test_programs_and_people_get_the_same_interval() -> None:
    pairs = noisy(random.Random(7), 0.99, 0.03)
    said = json.loads(json.dumps(figures.ratios(pairs), allow_nan=False))
    assert said["tokens_low"] < said["tokens"] < said["tokens_high"]
    assert f"{said['tokens_low']:.3f} to {said['tokens_high']:.3f}" in figures.table(pairs)
    assert {"cpu", "api_cpu_high", "tokens_spread"} <= said.keys()
    assert not {name for name in said if name.startswith(("events", "idle", "recorded"))}
