"""Sizes in bytes as people write and read them; a power-of-two unit and a decimal one never stand in one text of ours."""

import re
from typing import Final

from lensd.errors import UsageError

KIB: Final = 1 << 10
MIB: Final = 1 << 20
GIB: Final = 1 << 30
TIB: Final = 1 << 40
GB: Final = 10**9
_UNITS: Final = {"KiB": KIB, "MiB": MIB, "GiB": GIB, "TiB": TIB, "kB": 10**3, "MB": 10**6, "GB": GB, "TB": 10**12}
_SIZE: Final = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[A-Za-z]*)")
MOST: Final = 1 << 60
"""Larger than any memory: what is more was mistyped."""


def size(text: str, least: int = 1) -> int:
    """Bytes of `24GiB`, `80 GB`, `512MiB`. Raises UsageError for what is none, too small, or has no clear unit (`24G`)."""
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise UsageError(f"{text!r} is no size: write 24GiB")
    factor = _UNITS.get(found["unit"]) if found["unit"] or float(found["number"]) else 1
    if factor is None:
        raise UsageError(f"{text!r} has no unit that says one thing: write {found['number']}GiB")
    bytes_ = float(found["number"]) * factor
    if not least <= bytes_ <= MOST:
        raise UsageError(f"{text[:60]!r} is no size of a memory: write 24GiB")
    return round(bytes_)


def binary(bytes_: int) -> str:
    """`512 KiB`, `14.99 GiB`: two digits at most, exact where the size is a whole number of its unit."""
    for unit, factor in (("TiB", TIB), ("GiB", GIB), ("MiB", MIB), ("KiB", KIB)):
        if abs(bytes_) >= factor and not (unit == "TiB" and bytes_ % TIB):
            return f"{bytes_ / factor:,.2f}".rstrip("0").rstrip(".") + f" {unit}"
    return f"{bytes_:,} bytes"


def gib(bytes_: int) -> str:
    """Always in GiB, two digits: for columns that are compared."""
    return f"{bytes_ / GIB:,.2f} GiB"


def decimal(bytes_: int) -> str:
    """Always in GB (10^9), as model cards and vendors count: `14 GB`, `3.5 GB`."""
    return f"{bytes_ / GB:,.2f}".rstrip("0").rstrip(".") + " GB"
