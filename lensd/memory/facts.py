"""What can be worked out from an engine's own facts: how much its KV cache and weights need, and the longest context that fits.

Input and output are rows of `config_facts` of one engine, as name → text: flags, what the engine resolved, what it printed at start,
and its model's config.json. Sizes are decimal bytes. What cannot be told is left out, never 0.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from lensd.errors import EvidenceError, LensdError
from lensd.memory import catalogue, kv, weights
from lensd.memory.parameters import parameters
from lensd.memory.pool import pool
from lensd.memory.serving import Serving, ceil_div, reserves_null_block
from lensd.memory.shape import MOST_LAYERS, Shape

NAMES: Final = ("kv_bytes_per_token", "kv_block_bytes", "kv_request_bytes", "weights_need_bytes", "fits_max_model_len", "decode_floor_ms")
_LISTS: Final = ("layer_types", "layers_block_type", "no_rope_layers", "num_key_value_heads", "attn_layer_indices")
_TEXTS: Final = ("model_type", "dtype", "hybrid_override_pattern", "quantization", "mamba_ssm_cache_dtype", "mamba_ssm_dtype")


def derived(facts: Mapping[str, str]) -> dict[str, str]:
    """The names of `NAMES` that these facts carry, as text.

    kv_bytes_per_token, kv_block_bytes: on the fullest rank. kv_request_bytes: one request of `max_model_len`. weights_need_bytes: on
    one rank, by parameters. fits_max_model_len: the longest request that the measured KV cache holds, at most the model's positions.
    decode_floor_ms: the least that a step takes, since it reads all weights of a rank once; of a mixture of experts a large batch only.
    """
    found: dict[str, int | float | None] = {}
    try:
        config = model_config(facts)
        found["weights_need_bytes"] = _weights(config, facts)
        shape, serving = _shape(config, facts), _serving(facts)
        found["kv_bytes_per_token"] = kv.bytes_per_token(shape, serving)
        held = pool(shape, serving)
        found["kv_block_bytes"] = held.block_bytes
        asked = _number(facts, "max_model_len")
        if asked:
            found["kv_request_bytes"] = held.request_bytes(asked)
        available = _available(facts, held.block_bytes)
        most = shape.positions or asked
        if available and most:
            null = reserves_null_block(facts.get("engine_version"))
            found["fits_max_model_len"] = kv.longest(held, available - (0 if null is False else held.block_bytes), most)
    except LensdError:
        pass  # what was worked out before it stands
    found["decode_floor_ms"] = _floor(facts, found.get("weights_need_bytes"))
    return {name: str(found[name]) for name in NAMES if found.get(name)}


def model_config(facts: Mapping[str, str]) -> dict[str, Any]:
    """The facts of a config.json in its own form: numbers, true and false, lists and counted lists (`full_attention=10 …`)."""
    config: dict[str, Any] = {}
    for name, text in facts.items():
        if name in ("layer_types", "hybrid_override_pattern") and "=" in text:
            config[name] = _uncounted(text, join=name == "hybrid_override_pattern")
        elif name in _TEXTS:
            config[name] = text
        elif name in _LISTS and " " in text:
            config[name] = [_value(part) for part in text.split(" ")]
        else:
            config[name] = _value(text)
    if "quant_method" in facts or "quant_bits" in facts:
        config["quantization_config"] = {"quant_method": facts.get("quant_method"), "bits": _number(facts, "quant_bits")}
    return config


def _shape(config: dict[str, Any], facts: Mapping[str, str]) -> Shape:
    """The model's shape in the type that the engine resolved, float32 too. Raises EvidenceError where that decides and is not told."""
    told = facts.get("dtype", "auto").removeprefix("torch.")
    if told == "auto" and facts.get("cache_dtype", "auto") == "auto":
        raise EvidenceError("could not tell the type of the KV cache: it is the model's, and no fact names that")
    shape = Shape.from_config(config)
    return shape if told == "auto" else msgspec.structs.replace(shape, dtype=told)


def _serving(facts: Mapping[str, str]) -> Serving:
    given = {
        "tp": _number(facts, "tensor_parallel_size"),
        "pp": _number(facts, "pipeline_parallel_size"),
        "block_size": _number(facts, "block_size"),
        "batched_tokens": _number(facts, "max_num_batched_tokens"),
    }
    kept: dict[str, Any] = {name: value for name, value in given.items() if value}
    return Serving(kv_dtype=facts.get("cache_dtype", "auto"), **kept)


def _available(facts: Mapping[str, str], block_bytes: int) -> int | None:
    """Bytes of the KV cache: of its blocks where they are known, which an override decides, else as it was printed."""
    blocks = _number(facts, "num_gpu_blocks_override") or _number(facts, "num_gpu_blocks")
    return blocks * block_bytes if blocks else _number(facts, "kv_cache_bytes")


def _weights(config: dict[str, Any], facts: Mapping[str, str]) -> int | None:
    counted = parameters(config)
    dtype = weights.stored_dtype(config, config.get("dtype"))
    if counted is None or dtype is None:
        return None
    ranks = (_number(facts, "tensor_parallel_size") or 1) * (_number(facts, "pipeline_parallel_size") or 1)
    return ceil_div(weights.from_parameters(counted, dtype).total_bytes, ranks)


def _floor(facts: Mapping[str, str], need: float | None) -> float | None:
    """Milliseconds that a card needs to read its part of the weights, which each step of decode does."""
    held, total = _number(facts, "weights_bytes") or need, _number(facts, "device_total_bytes")
    speed = catalogue.bandwidth(total) if total else None
    return round(held / speed * 1000, 2) if held and speed else None


def _number(facts: Mapping[str, str], name: str) -> int | None:
    text = facts.get(name, "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 19 else None


def _value(text: str) -> Any:
    if text in ("true", "false"):
        return text == "true"
    return int(text) if text.isascii() and text.lstrip("-").isdecimal() and len(text) < 19 else text


def _uncounted(text: str, *, join: bool) -> list[str] | str:
    """`M=24 *=4` as so many of each. Their order is lost, which a pool shared by all stages does not need."""
    parts = [part.rpartition("=") for part in text.split(" ")]
    kinds = [kind for kind, _, count in parts if count.isascii() and count.isdecimal() for _ in range(min(int(count[:6]), MOST_LAYERS))]
    return "".join(kinds) if join else kinds
