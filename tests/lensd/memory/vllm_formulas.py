"""Runs in the engine's own environment: what vLLM's own functions say of a model's KV cache. JSON cases on stdin, JSON figures on stdout.

No server and no model: the configuration classes of transformers give the layers, vLLM's specs and planner the bytes and blocks.
"""

import json
import sys
from types import SimpleNamespace as Ns

from transformers import CONFIG_MAPPING, PretrainedConfig
from vllm.config.model import ModelConfig
from vllm.distributed.utils import get_pp_indices
from vllm.model_executor.layers.mamba.mamba_utils import MambaStateDtypeCalculator as Dtypes
from vllm.model_executor.layers.mamba.mamba_utils import MambaStateShapeCalculator as Shapes
from vllm.model_executor.models import ModelRegistry
from vllm.platforms.interface import Platform
from vllm.transformers_utils.model_arch_config_convertor import MODEL_ARCH_CONFIG_CONVERTORS, ModelArchConfigConvertorBase
from vllm.utils.torch_utils import STR_DTYPE_TO_TORCH_DTYPE
from vllm.v1.attention.backend import MultipleOf
from vllm.v1.core import kv_cache_utils as planner
from vllm.v1.kv_cache_interface import (
    ChunkedLocalAttentionSpec,
    FullAttentionSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowSpec,
)
from vllm.v1.kv_cache_layout import KVCacheLayout


class FlashLike:
    """An attention backend that takes blocks of any multiple of 16 and packs nothing."""

    @staticmethod
    def get_supported_kernel_block_sizes():
        return [MultipleOf(16)]

    @staticmethod
    def customize_spec(spec):
        return spec


def figures(case):
    hf = configuration(case["config"])
    text = hf.get_text_config()
    arch = MODEL_ARCH_CONFIG_CONVERTORS.get(hf.model_type, ModelArchConfigConvertorBase)(hf, text).convert()
    dtype = STR_DTYPE_TO_TORCH_DTYPE[str(case["dtype"])]
    cache = torch_dtype(case["kv_dtype"], dtype)
    parallel = Ns(tensor_parallel_size=case["tp"], pipeline_parallel_size=case["pp"], decode_context_parallel_size=1)
    heads = ModelConfig.get_num_kv_heads(Ns(use_mla=arch.is_deepseek_mla, model_arch_config=arch), parallel)
    vllm = settings(case, parallel)
    states = state(hf, text, dtype, case["tp"])
    kinds = layer_kinds(hf, text)
    if states is not None:
        align(vllm, arch, heads, cache, case, states)
    size = vllm.cache_config.block_size
    attention = {"num_kv_heads": heads, "head_size": arch.head_size, "dtype": cache}
    workers = []
    for rank in range(case["pp"]):
        first, end = get_pp_indices(len(kinds), rank, case["pp"])
        specs = {}
        for number in range(first, end):
            for kind in kinds[number]:
                specs[f"layers.{number}.{kind}"] = spec_of(kind, size, attention, text, arch, vllm, states, case)
        workers.append(specs)
    available = case["available_bytes"]
    merged = {name: spec for specs in workers for name, spec in specs.items()}
    groups = planner.get_kv_cache_groups(vllm, dict(merged))
    projected = [planner._project_kv_cache_groups_to_worker(groups, specs) for specs in workers]
    needed = max(planner._max_memory_usage_bytes_from_groups(vllm, each) for each in projected)
    block = max(planner._pool_bytes_per_block(vllm, each) for each in projected)
    memory = available if case["override"] is None else case["override"] * block
    longest = min(planner._estimate_max_model_len_from_groups(vllm, each, memory - block) for each in projected)
    try:
        configs = planner.get_kv_cache_configs(vllm, [dict(specs) for specs in workers], [available] * len(workers))
        scheduler = planner.generate_scheduler_kv_cache_config(configs)
        tokens, concurrency = planner.get_kv_cache_capacity(vllm, scheduler)
        blocks, fits = scheduler.num_blocks, True
    except ValueError as refused:
        if "KV cache" not in str(refused) and "No available memory" not in str(refused):
            raise
        tokens = concurrency = blocks = None
        fits = False
    return {
        "block_bytes": block,
        "block_size": size,
        "need_bytes": needed,
        "longest": longest,
        "fits": fits,
        "blocks": blocks,
        "tokens": tokens,
        "concurrency": concurrency,
    }


def configuration(config):
    known = config["model_type"] in CONFIG_MAPPING  # it looks names up lazily: get() finds none
    kind = CONFIG_MAPPING[config["model_type"]] if known else PretrainedConfig
    made = kind.from_dict({name: value for name, value in config.items() if name not in ("torch_dtype", "quantization_config")})
    made.model_type = config["model_type"]
    if made.get_text_config() is made and "num_hidden_layers" in config:
        assert made.num_hidden_layers == config["num_hidden_layers"]
    return made


def torch_dtype(kv_dtype, model):
    names = {"bf16": "bfloat16", "fp16": "float16"}
    return model if kv_dtype == "auto" else STR_DTYPE_TO_TORCH_DTYPE[names.get(kv_dtype, kv_dtype)]


def settings(case, parallel):
    cache = Ns(
        block_size=case["block_size"], num_gpu_blocks_override=case["override"], prefix_cache_retention_interval=None,
        get_resolved_kv_cache_layout=lambda: KVCacheLayout.LBNHC, mamba_cache_mode="align" if case["prefix_caching"] else "none",
        mamba_block_size=None, mamba_page_size_padded=None, cache_dtype=case["kv_dtype"], use_replayssm=False,
    )  # fmt: skip
    return Ns(
        cache_config=cache, parallel_config=parallel, attention_config=Ns(hisparse_config=None), speculative_config=None,
        model_config=Ns(max_model_len=case["max_model_len"], original_max_model_len=case["max_model_len"]),
        scheduler_config=Ns(disable_hybrid_kv_cache_manager=not case["hybrid"], max_num_batched_tokens=case["batched_tokens"]),
        max_in_flight_tokens=case["batches"] * case["batched_tokens"], num_prefill_lookahead_tokens=0, kv_transfer_config=None,
    )  # fmt: skip


def layer_kinds(hf, text):
    """By the layer types that transformers' own class makes; without any, one window for all (vllm/engine/arg_utils.py)."""
    count = len(getattr(text, "layers_block_type", None) or []) or getattr(text, "num_hidden_layers", None) or text.num_layers
    if hf.model_type.startswith("llama4"):
        local = "chunked_attention" if text.attention_chunk_size else "full_attention"
        return [[local if rope else "full_attention"] for rope in text.no_rope_layers]
    types = getattr(text, "layers_block_type", None) or getattr(text, "layer_types", None)
    if types is None:
        return [["sliding_attention" if getattr(text, "sliding_window", None) else "full_attention"]] * count
    names = {"linear_attention": ["state"], "mamba": ["state"], "attention": ["full_attention"], "moe": [], "mlp": []}
    return [names.get(kind, [kind]) for kind in types]


def state(hf, text, dtype, tp):
    """Shapes and types of a layer's state, as the model classes of vllm/model_executor/models ask for them."""
    if hf.model_type == "jamba":
        shapes = Shapes.mamba1_state_shape(tp, text.mamba_expand * text.hidden_size, text.mamba_d_state, text.mamba_d_conv)
        return shapes, Dtypes.mamba1_state_dtype(dtype, "auto", "auto")
    if hf.model_type == "qwen3_next":
        shapes = Shapes.gated_delta_net_state_shape(
            tp, text.linear_num_key_heads, text.linear_num_value_heads, text.linear_key_head_dim, text.linear_value_head_dim,
            text.linear_conv_kernel_dim,
        )  # fmt: skip
        return shapes, Dtypes.gated_delta_net_state_dtype(dtype, "auto", "auto")
    if hf.model_type == "nemotron_h":
        shapes = Shapes.mamba2_state_shape(
            tp, text.mamba_num_heads * text.mamba_head_dim, text.n_groups, text.mamba_num_heads, text.mamba_head_dim, text.ssm_state_size,
            text.conv_kernel,
        )  # fmt: skip
        return shapes, Dtypes.mamba2_state_dtype(dtype, "auto", getattr(text, "mamba_ssm_cache_dtype", "float32"))
    return None


def align(vllm, arch, heads, cache, case, states):
    """Lets vLLM raise the block size until a block of attention is as large as the state."""

    class Model:
        get_mamba_state_shape_from_config = staticmethod(lambda _: states[0])
        get_mamba_state_dtype_from_config = staticmethod(lambda _: states[1])

    vllm.model_config.use_mla = False
    vllm.model_config.dtype = cache
    vllm.model_config.architecture = "Model"
    vllm.model_config.get_num_kv_heads = lambda _: heads
    vllm.model_config.get_head_size = lambda: arch.head_size
    ModelRegistry.resolve_model_cls = lambda *_, **__: (Model, "Model")
    import contextlib

    import vllm.config.vllm as module

    module.set_current_vllm_config = lambda *_, **__: contextlib.nullcontext()
    original, vllm.cache_config.cache_dtype = vllm.cache_config.cache_dtype, "auto"
    aligner = type("Aligner", (Platform,), {"_find_non_ssm_backends": classmethod(lambda cls, _: [FlashLike])})
    aligner._align_hybrid_block_size(vllm, FlashLike)
    vllm.cache_config.cache_dtype = original


def spec_of(kind, size, attention, text, arch, vllm, states, case):
    if kind == "state":
        return MambaSpec(
            block_size=vllm.cache_config.mamba_block_size or size, shapes=states[0], dtypes=states[1],
            page_size_padded=vllm.cache_config.mamba_page_size_padded, mamba_cache_mode=vllm.cache_config.mamba_cache_mode,
        )  # fmt: skip
    if arch.is_deepseek_mla:
        packed = {"fp8_ds_mla": 656, "nvfp4_ds_mla": 352}.get(case["kv_dtype"])
        return MLAAttentionSpec(block_size=size, cache_dtype_str=case["kv_dtype"], state_content_bytes=packed, **attention)
    if kind == "sliding_attention":
        window = text.sliding_window + (1 if text.model_type == "cohere2" else 0)
        return SlidingWindowSpec(block_size=size, sliding_window=window, **attention)
    if kind == "chunked_attention":
        return ChunkedLocalAttentionSpec(block_size=size, attention_chunk_size=text.attention_chunk_size, **attention)
    assert kind == "full_attention", kind
    return FullAttentionSpec(block_size=size, **attention)


if __name__ == "__main__":
    print(json.dumps([figures(case) for case in json.load(sys.stdin)]))
