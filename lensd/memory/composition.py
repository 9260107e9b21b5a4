"""What a card's memory holds at one instant, as parts that add up to what the device says is used. Pure; every size in bytes.

Engines say what they hold at their start (`config_facts`), the device what is used, its driver which process uses it. Where one of
them is silent a part is None, never 0, and the rest that nobody accounts for is called `not_known`; it is called `unexplained` only
where all others are known. Sizes that an engine tells are those of one rank, as its card holds them.
"""

import math
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Final

import msgspec


class Band(StrEnum):
    """Parts of a card's memory, in the order in which they lie upon each other."""

    WEIGHTS = "weights"
    KV_USED = "kv_used"
    KV_FREE = "kv_free"  # blocks that no request holds; what of them could be evicted is not told apart
    KV_POOL = "kv_pool"  # the whole cache, where its usage is not told
    RUNTIME = "runtime"  # activations, CUDA graphs, and what lies outside PyTorch
    UNEXPLAINED = "unexplained"
    NOT_KNOWN = "not_known"
    OTHERS = "others"  # processes of none of the card's engines
    DRIVER = "driver"  # what the driver reserves for itself
    FREE = "free"


MEASURED: Final = (
    "weights_bytes", "kv_cache_bytes", "activation_bytes", "graph_bytes", "non_torch_bytes", "requested_bytes",
)  # fmt: skip
FACTS: Final = (*MEASURED, "num_gpu_blocks", "num_gpu_blocks_override", "kv_block_bytes", "gpu_memory_utilization", "enforce_eager")
"""Names of the config facts that `holder` reads."""


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """What one engine says that it holds of a card; None: it does not say."""

    engine: str
    weights_bytes: int | None = None
    kv_cache_bytes: int | None = None
    kv_usage: float | None = None  # 0..1
    kv_blocks: int | None = None  # one of them is never given out and left out of the usage
    activation_bytes: int | None = None  # at its peak; between peaks it is given back
    graph_bytes: int | None = None
    non_torch_bytes: int | None = None
    requested_bytes: int | None = None  # what it may use
    utilization: float | None = None  # the share of the card that it may use


class Device(msgspec.Struct, frozen=True, kw_only=True):
    """What the driver says of a card."""

    used_bytes: int | None = None
    free_bytes: int | None = None
    total_bytes: int | None = None
    reserved_bytes: int | None = None  # None: part of `used_bytes`, or not told


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """All that is known of a card at an instant. `others_bytes` of processes of other engines or of none; None: not told."""

    device: Device | None = None  # None: nobody watches the card
    holders: tuple[Holder, ...] = ()
    others_bytes: int | None = None


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """One part; `bytes` None: not known. `engine` is whose it is."""

    band: Band
    bytes: int | None
    engine: str | None = None


class Composition(msgspec.Struct, frozen=True, kw_only=True):
    """Parts in the order of Band, each engine's together. `over_bytes`: how much more is accounted for than is used."""

    parts: tuple[Part, ...]
    limit_bytes: int | None
    over_bytes: int = 0


def holder(engine: str, facts: Mapping[str, str], kv_usage: float | None) -> Holder:
    """An engine's part by its config facts (sizes as whole numbers of bytes); a value that is none counts as not told.

    The cache is its blocks where their number and size are known: with `--num-gpu-blocks-override` vLLM (v1/core/kv_cache_utils.py,
    0.32.0) allocates these, and what it has printed of the memory available says nothing.
    """
    sizes = {name: _whole(facts.get(name)) for name in MEASURED}
    blocks, block_bytes = _whole(facts.get("num_gpu_blocks")), _whole(facts.get("kv_block_bytes"))
    if blocks is not None and block_bytes is not None:
        sizes["kv_cache_bytes"] = blocks * block_bytes
    elif _whole(facts.get("num_gpu_blocks_override")) is not None:
        sizes["kv_cache_bytes"] = None
    if sizes["graph_bytes"] is None and facts.get("enforce_eager") == "true":
        sizes["graph_bytes"] = 0
    return Holder(engine=engine, kv_usage=kv_usage, kv_blocks=blocks, utilization=_share(facts.get("gpu_memory_utilization")), **sizes)


def compose(known: Known) -> Composition:
    """The parts of a card. What is used beyond all that is told is the rest; activations take of it what they need, up to their peak."""
    told = [part for each in known.holders for part in _held(each)]
    device = known.device or Device()
    if known.device is not None:
        told.append(Part(band=Band.OTHERS, bytes=known.others_bytes))
    left = None if device.used_bytes is None else device.used_bytes - _sum(told)
    runtime, left = _runtimes(known.holders, left, complete=all(part.bytes is not None for part in told))
    parts = [*told, *runtime]
    if left is not None:
        band = Band.NOT_KNOWN if not known.holders or any(part.bytes is None for part in parts) else Band.UNEXPLAINED
        parts.append(Part(band=band, bytes=max(0, left)))
    elif known.device is not None:
        parts.append(Part(band=Band.NOT_KNOWN, bytes=None))
    if known.device is not None:
        parts += [Part(band=Band.DRIVER, bytes=device.reserved_bytes), Part(band=Band.FREE, bytes=device.free_bytes)]
    return Composition(parts=tuple(_in_order(parts)), limit_bytes=_limit(known), over_bytes=max(0, -(left or 0)))


def _held(by: Holder) -> list[Part]:
    """Weights and cache of one engine."""
    weights = Part(band=Band.WEIGHTS, bytes=by.weights_bytes, engine=by.engine)
    if by.kv_usage is None or not 0 <= by.kv_usage <= 1 or by.kv_cache_bytes is None:
        return [weights, Part(band=Band.KV_POOL, bytes=by.kv_cache_bytes, engine=by.engine)]
    # vLLM's usage is of the blocks that it can give out, all but one (v1/core/block_pool.py, 0.32.0)
    usable = by.kv_cache_bytes * (by.kv_blocks - 1) // by.kv_blocks if by.kv_blocks else by.kv_cache_bytes
    used = round(by.kv_usage * usable)
    return [
        weights,
        Part(band=Band.KV_USED, bytes=used, engine=by.engine),
        Part(band=Band.KV_FREE, bytes=by.kv_cache_bytes - used, engine=by.engine),
    ]


def _runtimes(holders: Iterable[Holder], left: int | None, *, complete: bool) -> tuple[list[Part], int | None]:
    """Each engine's activations, graphs and rest, and what is left after them.

    Where the card's use is not told, at their peak; where it is but not all else (`complete`), without activations, which can't be
    told from what is not known.
    """
    parts: list[Part] = []
    for each in holders:
        lasting = None if each.graph_bytes is None or each.non_torch_bytes is None else each.graph_bytes + each.non_torch_bytes
        if lasting is None or each.activation_bytes is None:
            parts.append(Part(band=Band.RUNTIME, bytes=None, engine=each.engine))
            continue
        peak = lasting + each.activation_bytes
        if left is None:
            taken = peak
        else:
            taken = min(peak, max(lasting, left)) if complete else lasting
            left -= taken
        parts.append(Part(band=Band.RUNTIME, bytes=taken, engine=each.engine))
    return parts, left


def _limit(known: Known) -> int | None:
    """What the engines on the card may use together; None where one does not say, or none is there."""
    total = known.device.total_bytes if known.device else None
    each = [_allowed(holder, total) for holder in known.holders]
    told = [limit for limit in each if limit is not None]
    return sum(told) if told and len(told) == len(each) else None


def _allowed(by: Holder, total_bytes: int | None) -> int | None:
    """What an engine may use: vLLM's ceil(total × utilization) (v1/worker/utils.py, 0.32.0)."""
    if by.requested_bytes is not None:
        return by.requested_bytes
    return None if by.utilization is None or total_bytes is None else math.ceil(total_bytes * by.utilization)


def _in_order(parts: Iterable[Part]) -> list[Part]:
    bands = list(Band)
    return sorted(parts, key=lambda part: (bands.index(part.band), part.engine or ""))


def _sum(parts: Iterable[Part]) -> int:
    return sum(part.bytes or 0 for part in parts)


def _whole(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() and len(text) < 19 else None


def _share(text: str | None) -> float | None:
    try:
        value = float(text) if text is not None else math.nan
    except ValueError:
        return None
    return value if 0 < value <= 1 else None
