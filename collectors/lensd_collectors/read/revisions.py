"""Which of several settings of one thing is the newer, by what people write above them or call their files: day, revision, before."""

import re
from collections.abc import Mapping, Sequence
from typing import Final

from lensd_collectors.read.settings import Origin
from lensd_collectors.rows import ConfigFact

Rank = tuple[str, str, int]
"""What it is told by, and its place among those that are told by the same."""

_REVISION: Final = re.compile(r"\brev(?:ision)?[ .:#-]*(\d{1,6})\b", re.IGNORECASE)
_DAY: Final = re.compile(r"(?<!\d)(?:\d{4}-)?(\d\d-\d\d)(?:[T ](\d\d:\d\d))?(?![\d-])")
_OLDER: Final = re.compile(r"\b(?:before|old|older|previous|previously|prev|prior|former|until|orig|bak|was)\b", re.IGNORECASE)
_NEWER: Final = re.compile(r"\b(?:after|new|newer|current|currently|now|since)\b", re.IGNORECASE)


def rank_of(text: str) -> Rank | None:
    """None where the text does not say, or says both."""
    text = text.replace("_", " ")
    if revision := _REVISION.search(text):
        return "revision", "", int(revision[1])
    if day := _DAY.search(text):
        return "day", f"{day[1]} {day[2] or ''}", 0
    older, newer = _OLDER.search(text) is not None, _NEWER.search(text) is not None
    return ("word", "", int(newer)) if older != newer else None


def compare(groups: Sequence[tuple[Rank | None, Sequence[ConfigFact]]]) -> list[ConfigFact]:
    """Sets on the newest group's facts what they were in the group before; gives a fact without a value for each that is gone.

    Nothing is compared where a group does not say which it is, or they are told by different things, or two by the same.
    """
    ranks = [rank for rank, _ in groups if rank is not None]
    if len(groups) < 2 or len(ranks) < len(groups) or len(set(ranks)) < len(ranks) or len({kind for kind, *_ in ranks}) > 1:
        return []
    ordered = sorted(zip(ranks, (facts for _, facts in groups), strict=True), key=lambda group: group[0])
    before, after = (_by_name(facts) for _, facts in ordered[-2:])
    for name, fact in after.items():
        old = before.get(name)
        fact.was = old.value if old is not None and old.value != fact.value else None
    gone = [fact for name, fact in before.items() if name not in after]
    return [
        ConfigFact(subject=fact.subject, name=fact.name, was=fact.value, src=fact.src, origin=Origin.FLAG)
        for fact in gone
        if after and fact.value is not None
    ]


def _by_name(facts: Sequence[ConfigFact]) -> Mapping[str, ConfigFact]:
    return {fact.name or "": fact for fact in facts}
