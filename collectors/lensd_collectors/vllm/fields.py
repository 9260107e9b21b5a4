"""Fields of an engine's statistics, read so that an odd one is as one that is not there.

vLLM calls these classes no stable interface: a field may be gone, renamed, of another type, or raise when it is read.
"""

import math
from collections.abc import Collection, Sequence
from typing import Any, Final

MOST: Final = 2**63 - 1024  # the last that a float can show


def field(stats: Any, name: str) -> Any:
    """What stands there; None where nothing does."""
    try:
        return getattr(stats, name, None)
    except Exception:
        return None


def finite(value: Any) -> float | None:
    """A finite number as it is; None of anything else."""
    if type(value) is float:
        return value if -math.inf < value < math.inf else None
    try:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            found = float(value)
            return found if -math.inf < found < math.inf else None
    except Exception:  # an int too large for a float
        return None
    return None


def number(stats: Any, name: str) -> float | None:
    """A finite number."""
    return finite(field(stats, name))


def amount(stats: Any, name: str) -> float | None:
    """A number that is not negative."""
    value = number(stats, name)
    return value if value is not None and value >= 0 else None


def count(stats: Any, name: str) -> int | None:
    """A whole number that is not negative, and that OTLP has room for."""
    found = field(stats, name)
    if type(found) is not int:
        found = finite(found)
    return int(found) if found is not None and 0 <= found <= MOST else None


def total(values: Sequence[Any]) -> float | None:
    """Sum of numbers that are not negative; None where one is something else."""
    if set(map(type, values)) <= {int, float}:
        try:
            found = math.fsum(values)
        except OverflowError:  # of an int too large for a float
            return None
        return found if min(values, default=0) >= 0 and found < math.inf else None
    return None


def milliseconds(stats: Any, name: str) -> float | None:
    """A field in seconds; negative where the end of what it measures was not reached."""
    value = number(stats, name)
    return None if value is None else finite(value * 1000.0)


def items(value: Any) -> Collection[Any] | None:
    """What a list or its like holds."""
    return value if isinstance(value, Collection) and not isinstance(value, (str, bytes)) else None


def label(value: Any) -> str | None:
    """A member of an enum as vLLM's own metrics name it; a text is one already."""
    try:
        name = value if isinstance(value, str) else getattr(value, "name", None)
        return name.lower() if isinstance(name, str) and name else None
    except Exception:
        return None
