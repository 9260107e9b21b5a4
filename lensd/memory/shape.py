"""What of a model decides its KV cache, from `config.json`: its layers one by one, each with what it keeps of a token."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, Final

import msgspec

from lensd.errors import EvidenceError, UsageError
from lensd.memory import architectures as known
from lensd.memory.config_json import Config, needed, text_config, whole

_POSITIONS: Final = (
    "max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "model_max_length", "max_sequence_length", "max_seq_length",
    "seq_len",
)  # fmt: skip
_KV_HEADS: Final = ("n_head_kv", "num_kv_heads", "num_key_value_heads", "multi_query_group_num", "num_attention_groups")
_NOT_SCALED: Final = ("default", "su", "longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling", "mrope")
MOST_LAYERS: Final = 10_000
MOST_FACTOR: Final = 1 << 20


class Kind(StrEnum):
    """What a layer keeps of a request."""

    FULL = "full_attention"
    SLIDING = "sliding_attention"
    CHUNKED = "chunked_attention"
    LATENT = "latent_attention"
    STATE = "state"


class State(msgspec.Struct, frozen=True, kw_only=True):
    """The constant state of a Mamba or linear-attention layer: a convolution's last inputs and a matrix for each head.

    vLLM 0.32.0 model_executor/layers/mamba/mamba_utils.py, MambaStateShapeCalculator.
    """

    inner: int
    """Channels of the convolution, those of the groups left out."""
    kernel: int
    heads: int
    head_elements: int
    """Elements of one head's matrix."""
    groups: int = 0
    group_elements: int = 0
    """Channels that each group adds to the convolution."""
    dtype: str | None = None
    """Of the matrix; None: as the convolution, which is kept in the model's type."""


class Layer(msgspec.Struct, frozen=True, kw_only=True):
    """What one layer keeps: `heads` × `width` elements a token, or a state."""

    kind: Kind
    heads: int = 1
    """Key and value heads of the whole model."""
    width: int = 0
    """Elements a token and head, key and value together; for latent attention the one vector."""
    window: int = 0
    """Tokens of a sliding window, or of a chunk."""
    state: State | None = None


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """A model's layers in order, each with what it keeps: nothing, one thing, or attention and a state."""

    layers: tuple[tuple[Layer, ...], ...]
    heads: int
    """Query heads: a tensor-parallel size must divide them."""
    model_type: str = ""
    dtype: str = "bfloat16"
    """The type it is computed in, which its KV cache is kept in where no other is asked for."""
    positions: int | None = None
    """The longest context the model was made for; None where config.json does not say."""

    @classmethod
    def from_config(cls, config: Config) -> "Shape":
        """The shape that a `config.json` describes, its text model's where it has several.

        Raises UsageError for what is no model's configuration, EvidenceError where it does not tell which layers keep what: an
        unknown architecture is never taken for plain attention. Rules: vLLM 0.32.0 transformers_utils/model_arch_config_convertor.py
        and the model classes named in `architectures`.
        """
        text = known.completed(text_config(config))
        count = whole(text, "num_hidden_layers", "n_layer", "n_layers", "num_layers")
        if count is None:
            raise UsageError("this is no model's config.json: it has no num_hidden_layers")
        if count > MOST_LAYERS:
            raise UsageError(f"this is no model's config.json: num_hidden_layers = {count}")
        kinds = known.kinds(text, count)
        return cls(
            layers=tuple(tuple(_layer(text, Kind(kind), index) for kind in kept) for index, kept in enumerate(kinds)),
            heads=_query_heads(text),
            model_type=str(text.get("model_type") or ""),
            dtype=_served_dtype(config, text),
            positions=_positions(config, text),
        )

    @property
    def kinds(self) -> frozenset[Kind]:
        return frozenset(layer.kind for kept in self.layers for layer in kept)


def _served_dtype(config: Config, text: Config) -> str:
    """As config.json says; 16 bits in place of float32 and of nothing (vLLM 0.32.0 config/model.py _resolve_auto_dtype)."""
    said = config.get("dtype") or config.get("torch_dtype") or text.get("dtype") or text.get("torch_dtype") or "float32"
    name = str(said).removeprefix("torch.")
    return "bfloat16" if name in ("float32", "float", "auto") else name


def _query_heads(text: Config) -> int:
    return whole(text, "num_attention_heads", "n_head", "n_heads") or 1


def _layer(text: Config, kind: Kind, index: int) -> Layer:
    if kind is Kind.STATE:
        return Layer(kind=kind, state=_state(text))
    if kind is Kind.LATENT:
        return Layer(kind=kind, width=needed(text, "kv_lora_rank") + needed(text, "qk_rope_head_dim"))
    width = _head_size(text)
    window = 0
    if kind is Kind.SLIDING:
        window = needed(text, "sliding_window") + known.extra_window(text)
    elif kind is Kind.CHUNKED:
        window = needed(text, "attention_chunk_size")
    return Layer(kind=kind, heads=_kv_heads(text, index), width=2 * width, window=window)


def _head_size(text: Config) -> int:
    given = whole(text, "head_dim", "hidden_size_per_head", "attention_head_dim")
    if given is not None:
        return given
    heads, hidden = _query_heads(text), needed(text, "hidden_size", "n_embd", "d_model")
    if "num_attention_heads" not in text and "n_head" not in text and "n_heads" not in text:
        raise EvidenceError("could not tell what a layer keeps: config.json has neither head_dim nor num_attention_heads")
    return hidden // heads


def _kv_heads(text: Config, index: int) -> int:
    if text.get("model_type") in known.FALCON and text.get("multi_query") and not text.get("new_decoder_architecture"):
        return 1
    inner = text.get("attn_config")
    given: Any = inner.get("kv_n_heads") if isinstance(inner, Mapping) else None
    for name in _KV_HEADS:
        given = text.get(name) if given is None else given
    if isinstance(given, Sequence) and not isinstance(given, str):
        if index >= len(given):
            raise UsageError(f"config.json: num_key_value_heads names {len(given)} layers, there are more")
        given = given[index]
    return whole({"num_key_value_heads": given}, "num_key_value_heads") or _query_heads(text)


def _state(text: Config) -> State:
    """By family: gated delta nets, Mamba 2, Mamba 1 (the `get_mamba_state_shape_from_config` of each of vLLM's model classes)."""
    dtype = text.get("mamba_ssm_cache_dtype") or text.get("mamba_ssm_dtype") or known.state_dtype(text)
    if "linear_num_value_heads" in text:
        key, value = needed(text, "linear_key_head_dim"), needed(text, "linear_value_head_dim")
        heads = needed(text, "linear_num_value_heads")
        inner = 2 * key * needed(text, "linear_num_key_heads") + value * heads
        return State(inner=inner, kernel=needed(text, "linear_conv_kernel_dim"), heads=heads, head_elements=key * value, dtype=dtype)
    kernel, size = needed(text, "conv_kernel", "mamba_d_conv"), needed(text, "ssm_state_size", "mamba_d_state", "state_size")
    heads_given = whole(text, "mamba_num_heads", "mamba_n_heads")
    if heads_given is None:
        inner = int(needed(text, "mamba_expand", "expand") * needed(text, "hidden_size"))
        return State(inner=inner, kernel=kernel, heads=inner, head_elements=size, dtype=dtype)
    head_dim = needed(text, "mamba_head_dim", "mamba_d_head")
    inner = whole(text, "mamba_d_ssm") or heads_given * head_dim
    groups = whole(text, "n_groups", "mamba_n_groups") or 1
    return State(
        inner=inner, kernel=kernel, heads=heads_given, head_elements=head_dim * size, groups=groups, group_elements=2 * size, dtype=dtype
    )


def _positions(config: Config, text: Config) -> int | None:
    """vLLM 0.32.0 config/model.py _get_and_verify_max_len: the smallest of the keys, times a scaling that is not in it already."""
    given = [value for name in _POSITIONS if (value := whole(text, name)) is not None]
    if not given:
        return None
    scaling = text.get("rope_scaling") or text.get("rope_parameters")
    factor: Any = 1.0
    if isinstance(scaling, Mapping) and "gemma3" not in str(config.get("model_type")):
        kind = scaling.get("rope_type") or scaling.get("type") or "default"
        factor = 1.0 if kind in _NOT_SCALED else scaling.get("factor") or 1.0
    if isinstance(factor, bool) or not isinstance(factor, int | float) or not 0 < factor <= MOST_FACTOR:
        raise UsageError(f"config.json: factor = {str(factor)[:60]!r} is no scaling of positions")
    return int(min(given) * factor)
