"""What is said of an incident when one of its artefacts is missing: every incident, every artefact taken away in its turn.

Never more than 5 % may be wrong (a cause that is not the true one, or all well where it is not); where everything that must be cited
is still there, 90 % must be right; at most 40 % may be inconclusive.
"""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import scoring
from origin import origin

ROOT: Final = Path(__file__).resolve().parent.parent
RESULTS: Final = ROOT / "bench" / "results" / "ablation.json"
MOST_WRONG: Final = 0.05
LEAST_RIGHT: Final = 0.90
MOST_INCONCLUSIVE: Final = 0.40


class Taken(NamedTuple):
    """One artefact taken away; `is_whole`: none of what must be cited stands in it, nor of what was cited while it was there."""

    artefact: str
    is_whole: bool
    judged: scoring.Judged


def take_away(incident: scoring.Incident) -> list[Taken]:
    """Each artefact in its turn; none of an incident that has but one."""
    labels = scoring.vocabulary()
    if len(incident.artefacts) < 2:
        return []
    sources = _sources(incident)
    taken = []
    for name in incident.artefacts:
        found = scoring.prediction(scoring.diagnose(incident, labels, without={name}))
        taken.append(Taken(name, name not in sources, scoring.Judged(incident, found)))
    return taken


def _sources(incident: scoring.Incident) -> set[str]:
    """Artefacts that hold something that must be cited, or that the verdict on all of them cites."""
    texts = {name: (incident.folder / name).read_text(encoding="utf-8", errors="replace") for name in incident.artefacts}
    must = {name for name, text in texts.items() if any(one in text for one in incident.truth.must_cite)}
    whole = scoring.diagnose(incident, scoring.vocabulary())
    own = [] if whole is None else [line for f in whole.findings if f.label == whole.verdict.label for line in f.evidence]
    return must | {line.source.rpartition(":")[0] for line in own if line.source and not line.beside}


def run(incidents: Sequence[scoring.Incident], *, keep: bool) -> int:
    """Prints the shares and what was wrong, keeps the figures where asked; 0 where every limit held."""
    taken: list[Taken] = []
    for incident in incidents:
        if sys.stderr.isatty():
            print(f"\r{incident.id[:70]:<70}", end="", file=sys.stderr)
        taken += take_away(incident)
    if not taken:
        print("ablation: no incident of these has two artefacts")
        return 2
    for one in taken:
        if one.judged.is_wrong or (one.is_whole and not one.judged.is_right):
            why = "wrong" if one.judged.is_wrong else "not right though all that must be cited is there"
            print(f"  {one.judged.incident.id} without {one.artefact}: said {one.judged.label} ({why})")
    budgets = _budgets(taken)
    for budget in budgets:
        print(f"{'held' if budget['held'] else 'NOT HELD':<8} {budget['name']}: {budget['value']} ({budget['limit']})")
    if keep:
        _keep(taken, budgets)
    return 0 if all(budget["held"] for budget in budgets) else 1


def _budgets(taken: Sequence[Taken]) -> list[dict[str, Any]]:
    whole = [one for one in taken if one.is_whole]
    wrong = _share(sum(one.judged.is_wrong for one in taken), len(taken))
    right = _share(sum(one.judged.is_right for one in whole), len(whole))
    unsure = _share(sum(one.judged.label in ("inconclusive", scoring.NOTHING) for one in taken), len(taken))
    return [
        {"name": "wrong, at most", "limit": MOST_WRONG, "value": wrong, "held": wrong <= MOST_WRONG},
        {"name": "right where all cited sources remain, at least", "limit": LEAST_RIGHT, "value": right, "held": right >= LEAST_RIGHT},
        {"name": "inconclusive, at most", "limit": MOST_INCONCLUSIVE, "value": unsure, "held": unsure <= MOST_INCONCLUSIVE},
    ]


def _keep(taken: Sequence[Taken], budgets: Sequence[dict[str, Any]]) -> None:
    figures = {
        "incidents": {"value": len({one.judged.incident.id for one in taken}), "unit": "incidents"},
        "taken_away": {"value": len(taken), "unit": "artefacts"},
        "with_all_cited_sources": {"value": sum(one.is_whole for one in taken), "unit": "artefacts"},
    }
    line = {**origin("ablation"), "figures": figures, "ratios": {}, "budgets": budgets}
    RESULTS.write_text(json.dumps(line) + "\n")


def _share(count: int, of: int) -> float:
    return round(count / max(1, of), 3)
