"""Logs of several engines in one folder that name none: each becomes its own engine, and what is called like it is its own.

One engine writes one log. Two logs with samples of the same time that differ are of two, and rates between them would be of nobody.
"""

import re
from collections.abc import Mapping
from itertools import combinations
from pathlib import Path
from typing import Final

import msgspec
from lensd_collectors.read.recognise import FileRows
from lensd_collectors.rows import ConfigFact, EngineSample, Event, HttpExchange, Point, Row

LEAST: Final = 2  # samples of a log, from which on its time is a stretch
SMALL: Final = 64 << 10  # bytes of a text in which a heading is looked for
HEADED: Final = 3  # lines from a heading to what it is of
_WORDS: Final = re.compile(r"[^\W_]+")
_COMMON: Final = frozenset({"log", "logs", "txt", "out", "engine", "vllm", "sglang", "metrics", "server", "prom", "gz"})
Stretch = tuple[int, int, frozenset[tuple[float | None, ...]]]


def name_apart(logs: Mapping[str, FileRows], every: Mapping[str, FileRows], places: Mapping[str, Path]) -> None:
    """Names the rows of logs that overlap in time by their files, and of the other files those that say the same name."""
    stretches = {name: found for name, file in logs.items() if (found := _stretch(file)) is not None}
    apart = {name for one, other in combinations(stretches, 2) if _differ(stretches[one], stretches[other]) for name in (one, other)}
    named = {name: word for name in apart if (word := _own_word(name, apart)) is not None}
    if len(named) < LEAST or len(set(named.values())) < len(named):
        return
    for name, word in named.items():
        _give(every[name], word)
    for name, file in every.items():
        if name in named or not file.rows:
            continue
        words = set(_words(name)) & set(named.values())
        if len(words) == 1:
            _give(file, words.pop())
        elif "config_facts" in file.rows:
            _by_heading(file.rows["config_facts"], places[name], frozenset(named.values()))


def _stretch(file: FileRows) -> Stretch | None:
    """From when to when its samples are, and what they say; None for a log whose samples name their engine."""
    samples = [row for row in file.rows.get("engine_samples", ()) if isinstance(row, EngineSample)]
    times = [int(row.seen_at) for row in samples if row.seen_at is not None]
    if len(times) < LEAST or any(row.engine is not None for row in samples):
        return None
    return min(times), max(times), frozenset((row.seen_at, row.running, row.waiting, row.kv_usage) for row in samples)


def _differ(one: Stretch, other: Stretch) -> bool:
    return one[0] < other[1] and other[0] < one[1] and not one[2] & other[2]


def _words(name: str) -> list[str]:
    return [word.lower() for word in _WORDS.findall(name.rpartition("/")[2])]


def _own_word(name: str, among: set[str]) -> str | None:
    """What only this file's name has."""
    others = {word for other in among - {name} for word in _words(other)}
    return next((word for word in _words(name) if word not in others and word not in _COMMON and not word.isdigit()), None)


def _give(file: FileRows, engine: str) -> None:
    for some in file.rows.values():
        for row in some:
            _called(row, engine)


def _called(row: Row, engine: str) -> None:
    if isinstance(row, Event | EngineSample | Point | HttpExchange) and row.engine is None:
        row.engine = engine
    elif isinstance(row, ConfigFact) and row.subject is None:
        row.subject = engine


def _by_heading(facts: list[Row], place: Path, known: frozenset[str]) -> None:
    """What stands below a line that names one of the engines is its own; what stands below none is of each."""
    if not place.is_file() or place.stat().st_size > SMALL:
        return
    lines = place.read_text(encoding="utf-8", errors="replace").split("\n")
    added: list[Row] = []
    for row in facts:
        if not isinstance(row, ConfigFact) or row.subject is not None:
            continue
        number = (row.src or "").rpartition(":")[2]
        at = int(number) - 1 if number.isdigit() else -1
        found = next((here for line in reversed(lines[max(0, at - HEADED) : at + 1]) if (here := set(_words(line)) & known)), set())
        if len(found) == 1:
            row.subject = found.pop()
            continue
        first, *rest = sorted(known)
        row.subject = first
        added += [msgspec.structs.replace(row, subject=name) for name in rest]
    facts += added
