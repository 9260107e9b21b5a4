"""From times to the table and the JSON line that every bench ends with."""

import json
import os
import platform
import statistics
import subprocess
from collections.abc import Mapping, Sequence
from typing import Any, Final

from query.store import ROOT

WIDTH: Final = 44


def percentiles(times_s: Sequence[float]) -> tuple[float, float]:
    """p50 and p99 in milliseconds; of less than a hundred times p99 is the longest."""
    ordered = sorted(times_s)
    return statistics.median(ordered) * 1000, ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))] * 1000


def budget(name: str, limit: float, value: float) -> dict[str, Any]:
    return {"name": name, "limit": limit, "value": round(value, 1), "held": value <= limit}


def least(name: str, limit: float, value: float) -> dict[str, Any]:
    return {"name": name, "limit": limit, "value": round(value, 1), "held": value >= limit}


def told(bench: str, figures: Mapping[str, tuple[float, str]], budgets: Sequence[Mapping[str, Any]], *, keep: bool) -> int:
    """Print budgets and the JSON line, keep it under bench/results; the exit status."""
    print()
    for each in budgets:
        print(f"{each['name']:<{WIDTH + 24}}{each['limit']:>8g}  {each['value']:>8}  {'held' if each['held'] else 'NOT HELD'}")
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()
    document = {
        "bench": bench,
        "commit": commit,
        "machine": f"{platform.machine()}, Python {platform.python_version()}, {os.cpu_count()} cores",
        "figures": {name: {"value": round(value, 1), "unit": unit} for name, (value, unit) in figures.items()},
        "ratios": {},
        "budgets": list(budgets),
    }
    line = json.dumps(document)
    if keep:
        (ROOT / "bench" / "results" / f"{bench}.json").write_text(line + "\n")
    print(line)
    return 0 if all(each["held"] for each in budgets) else 1
