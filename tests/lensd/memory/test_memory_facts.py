"""What is derived from an engine's own facts, and what is left out where they do not tell."""

import json

import model_shapes
import pytest
from lensd_collectors.read.flags import read_model_config

from lensd.memory import kv
from lensd.memory.facts import NAMES, derived
from lensd.memory.pool import pool
from lensd.memory.serving import Serving
from lensd.memory.shape import Shape

GIB = 1 << 30
LLAMA = {
    "model_type": "llama", "num_hidden_layers": "32", "num_attention_heads": "32", "num_key_value_heads": "8", "hidden_size": "4096",
    "dtype": "bfloat16", "vocab_size": "128256", "intermediate_size": "14336", "max_position_embeddings": "131072",
    "tie_word_embeddings": "false",
}  # fmt: skip
SET = {"max_model_len": "8192", "block_size": "16", "cache_dtype": "auto", "tensor_parallel_size": "1", "kv_cache_bytes": str(10 * GIB)}


def test_all_of_it():
    assert derived(LLAMA | SET) == {
        "kv_bytes_per_token": "131072",
        "kv_block_bytes": str(2 << 20),
        "kv_request_bytes": str(1 << 30),
        "weights_need_bytes": str(2 * 8_030_261_248),
        "fits_max_model_len": "81904",  # one block is the null block
    }


@pytest.mark.parametrize(
    ("changed", "name", "value"),
    [
        ({"max_model_len": "32768"}, "kv_request_bytes", str(4 << 30)),
        ({"tensor_parallel_size": "4"}, "kv_bytes_per_token", "32768"),
        ({"tensor_parallel_size": "2"}, "weights_need_bytes", str(8_030_261_248)),
        ({"cache_dtype": "fp8"}, "kv_bytes_per_token", "65536"),
        ({"block_size": "128"}, "kv_block_bytes", str(16 << 20)),
        ({"engine_version": "0.22.1"}, "fits_max_model_len", "81920"),
        ({"engine_version": "0.32.0"}, "fits_max_model_len", "81904"),
        ({"num_gpu_blocks": "100"}, "fits_max_model_len", str(99 * 16)),
        ({"num_gpu_blocks": "100", "num_gpu_blocks_override": "50"}, "fits_max_model_len", str(49 * 16)),
        ({"max_position_embeddings": "4096"}, "fits_max_model_len", "4096"),
        ({"dtype": "float32"}, "kv_bytes_per_token", "262144"),
        ({"quant_method": "awq", "quant_bits": "4"}, "weights_need_bytes", str(8_030_261_248 // 2)),
    ],
)
def test_each_fact_counts(changed, name, value):
    assert derived(LLAMA | SET | changed)[name] == value


@pytest.mark.parametrize(
    ("facts", "names"),
    [
        ({}, set()),
        ({"max_model_len": "16384", "max_position_embeddings": "131072"}, set()),
        (LLAMA, {"kv_bytes_per_token", "kv_block_bytes", "weights_need_bytes"}),
        ({name: value for name, value in LLAMA.items() if name != "dtype"}, set()),
        (LLAMA | {"dtype": "auto"}, set()),
        ({name: value for name, value in LLAMA.items() if name != "vocab_size"}, {"kv_bytes_per_token", "kv_block_bytes"}),
        (LLAMA | {"model_type": "never_heard_of"}, set()),
        (LLAMA | {"tensor_parallel_size": "3"}, {"weights_need_bytes"}),
        (LLAMA | {"cache_dtype": "int8_per_token_head"}, {"weights_need_bytes"}),
        (LLAMA | {"kv_cache_bytes": "5"}, {"kv_bytes_per_token", "kv_block_bytes", "weights_need_bytes"}),
        (LLAMA | {"num_hidden_layers": "many"}, set()),
    ],
)
def test_what_is_not_told_is_left_out(facts, names):
    found = derived(facts)
    assert set(found) == names
    assert names <= set(NAMES)


@pytest.mark.parametrize("name", sorted(model_shapes.MODELS))
def test_the_same_from_facts_as_from_the_file(name):
    """A config.json as the collectors keep it: facts of one line each, a list of layers as counts."""
    config = model_shapes.MODELS[name][1]
    rows = read_model_config(json.dumps(config), name="config.json").rows
    facts = {row.name: row.value for row in rows}
    shape, serving = Shape.from_config(config), Serving()
    found = derived(facts | {"max_model_len": "4096", "kv_cache_bytes": str(GIB)})
    if "kv_bytes_per_token" not in found:
        assert any(layer.state for kept in shape.layers for layer in kept)  # what decides it is no fact
        return
    assert found["kv_bytes_per_token"] == str(kv.bytes_per_token(shape, serving))
    assert found["kv_request_bytes"] == str(pool(shape, serving).request_bytes(4096))


@pytest.mark.parametrize(
    ("facts", "floor"),
    [
        ({"weights_bytes": str(67 * 10**9), "device_total_bytes": str(81_559 << 20)}, "20.0"),  # an H100 reads 3,350 GB a second
        (LLAMA | {"device_total_bytes": str(24_564 << 20)}, "15.93"),  # from the parameters, on a card of a gamer
        ({"weights_bytes": str(67 * 10**9), "device_total_bytes": str(33 << 30)}, None),  # no card has that much
        ({"device_total_bytes": str(81_559 << 20)}, None),
    ],
)
def test_the_least_that_a_step_takes(facts, floor):
    assert derived(facts).get("decode_floor_ms") == floor
