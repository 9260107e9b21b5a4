"""From pairs to figures: medians of each arm, the ratio between them with its interval, and whether the budget holds."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

Pair = Mapping[str, Mapping[str, float]]
"""By arm: its figures by name."""

PLAIN: Final = "plain"
PLUGGED: Final = "plugged"
LEAST_PAIRS: Final = 20
MOST_COST: Final = 2.0
LEAST_RECORDED: Final = 99.0
WIDTH: Final = 42
"""Of the table's first column."""


class Figure(NamedTuple):
    title: str
    unit: str
    digits: int
    is_compared: bool = False


FIGURES: Final[Mapping[str, Figure]] = {
    "tokens": Figure("tokens/s", "tokens/s", 0, is_compared=True),
    "cpu": Figure("CPU a token, all processes, us", "us", 1, is_compared=True),
    "api_cpu": Figure("  of it the API server's", "us", 1, is_compared=True),
    "events": Figure("events a token in the streams", "event", 3),
    "recorded": Figure("requests recorded, %", "%", 1),
}

T_975: Final = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131, 2.120, 2.110, 2.101, 2.093,
    2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
"""Student's t for a 95 % interval, at 1 to 30 degrees of freedom."""
T_975_BEYOND: Final = ((40, 2.021), (60, 2.000), (120, 1.980))


class Ratio(NamedTuple):
    """Plugged to plain: the geometric mean over the pairs and its 95 % interval; `spread` is one pair's standard deviation, as a share."""

    mean: float
    low: float
    high: float
    spread: float


def t_975(freedom: int) -> float:
    """Half the width of a 95 % interval in standard errors: of the nearest count in the table that is no higher, so never too narrow."""
    if freedom <= len(T_975):
        return T_975[freedom - 1]
    return next((t for least, t in reversed(T_975_BEYOND) if least <= freedom), T_975[-1])


def ratio(pairs: Sequence[Pair], name: str) -> Ratio | None:
    """Of each pair's own ratio, by Student's t on its logarithm. None of less than two pairs."""
    logs = [math.log(pair[PLUGGED][name] / pair[PLAIN][name]) for pair in pairs]
    if len(logs) < 2:
        return None
    mean, spread = statistics.fmean(logs), statistics.stdev(logs)
    half = t_975(len(logs) - 1) * spread / math.sqrt(len(logs))
    return Ratio(math.exp(mean), math.exp(mean - half), math.exp(mean + half), math.expm1(spread))


def medians(pairs: Sequence[Pair]) -> dict[str, dict[str, float]]:
    """By arm, over all pairs."""
    return {
        arm: {name: statistics.median([pair[arm][name] for pair in pairs]) for name in FIGURES if all(name in pair[arm] for pair in pairs)}
        for arm in (PLAIN, PLUGGED)
    }


def most_cost(pairs: Sequence[Pair]) -> float | None:
    """Upper end of the interval of what is lost of the tokens/s, in %. None of fewer pairs than the budget asks for."""
    found = ratio(pairs, "tokens") if len(pairs) >= LEAST_PAIRS else None
    return None if found is None else 100 * (1 - found.low)


def budgets(pairs: Sequence[Pair]) -> list[dict[str, str | float | bool | None]]:
    """Each budget with its value; one that was not measured has none and does not hold."""
    cost = most_cost(pairs)
    recorded = medians(pairs)[PLUGGED].get("recorded") if pairs else None
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
    """`{figure}`, its interval's ends `{figure}_low` and `{figure}_high`, and a pair's `{figure}_spread`; plugged to plain."""
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
        cells = (f"{found[arm][name]:,.{figure.digits}f}" if name in found[arm] else "" for arm in (PLAIN, PLUGGED))
        line = f"{figure.title:<{WIDTH}}" + "".join(f"{cell:>10}" for cell in cells)
        if figure.is_compared and (of_pairs := ratio(pairs, name)):
            line += f"{of_pairs.mean:>8.3f}  {of_pairs.low:.3f} to {of_pairs.high:.3f}  {100 * of_pairs.spread:>6.1f} %"
        lines.append(line)
    return "\n".join(lines)
