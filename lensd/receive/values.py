"""OTLP's attribute values as plain ones."""

import base64
import math
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Final

import msgspec
from lensd_collectors.rows import Instant

Plain = str | bool | int | float | list["Plain"] | dict[str, "Plain"] | None

_LATEST_US: Final = 4_102_444_800_000_000  # year 2100: later is a broken clock or another unit


def plain(value: Any) -> Plain:
    """The value of an AnyValue; bytes as base64 text, a number that JSON has no form for as None."""
    which = value.WhichOneof("value")
    if which is None:
        return None
    if which == "array_value":
        return [plain(item) for item in value.array_value.values]
    if which == "kvlist_value":
        return attributes(value.kvlist_value.values)
    found: Plain | bytes = getattr(value, which)
    if isinstance(found, bytes):
        return base64.b64encode(found).decode()
    if isinstance(found, float) and not math.isfinite(found):
        return None
    return found


def attributes(pairs: Iterable[Any]) -> dict[str, Plain]:
    return {pair.key: plain(pair.value) for pair in pairs}


def text(value: Plain) -> str | None:
    """A value as a column's text; None for nothing, JSON for what is no scalar."""
    if value is None or value == "":
        return None
    if isinstance(value, str):
        return value
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return str(value)
    return json(value)


def json(value: Plain) -> str:
    return msgspec.json.encode(value).decode()


def instant(nanoseconds: int, otherwise: int) -> Instant:
    """A sender's time in microseconds; `otherwise` (the time of receipt) for none at all or one no clock shows."""
    found = nanoseconds // 1000
    return Instant(found if 0 < found < _LATEST_US else otherwise)


def rfc3339(at: int) -> str:
    return datetime.fromtimestamp(at / 1e6, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
