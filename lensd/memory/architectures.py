"""Which layers of which architecture keep what: data from the model classes of vLLM 0.32.0 and the configurations of transformers 5.19."""

from collections.abc import Mapping, Sequence
from typing import Final

from lensd.errors import EvidenceError, UsageError
from lensd.memory.config_json import Config, whole

FALCON: Final = ("falcon", "RefinedWeb", "RefinedWebModel")
LATENT: Final = frozenset({"axk1", "deepseek_v2", "deepseek_v3", "glm4_moe_lite", "kimi_k2", "pangu_ultra_moe"})
"""Latent attention in every layer (transformers_utils/model_arch_config_convertor.py is_deepseek_mla, without those that mix it)."""
PLAIN: Final = frozenset({
    "arcee", "baichuan", "bloom", "chatglm", "cohere", "command-r", "dbrx", "deepseek", "ernie4_5", "ernie4_5_moe", "exaone",
    "falcon", "gemma", "glm", "glm4", "glm4_moe", "gpt2", "gpt_bigcode", "gpt_neox", "gptj", "granite", "granitemoe",
    "granitemoeshared", "hunyuan_v1_dense", "hunyuan_v1_moe", "internlm", "internlm2", "internlm3", "llama", "mimo", "minicpm",
    "minimax_m2", "ministral3", "mistral", "mixtral", "nemotron", "olmo", "olmo2", "olmoe", "opt", "orion", "persimmon", "phi",
    "phi3", "phimoe", "qwen2", "qwen2_moe", "qwen2_vl", "qwen2_vl_text", "qwen2_5_vl", "qwen2_5_vl_text", "qwen3", "qwen3_moe",
    "qwen3_vl_text", "qwen3_vl_moe_text", "RefinedWeb", "RefinedWebModel", "seed_oss", "solar", "stablelm", "starcoder2", "smollm3",
    "teleflm", "telechat2",
})  # fmt: skip
"""Attention in every layer; where `sliding_window` is set, it slides in all of them."""
INTERLEAVED: Final = {"gemma2": 2, "gemma3": 6, "gemma3_text": 6, "cohere2": 4, "exaone4": 4, "gpt_oss": 2, "olmo3": 4}
"""Every n-th layer attends to all tokens, the others slide; n where config.json gives no `layer_types` and no pattern."""
DEFAULTS: Final[Mapping[str, Config]] = {
    # what published configurations leave to the class
    "gemma3_text": {
        "num_attention_heads": 8,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "max_position_embeddings": 131_072,
        "vocab_size": 262_208,
        "sliding_window": 4096,
        "tie_word_embeddings": True,
    },
    "gemma2": {"head_dim": 256, "sliding_window": 4096, "tie_word_embeddings": True},
    "gemma": {"head_dim": 256, "tie_word_embeddings": True},
    "qwen3": {"head_dim": 128},
    "seed_oss": {"head_dim": 128},
}
UNREAD: Final = {
    # a key of config.json -> what it says of a cache that no rule here sizes
    "index_topk": "its sparse attention keeps an index of its own",
    "compress_ratios": "it attends to compressed tokens",
    "block_configs": "its blocks differ one by one",
    "linear_attn_config": "it mixes linear and latent attention",
    "layer_group_size": "it mixes linear and latent attention",
    "num_kv_shared_layers": "some of its layers share a cache",
    "cross_attention_layers": "some of its layers attend to images",
    "global_head_dim": "its layers differ in the size of a head",
    "is_encoder_decoder": "it is an encoder and a decoder",
}
_NAMED: Final[Mapping[str, tuple[str, ...]]] = {
    "full_attention": ("full_attention",),
    "attention": ("full_attention",),
    "sliding_attention": ("sliding_attention",),
    "chunked_attention": ("chunked_attention",),
    "linear_attention": ("state",),
    "mamba": ("state",),
    "mamba2": ("state",),
    "moe": (),
    "mlp": (),
}
_LETTERS: Final[Mapping[str, tuple[str, ...]]] = {"*": ("full_attention",), "M": ("state",), "-": (), "E": ()}
_STATES: Final = frozenset({"state_size", "ssm_state_size", "conv_kernel", "mamba_d_state", "mamba_expand", "linear_num_value_heads"})
"""Keys of a layer that keeps a state: a configuration without a name that has one is not taken for plain attention."""
Kinds = list[tuple[str, ...]]


def completed(text: Config) -> Config:
    """The configuration with what its class gives where it says nothing."""
    given = {name: value for name, value in text.items() if value is not None}
    return {**DEFAULTS.get(architecture(text), {}), **given}


def architecture(text: Config) -> str:
    """`model_type`, else the architecture's name without its ending; empty where neither is given."""
    if text.get("model_type"):
        return str(text["model_type"])
    named = text.get("architectures")
    first = str(named[0]) if isinstance(named, list) and named else ""
    return first.removesuffix("ForCausalLM").lower()


def kinds(text: Config, count: int) -> Kinds:
    """What each of `count` layers keeps: nothing, one thing, or attention and a state. Raises EvidenceError where it cannot be told."""
    model = architecture(text)
    for key, told in UNREAD.items():
        if text.get(key):
            raise EvidenceError(f"could not tell the KV cache of this {model or 'unnamed'} model: {told} ({key})")
    if text.get("kv_lora_rank") and model not in LATENT:
        raise EvidenceError(f"could not tell which layers of a model of type {model!r} keep latent vectors")
    if model in LATENT:
        return [("latent_attention",)] * count
    named = _named(text, count)
    if named is None:
        named = _by_architecture(model, text, count)
    if named is None:
        raise EvidenceError(f"could not tell which layers of a model of type {model!r} keep what: its config.json has no layer_types")
    return named


def extra_window(text: Config) -> int:
    """Tokens that an architecture's window sees beyond `sliding_window` (model_executor/models/commandr.py: the token itself)."""
    return 1 if text.get("model_type") == "cohere2" else 0


def state_dtype(text: Config) -> str | None:
    """The type of a state's matrix where config.json names none; None: the model's (model_executor/models/config.py)."""
    return "float32" if text.get("model_type") == "nemotron_h" else None


def _named(text: Config, count: int) -> Kinds | None:
    """By `layer_types`, `layers_block_type` or the letters of `hybrid_override_pattern`."""
    listed = text.get("layer_types") or text.get("layers_block_type")
    table: Mapping[str, tuple[str, ...]] = _NAMED
    if not listed and text.get("hybrid_override_pattern"):
        listed, table = str(text["hybrid_override_pattern"]), _LETTERS
    if not listed:
        return None
    if not isinstance(listed, Sequence) or (table is _LETTERS) != isinstance(listed, str):
        raise UsageError(f"config.json: layer_types = {str(listed)[:60]!r} is not a list")
    strange = next((name for name in listed if not isinstance(name, str) or name not in table), None)
    if strange is not None:
        raise EvidenceError(f"could not tell what a layer of type {str(strange)[:40]!r} keeps")
    if len(listed) != count:
        raise UsageError(f"config.json names the types of {len(listed)} layers, and num_hidden_layers is {count}")
    return [table[name] for name in listed]


def _by_architecture(model: str, text: Config, count: int) -> Kinds | None:
    full, sliding, state = ("full_attention",), ("sliding_attention",), ("state",)
    if model in INTERLEAVED:
        pattern = text.get("sliding_window_pattern")
        every = len(pattern) if isinstance(pattern, str) else whole(text, "sliding_window_pattern", "_sliding_window_pattern")
        if not whole(text, "sliding_window"):
            return [full] * count
        return [full if (index + 1) % (every or INTERLEAVED[model]) == 0 else sliding for index in range(count)]
    if model in ("llama4", "llama4_text"):
        return _llama4(text, count)
    if model in ("qwen3_next", "qwen3_5_text", "qwen3_5_moe_text"):
        every = whole(text, "full_attention_interval") or 4
        return [full if (index + 1) % every == 0 else state for index in range(count)]
    if model == "jamba":
        period = whole(text, "attn_layer_period") or 8
        offset = 4 if "attn_layer_offset" not in text else whole(text, "attn_layer_offset") or 0
        return [full if index % period == offset else state for index in range(count)]
    if model == "bamba" and isinstance(text.get("attn_layer_indices"), list):
        return [full if index in text["attn_layer_indices"] else state for index in range(count)]
    if model == "falcon_h1":
        return [(*full, *state)] * count
    return _plain(text, count) if model in PLAIN or (not model and not _STATES & text.keys()) else None


def _plain(text: Config, count: int) -> Kinds:
    """One kind for all layers: a window in all of them, or in none."""
    if not whole(text, "sliding_window") or text.get("use_sliding_window") is False:
        return [("full_attention",)] * count
    if text.get("use_sliding_window"):
        first = text.get("max_window_layers")
        if isinstance(first, int) and 0 < first < count:
            raise EvidenceError(f"could not tell the KV cache: a window in the layers from {first} on is none that vLLM serves")
        if first is None or first >= count:
            return [("full_attention",)] * count
    return [("sliding_attention",)] * count


def _llama4(text: Config, count: int) -> Kinds:
    """Layers without rotary positions attend to all tokens, the others to their chunk (model_executor/models/llama4.py)."""
    rope = text.get("no_rope_layers")
    if not isinstance(rope, list) or not rope:
        interval = whole(text, "no_rope_layer_interval") or 4
        rope = [int((index + 1) % interval != 0) for index in range(count)]
    if len(rope) != count:
        raise UsageError(f"config.json: no_rope_layers names {len(rope)} layers, and num_hidden_layers is {count}")
    local = ("chunked_attention",) if text.get("attention_chunk_size") else ("full_attention",)
    return [local if has else ("full_attention",) for has in rope]
