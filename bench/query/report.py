"""From times to the table and the JSON line that every bench ends with."""

import json
import statistics
from collections.abc import Mapping, Sequence
from typing import Any, Final

from origin import origin

from query.store import ROOT

WIDTH: Final = 44


def percentiles(times_s: Sequence[float]) -> tuple[float, float]:
    """p50 and p99 in milliseconds; of less than a hundred times p99 is the longest."""
    ordered = sorted(times_s)
    return statistics.median(ordered) * 1000, ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))] * 1000


Measured = Mapping[str, tuple[float, float]]
"""p50 and p99 in milliseconds, by what was asked."""


def table(title: str, still: Measured, busy: Measured) -> str:
    """A line a question: by itself, and while spans come in."""
    lines = [f"{title:<{WIDTH}}{'p50':>8}{'p99':>8}{'  busy: p50':>12}{'p99':>8}"]
    lines += [f"{name:<{WIDTH}}{still[name][0]:>8.1f}{still[name][1]:>8.1f}{busy[name][0]:>12.1f}{busy[name][1]:>8.1f}" for name in still]
    return "\n".join(lines)


def figures(still: Measured, busy: Measured) -> dict[str, tuple[float, str]]:
    return {
        f"{name}, {kind}{when}": (value, "ms")
        for times, when in ((still, ""), (busy, ", busy"))
        for name, both in times.items()
        for kind, value in zip(("p50", "p99"), both, strict=True)
    }


def budget(name: str, limit: float, value: float) -> dict[str, Any]:
    return {"name": name, "limit": limit, "value": round(value, 1), "held": value <= limit}


def least(name: str, limit: float, value: float) -> dict[str, Any]:
    return {"name": name, "limit": limit, "value": round(value, 1), "held": value >= limit}


def told(bench: str, figures: Mapping[str, tuple[float, str]], budgets: Sequence[Mapping[str, Any]], *, keep: bool) -> int:
    """Print budgets and the JSON line, keep it under bench/results; the exit status."""
    print()
    for each in budgets:
        print(f"{each['name']:<{WIDTH + 24}}{each['limit']:>8g}  {each['value']:>8}  {'held' if each['held'] else 'NOT HELD'}")
    document = {
        **origin(bench),
        "figures": {name: {"value": round(value, 1), "unit": unit} for name, (value, unit) in figures.items()},
        "ratios": {},
        "budgets": list(budgets),
    }
    line = json.dumps(document)
    if keep:
        (ROOT / "bench" / "results" / f"{bench}.json").write_text(line + "\n")
    print(line)
    return 0 if all(each["held"] for each in budgets) else 1
