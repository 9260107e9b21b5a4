"""The rules over made-up courses, tick by tick as the daemon asks them: when each first fired, and on what it should not have."""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Final, NamedTuple

from trend_series import GPU_FOR_S, KV_FOR_S, T0, Course, S, courses, rows

from lensd.diagnosis.evaluate import evaluate
from lensd.diagnosis.runbook import Runbook, load
from lensd.diagnosis.scope import Scope
from lensd.store.arrow import batch_of
from lensd.store.memory import MemoryStore

RULES: Final = {"kv": "kv-cache-leak", "gpu": "gpu-memory-leak"}
TICKS: Final = {"kv": range(180, KV_FOR_S + 300, 180), "gpu": range(1200, GPU_FOR_S + 60, 900)}
"""Seconds after the first reading at which the rule is asked."""


class Told(NamedTuple):
    """`fired_s` null: never. `stands_s`: how long the course had leaked by then."""

    course: Course
    fired_s: float | None
    right: bool
    stands_s: float | None


class Sum(NamedTuple):
    """What a set of courses came to; times in seconds since the first loss."""

    right: int
    told: int
    false_alarms: tuple[str, ...]
    missed: tuple[str, ...]
    median_s: Mapping[str, float]
    longest_s: Mapping[str, float]


def drive(made: Sequence[Course]) -> list[Told]:
    """Every course judged by its rule at every tick, all of one kind in one store, in which they are each other's neighbours."""
    books = load()
    return [told for kind, rule in RULES.items() for told in _drive([one for one in made if one.kind == kind], books[rule], TICKS[kind])]


def summed(told: Sequence[Told]) -> Sum:
    times = {kind: sorted(one.stands_s for one in told if one.course.kind == kind and one.stands_s is not None) for kind in RULES}
    return Sum(
        right=sum(one.right for one in told),
        told=len(told),
        false_alarms=tuple(one.course.name for one in told if one.fired_s is not None and not one.right),
        missed=tuple(one.course.name for one in told if one.fired_s is None and not one.right),
        median_s={kind: median(found) if found else float("inf") for kind, found in times.items()},
        longest_s={kind: found[-1] if found else float("inf") for kind, found in times.items()},
    )


def judged(seed: int, each: int = 8) -> Sum:
    return summed(drive(courses(seed, each)))


def _drive(made: Sequence[Course], book: Runbook, ticks: range) -> list[Told]:
    store = MemoryStore()
    store.append(batch_of(_by_table(made)))
    fired: dict[str, float] = {}
    with store.cursor() as cursor:
        for at in ticks:
            # live, nothing is known of what comes after the tick
            scope = Scope(to_us=T0 + at * S)
            for finding in evaluate(cursor, [book], scope, timeout_s=60.0).findings:
                fired.setdefault(str(finding.engine), float(at))
    store.close()
    return [_told(course, fired.get(course.name)) for course in made]


def _told(course: Course, fired_s: float | None) -> Told:
    if course.leak_s is None:
        return Told(course, fired_s, fired_s is None, None)
    right = fired_s is not None and fired_s >= course.leak_s
    return Told(course, fired_s, right, fired_s - course.leak_s if right and fired_s is not None else None)


def _by_table(made: Sequence[Course]) -> dict[str, list[object]]:
    tables: dict[str, list[object]] = {"engine_samples": [], "gpu_samples": []}
    for course in made:
        for row in rows(course):
            tables["gpu_samples" if hasattr(row, "gpu") else "engine_samples"].append(row)
    return tables
