"""Columns of `gpu_samples`: a number as the column holds it, clock event reasons by name, what a card is called."""

import re
from typing import Final, get_type_hints

from lensd_collectors.conventions import THROTTLE_REASONS
from lensd_collectors.rows import GpuSample

_HINTS: Final = get_type_hints(GpuSample)
INTEGERS: Final = frozenset(name for name, hint in _HINTS.items() if hint == int | None)
BOOLEANS: Final = frozenset(name for name, hint in _HINTS.items() if hint == bool | None)
THROTTLE: Final = "throttle"
LARGEST: Final = 2.0**63

_SAID: Final = {name: name for name in THROTTLE_REASONS.values()} | {
    "gpu_idle": "idle",
    "applications_clocks_setting": "application_clocks",
    "sw_thermal_slowdown": "sw_thermal",
    "hw_thermal_slowdown": "hw_thermal",
    "hw_power_brake_slowdown": "hw_power_brake",
    "display_clock_setting": "display_clocks",
}
"""What `nvidia-smi -q` calls a reason -> its name."""

Cell = int | float | bool | str | None


def typed(column: str, number: float) -> Cell:
    """A number in the column's own unit as its type, reasons of a bit mask by name; None for one that is too large for its column."""
    if column == THROTTLE:
        return reasons(int(number))
    if column in BOOLEANS:
        return number > 0
    if column in INTEGERS:
        return round(number) if abs(number) < LARGEST else None
    return number


def reasons(mask: int) -> str:
    """The names of a mask of clock event reasons, comma separated; "" for none.

    >>> reasons(0x44), reasons(0)
    ('sw_power_cap,hw_thermal', '')
    """
    return ",".join(name for bit, name in THROTTLE_REASONS.items() if mask & bit)


def reasons_said(text: str) -> str | None:
    """The names of reasons that a cell writes in words; "" for none, None where a word is not known.

    >>> reasons_said("HW Thermal Slowdown; SW Power Cap"), reasons_said("Not Active"), reasons_said("hot")
    ('sw_power_cap,hw_thermal', '', None)
    """
    words = {re.sub(r"\W+", "_", part.strip().lower()) for part in re.split(r"[,;|/+]", text) if part.strip()}
    if words <= {"not_active", "none", "no"}:
        return "" if words else None
    found = {_SAID.get(word) for word in words}
    return None if None in found else ",".join(name for name in THROTTLE_REASONS.values() if name in found)


def card(index: str | None, instance: str | None = None, compute: str | None = None) -> str | None:
    """`gpu` of a card or of one instance of a divided card.

    >>> card("0"), card("0", "7", "0"), card("0", "7")
    ('0', '0/gi7ci0', '0/gi7')
    """
    part = mig(instance, compute)
    return f"{index}/{part}" if index and part else index


def mig(instance: str | None, compute: str | None = None) -> str | None:
    """`mig` of an instance: gi7ci0; None where the card is not divided."""
    if not instance:
        return None
    return f"gi{instance}ci{compute}" if compute else f"gi{instance}"
