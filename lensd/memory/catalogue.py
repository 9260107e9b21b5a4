"""Cards by name, with the memory that they report: less than their name says, and what CUDA gives is less again."""

import re
from typing import Final

import msgspec

from lensd.errors import UsageError
from lensd.memory.units import GIB, MIB, size

CUDA_SHARE: Final = 0.98
"""Of what the driver reports, where CUDA's own figure is not known here; the known ones lie between 0.984 and 0.996."""


CLOSE: Final = 0.004
"""How far apart two tools' figures for one card's memory may lie, as a share."""


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU: `total_bytes` is what an engine multiplies by its utilization (`mem_get_info`)."""

    name: str
    total_bytes: int
    note: str = ""


class _Known(msgspec.Struct, frozen=True):
    reported_mib: int
    cuda_gib: float | None = None
    gb_s: int | None = None  # of its fastest variant, as its maker writes it


KNOWN: Final = {
    # name -> MiB as nvidia-smi or rocm-smi report them; GiB as CUDA gives them, where an out-of-memory or start-up line was read;
    # memory bandwidth in 10^9 bytes a second
    "T4": _Known(15_360, 14.75, 320),
    "V100 16GB": _Known(16_384, gb_s=900),
    "V100 32GB": _Known(32_768, gb_s=900),
    "A10": _Known(23_028, gb_s=600),
    "A10G": _Known(23_028, gb_s=600),
    "A30": _Known(24_576, gb_s=933),
    "A40": _Known(46_068, gb_s=696),
    "A100 40GB": _Known(40_960, gb_s=1555),
    "A100 80GB": _Known(81_920, 79.25, 2039),
    "L4": _Known(23_034, gb_s=300),
    "L40": _Known(46_068, gb_s=864),
    "L40S": _Known(46_068, gb_s=864),
    "H100": _Known(81_559, 79.19, 3350),
    "H100 NVL": _Known(95_830, gb_s=3938),
    "H200": _Known(143_771, gb_s=4800),
    "B200": _Known(183_359, 178.35, 8000),
    "RTX 3090": _Known(24_576, 23.68, 936),
    "RTX 4090": _Known(24_564, 23.64, 1008),
    "RTX 5090": _Known(32_607, 31.37, 1792),
    "RTX A6000": _Known(49_140, gb_s=768),
    "RTX 6000 Ada": _Known(49_140, gb_s=960),
    "RTX PRO 6000": _Known(97_887, gb_s=1792),
    "MI300X": _Known(196_592, gb_s=5300),
}
_ALSO: Final = {"h10080gb": "H100", "h10080gbhbm3": "H100", "h100sxm": "H100", "h100pcie": "H100", "a100sxm480gb": "A100 80GB"}
_ALSO.update({"a10080gbpcie": "A100 80GB", "a100sxm440gb": "A100 40GB", "a10040gbpcie": "A100 40GB", "h200141gb": "H200"})


def card(text: str) -> Card:
    """A card by its name, or by its size. Raises UsageError for a name not known, one that means several, and what is no size."""
    if re.match(r"[\d.+-]", text.strip()):
        return Card(name=" ".join(text.split()), total_bytes=size(text))
    wanted = _key(text)
    names = {_key(name): name for name in KNOWN} | _ALSO
    name = names.get(wanted)
    if name is None:
        several = [known for key, known in names.items() if wanted and key.startswith(wanted)]
        told = f"which one: {', '.join(dict.fromkeys(several))}?" if several else "write its size, or one of " + ", ".join(KNOWN)
        raise UsageError(f"no card {text!r} is known here; {told}")
    known = KNOWN[name]
    total = round(known.cuda_gib * GIB) if known.cuda_gib is not None else round(known.reported_mib * MIB * CUDA_SHARE)
    told = "as CUDA reports it" if known.cuda_gib is not None else "about: what the driver reports, less 2 %"
    return Card(name=name, total_bytes=total, note=told)


def bandwidth(total_bytes: int) -> int | None:
    """Bytes a second at most, of a card known by the memory it reports; of several of one size the fastest. None for an unknown size."""
    found = [
        known.gb_s
        for known in KNOWN.values()
        for size_bytes in (known.reported_mib * MIB, (known.cuda_gib or 0) * GIB, known.reported_mib * MIB * CUDA_SHARE)
        if known.gb_s is not None and abs(size_bytes - total_bytes) <= CLOSE * total_bytes
    ]
    return max(found) * 10**9 if found else None


def _key(text: str) -> str:
    return re.sub(r"nvidia|geforce|amd|instinct|tesla|[^a-z0-9]", "", text.lower())
