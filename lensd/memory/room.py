"""Where the memory of one card goes before any KV cache: weights, and what the engine takes beside them, which is an estimate."""

import math
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from lensd.memory.catalogue import Card
from lensd.memory.config_json import text_config, whole
from lensd.memory.serving import Serving, ceil_div
from lensd.memory.units import GIB, MIB

GRAPHS_BYTES: Final = GIB // 2
"""CUDA graphs of a model of common size: 0.4 to 0.6 GiB in vLLM's `Graph capturing finished` lines."""
NON_TORCH_BYTES: Final = 300 * MIB
"""CUDA context and libraries, 0.3 to 0.5 GiB; each further rank of a group adds buffers for talking to it."""
RANK_BYTES: Final = 200 * MIB
LOGIT_BYTES: Final = 8
"""A sequence and word of the vocabulary: the sampler keeps its logits twice in float32."""
UNKNOWN_ACTIVATION_BYTES: Final = GIB


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """One band of the card."""

    name: str
    bytes: int
    note: str = ""
    estimated: bool = False


def beside_weights(config: Mapping[str, Any], serving: Serving, sequences: int) -> tuple[Part, ...]:
    """Activations, graphs and what is not torch's, on one rank. Estimates: the engine measures them at its start."""
    text = text_config(config)
    hidden, feed, vocab = whole(text, "hidden_size"), whole(text, "intermediate_size"), whole(text, "vocab_size")
    if hidden is None:
        activation, told = UNKNOWN_ACTIVATION_BYTES, "hidden_size is not in config.json"
    else:
        widest = 3 * ceil_div(feed or 4 * hidden, serving.tp) + 4 * hidden
        activation = 2 * serving.batched_tokens * widest + LOGIT_BYTES * sequences * ceil_div(vocab or 0, serving.tp)
        told = f"a step of {serving.batched_tokens:,} tokens, and the logits of {sequences:,} sequences"
    ranks = serving.tp * serving.pp
    return (
        Part(name="activations", bytes=activation, note=told, estimated=True),
        Part(name="CUDA graphs", bytes=GRAPHS_BYTES, note="--enforce-eager saves it", estimated=True),
        Part(name="CUDA and libraries", bytes=NON_TORCH_BYTES + RANK_BYTES * (ranks - 1), estimated=True),
    )


def batched_tokens(card: Card) -> int:
    """`max_num_batched_tokens` where it is not set (vLLM 0.32.0 engine/arg_utils.py get_batch_defaults, as a server)."""
    if card.total_bytes >= 160 * GIB:
        return 16_384
    return 8192 if card.total_bytes >= 70 * GIB and "a100" not in card.name.lower() else 2048


def requested(card: Card, utilization: float) -> int:
    """What the engine may take of the card (vLLM 0.32.0 v1/worker/utils.py request_memory)."""
    return math.ceil(card.total_bytes * utilization)
