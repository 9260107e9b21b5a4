"""From what was measured to figures, ratios and budgets: percentiles, medians over rounds, what is held."""

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

Figures = Mapping[str, float]
"""By name, of one stack."""
Round = Mapping[str, Figures]
"""By stack."""


class Figure(NamedTuple):
    title: str
    unit: str
    digits: int


FIGURES: Final[Mapping[str, Figure]] = {
    "p50": Figure("p50 at concurrency 1", "ms", 3),
    "p99": Figure("p99", "ms", 3),
    "added_p50": Figure("added p50", "ms", 3),
    "added_p99": Figure("added p99", "ms", 3),
    "request_cpu": Figure("CPU a request", "us", 1),
    "requests_core": Figure("requests/s a core", "requests/s of CPU", 0),
    "requests": Figure("requests/s, 32 callers", "requests/s", 0),
    "chunk_cpu": Figure("CPU a streamed chunk", "us", 1),
    "resident": Figure("memory, 256 streams", "MiB", 1),
    "gone_mid_p50": Figure("caller gone mid-stream, p50", "ms", 2),
    "gone_mid_max": Figure("  max", "ms", 2),
    "gone_before_p50": Figure("before the first byte, p50", "ms", 2),
    "gone_before_max": Figure("  max", "ms", 2),
    "recorded": Figure("requests recorded", "%", 1),
}


class Limit(NamedTuple):
    """What a figure of ours must reach or, with `is_most`, keep to; with `against`, how many times better than that stack it must be."""

    name: str
    figure: str
    limit: float
    is_most: bool
    against: str = ""


BUDGETS: Final = (
    Limit("added p50 at concurrency 1, times less than LiteLLM", "added_p50", 25.0, is_most=False, against="litellm"),
    Limit("non-streaming requests/s a core, times LiteLLM", "requests_core", 80.0, is_most=False, against="litellm"),
    Limit("requests recorded meanwhile, %", "recorded", 99.0, is_most=False),
    Limit("CPU a streamed chunk, us", "chunk_cpu", 50.0, is_most=True),
    Limit("caller gone mid-stream, upstream aborted within ms", "gone_mid_max", 50.0, is_most=True),
    Limit("caller gone before the first byte, upstream aborted within ms", "gone_before_max", 50.0, is_most=True),
)
MORE_IS_BETTER: Final = frozenset({"requests_core", "requests", "recorded"})
WIDTH: Final = 42
"""Of the table's first column."""
RATIOS: Final = ("added_p50", "added_p99", "request_cpu", "requests_core", "requests", "chunk_cpu", "resident")


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that at least `share` of them do not exceed."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def medians(rounds: Sequence[Round]) -> dict[str, dict[str, float]]:
    """Each stack's figures, median over the rounds that have them."""
    stacks = dict.fromkeys(stack for each in rounds for stack in each)
    found: dict[str, dict[str, float]] = {}
    for stack in stacks:
        of_stack = [each[stack] for each in rounds if stack in each]
        found[stack] = {
            name: statistics.median([figures[name] for figures in of_stack if name in figures])
            for name in FIGURES
            if any(name in figures for figures in of_stack)
        }
    return found


def times_better(rounds: Sequence[Round], figure: str, against: str) -> float | None:
    """How many times better ours is than another stack: median of each round's own ratio. None where a round lacks one of them.

    None also where the other one's lies below its noise, as an added latency can.
    """
    ratios = []
    for each in rounds:
        ours, other = each.get("ours", {}).get(figure), each.get(against, {}).get(figure)
        if ours is None or other is None or other <= 0:
            return None
        better, worse = (ours, other) if figure in MORE_IS_BETTER else (other, ours)
        ratios.append(better / worse if worse > 0 else math.inf)
    return statistics.median(ratios) if ratios else None


def ratios(rounds: Sequence[Round]) -> dict[str, float | None]:
    """`{figure}_vs_{stack}`: how many times better ours is, below 1 where it is worse."""
    against = [stack for stack in ("nginx", "litellm") if any(stack in each for each in rounds)]
    found = {f"{figure}_vs_{stack}": times_better(rounds, figure, stack) for figure in RATIOS for stack in against}
    return {name: finite(value, 3) for name, value in found.items() if value is not None}


def budgets(rounds: Sequence[Round]) -> list[dict[str, str | float | bool | None]]:
    """Each budget with its value; one that could not be measured has none and does not hold."""
    ours = medians(rounds).get("ours", {})
    decided: list[dict[str, str | float | bool | None]] = []
    for each in BUDGETS:
        value = times_better(rounds, each.figure, each.against) if each.against else ours.get(each.figure)
        held = value is not None and (value <= each.limit if each.is_most else value >= each.limit)
        decided.append({"name": each.name, "limit": each.limit, "value": finite(value, 2), "held": held})
    return decided


def finite(value: float | None, digits: int) -> float | None:
    """As JSON can say it: nothing for what was not seen in time."""
    return round(value, digits) if value is not None and math.isfinite(value) else None


def table(found: Mapping[str, Figures]) -> str:
    """The figures for people: a line each, a column a stack."""
    lines = [" " * WIDTH + "".join(f"{stack:>11}" for stack in found)]
    for name, figure in FIGURES.items():
        cells = [_cell(figures.get(name), figure.digits) for figures in found.values()]
        if any(cells):
            lines.append(f"{figure.title + ', ' + figure.unit:<{WIDTH}}" + "".join(f"{cell:>11}" for cell in cells))
    return "\n".join(lines)


def _cell(value: float | None, digits: int) -> str:
    if value is None:
        return ""
    return f"{value:,.{digits}f}" if math.isfinite(value) else "not seen"
