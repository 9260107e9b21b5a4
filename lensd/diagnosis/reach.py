"""How long before its window a rule is shown rows: as long as what it names, so that no rule reads the whole store."""

import re
from datetime import timedelta
from functools import cache
from typing import Final

from lensd.diagnosis.runbook import Runbook

NEAR: Final = timedelta(minutes=15)
"""What every rule is shown; most name nothing longer, and share one sight."""

_DAYS: Final = {"week": 7, "month": 31, "year": 366}
_UNIT: Final = "(second|minute|hour|day|week|month|year)s?"
_LITERAL: Final = re.compile(rf"\binterval\s+'?(\d+)'?\s+{_UNIT}\b|\bto_{_UNIT}\(\s*(\d+)", re.I)
_NAME: Final = re.compile(r"\$(\w+)")


def reach_of(book: Runbook) -> timedelta:
    """NEAR where its query names no longer duration, as a param or in its text; else twice the longest."""
    names, longest = _named(book.sql)
    longest = max([longest, *(value for name in names if isinstance(value := book.params.get(name), timedelta))])
    return NEAR if longest <= NEAR else 2 * longest


@cache
def _named(sql: str) -> tuple[frozenset[str], timedelta]:
    """Names of a query's params, and the longest duration that it writes out."""
    found = [(unit or other, int(number or count)) for number, unit, other, count in _LITERAL.findall(sql)]
    return frozenset(_NAME.findall(sql)), max((_length(unit.lower(), count) for unit, count in found), default=timedelta())


def _length(unit: str, count: int) -> timedelta:
    return timedelta(days=_DAYS[unit] * count) if unit in _DAYS else timedelta(**{f"{unit}s": count})
