"""How often triage names the true cause: the 18 given incidents and our own sets, per label and per difficulty.

usage: score.py [--set given|a|b|... ...] [--label LABEL] [--ablate]

Formulas are those of `tests/corpus/score.py`; verdicts are restricted to its vocabulary. A run over a whole set is kept in
`bench/results/score.json`. Beside the last figures stand those of the first run of the given ones and of ours together, and of each set
of ours those of the first look at it (`tests/incidents/first_looks.json`): what is said there of incidents that nobody had seen is what
can be hoped for of a stranger's.
`--ablate` takes the artefacts away one at a time instead (`bench/results/ablation.json`).
"""

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests" / "incidents"), str(ROOT / "tools"), str(ROOT / "bench")]

import ablate  # noqa: E402
import scoring  # noqa: E402
from origin import origin  # noqa: E402

RESULTS: Final = ROOT / "bench" / "results" / "score.json"
OURS: Final = "ours"
LEAST_RIGHT: Final = {scoring.GIVEN_SET: 0.944}
LEAST_RIGHT_OF_OURS: Final = 0.85
LEAST_CITED: Final = 0.9
SUMS: Final = ("n", "top1", "trap_rate", "cite_recall", "wrong", "inconclusive")


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--set", dest="sets", action="append", choices=scoring.sets(), help="this set only; repeatable")
    parser.add_argument("--label", help="incidents of this label only")
    parser.add_argument("--ablate", action="store_true", help="take artefacts away one at a time")
    asked = parser.parse_args()
    some = scoring.incidents(asked.sets, asked.label)
    if not some:
        print(f"score: no incident of {asked.label or ', '.join(asked.sets)}", file=sys.stderr)
        return 2
    if asked.ablate:
        return ablate.run(some, keep=asked.label is None and not asked.sets)
    sets = scoring.by(scoring.judge(some, _tell), lambda one: one.incident.set)
    if asked.sets is None:
        sets[OURS] = [one for name, judged in sets.items() if name != scoring.GIVEN_SET for one in judged]
    for name, judged in sets.items():
        _print_set(name, judged)
    return 0 if asked.label is not None else _keep(sets)


def _tell(one: scoring.Judged) -> None:
    if sys.stderr.isatty():
        print(f"\r{one.incident.id[:70]:<70}", end="", file=sys.stderr)


def _print_set(name: str, judged: Sequence[scoring.Judged]) -> None:
    found = scoring.score(judged)
    print(f"\n{name}: {' '.join(f'{key}={value}' for key, value in found._asdict().items())}")
    groups = scoring.by(judged, lambda one: one.incident.difficulty)
    print("  by difficulty: " + ", ".join(f"{name} {sum(one.is_right for one in group)}/{len(group)}" for name, group in groups.items()))
    if name == OURS:
        return
    print(f"  {'label':<36} {'right':>5}  {'cited':>5}  what was said instead, and what was not cited")
    for label, group in scoring.by(judged, lambda one: one.incident.truth.label).items():
        right, cited = sum(one.is_right for one in group), sum(len(one.cited) for one in group)
        must = sum(len(one.incident.truth.must_cite) for one in group)
        print(f"  {label:<36} {f'{right}/{len(group)}':>5}  {f'{cited}/{must}':>5}  {'; '.join(filter(None, map(_fault, group)))}".rstrip())


def _fault(one: scoring.Judged) -> str:
    """What is not as it should be with one incident, in a few words."""
    said = "" if one.is_right else f"said {one.label}" + (" (half)" if one.is_half else " (trap)" if one.took_trap else "")
    stage = "" if one.prediction.stage == one.incident.truth.stage else f"stage {one.prediction.stage}"
    missing = [text for text in one.incident.truth.must_cite if text not in one.cited]
    cited = f"not cited: {' | '.join(text[:60] for text in missing)}" if missing and one.is_right else ""
    faults = ", ".join(filter(None, (said, stage, cited)))
    return f"{one.incident.id}: {faults}" if faults else ""


def _keep(sets: dict[str, list[scoring.Judged]]) -> int:
    """The figures of these sets in the results, the first ones kept; 0 where every limit held."""
    before: dict[str, Any] = json.loads(RESULTS.read_text())["sets"] if RESULTS.is_file() else {}
    kept = {name: told for name, told in before.items() if name in (*scoring.sets(), OURS)}
    about = origin("score")
    budgets, looks = [], scoring.first_looks()
    for name, judged in sets.items():
        found = scoring.score(judged)
        last = {"commit": about["commit"], **found._asdict(), "labels": _shares(judged, _label), "difficulty": _shares(judged, _difficulty)}
        kept[name] = {**kept.get(name, {}), "last": last}
        if name in (scoring.GIVEN_SET, OURS):
            kept[name].setdefault("first", last)
        elif name in looks:
            kept[name]["first"] = looks[name]
        _print_beside(name, kept[name])
        budgets += _budgets(name, found)
    figures = {
        f"{name}_{which}_{key}": {"value": told[key], "unit": "incidents" if key == "n" else "share"}
        for name, both in kept.items()
        for which, told in both.items()
        for key in SUMS
        if key in told
    }
    line = {**about, "figures": figures, "ratios": {}, "budgets": budgets, "sets": kept}
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(json.dumps(line, indent=1) + "\n")
    for budget in budgets:
        print(f"{'held' if budget['held'] else 'NOT HELD':<8} {budget['name']}: {budget['value']} ({budget['limit']})")
    return 0 if all(budget["held"] for budget in budgets) else 1


def _budgets(name: str, found: scoring.Score) -> list[dict[str, Any]]:
    least = LEAST_RIGHT.get(name, LEAST_RIGHT_OF_OURS)
    asked = (
        ("top-1, at least", least, found.top1, found.top1 >= least),
        ("traps taken, at most", 0, found.trap_rate, found.trap_rate == 0),
        ("false alarms, at most", 0, found.false_alarms, found.false_alarms == 0),
        ("citation recall, at least", LEAST_CITED, found.cite_recall, found.cite_recall >= LEAST_CITED),
    )
    return [{"name": f"{name}: {what}", "limit": limit, "value": value, "held": held} for what, limit, value, held in asked]


def _print_beside(name: str, kept: dict[str, Any]) -> None:
    first = kept.get("first", {})
    told = ", ".join(f"{key} {first[key]} -> {kept['last'][key]}" if key in first else f"{key} {kept['last'][key]}" for key in SUMS)
    print(f"{name}{', first and last' if first else ''}: {told}")


def _shares(judged: Sequence[scoring.Judged], key: Callable[[scoring.Judged], str]) -> dict[str, str]:
    return {name: f"{sum(one.is_right for one in group)}/{len(group)}" for name, group in scoring.by(judged, key).items()}


def _label(one: scoring.Judged) -> str:
    return one.incident.truth.label


def _difficulty(one: scoring.Judged) -> str:
    return one.incident.difficulty


if __name__ == "__main__":
    sys.exit(main())
