"""What verdicts on labelled incidents are worth: the 18 of `tests/corpus` and our own, by the formulas of `tests/corpus/score.py`.

An incident is a folder with a `case.json` (truth, difficulty, artefacts) and its artefacts. It is handed over as a stranger would
do it: the artefacts alone, in a folder without a telling name, put there in an order that is not theirs.
"""

import json
import shutil
import tempfile
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

from lensd.diagnosis.runbook import load
from lensd.diagnosis.triage import triage
from lensd.errors import UnreadableError
from lensd.records import Diagnosis
from lensd.timeline.limits import Limits

OURS: Final = Path(__file__).resolve().parent
GIVEN: Final = OURS.parent / "corpus"
GIVEN_SET: Final = "given"
NEGATIVE: Final = frozenset({"no-incident", "benign-noise"})
NOTHING: Final = "(none)"
"""The label where not even an inconclusive verdict was given: no file was understood."""


class Truth(NamedTuple):
    label: str
    stage: str
    also_accept: tuple[str, ...]
    traps: tuple[str, ...]
    must_cite: tuple[str, ...]


class Incident(NamedTuple):
    """`set`: given, or the letter at the end of the folder's name; `artefacts`: file names."""

    id: str
    set: str
    folder: Path
    difficulty: str
    artefacts: tuple[str, ...]
    truth: Truth


class Prediction(NamedTuple):
    """Labels best first, the verdict's own at their head; `citations`: exact texts; `sources`: `file:line` of each."""

    labels: tuple[str, ...]
    stage: str
    citations: tuple[str, ...]
    sources: tuple[str, ...] = ()


class Judged(NamedTuple):
    incident: Incident
    prediction: Prediction

    @property
    def label(self) -> str:
        return self.prediction.labels[0]

    @property
    def is_right(self) -> bool:
        return self.label == self.incident.truth.label

    @property
    def is_half(self) -> bool:
        return not self.is_right and self.label in self.incident.truth.also_accept

    @property
    def is_wrong(self) -> bool:
        """A cause, or a word that all is well, which is not the true one: worse than "could not tell"."""
        return not self.is_right and not self.is_half and self.label not in ("inconclusive", NOTHING)

    @property
    def took_trap(self) -> bool:
        return self.label in self.incident.truth.traps

    @property
    def cited(self) -> list[str]:
        text = " \n ".join(self.prediction.citations)
        return [one for one in self.incident.truth.must_cite if one in text]


class Score(NamedTuple):
    """Figures of one set, each a share or a count as `tests/corpus/score.py` has it."""

    n: int
    top1: float
    half: float  # right, and half a point for a label that is accepted too
    top3: float
    kind: float
    stage: float
    trap_rate: float
    false_alarms: int
    negatives: int
    missed: int
    cite_recall: float
    wrong: float
    inconclusive: float


def vocabulary() -> dict[str, dict[str, str]]:
    """Label to its kind and stage: what `--labels` restricts verdicts to."""
    return dict(json.loads((GIVEN / "labels.json").read_text()))


def sets() -> tuple[str, ...]:
    """The given set, and ours by the last letters of their folders' names."""
    return (GIVEN_SET, *sorted({path.parent.name.rpartition("-")[2] for path in OURS.glob("*/case.json")}))


def incidents(some: Collection[str] | None = None, label: str | None = None) -> list[Incident]:
    """The incidents of these sets, else of all, in the order of their names; those of one label where it is named."""
    found = [read(path, GIVEN_SET) for path in sorted(GIVEN.glob("*/case.json"))]
    found += [read(path, path.parent.name.rpartition("-")[2]) for path in sorted(OURS.glob("*/case.json"))]
    return [one for one in found if (some is None or one.set in some) and (label is None or one.truth.label == label)]


def first_looks() -> dict[str, dict[str, float]]:
    """What was measured of a set of ours before anybody had looked at it, by the figures of `Score`; b is with c and d."""
    return dict(json.loads((OURS / "first_looks.json").read_text()))


def read(path: Path, own_set: str) -> Incident:
    """One `case.json`."""
    case = json.loads(path.read_text(encoding="utf-8"))
    truth: Mapping[str, Any] = case["truth"]
    return Incident(
        id=path.parent.name,
        set=own_set,
        folder=path.parent,
        difficulty=case["difficulty"],
        artefacts=tuple(one["file"] for one in case["artefacts"]),
        truth=Truth(truth["label"], truth["stage"], *(tuple(truth[key]) for key in ("also_accept", "wrong_traps", "must_cite"))),
    )


def hand_over(incident: Incident, folder: Path, without: Collection[str] = ()) -> Path:
    """Copies the artefacts, but for those of `without`, in the order of their names read backwards."""
    for name in sorted(incident.artefacts, key=lambda name: name[::-1]):
        if name not in without:
            place = folder / name
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(incident.folder / name, place)
    return folder


def diagnose(incident: Incident, labels: Collection[str] | None = None, without: Collection[str] = ()) -> Diagnosis | None:
    """The verdict document; None where nothing handed over was understood."""
    with tempfile.TemporaryDirectory(prefix="handed-over-") as folder:
        try:
            return triage([hand_over(incident, Path(folder), without)], BOOKS, {}, Limits(), labels)
        except UnreadableError:
            return None


def prediction(found: Diagnosis | None) -> Prediction:
    if found is None:
        return Prediction((NOTHING,), "none", ())
    lines = [line for finding in found.findings for line in finding.evidence if line.quote]
    return Prediction(
        labels=tuple(dict.fromkeys([found.verdict.label, *(finding.label for finding in found.findings)])),
        stage=found.verdict.stage,
        citations=tuple(line.quote for line in lines if line.quote),
        sources=tuple(line.source for line in lines if line.source),
    )


def judge(some: Iterable[Incident], told: Callable[[Judged], None] | None = None) -> list[Judged]:
    """Each incident with what is said of it; `told` hears of each as it is done."""
    labels = vocabulary()
    judged = []
    for incident in some:
        one = Judged(incident, prediction(diagnose(incident, labels)))
        judged.append(one)
        if told is not None:
            told(one)
    return judged


def score(judged: Sequence[Judged]) -> Score:
    """Of no incident at all every share is 0."""
    known = vocabulary()
    n = len(judged)

    def share(count: float) -> float:
        return round(count / max(1, n), 3)

    def kind(label: str) -> str | None:
        return known.get(label, {}).get("kind")

    right = sum(one.is_right for one in judged)
    negatives = [one for one in judged if one.incident.truth.stage == "none"]
    must = sum(len(one.incident.truth.must_cite) for one in judged)
    return Score(
        n=n,
        top1=share(right),
        half=share(right + sum(one.is_half for one in judged) / 2),
        top3=share(sum(one.incident.truth.label in one.prediction.labels[:3] for one in judged)),
        kind=share(sum(kind(one.label) == kind(one.incident.truth.label) for one in judged)),
        stage=share(sum(one.prediction.stage == one.incident.truth.stage for one in judged)),
        trap_rate=share(sum(one.took_trap for one in judged)),
        false_alarms=sum(one.label not in NEGATIVE for one in negatives),
        negatives=len(negatives),
        missed=sum(one.label in NEGATIVE for one in judged if one.incident.truth.stage != "none"),
        cite_recall=round(sum(len(one.cited) for one in judged) / max(1, must), 3),
        wrong=share(sum(one.is_wrong for one in judged)),
        inconclusive=share(sum(one.label in ("inconclusive", NOTHING) for one in judged)),
    )


def by(judged: Iterable[Judged], key: Callable[[Judged], str]) -> dict[str, list[Judged]]:
    """Groups in the order of their names."""
    groups: dict[str, list[Judged]] = defaultdict(list)
    for one in judged:
        groups[key(one)].append(one)
    return dict(sorted(groups.items()))


BOOKS: Final = load()
