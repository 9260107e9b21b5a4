"""What else in the same files bears on a verdict: lines that its rule does not quote, one or two a file, each with its exact text.

A rule quotes what it was decided by. Whoever reads the verdict looks for more: the setting that the figure is to be held against, the word
of the other hop, the scrape before, what somebody noted. Which columns and events bear on a cause is data by its family.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from lensd.diagnosis.families import FAMILIES, Family
from lensd.diagnosis.resolve import Resolver
from lensd.records import Evidence, Finding
from lensd.store.interface import Cursor

MOST_LINES: Final = 10
MOST_OF_A_FILE: Final = 2
MOST_TRIED: Final = 200
SMALL: Final = 32 * 1024  # bytes of a text that is looked through for a line that bears on it
MOST_TEXT_LINES: Final = 120
_FILE: Final = r"regexp_replace(src, ':\d+$', '')"
_GRAVE: Final = {"critical": 0.0, "error": 0.1, "warning": 0.2}
_AGE: Final = "(coalesce(seen_at, timestamp '1970-01-01'), coalesce(seq, 0))"
_TOKEN: Final = re.compile(r"[A-Za-z0-9][\w.:/-]*[A-Za-z0-9]|\d")
_TELLING: Final = re.compile(r"[\d_]|[A-Za-z]-[A-Za-z]")


class Bears(NamedTuple):
    """A line that may be quoted; the lower `order`, the sooner."""

    order: float
    src: str
    column: str
    text: str

    @property
    def file(self) -> str:
        return self.src.rpartition(":")[0]


def beside(cursor: Cursor, findings: Sequence[Finding], resolver: Resolver, texts: Mapping[str, Path]) -> tuple[Finding, ...]:
    """The findings, the first with up to ten lines more, each said to be `beside`; one that nothing is wrong gets none.

    `texts`: files of which lines may bear on it that no row was made of.
    """
    if not findings or findings[0].kind == "negative":
        return tuple(findings)
    first = findings[0]
    family = next((one for one in FAMILIES if re.match(one.labels, first.label)), None)
    if family is None:
        return tuple(findings)
    quoted: dict[str, str] = {}
    for line in chain.from_iterable(finding.evidence for finding in findings):
        if line.source is not None:
            quoted[line.source] = f"{quoted.get(line.source, '')}\n{line.quote or ''}"
    chosen: list[Evidence] = []
    taken: dict[str, int] = {}
    files = {place.rpartition(":")[0] for place in quoted}
    every = sorted(
        chain(_events(cursor, family, first), _settings(cursor, family), _samples(cursor, family), _cards(cursor, family), _calls(cursor))
    )
    told = " ".join(f"{line.text} {line.quote or ''}" for finding in findings for line in finding.evidence)
    rest = _written(texts, (), told)
    candidates = chain((bears for bears in every if bears.file not in files), _written(texts, files, told), every, rest)
    for one in islice(candidates, MOST_TRIED):
        if len(chosen) == MOST_LINES:
            break
        if taken.get(one.file, 0) >= MOST_OF_A_FILE:
            continue
        found = resolver(one.src, one.column)
        if found is None or not found.quote or found.source is None or found.quote in quoted.get(found.source, ""):
            continue
        quoted[found.source] = f"{quoted.get(found.source, '')}\n{found.quote}"
        taken[one.file] = taken.get(one.file, 0) + 1
        chosen.append(msgspec.structs.replace(found, text=one.text, beside=True))
    return (msgspec.structs.replace(first, evidence=(*first.evidence, *chosen)), *findings[1:])


def _events(cursor: Cursor, family: Family, first: Finding) -> Iterable[Bears]:
    """Of each file and event the first and the last: what is grave before what is not, what is of the same request before others."""
    rows = cursor.execute(
        f"""select name, any_value(severity), arg_min(src, (request_id is distinct from $id, {_AGE})), arg_max(src, {_AGE})
            from events where src is not null and line is not null
              and (regexp_full_match(name, $names) or severity in ('warning', 'error', 'critical'))
            group by {_FILE}, name""",
        {"names": family.events, "id": first.request_id},
    ).fetchall()
    for name, severity, *both in rows:
        order = _GRAVE.get(severity, 0.3) + (0 if re.fullmatch(family.events, name) else 0.5)
        column = "unallocated_bytes" if name == "engine.oom" else "line"  # which stands at the end of a long line
        yield from (Bears(order, src, column, name.removeprefix("lensd.").replace(".", " ").replace("_", " ")) for src in both)


def _settings(cursor: Cursor, family: Family) -> Iterable[Bears]:
    rows = cursor.execute(
        "select name, any_value(value), src from config_facts where regexp_full_match(name, $names) and src is not null"
        " and coalesce(origin, '') <> 'derived' group by name, src",
        {"names": family.settings},
    ).fetchall()
    order = {name: place for place, name in enumerate(family.settings.split("|"))}
    for name, value, src in rows:
        yield Bears(0.25 + 0.01 * order.get(name, len(order)), src, name, f"{name} is {value}")


def _samples(cursor: Cursor, family: Family) -> Iterable[Bears]:
    for place, column in enumerate(family.samples):
        rows = cursor.execute(
            f"select arg_max(src, ({column}, {_AGE})), max({column}), arg_min(src, {_AGE}), arg_min({column}, {_AGE})"
            f" from engine_samples where {column} is not null and src is not null group by {_FILE}"
        ).fetchall()
        for src, value, early, was in rows:
            yield Bears(0.3 + 0.05 * place, src, column, f"{column.replace('_', ' ')}: {value:g}")
            yield Bears(0.6 + 0.05 * place, early, column, f"{column.replace('_', ' ')} at first: {was:g}")


def _cards(cursor: Cursor, family: Family) -> Iterable[Bears]:
    for place, column in enumerate(family.cards):
        rows = cursor.execute(
            f"select arg_max(src, {_AGE}), arg_min(src, {_AGE})"
            f" from gpu_samples where {column} is not null and src is not null group by {_FILE}, gpu, pid"
        ).fetchall()
        for last, early in rows:
            said = column.removesuffix("_bytes").replace("_", " ")
            yield Bears(0.3 + 0.05 * place, last, column, f"the card at the last, {said}")
            yield Bears(0.35 + 0.05 * place, early, column, f"the card at the first, {said}")


def _calls(cursor: Cursor) -> Iterable[Bears]:
    """Of each file the longest of the calls that failed, and of those that were served: one is to be held against the other."""
    rows = cursor.execute(
        f"""select arg_max(src, (coalesce(duration_ms, 0), seen_at)), coalesce(status, 0) between 200 and 299 as served, any_value(hop),
                   count(*)
            from http_exchanges where src is not null and (status is not null or error_code is not null or error_message is not null)
            group by {_FILE}, served"""
    ).fetchall()
    for src, served, hop, count in rows:
        what = "was served" if served else "was not served"
        yield Bears(0.4 if served else 0.22, src, "status", f"a call {what}, by the {hop or 'caller'}'s account ({count} such)")


def _written(texts: Mapping[str, Path], but: Iterable[str], told: str) -> Iterable[Bears]:
    """Of texts that nothing is quoted of, the lines that share most with what is told, and say figures."""
    words = {word for word in _TOKEN.findall(told) if _TELLING.search(word)}
    for name in sorted(texts.keys() - set(but)):
        place = texts[name]
        if not place.is_file() or place.stat().st_size > SMALL:
            continue
        lines = place.read_text(encoding="utf-8", errors="replace").splitlines()[:MOST_TEXT_LINES]
        weighed = sorted(((-_weight(line, words), number) for number, line in enumerate(lines, 1) if line.strip()))
        for weight, number in weighed[:MOST_OF_A_FILE]:
            if weight < 0:
                yield Bears(0, f"{name}:{number}", "line", "of the same things")


def _weight(line: str, words: Iterable[str]) -> float:
    tokens = set(_TOKEN.findall(line))
    return 2 * len(tokens & set(words)) + 0.5 * min(4, sum(1 for token in tokens if token[0].isdigit()))
