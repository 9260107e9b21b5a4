"""A question as people put it (flags, or a body of the API) → the plan's input; every word that makes no sense is refused in one line."""

import re
from typing import Any, Final

import msgspec

from lensd.errors import UsageError
from lensd.memory.catalogue import card
from lensd.memory.config_json import text_config
from lensd.memory.lengths import LEAST_REQUESTS, Lengths
from lensd.memory.parameters import parameters
from lensd.memory.plan import Asked, context_for
from lensd.memory.room import batched_tokens
from lensd.memory.serving import DEFAULT_BLOCK_SIZE, Serving
from lensd.memory.shape import Shape
from lensd.memory.units import size
from lensd.memory.weights import BITS, Weights, from_parameters, stored_dtype

KV_DTYPES: Final = ("auto", "bf16", "fp16", "fp8", "int8", "fp8_ds_mla", "nvfp4_ds_mla")
_PARAMETERS: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([KMBT]?)", re.IGNORECASE)
_FACTORS: Final = {"": 1, "K": 10**3, "M": 10**6, "B": 10**9, "T": 10**12}
MOST_RANKS: Final = 1024
MOST_PARAMETERS: Final = 10**15


class Question(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What is asked, in the words of the flags; None: left open."""

    gpu: str
    config: dict[str, Any]
    model: str = ""
    context: int | None = None
    concurrency: int | None = None
    turns: int | None = None
    turn_tokens: int | None = None
    weights_dtype: str | None = None
    kv_dtype: str = "auto"
    tp: int = 1
    pp: int = 1
    utilization: float = 0.9
    parameters: str | None = None
    weights: str | None = None
    overhead: str | None = None
    block_size: int | None = None
    max_num_batched_tokens: int | None = None
    max_tokens: int | None = None
    engine_version: str | None = None


def asked(question: Question, stored: Weights | None = None, lengths: Lengths | None = None) -> Asked:
    """The plan's input. `stored`: the weights as their files have them; `lengths`: what a store measured, for what was left open.

    Raises UsageError for nonsense, and for an open context where nothing was measured.
    """
    if question.kv_dtype not in KV_DTYPES:
        raise UsageError(f"{question.kv_dtype!r} is no type of a KV cache: one of {', '.join(KV_DTYPES)}")
    if question.tp > MOST_RANKS or question.pp > MOST_RANKS:
        raise UsageError(f"{max(question.tp, question.pp):,} ranks are more than {MOST_RANKS:,}")
    gpu = card(question.gpu)
    assumed: list[str] = []
    context, concurrency = _load(question, lengths, assumed)
    model_dtype = Shape.from_config(question.config).dtype
    weights = _weights(question, stored, model_dtype, assumed)
    serving = Serving(
        kv_dtype=question.kv_dtype,
        tp=question.tp,
        pp=question.pp,
        block_size=_block_size(question, assumed),
        batched_tokens=batched_tokens(gpu) if question.max_num_batched_tokens is None else question.max_num_batched_tokens,
    )
    text = text_config(question.config)
    if text.get("model_type") is None and not question.config.get("architectures"):
        assumed.append("config.json names no model_type: every layer is taken for one that attends to all tokens")
    if question.kv_dtype == "auto" and not any(part.get(name) for part in (question.config, text) for name in ("dtype", "torch_dtype")):
        assumed.append("a KV cache in 16 bits: config.json names no type")
    if question.kv_dtype == "int8":
        assumed.append("a KV cache in int8 needs scales, one for each token and head: they are not counted")
    if question.overhead is None:
        assumed.append("activations, graphs and libraries are estimates: the engine measures them at its start (--overhead takes them)")
    return Asked(
        model=question.model or str(question.config.get("_name_or_path") or "the model"),
        config=question.config,
        card=gpu,
        context=context,
        concurrency=concurrency,
        serving=serving,
        weights=weights,
        utilization=question.utilization,
        overhead_bytes=None if question.overhead is None else size(question.overhead, least=0),
        version=question.engine_version,
        max_tokens=question.max_tokens,
        ttft_p95_s=None if lengths is None else lengths.ttft_p95_s,
        tpot_p95_s=None if lengths is None else lengths.tpot_p95_s,
        longest_seen=lengths.tokens_max if lengths is not None and question.context is None else None,
        assumed=tuple(assumed),
    )


def _load(question: Question, lengths: Lengths | None, assumed: list[str]) -> tuple[int, int]:
    """Context and requests at once: as given, else of a conversation, else as measured."""
    context = question.context
    if question.turns is not None or question.turn_tokens is not None:
        if context is not None or question.turns is None or question.turn_tokens is None:
            raise UsageError("turns and the tokens of a turn go together, and without a context")
        context = context_for(question.turns, question.turn_tokens)
        assumed.append(f"{question.turns} turns of {question.turn_tokens} tokens, and answers as long: a context of {context:,} is enough")
    measured = lengths if lengths is not None and lengths.is_measured else None
    if context is None and measured is not None:
        context = measured.tokens_p99
        assumed += [measured.told, f"the longest of them took {measured.tokens_max:,}: --max-model-len lets it in"]
    if context is None:
        told = (
            f"{lengths.told}" if lengths is not None else f"nothing was measured (a store with {LEAST_REQUESTS} settled requests would do)"
        )
        raise UsageError(f"give --context: {told}")
    if question.concurrency is not None:
        return context, question.concurrency
    if measured is not None and measured.running_p99:
        assumed.append(f"measured over {measured.samples:,} scrapes: 99 of 100 saw at most {measured.running_p99:,} requests at once")
        return context, measured.running_p99
    assumed.append("one request at once: --concurrency says otherwise")
    return context, 1


def _block_size(question: Question, assumed: list[str]) -> int:
    if question.block_size is not None:
        return question.block_size
    assumed.append(f"blocks of {DEFAULT_BLOCK_SIZE} tokens, as on most GPUs: the engine's cache_config_info says which it took")
    return DEFAULT_BLOCK_SIZE


def _weights(question: Question, stored: Weights | None, model_dtype: str | None, assumed: list[str]) -> Weights | None:
    """As given; else as the files have them; else parameters, given or counted, times the type's bytes."""
    if question.weights_dtype is not None and question.weights_dtype not in BITS:
        raise UsageError(f"{question.weights_dtype!r} is no type of weights: one of {', '.join(BITS)}")
    told = stored_dtype(text_config(question.config), model_dtype) or stored_dtype(question.config, model_dtype)
    dtype = question.weights_dtype or told
    if question.weights is not None:
        return Weights(total_bytes=size(question.weights), source="given", dtype=dtype, parameters=_count(question))
    count = _count(question)
    if stored is not None and question.weights_dtype is None and question.parameters is None and stored.dtype != "F32":
        return msgspec.structs.replace(stored, dtype=told or stored.dtype, parameters=count)
    if count is None and stored is not None and stored.dtype in ("F32", "BF16", "F16"):
        count = stored.parameters
    if count is None:
        assumed.append("the weights are not known: config.json does not tell its parameters, give --parameters 7B or --weights 14GB")
        return None
    if isinstance(question.config.get("vision_config"), dict) and question.parameters is None:
        assumed.append("the language model's weights only: those that see images come on top")
    if dtype is None and any(part.get("quantization_config") for part in (question.config, text_config(question.config))):
        assumed.append(
            "the weights are not known: config.json names a quantisation that is none known here, give --weights-dtype or --weights 14GB"
        )
        return None
    if dtype is None:
        dtype = "bf16"
        assumed.append("weights in 16 bits: config.json does not say")
    return from_parameters(count, dtype)


def _count(question: Question) -> int | None:
    if question.parameters is None:
        return parameters(question.config)
    found = _PARAMETERS.fullmatch(question.parameters.strip())
    if found is None:
        raise UsageError(f"{question.parameters!r} is no number of parameters: write 7B")
    count = float(found[1]) * _FACTORS[found[2].upper()]
    if not 1 <= count <= MOST_PARAMETERS:
        raise UsageError(f"{question.parameters[:60]!r} is no number of parameters: write 7B")
    return round(count)
