"""The KV-cache figures an engine prints at start, and the ones it does not: from a model's shape and settings, exact to the byte."""

import msgspec

from lensd.memory.pool import Pool, check_parallel, layer_bytes, pool
from lensd.memory.serving import Serving, reserves_null_block, stages
from lensd.memory.shape import Kind, Shape


class Capacity(msgspec.Struct, frozen=True, kw_only=True):
    """What a KV cache of a given size holds, in the terms of the engine's start-up lines."""

    blocks: int
    """`num_gpu_blocks`, the null block among them."""
    tokens: int
    """`KV cache size` of vLLM from 0.22 on: concurrency × longest request, rounded down."""
    concurrency: float
    """`Maximum concurrency for … tokens per request`."""
    usable_bytes: int
    """What a request can have of it: without the null block where the engine counts that, or where that is not known."""
    need_bytes: int
    """What one request of the longest length needs."""
    fits: bool
    """Whether the engine starts: False means it refuses with `KV cache is needed, which is larger than the available`."""
    longest: int
    """The engine's `estimated maximum model length`; 0 where not even one token fits."""
    null_block: bool | None
    """Whether this engine takes the null block off before it checks; None: not known for its version, so the smaller figure is given."""


def bytes_per_token(shape: Shape, serving: Serving) -> int:
    """Bytes that one token takes on the fullest rank while it is inside every window; 0 where layers keep states only.

    Each layer: max(1, key-value heads // TP) × elements × bytes; a latent vector is whole on every rank.
    """
    return _per_token(shape, serving, tuple(kind for kind in Kind if kind is not Kind.STATE))


def growth_per_token(shape: Shape, serving: Serving) -> int:
    """Bytes that each further token takes once every window and chunk is full: only the layers that attend to all tokens grow."""
    return _per_token(shape, serving, (Kind.FULL, Kind.LATENT))


def _per_token(shape: Shape, serving: Serving, kinds: tuple[Kind, ...]) -> int:
    check_parallel(shape, serving)
    return max(
        sum(layer_bytes(layer, shape, serving) for number in stage for layer in shape.layers[number] if layer.kind in kinds)
        for stage in stages(len(shape.layers), serving.pp)
    )


def block_bytes(shape: Shape, serving: Serving) -> int:
    """Bytes of one block of the pool on the fullest rank."""
    return pool(shape, serving).block_bytes


def request_bytes(shape: Shape, serving: Serving, tokens: int) -> int:
    """Bytes of the blocks that one request of so many tokens holds at most: whole blocks, windows with what is in flight."""
    return pool(shape, serving).request_bytes(tokens)


def capacity(
    shape: Shape,
    serving: Serving,
    available_bytes: int,
    max_model_len: int,
    *,
    version: str | None = None,
    blocks_override: int | None = None,
) -> Capacity:
    """What `available_bytes` of KV cache hold on each rank, at most `max_model_len` tokens a request.

    `blocks_override` is `--num-gpu-blocks-override`: it decides the blocks and the memory of the check. Follows vLLM 0.32.0
    v1/core/kv_cache_utils.py (get_kv_cache_configs, get_max_concurrency_for_kv_cache_config, _check_enough_kv_cache_memory).
    """
    held = pool(shape, serving)
    blocks = held.blocks(available_bytes) if blocks_override is None else blocks_override
    available = available_bytes if blocks_override is None else blocks_override * held.block_bytes
    null_block = reserves_null_block(version)
    usable = max(0, available - (0 if null_block is False else held.block_bytes))
    each = held.request_blocks(max_model_len)
    return Capacity(
        blocks=blocks,
        tokens=int(blocks / each * max_model_len),
        concurrency=blocks / each,
        usable_bytes=usable,
        need_bytes=held.request_bytes(max_model_len),
        fits=0 < held.request_bytes(max_model_len) <= usable,
        longest=longest(held, usable, max_model_len),
        null_block=null_block,
    )


def longest(held: Pool, usable_bytes: int, most: int) -> int:
    """The longest request, up to `most` tokens, whose blocks fit into so many bytes; 0 where none does."""
    least, top = 0, most
    while least < top:
        middle = (least + top + 1) // 2
        if held.request_bytes(middle) <= usable_bytes:
            least = middle
        else:
            top = middle - 1
    return least
