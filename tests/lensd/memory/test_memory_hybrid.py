"""Which layers keep what: windows, chunks, states and latent vectors, and what is not guessed."""

import model_shapes
import pytest

from lensd.errors import EvidenceError, UsageError
from lensd.memory import kv
from lensd.memory.pool import pool
from lensd.memory.serving import Serving
from lensd.memory.shape import Kind, Shape

of = model_shapes.of


def counts(config):
    found = {}
    for kept in Shape.from_config(config).layers:
        for layer in kept or (None,):
            found[layer and layer.kind.value] = found.get(layer and layer.kind.value, 0) + 1
    return found


@pytest.mark.parametrize(
    ("config", "kinds"),
    [
        (model_shapes.MODELS["Gemma-3-27B"][1], {"full_attention": 10, "sliding_attention": 52}),
        (model_shapes.MODELS["gpt-oss-20b"][1], {"full_attention": 12, "sliding_attention": 12}),
        (model_shapes.MODELS["Llama-4-Scout"][1], {"full_attention": 12, "chunked_attention": 36}),
        (model_shapes.MODELS["Qwen3-Next-80B-A3B"][1], {"full_attention": 12, "state": 36}),
        (model_shapes.MODELS["Jamba-v0.1"][1], {"full_attention": 4, "state": 28}),
        (model_shapes.MODELS["Nemotron-Nano-9B-v2"][1], {"full_attention": 4, "state": 27, None: 25}),
        (model_shapes.MODELS["Kimi-K2"][1], {"latent_attention": 61}),
        (of("mistral", 4, 8, 2, 64, sliding_window=None), {"full_attention": 4}),
        (of("mistral", 4, 8, 2, 64, sliding_window=0), {"full_attention": 4}),
        (of("mistral", 4, 8, 2, 64, sliding_window=32), {"sliding_attention": 4}),
        (of("qwen2", 4, 8, 2, 64, sliding_window=32, use_sliding_window=False), {"full_attention": 4}),
        (of("qwen2", 4, 8, 2, 64, sliding_window=32, use_sliding_window=True, max_window_layers=4), {"full_attention": 4}),
        (of("qwen2", 4, 8, 2, 64, sliding_window=32, use_sliding_window=True, max_window_layers=0), {"sliding_attention": 4}),
        (of("cohere2", 4, 8, 2, 64, sliding_window=32), {"full_attention": 1, "sliding_attention": 3}),
        (
            of("new", 4, 8, 2, 64, sliding_window=8, layer_types=["full_attention", "sliding_attention"] * 2),
            {"full_attention": 2, "sliding_attention": 2},
        ),
        (
            of("falcon_h1", 2, 8, 2, 64, mamba_d_state=4, mamba_d_conv=4, mamba_n_heads=8, mamba_d_head=8, mamba_n_groups=1),
            {"full_attention": 2, "state": 2},
        ),
        ({"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 64}, {"full_attention": 2}),
        (
            {"architectures": ["LlamaForCausalLM"], "num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 64},
            {"full_attention": 2},
        ),
    ],
)  # fmt: skip
def test_what_each_layer_keeps(config, kinds):
    assert counts(config) == kinds


@pytest.mark.parametrize(
    ("config", "why"),
    [
        (of("never_heard_of", 4, 8, 2, 64), "never_heard_of"),
        (of("never_heard_of", 4, 8, 2, 64, kv_lora_rank=16), "latent"),
        (of("qwen2", 4, 8, 2, 64, sliding_window=32, use_sliding_window=True, max_window_layers=2), "window"),
        (of("deepseek_v32", 4, 8, 8, 64, kv_lora_rank=16, qk_rope_head_dim=8, index_topk=64), "index"),
        (of("llama", 4, 8, 2, 64, layer_types=["full_attention", "novel_attention"] * 2), "novel_attention"),
        (of("jamba", 8, 8, 2, 64), "conv_kernel"),
        (of("nemotron-nas", 4, 8, 2, 64, block_configs=[{}]), "blocks"),
        ({"num_hidden_layers": 2, "hidden_size": 64, "state_size": 16, "conv_kernel": 4}, "layer_types"),
        ({"model_type": "llama", "num_hidden_layers": 2, "hidden_size": 64}, "num_attention_heads"),
        (of("gemma3", 4, 8, 2, 64, layer_types=["sliding_attention"] * 4), "sliding_window"),
    ],
)
def test_what_cannot_be_told_is_not_guessed(config, why):
    with pytest.raises(EvidenceError, match=why):
        Shape.from_config(config)


@pytest.mark.parametrize(
    "config",
    [
        {},
        {"hello": "world"},
        of("llama", 0, 8, 2, 64),
        of("llama", -3, 8, 2, 64),
        of("llama", "many", 8, 2, 64),
        of("llama", 10**9, 8, 2, 64),
        of("llama", 4, 8, 2, 64, layer_types=["full_attention"] * 3),
        of("llama", 4, 8, 2, 64, layer_types="full"),
        of("llama", True, 8, 2, 64),
    ],
)
def test_what_is_no_model(config):
    with pytest.raises(UsageError, match=r"config\.json"):
        Shape.from_config(config)


def test_kv_heads_by_their_many_names():
    def heads(**config):
        return Shape.from_config({"num_hidden_layers": 1, "num_attention_heads": 8, "hidden_size": 64, **config}).layers[0][0].heads

    assert heads(model_type="llama") == 8
    assert heads(model_type="llama", num_key_value_heads=None) == 8
    assert heads(model_type="chatglm", multi_query_group_num=2) == 2
    assert heads(model_type="falcon", n_head_kv=4) == 4
    assert heads(model_type="falcon", multi_query=True) == 1
    assert heads(model_type="falcon", multi_query=True, new_decoder_architecture=True, num_kv_heads=2) == 2
    assert heads(model_type="dbrx", attn_config={"kv_n_heads": 4}) == 4
    assert heads(model_type="llama", num_key_value_heads=[2]) == 2


def test_heads_that_differ_by_layer_add_up():
    model = Shape.from_config(of("llama", 3, 8, [1, 2, 4], 64))
    assert kv.bytes_per_token(model, Serving()) == (1 + 2 + 4) * 2 * 8 * 2
    assert kv.block_bytes(model, Serving(block_size=16)) == (1 + 2 + 4) * 2 * 8 * 2 * 16


def test_layers_of_several_kinds_and_sizes_are_not_guessed():
    mixed = of("llama", 4, 8, [1, 2, 1, 2], 64, sliding_window=8, layer_types=["full_attention", "sliding_attention"] * 2)
    with pytest.raises(EvidenceError, match="sizes"):
        pool(Shape.from_config(mixed), Serving())


def test_a_state_takes_the_same_however_long_the_request():
    model = Shape.from_config(model_shapes.MODELS["Qwen3-Next-80B-A3B"][1])
    held = pool(model, Serving())
    states = [group for group in held.groups if group.kind is Kind.STATE]
    assert len(states) == 3
    grown = held.request_blocks(100_000) - held.request_blocks(10_000)
    assert grown == -(-100_000 // held.groups[0].block_size) - -(-10_000 // held.groups[0].block_size)
    assert held.groups[0].block_size == 544  # as large as the state


def test_positions_and_their_scaling():
    def positions(**config):
        return Shape.from_config({**of("llama", 1, 8, 8, 64), **config}).positions

    assert positions() is None
    assert positions(max_position_embeddings=4096) == 4096
    assert positions(max_position_embeddings=32_768, rope_scaling={"type": "dynamic", "factor": 2.0}) == 65_536
    assert positions(max_position_embeddings=131_072, rope_scaling={"rope_type": "llama3", "factor": 8.0}) == 131_072
    assert positions(max_position_embeddings=131_072, rope_scaling={"rope_type": "yarn", "factor": 4.0}) == 131_072
    assert positions(seq_length=8192, max_position_embeddings=4096) == 4096


def test_float32_is_served_in_16_bits():
    assert Shape.from_config(of("llama", 1, 8, 8, 64, "float32")).dtype == "bfloat16"
    assert Shape.from_config(of("llama", 1, 8, 8, 64, "torch.float16")).dtype == "float16"
