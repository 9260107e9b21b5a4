"""From pairs to figures: medians of each arm, the ratio between them with its interval, and whether the budget holds.

Two pairs that follow each other are a round, in the order ABBA or BAAB: what drifts evenly takes as much from either arm.
"""

import functools
import itertools
import math
import operator
import statistics
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

Pair = Mapping[str, Mapping[str, float]]
"""By arm: its figures by name."""

PLAIN: Final = "plain"
PLUGGED: Final = "plugged"
LEAST_PAIRS: Final = 20
PAIRS_A_ROUND: Final = 2
ONE_SIDE: Final = 40
"""One in so many is outside the interval on one side."""
MOST_COST: Final = 2.0
LEAST_RECORDED: Final = 99.0
WIDTH: Final = 42
"""Of the table's first column."""


class Figure(NamedTuple):
    title: str
    unit: str
    digits: int
    is_compared: bool = True


FIGURES: Final[Mapping[str, Figure]] = {
    "tokens": Figure("tokens/s", "tokens/s", 0),
    "cpu": Figure("CPU a token, all processes, us", "us", 1),
    "api_cpu": Figure("  of it the API server's", "us", 1),
    "events": Figure("events a token in the streams", "event", 3, is_compared=False),
}


class Ratio(NamedTuple):
    """Plugged to plain, over the rounds, with its 95 % interval; `spread` is one round's standard deviation, as a share."""

    middle: float
    low: float
    high: float
    spread: float


def ratio(pairs: Sequence[Pair], name: str) -> Ratio | None:
    """Of each round's own ratio, by Wilcoxon's signed ranks of its logarithm. None of less than six rounds.

    A round's error is as likely up as down, since the order in it was drawn by lot: that is all that these ranks ask for, however
    the machine behaves. The estimate is the median of the means of any two rounds (Hodges and Lehmann's), and the ends of the
    interval are two of these means (Hollander and Wolfe, Nonparametric Statistical Methods, 3.2 and 3.3).
    """
    logs = of_rounds(pairs, name)
    outside = _outside(len(logs))
    if not outside:
        return None
    means = sorted((one + other) / 2 for at, one in enumerate(logs) for other in logs[at:])
    ends = means[outside - 1], means[-outside]
    return Ratio(math.exp(statistics.median(means)), *map(math.exp, ends), math.expm1(statistics.stdev(logs)))


def of_rounds(pairs: Sequence[Pair], name: str) -> list[float]:
    """The logarithm of each round's ratio, plugged to plain."""
    logs = [math.log(pair[PLUGGED][name] / pair[PLAIN][name]) for pair in pairs]
    return [statistics.fmean(logs[at : at + PAIRS_A_ROUND]) for at in range(0, len(logs) - 1, PAIRS_A_ROUND)]


def correlation(pairs: Sequence[Pair], name: str) -> float | None:
    """From one round to the next; None where there is none to speak of."""
    logs = of_rounds(pairs, name)
    if len(logs) < 3 or len(set(logs)) < 2:
        return None
    off = [each - statistics.fmean(logs) for each in logs]
    return sum(map(operator.mul, off, off[1:])) / sum(each * each for each in off)


@functools.cache
def _outside(rounds: int) -> int:
    """The how manyth mean from either side is an end of the 95 % interval; 0 where there are too few rounds for any."""
    ways = [1]  # by their sum, of the sets of the ranks so far
    for rank in range(1, rounds + 1):
        ways = [more + less for more, less in zip([*ways, *[0] * rank], [*[0] * rank, *ways], strict=True)]
    within = itertools.accumulate(ways)
    return sum(1 for number in within if number * ONE_SIDE <= 2**rounds)


def medians(pairs: Sequence[Pair]) -> dict[str, dict[str, float]]:
    """By arm, over all pairs."""
    return {arm: {name: statistics.median([pair[arm][name] for pair in pairs]) for name in FIGURES} for arm in (PLAIN, PLUGGED)}


def most_cost(pairs: Sequence[Pair]) -> float | None:
    """Upper end of the interval of what is lost of the tokens/s, in %. None of fewer pairs than the budget asks for."""
    found = ratio(pairs, "tokens") if len(pairs) >= LEAST_PAIRS else None
    return None if found is None else 100 * (1 - found.low)


def budgets(pairs: Sequence[Pair], recorded: float | None) -> list[dict[str, str | float | bool | None]]:
    """Each budget with its value; one that was not measured has none and does not hold."""
    cost = most_cost(pairs)
    return [
        {
            "name": "cost to tokens/s, upper end of the 95 % interval, %", "limit": MOST_COST,
            "value": None if cost is None else round(cost, 2), "held": cost is not None and cost < MOST_COST,
        },
        {
            "name": "requests recorded meanwhile by plugin and middleware, %", "limit": LEAST_RECORDED,
            "value": None if recorded is None else round(recorded, 2), "held": recorded is not None and recorded >= LEAST_RECORDED,
        },
    ]  # fmt: skip


def ratios(pairs: Sequence[Pair]) -> dict[str, float]:
    """`{figure}`, its interval's ends `{figure}_low` and `{figure}_high`, and a round's `{figure}_spread`; plugged to plain."""
    found: dict[str, float] = {}
    for name, figure in FIGURES.items():
        if figure.is_compared and (of_pairs := ratio(pairs, name)):
            values = zip(("", "_low", "_high", "_spread"), of_pairs, strict=True)
            found |= {f"{name}{end}": round(value, 4) for end, value in values}
    return found


def table(pairs: Sequence[Pair]) -> str:
    """For people: a line a figure, an arm a column, then the ratio."""
    found = medians(pairs)
    lines = [f"{'medians of ' + str(len(pairs)) + ' pairs':<{WIDTH}}{PLAIN:>10}{PLUGGED:>10}{'ratio':>8}  95 % interval     spread"]
    for name, figure in FIGURES.items():
        cells = (f"{found[arm][name]:,.{figure.digits}f}" for arm in (PLAIN, PLUGGED))
        line = f"{figure.title:<{WIDTH}}" + "".join(f"{cell:>10}" for cell in cells)
        if figure.is_compared and (of_pairs := ratio(pairs, name)):
            line += f"{of_pairs.middle:>8.3f}  {of_pairs.low:.3f} to {of_pairs.high:.3f}  {100 * of_pairs.spread:>6.1f} %"
        lines.append(line)
    if (found_correlation := correlation(pairs, "tokens")) is not None:
        by_chance = 1.96 / math.sqrt(len(pairs) / PAIRS_A_ROUND)
        lines.append(
            f"tokens/s, from one round of two pairs to the next: correlation {found_correlation:+.2f}, by chance within {by_chance:.2f}"
        )
    return "\n".join(lines)
