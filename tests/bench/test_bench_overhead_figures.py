"""What bench-overhead makes of its pairs: an interval that is as wide as it says, and a budget that noise or too few pairs never pass."""

import itertools
import json
import math
import random
from collections.abc import Iterator

import pytest
from checkout import ROOT, load_by_path

figures = load_by_path("bench_overhead_figures", ROOT / "bench" / "overhead" / "figures.py")

Pair = dict[str, dict[str, float]]


def pair(ratio: float, *, plain: float = 1000.0) -> Pair:
    """A pair in which the server made that share of the tokens while it was plugged."""
    both = {"api_cpu": 300.0, "events": 1.0}
    return {
        "plain": {"tokens": plain, "cpu": 1e6 / plain, **both},
        "plugged": {"tokens": plain * ratio, "cpu": 1e6 / (plain * ratio), **both},
    }


def alike(*ratios: float) -> list[Pair]:
    """Rounds of two pairs of the same ratio."""
    return [pair(ratio) for ratio in ratios for _ in range(2)]


def noisy(chance: random.Random, ratio: float, spread: float, rounds: int = 24) -> list[Pair]:
    return alike(*(ratio * math.exp(chance.gauss(0.0, spread)) for _ in range(rounds)))


@pytest.mark.parametrize(
    ("rounds", "outside"),
    [(0, 0), (5, 0), (6, 1), (8, 4), (10, 9), (12, 14), (20, 53), (25, 90)],
)
def test_ends_of_the_interval_are_those_of_the_tables(rounds: int, outside: int) -> None:
    """Of Wilcoxon's signed ranks, two-sided 5 %: the largest sum that is rejected, and one."""
    assert figures._outside(rounds) == outside


def test_ratio_of_rounds_is_by_hodges_and_lehmann() -> None:
    found = figures.ratio(alike(*(2.0**each for each in (-3, -1, 0, 1, 2, 7))), "tokens")
    assert found is not None
    assert (found.middle, found.low, found.high) == pytest.approx((2**0.5, 2**-3, 2**7))
    assert figures.ratio(alike(*[1.0] * 5), "tokens") is None


def test_a_round_is_the_mean_of_its_two_pairs() -> None:
    drifting = [pair(0.98 * 1.5), pair(0.98 / 1.5)] * 10
    assert figures.ratio(drifting, "tokens")[:3] == pytest.approx((0.98, 0.98, 0.98))


@pytest.mark.parametrize("tail", [False, True])
def test_interval_holds_the_truth_as_often_as_it_says(tail: bool) -> None:
    """Also where one round in ten is hit by what else the machine does."""
    chance = random.Random(24)

    def found() -> list[Pair]:
        return [each for _ in range(12) for each in noisy(chance, 0.99, 0.5 if tail and chance.random() < 0.1 else 0.05, 1)]

    held = sum(low <= 0.99 <= high for _, low, high, _ in (figures.ratio(found(), "tokens") for _ in range(2000)))
    assert 0.935 < held / 2000 < 0.97


def test_by_lot_what_drifts_is_no_error_that_goes_on() -> None:
    """On a machine that swings slowly, with an order that never changes, the rounds' errors would go together."""
    chance = random.Random(3)

    def swing(at: float) -> float:
        return 0.2 * math.sin(at / 40)

    def rounds(signs: Iterator[int]) -> list[Pair]:
        return alike(*(math.exp(sign * swing(at)) for at, sign in zip(range(300), signs, strict=False)))

    assert figures.correlation(rounds(itertools.repeat(1)), "tokens") > 0.9
    assert abs(figures.correlation(rounds(chance.choice((1, -1)) for _ in range(300)), "tokens")) < 0.12


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
        (alike(0.9, 1.1) * 6, 10.0, False),  # as good as no cost, but nobody knows
        ([pair(1.0)] * 18, None, False),
        ([], None, False),
    ],
)
def test_budget_is_held_by_the_worse_end_of_enough_pairs(pairs: list[Pair], value: float | None, held: bool) -> None:
    cost = figures.budgets(pairs, 100.0)[0]
    assert (cost["value"], cost["held"]) == (value if value is None else pytest.approx(value), held)


def test_a_server_that_tells_nothing_passes_no_budget() -> None:
    told = [figures.budgets([pair(1.0)] * 24, recorded) for recorded in (0.0, None, 99.5)]
    assert [[each["held"] for each in budgets] for budgets in told] == [[True, False], [True, False], [True, True]]


def test_programs_and_people_get_the_same_interval() -> None:
    pairs = noisy(random.Random(7), 0.99, 0.03)
    said = json.loads(json.dumps(figures.ratios(pairs), allow_nan=False))
    assert said["tokens_low"] < said["tokens"] < said["tokens_high"]
    assert f"{said['tokens_low']:.3f} to {said['tokens_high']:.3f}" in figures.table(pairs)
    assert {"cpu", "api_cpu_high", "tokens_spread"} <= said.keys()
    assert not {name for name in said if name.startswith("events")}
    assert "correlation" in figures.table(pairs)
