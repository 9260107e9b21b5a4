"""Cards by name, with the memory that they report: less than their name says, and what CUDA gives is less again."""

import re
from typing import Final

import msgspec

from lensd.errors import UsageError
from lensd.memory.units import GIB, MIB, size

CUDA_SHARE: Final = 0.98
"""Of what the driver reports, where CUDA's own figure is not known here; the known ones lie between 0.984 and 0.996."""


class Card(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU: `total_bytes` is what an engine multiplies by its utilization (`mem_get_info`)."""

    name: str
    total_bytes: int
    note: str = ""


class _Known(msgspec.Struct, frozen=True):
    reported_mib: int
    cuda_gib: float | None = None


KNOWN: Final = {
    # name -> MiB as nvidia-smi or rocm-smi report them; GiB as CUDA gives them, where an out-of-memory or start-up line was read
    "T4": _Known(15_360, 14.75),
    "V100 16GB": _Known(16_384),
    "V100 32GB": _Known(32_768),
    "A10": _Known(23_028),
    "A10G": _Known(23_028),
    "A30": _Known(24_576),
    "A40": _Known(46_068),
    "A100 40GB": _Known(40_960),
    "A100 80GB": _Known(81_920, 79.25),
    "L4": _Known(23_034),
    "L40": _Known(46_068),
    "L40S": _Known(46_068),
    "H100": _Known(81_559, 79.19),
    "H100 NVL": _Known(95_830),
    "H200": _Known(143_771),
    "B200": _Known(183_359, 178.35),
    "RTX 3090": _Known(24_576, 23.68),
    "RTX 4090": _Known(24_564, 23.64),
    "RTX 5090": _Known(32_607, 31.37),
    "RTX A6000": _Known(49_140),
    "RTX 6000 Ada": _Known(49_140),
    "RTX PRO 6000": _Known(97_887),
    "MI300X": _Known(196_592),
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


def _key(text: str) -> str:
    return re.sub(r"nvidia|geforce|amd|instinct|tesla|[^a-z0-9]", "", text.lower())
