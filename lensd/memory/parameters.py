"""How many parameters a decoder has, counted from its `config.json`: embeddings, attention, feed-forward layers and experts, norms."""

from typing import Final

from lensd.errors import LensdError
from lensd.memory import architectures as known
from lensd.memory.config_json import Config, text_config, whole

_GATED: Final = frozenset({
    "deepseek", "deepseek_v2", "deepseek_v3", "kimi_k2", "gemma", "gemma2", "gemma3_text", "granite", "granitemoe", "llama",
    "mistral", "mixtral", "phi3", "qwen2", "qwen2_moe", "qwen2_vl_text", "qwen2_5_vl_text", "qwen3",
    "qwen3_moe", "qwen3_vl_text", "qwen3_vl_moe_text", "smollm3",
})  # fmt: skip
"""Architectures of one plan: projections without biases but where named, gated feed-forward layers, norms without biases."""
_TIED: Final = frozenset({"gemma", "gemma2", "gemma3_text"})
_BIASED: Final = frozenset({"qwen2", "qwen2_moe", "qwen2_vl_text", "qwen2_5_vl_text"})
"""Biases on query, key and value."""
_HEAD_NORMS: Final = frozenset({"qwen3", "qwen3_moe", "qwen3_vl_text", "qwen3_vl_moe_text", "gemma3_text"})
_NORMS: Final = {"gemma2": 4, "gemma3_text": 4}
"""Norms a layer, where not 2."""


def parameters(config: Config) -> int | None:
    """Parameters of the language model, all experts among them; None for an architecture that is not counted here, or a part not given.

    Counted per architecture as transformers 5.19 builds it (models/*/modeling_*.py); heads that only predict ahead are left out.
    """
    text = known.completed(text_config(config))
    model = known.architecture(text)
    if model not in _GATED:
        return None
    try:
        hidden, layers, vocab = whole(text, "hidden_size"), whole(text, "num_hidden_layers"), whole(text, "vocab_size")
        if hidden is None or layers is None or vocab is None:
            return None
        attention = _attention(text, model, hidden)
        feed = _feed_forward(text, hidden, layers)
    except LensdError:
        return None
    if attention is None or feed is None:
        return None
    tied = bool(text.get("tie_word_embeddings", config.get("tie_word_embeddings", model in _TIED)))
    embeddings = vocab * hidden * (1 if tied else 2)
    norms = hidden * (layers * _NORMS.get(model, 2) + 1)
    return embeddings + layers * attention + feed + norms


def _attention(text: Config, model: str, hidden: int) -> int | None:
    """Of one layer."""
    heads = whole(text, "num_attention_heads")
    if heads is None:
        return None
    rank = whole(text, "kv_lora_rank")
    if rank is not None:
        return _latent(text, hidden, heads, rank)
    size = whole(text, "head_dim") or hidden // heads
    kv = whole(text, "num_key_value_heads") or heads
    found = hidden * size * (2 * heads + 2 * kv)
    if model in _BIASED or text.get("attention_bias"):
        found += size * (heads + 2 * kv)
    if text.get("attention_bias") and model not in _BIASED:
        found += hidden
    return found + (2 * size if model in _HEAD_NORMS else 0)


def _latent(text: Config, hidden: int, heads: int, rank: int) -> int | None:
    """Latent attention: queries through a bottleneck where there is one, keys and values through theirs, a norm on each bottleneck."""
    nope, rope, value = whole(text, "qk_nope_head_dim"), whole(text, "qk_rope_head_dim"), whole(text, "v_head_dim")
    if nope is None or rope is None or value is None:
        return None
    through = whole(text, "q_lora_rank")
    width = heads * (nope + rope)
    query = hidden * width if through is None else hidden * through + through + through * width
    return query + hidden * (rank + rope) + rank + rank * heads * (nope + value) + heads * value * hidden


def _feed_forward(text: Config, hidden: int, layers: int) -> int | None:
    """Of all layers."""
    dense, experts = whole(text, "intermediate_size"), whole(text, "n_routed_experts", "num_experts", "num_local_experts")
    if experts is None:
        return None if dense is None else layers * 3 * hidden * dense
    each = whole(text, "moe_intermediate_size") or dense
    if each is None:
        return None
    first = whole(text, "first_k_dense_replace") or 0
    every = whole(text, "decoder_sparse_step", "moe_layer_freq") or 1
    plain = [n for n in range(layers) if n < first or (n + (1 if "decoder_sparse_step" in text else 0)) % every]
    only = text.get("mlp_only_layers")
    plain = sorted({*plain, *(n for n in only if isinstance(n, int) and 0 <= n < layers)} if isinstance(only, list) else plain)
    if plain and dense is None:
        return None
    shared = whole(text, "shared_expert_intermediate_size") or each * (whole(text, "n_shared_experts") or 0)
    sparse = experts * 3 * hidden * each + experts * hidden + 3 * hidden * shared
    if "shared_expert_intermediate_size" in text:
        sparse += hidden  # the gate of the shared expert
    if text.get("topk_method") == "noaux_tc":
        sparse += experts  # a bias each, corrected outside training
    return len(plain) * 3 * hidden * (dense or 0) + (layers - len(plain)) * sparse
