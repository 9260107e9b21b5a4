"""What a model, a card, a context and a number of requests need, what fits, and the settings that are safe. Nothing is measured here."""

import math
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from lensd_collectors.client.budget import budget

from lensd.errors import UsageError
from lensd.memory import kv, room
from lensd.memory.catalogue import Card
from lensd.memory.pool import Pool, pool
from lensd.memory.room import Part
from lensd.memory.serving import DEFAULT_BLOCK_SIZE, Serving, ceil_div
from lensd.memory.shape import Shape
from lensd.memory.units import MIB, binary
from lensd.memory.weights import BITS, Weights, from_parameters

SCHEMA_VERSION: Final = 1
SPARE: Final = 0.75
"""Of the requests that fit, as many are recommended, rounded down: three quarters."""
LEAST_CONTEXT: Final = 4096
MOST_CONTEXT: Final = 1 << 31
MOST_CONCURRENCY: Final = 1_000_000
DEFAULT_SEQUENCES: Final = 256
LEAST_OUTSIDE_BYTES: Final = 512 * MIB
"""Of the card outside the engine's share; below it the next process, or a second of the engine's own, finds no room."""
FLAG_DTYPES: Final = {"bf16": "bfloat16", "fp16": "float16", "int8": "int8_per_token_head"}
"""A KV cache's type as it is said here -> as vLLM 0.32.0 takes it (config/cache.py CacheDType)."""
TTFT_P95_S: Final = 2.0
TPOT_P95_S: Final = 0.1
"""Percentiles to budget for where none were measured: those at which lensd warns."""


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    """The question. `weights` None: not known; `parameters`, if known, tell what other types of weights would take."""

    model: str
    config: Mapping[str, Any]
    card: Card
    context: int
    concurrency: int = 1
    serving: Serving = Serving()
    weights: Weights | None = None
    utilization: float = 0.9
    overhead_bytes: int | None = None
    """Beside the weights and the KV cache, as measured; None: estimated."""
    version: str | None = None
    max_tokens: int | None = None
    ttft_p95_s: float | None = None
    tpot_p95_s: float | None = None
    longest_seen: int | None = None
    """The longest request that a store has seen, which a limit should let in."""
    assumed: tuple[str, ...] = ()
    """What was taken for given, in words."""


class Timeouts(msgspec.Struct, frozen=True, kw_only=True):
    """Limits for callers, in seconds."""

    connect_s: float
    read_s: float
    total_s: float
    max_tokens: int
    ttft_p95_s: float
    tpot_p95_s: float
    measured: bool


class Variant(msgspec.Struct, frozen=True, kw_only=True):
    """The same with other types of weights or KV cache."""

    weights_dtype: str
    kv_dtype: str
    weights_bytes: int
    kv_bytes_per_token: int
    max_concurrency: int
    fits: bool
    current: bool = False


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """The answer. Sizes are bytes on one card (one rank), a whole request at its longest; None: not known, `fits` then too."""

    schema_version: int = SCHEMA_VERSION
    model: str
    gpu: Card
    gpus: int
    context: int
    concurrency: int
    kv_dtype: str
    model_dtype: str
    """What `auto` stands for."""
    block_size: int
    kv_bytes_per_token: int
    kv_growth_per_token: int
    kv_block_bytes: int
    kv_bytes_per_request: int
    kv_bytes_total: int
    weights_bytes: int | None
    weights: Weights | None
    kv_budget_bytes: int | None
    """What is left for the KV cache; negative where the weights alone are too large."""
    fits: bool | None
    never: bool
    """Not one such request fits into a whole card of this kind, whatever else is changed."""
    reasons: tuple[str, ...]
    """Why it does not fit, or what stands in the way."""
    kv_blocks: int | None
    kv_cache_tokens: int | None
    engine_concurrency: float | None
    """What the engine will print as its maximum concurrency."""
    max_concurrency: int | None
    recommended_concurrency: int | None
    max_context: int | None
    """The longest context with which as many requests as asked fit; 0: none."""
    longest_request: int | None
    """The engine's `estimated maximum model length`: one request alone."""
    positions: int | None
    memory: tuple[Part, ...]
    variants: tuple[Variant, ...]
    flags: dict[str, int | float | str]
    timeouts: Timeouts
    assumed: tuple[str, ...]


def plan(asked: Asked) -> Plan:
    """Work it out. Raises UsageError for nonsense and for what the engine refuses, EvidenceError where the cache cannot be told."""
    _check(asked)
    shape = Shape.from_config(asked.config)
    held = pool(shape, asked.serving)
    each = held.request_bytes(asked.context)
    parts = _parts(asked)
    left = _budget(asked, parts)
    capacity = None if left is None else kv.capacity(shape, asked.serving, max(0, left), asked.context, version=asked.version)
    most = None if capacity is None else int(capacity.concurrency)
    longest = None if capacity is None else kv.longest(held, capacity.usable_bytes, shape.positions or MOST_CONTEXT)
    never = each + held.block_bytes > asked.card.total_bytes
    reasons = _reasons(asked, shape, held, left, capacity)
    longest_all = None if capacity is None or left is None else _longest_of(held, capacity, left, asked.concurrency, shape.positions)
    recommended = None if most is None else recommended_concurrency(most)
    return Plan(
        model=asked.model,
        gpu=asked.card,
        gpus=asked.serving.tp * asked.serving.pp,
        context=asked.context,
        concurrency=asked.concurrency,
        kv_dtype=asked.serving.kv_dtype,
        model_dtype=shape.dtype,
        block_size=held.groups[0].block_size,
        kv_bytes_per_token=kv.bytes_per_token(shape, asked.serving),
        kv_growth_per_token=kv.growth_per_token(shape, asked.serving),
        kv_block_bytes=held.block_bytes,
        kv_bytes_per_request=each,
        kv_bytes_total=each * asked.concurrency,
        weights_bytes=_of_rank(asked.weights, asked.serving),
        weights=asked.weights,
        kv_budget_bytes=left,
        fits=None if capacity is None and not reasons else not reasons,
        never=never,
        reasons=reasons,
        kv_blocks=None if capacity is None else capacity.blocks,
        kv_cache_tokens=None if capacity is None else capacity.tokens,
        engine_concurrency=None if capacity is None else capacity.concurrency,
        max_concurrency=most,
        recommended_concurrency=recommended,
        max_context=longest_all,
        longest_request=longest,
        positions=shape.positions,
        memory=_bands(asked, parts, left, each * asked.concurrency),
        variants=variants(asked, shape, parts),
        flags=_flags(asked, shape, held, parts, 0 if reasons or recommended is None else recommended),
        timeouts=_timeouts(asked),
        assumed=asked.assumed,
    )


def recommended_concurrency(most: int) -> int:
    """Three quarters of the requests that fit, rounded down, at least 1 where one fits: 20 → 15."""
    return max(1, int(most * SPARE)) if most > 0 else 0


def context_for(turns: int, tokens: int) -> int:
    """The context of a conversation: `turns` questions and as many answers of `tokens` each, the next power of two, at least 4,096."""
    if not 0 < turns <= MOST_CONTEXT or not 0 < tokens <= MOST_CONTEXT or turns * tokens * 2 > MOST_CONTEXT:
        raise UsageError(f"{turns} turns of {tokens} tokens are no conversation")
    return max(LEAST_CONTEXT, 1 << (2 * turns * tokens - 1).bit_length())


def _check(asked: Asked) -> None:
    if not 0 < asked.context <= MOST_CONTEXT:
        raise UsageError(f"a context of {asked.context:,} tokens is none: give 1 to {MOST_CONTEXT:,}")
    if not 0 < asked.concurrency <= MOST_CONCURRENCY:
        raise UsageError(f"{asked.concurrency:,} requests at once are none: give 1 to {MOST_CONCURRENCY:,}")
    if not (math.isfinite(asked.utilization) and 0 < asked.utilization <= 1):
        raise UsageError(f"a utilization of {asked.utilization} is none: give a share of the card above 0, at most 1")
    if asked.max_tokens is not None and not 0 < asked.max_tokens <= asked.context:
        raise UsageError(f"{asked.max_tokens:,} tokens of answer do not go into a context of {asked.context:,}")


def _of_rank(weights: Weights | None, serving: Serving) -> int | None:
    return None if weights is None else ceil_div(weights.total_bytes, serving.tp * serving.pp)


def _parts(asked: Asked) -> tuple[Part, ...]:
    if asked.overhead_bytes is not None:
        return (Part(name="beside the weights", bytes=asked.overhead_bytes, note="as given"),)
    return room.beside_weights(asked.config, asked.serving, max(asked.concurrency, DEFAULT_SEQUENCES))


def _budget(asked: Asked, parts: tuple[Part, ...], weights: Weights | None = None) -> int | None:
    held = _of_rank(weights or asked.weights, asked.serving)
    return None if held is None else room.requested(asked.card, asked.utilization) - held - sum(part.bytes for part in parts)


def _reasons(asked: Asked, shape: Shape, held: Pool, left: int | None, capacity: kv.Capacity | None) -> tuple[str, ...]:
    each = held.request_bytes(asked.context)
    found = []
    if shape.positions is not None and asked.context > shape.positions:
        found.append(
            f"the model was made for {shape.positions:,} tokens: the engine refuses a longer context unless its positions are scaled"
        )
    if each + held.block_bytes > asked.card.total_bytes:
        found.append(
            f"never: one request of {asked.context:,} tokens needs {binary(each)}, the whole card has {binary(asked.card.total_bytes)}"
        )
    elif left is not None and capacity is not None:
        there = binary(max(0, capacity.usable_bytes))
        if left <= 0:
            found.append(f"the weights and what goes beside them are {binary(-left)} more than the engine's share of the card")
        elif not capacity.fits:
            found.append(f"one request of {asked.context:,} tokens needs {binary(each)} of KV cache, {there} are there")
        elif asked.concurrency > int(capacity.concurrency):
            found.append(
                f"{asked.concurrency:,} such requests need {binary(each * asked.concurrency)} of KV cache, {binary(left)} are there"
            )
    elif each * asked.concurrency > room.requested(asked.card, asked.utilization):
        found.append(f"{asked.concurrency:,} such requests need {binary(each * asked.concurrency)}, more than the card without any weights")
    return tuple(found)


def _longest_of(held: Pool, capacity: kv.Capacity, left: int, concurrency: int, positions: int | None) -> int:
    """The longest context with which `concurrency` requests fit, one of them by the engine's own check."""
    by_all = capacity.blocks // concurrency * held.block_bytes
    return kv.longest(held, min(by_all, capacity.usable_bytes), positions or MOST_CONTEXT) if left > 0 else 0


def _bands(asked: Asked, parts: tuple[Part, ...], left: int | None, needed: int) -> tuple[Part, ...]:
    """The whole card, band by band; they add up to it where the weights are known and leave room."""
    held = _of_rank(asked.weights, asked.serving)
    share = room.requested(asked.card, asked.utilization)
    bands = [] if held is None else [Part(name="weights", bytes=held, note=_weights_note(asked), estimated=_about(asked))]
    bands += parts
    if left is not None and left > 0:
        used = min(needed, left)
        bands += [Part(name="KV cache, asked for", bytes=used), Part(name="KV cache, to spare", bytes=left - used)]
    outside = asked.card.total_bytes - share
    return (*bands, Part(name="outside the engine", bytes=outside, note=f"1 - utilization {asked.utilization:g}"))


def _about(asked: Asked) -> bool:
    return asked.weights is not None and (asked.weights.source == "parameters" or asked.serving.tp * asked.serving.pp > 1)


def _weights_note(asked: Asked) -> str:
    weights = asked.weights
    assert weights is not None
    told = {"headers": "read from the files", "parameters": "by parameters", "given": "as given"}[weights.source]
    dtype = f", {weights.dtype}" if weights.dtype else ""
    floor = (
        "; scales and parts left unquantised come on top"
        if weights.source == "parameters" and BITS.get(weights.dtype or "", 16) < 16
        else ""
    )
    split = (
        f"; 1/{asked.serving.tp * asked.serving.pp} of the model, norms are on every rank"
        if asked.serving.tp * asked.serving.pp > 1
        else ""
    )
    return told + dtype + floor + split


def variants(asked: Asked, shape: Shape, parts: tuple[Part, ...]) -> tuple[Variant, ...]:
    """What other types would do: the KV cache in 8 bits, the weights in 8 and 4, both; the present one first."""
    if asked.weights is None:
        return ()
    present = asked.weights.dtype or "as stored"
    found = [_variant(asked, shape, parts, asked.weights, asked.serving, present, current=True)]
    halved = msgspec.structs.replace(asked.serving, kv_dtype="fp8")
    smaller = [
        from_parameters(asked.weights.parameters, dtype)
        for dtype in ("fp8", "int4")
        if asked.weights.parameters and BITS[dtype] < BITS.get(present, 16)
    ]
    if kv.bytes_per_token(shape, halved) < kv.bytes_per_token(shape, asked.serving):
        found.append(_variant(asked, shape, parts, asked.weights, halved, present))
    for weights in smaller:
        found.append(_variant(asked, shape, parts, weights, asked.serving, str(weights.dtype)))
    if smaller and len(found) > 1 + len(smaller):
        found.append(_variant(asked, shape, parts, smaller[-1], halved, str(smaller[-1].dtype)))
    return tuple(found)


def _variant(
    asked: Asked, shape: Shape, parts: tuple[Part, ...], weights: Weights, serving: Serving, dtype: str, *, current: bool = False
) -> Variant:
    left = _budget(asked, parts, weights)
    assert left is not None
    capacity = kv.capacity(shape, serving, max(0, left), asked.context, version=asked.version)
    most = int(capacity.concurrency)
    return Variant(
        weights_dtype=dtype,
        kv_dtype=serving.kv_dtype,
        weights_bytes=ceil_div(weights.total_bytes, serving.tp * serving.pp),
        kv_bytes_per_token=kv.bytes_per_token(shape, serving),
        max_concurrency=most,
        fits=capacity.fits and most >= asked.concurrency and asked.context <= (shape.positions or MOST_CONTEXT),
        current=current,
    )


def _flags(asked: Asked, shape: Shape, held: Pool, parts: tuple[Part, ...], recommended: int) -> dict[str, int | float | str]:
    """What to start the engine with; empty where nothing is safe. It fits into the share of the card that it names.

    `recommended`: requests at once, 0 where what was asked for does not fit: then the context is cut until as many requests as asked
    are three quarters of what fits.
    """
    share = safe_utilization(asked.card.total_bytes, asked.utilization)
    left = _budget(msgspec.structs.replace(asked, utilization=share), parts)
    if left is None:
        return {}
    capacity = kv.capacity(shape, asked.serving, max(0, left), asked.context, version=asked.version)
    positions = shape.positions or MOST_CONTEXT
    if recommended and capacity.fits:
        context, again = _limit(asked, kv.longest(held, capacity.usable_bytes, positions)), min(recommended, int(capacity.concurrency))
    else:
        most = (math.ceil(asked.concurrency / SPARE), asked.concurrency)
        spared = next(filter(None, (_longest_of(held, capacity, left, each, shape.positions) for each in most)), 0)
        context, again = _whole_blocks(min(spared, asked.context), held.groups[0].block_size), asked.concurrency
    if not context:
        return {}
    flags: dict[str, int | float | str] = {
        "--max-model-len": context,
        "--max-num-seqs": min(again, max(DEFAULT_SEQUENCES, asked.concurrency)),
        "--gpu-memory-utilization": share,
    }
    return flags | _settings(asked)


def _settings(asked: Asked) -> dict[str, int | float | str]:
    """What the plan rests on and the engine would not take by itself."""
    serving = asked.serving
    given: dict[str, tuple[int | str, int | str]] = {
        "--kv-cache-dtype": (FLAG_DTYPES.get(serving.kv_dtype, serving.kv_dtype), "auto"),
        "--block-size": (serving.block_size, DEFAULT_BLOCK_SIZE),
        "--max-num-batched-tokens": (serving.batched_tokens, room.batched_tokens(asked.card)),
        "--tensor-parallel-size": (serving.tp, 1),
        "--pipeline-parallel-size": (serving.pp, 1),
    }
    return {flag: value for flag, (value, own) in given.items() if value != own}


def _limit(asked: Asked, longest: int) -> int:
    """The context asked for; more where a longer request was seen and one such fits, in whole thousands of 1,024."""
    if asked.longest_seen is None or asked.longest_seen <= asked.context:
        return asked.context
    return min(ceil_div(asked.longest_seen, 1024) * 1024, longest)


def safe_utilization(total_bytes: int, asked: float) -> float:
    """The share asked for, less where it leaves under 512 MiB of the card, in whole hundredths."""
    most = (total_bytes - LEAST_OUTSIDE_BYTES) / total_bytes
    return asked if asked <= most else max(0.01, math.floor(most * 100) / 100)


def _whole_blocks(tokens: int, block_size: int) -> int:
    return tokens // block_size * block_size or tokens


def _timeouts(asked: Asked) -> Timeouts:
    tokens = asked.max_tokens or min(asked.context, 1024)
    measured = asked.ttft_p95_s is not None and asked.tpot_p95_s is not None
    ttft = TTFT_P95_S if asked.ttft_p95_s is None else asked.ttft_p95_s
    tpot = TPOT_P95_S if asked.tpot_p95_s is None else asked.tpot_p95_s
    connect_s, read_s, total_s = budget(tokens, ttft, tpot)
    return Timeouts(
        connect_s=connect_s,
        read_s=round(read_s, 3),
        total_s=round(max(total_s, read_s), 3),
        max_tokens=tokens,
        ttft_p95_s=ttft,
        tpot_p95_s=tpot,
        measured=measured,
    )
