"""Whether a start's settings need more memory than there is, by the facts known of it.

One request of `max_model_len` must fit into the KV cache. That many such requests together do not fit is no overrun: a paged KV cache
is meant to be overcommitted.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from lensd.receive.ledger import Change

ROOM: Final = frozenset(
    {
        "model", "dtype", "quantization", "max_num_batched_tokens", "max_num_seqs", "gpu_memory_utilization", "tensor_parallel_size",
        "pipeline_parallel_size", "num_gpu_blocks_override", "kv_cache_memory_bytes", "cpu_offload_gb", "enforce_eager",
        "vllm_cpu_kvcache_space",
    }
)  # fmt: skip
"""Settings that bear on how much memory is left for the KV cache: after a change, what was measured before counts no longer."""
LOADED: Final = frozenset({"model", "dtype", "quantization", "tensor_parallel_size", "pipeline_parallel_size", "cpu_offload_gb"})
"""Those of them that bear on the weights' size on one rank."""
BLOCK: Final = frozenset({"block_size", "cache_dtype"})
"""Settings that bear on a block's size: after a change, how many there were says nothing of how many there are."""
COUNTED: Final = frozenset({"num_gpu_blocks", "num_cpu_blocks", "kv_cache_tokens", "kv_max_concurrency"})
_PARTS: Final = ("activation_bytes", "non_torch_bytes", "graph_bytes")


class Budget(msgspec.Struct, frozen=True, omit_defaults=True):
    """Bytes that one request of `max_model_len` needs and that there are for it, on one rank; None: not known."""

    over_budget: bool | None = None
    need_bytes: int | None = None
    have_bytes: int | None = None
    fits: int | None = None  # the largest max_model_len that fits


def budget(known: Mapping[str, str], changes: Mapping[str, Change]) -> Budget:
    """`known`: settings in force, measured and derived facts, by name. Nothing is said of a start that changed nothing."""
    need, have = _bytes(known, "kv_request_bytes"), measured_room(known)
    if not changes:
        return Budget()
    if have is not None:
        over = None if need is None else need > have
        return Budget(over_budget=over, need_bytes=need, have_bytes=have, fits=_bytes(known, "fits_max_model_len"))
    most = _most_room(known)
    if most is not None and (most <= 0 or (need is not None and need > most)):
        return Budget(over_budget=True, need_bytes=need, have_bytes=max(0, most))
    return Budget(need_bytes=need)


def measured_room(known: Mapping[str, str]) -> int | None:
    """The KV cache in bytes, as the engine measured it; where its blocks were given, that is not what it allocated."""
    size = _bytes(known, "kv_cache_bytes")
    blocks, block = _bytes(known, "num_gpu_blocks"), _bytes(known, "kv_block_bytes")
    if blocks is None or block is None:
        return size if known.get("num_gpu_blocks_override") is None else None
    return blocks * block if size is None or known.get("num_gpu_blocks_override") is not None else size


def _most_room(known: Mapping[str, str]) -> int | None:
    """What may be left for the KV cache at most: what is not known of the rest counts as nothing."""
    total, share = _bytes(known, "device_total_bytes"), known.get("gpu_memory_utilization")
    weights = _bytes(known, "weights_bytes")
    weights = weights if weights is not None else _bytes(known, "weights_need_bytes")
    try:
        wanted = round(total * float(share)) if total is not None and share is not None else _bytes(known, "requested_bytes")
    except ValueError:
        return None
    if wanted is None or weights is None:
        return None
    return wanted - weights - sum(_bytes(known, part) or 0 for part in _PARTS)


def _bytes(known: Mapping[str, str], name: str) -> int | None:
    text = known.get(name)
    return int(text) if text is not None and text.isascii() and text.isdigit() else None
