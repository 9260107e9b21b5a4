"""Values in the query of a request to the API. What does not read as one raises UsageError, what is not there gives None."""

import math
from datetime import UTC, datetime

from starlette.datastructures import QueryParams

from lensd.errors import UsageError

MAX_INT = (1 << 31) - 1
MAX_INSTANT_US = 253_402_300_799_000_000  # the end of the year 9999
HOUR_US = 3_600_000_000
DAY_US = 24 * HOUR_US


def whole_number(query: QueryParams, name: str, least: int = 0) -> int | None:
    text = query.get(name)
    if not text:
        return None
    if not (text.isascii() and text.isdigit()) or not least <= int(text[:20]) <= MAX_INT:
        raise UsageError(f"{name} = {text!r} is not a whole number from {least} on")
    return int(text)


def seconds(query: QueryParams, name: str) -> float:
    text = query.get(name) or "0"
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise UsageError(f"{name} = {text!r} is not a number of seconds")
    return value


def instant(query: QueryParams, name: str) -> int | None:
    """Microseconds since the epoch of what is written so, or as RFC 3339."""
    text = query.get(name)
    if not text:
        return None
    try:
        if text.isascii() and text.isdigit():
            at = int(text[:20])
        else:
            moment = datetime.fromisoformat(text)
            at = round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1_000_000)
    except (ValueError, OverflowError):
        at = -1
    if not 0 <= at <= MAX_INSTANT_US:
        raise UsageError(f"{name} = {text!r} is no instant: write 2026-01-31T09:00:00Z")
    return at


def span(query: QueryParams, now: int, length: int = HOUR_US) -> tuple[int, int]:
    """`since` and `until` in microseconds since the epoch; `length` before `until`, `until` now, where they are not there."""
    until = now if (given := instant(query, "until")) is None else given
    since = max(0, until - length) if (given := instant(query, "since")) is None else given
    if since > until:
        raise UsageError("since is later than until")
    return since, until
