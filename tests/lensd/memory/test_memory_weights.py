"""What weights take: from the headers of their files, and by parameters."""

import json
import struct

import model_shapes
import pytest
from checkout import ROOT

from lensd.errors import UsageError
from lensd.memory.model_dir import read
from lensd.memory.parameters import parameters
from lensd.memory.units import binary, decimal, gib, size
from lensd.memory.weights import from_headers, from_parameters, stored_dtype

of = model_shapes.of


def tensors(path, **shapes):
    """A safetensors file of 2-byte numbers with a header and no data: what is counted stands in the header."""
    at, header = 0, {"__metadata__": {"format": "pt"}}
    for name, shape in shapes.items():
        bytes_ = 2
        for edge in shape:
            bytes_ *= edge
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + bytes_]}
        at += bytes_
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text)
    return at


@pytest.mark.parametrize(
    ("dtype", "told"), [("fp16", "14 GB"), ("bf16", "14 GB"), ("int8", "7 GB"), ("fp8", "7 GB"), ("int4", "3.5 GB"), ("fp32", "28 GB")]
)
def test_seven_billion_parameters(dtype, told):
    assert decimal(from_parameters(7 * 10**9, dtype).total_bytes) == told


def counted(model_type, layers, heads, kv_heads, hidden, feed, vocab, **more):
    return of(model_type, layers, heads, kv_heads, hidden, intermediate_size=feed, vocab_size=vocab, **more)


LATENT = {"kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128}


@pytest.mark.parametrize(
    ("config", "published"),
    [
        # as the models' own pages give the sum over their safetensors files
        (counted("llama", 32, 32, 8, 4096, 14336, 128256), 8_030_261_248),
        (counted("llama", 32, 32, 32, 4096, 11008, 32000), 6_738_415_616),
        (counted("llama", 80, 64, 8, 8192, 28672, 128256), 70_553_706_496),
        (counted("llama", 16, 32, 8, 2048, 8192, 128256, head_dim=64, tie_word_embeddings=True), 1_235_814_400),
        (counted("mistral", 32, 32, 8, 4096, 14336, 32000), 7_241_732_096),
        (counted("mixtral", 32, 32, 8, 4096, 14336, 32000, num_local_experts=8), 46_702_792_704),
        (counted("qwen2", 28, 28, 4, 3584, 18944, 152064), 7_615_616_512),
        (counted("qwen3", 36, 32, 8, 4096, 12288, 151936, head_dim=128), 8_190_735_360),
        (
            counted("qwen3_moe", 48, 32, 4, 2048, 6144, 151936, head_dim=128, num_experts=128, moe_intermediate_size=768),
            30_532_122_624,
        ),
        (
            counted(
                "qwen2_moe", 24, 16, 16, 2048, 5632, 151936, num_experts=60, moe_intermediate_size=1408,
                shared_expert_intermediate_size=5632,
            ),
            14_315_784_192,
        ),
        (counted("gemma2", 42, 16, 8, 3584, 14336, 256000, head_dim=256), 9_241_705_984),
        (counted("gemma3_text", 26, 4, 1, 1152, 6912, 262144, head_dim=256), 999_885_952),
        (counted("phi3", 32, 32, 32, 3072, 8192, 32064), 3_821_079_552),
        (
            counted(
                "deepseek_v2", 27, 16, 16, 2048, 10944, 102400, n_routed_experts=64, n_shared_experts=2, moe_intermediate_size=1408,
                first_k_dense_replace=1, moe_layer_freq=1, **LATENT,
            ),
            15_706_484_224,
        ),
        (
            counted(
                "deepseek_v3", 61, 128, 128, 7168, 18432, 129280, n_routed_experts=256, n_shared_experts=1, moe_intermediate_size=2048,
                first_k_dense_replace=3, moe_layer_freq=1, q_lora_rank=1536, topk_method="noaux_tc", **LATENT,
            ),
            671_026_419_200,
        ),
    ],
)  # fmt: skip
def test_parameters_as_published(config, published):
    assert parameters(config) == published


def test_what_is_not_counted_is_not_guessed():
    assert parameters(of("llama", 4, 8, 2, 64)) is None  # no vocabulary, no feed-forward size
    assert parameters(of("nemotron_h", 4, 8, 2, 64, intermediate_size=64, vocab_size=100)) is None
    assert parameters({}) is None
    assert parameters(of("mixtral", 4, 8, 2, 64, vocab_size=100, num_local_experts=8)) is None


def test_the_headers_of_one_file(tmp_path):
    total = tensors(tmp_path / "model.safetensors", a=[10, 20], b=[30])
    tensors(tmp_path / "consolidated.safetensors", a=[10, 20], b=[30])  # the same weights once more
    found = from_headers(tmp_path)
    assert (found.total_bytes, found.parameters, found.source) == (total, 230, "headers") == (460, 230, "headers")


def test_the_headers_of_an_index_count_each_tensor_once(tmp_path):
    tensors(tmp_path / "model-1.safetensors", a=[10], tied=[7])
    tensors(tmp_path / "model-2.safetensors", b=[20], tied=[7])
    tensors(tmp_path / "left-over.safetensors", c=[1000])
    index = {
        "metadata": {"total_size": 74},
        "weight_map": {"a": "model-1.safetensors", "tied": "model-1.safetensors", "b": "model-2.safetensors"},
    }
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert from_headers(tmp_path).total_bytes == 74
    (tmp_path / "model-2.safetensors").unlink()
    with pytest.raises(UsageError, match=r"model-2\.safetensors"):
        from_headers(tmp_path)


def test_no_files_are_no_weights(tmp_path):
    assert from_headers(tmp_path) is None


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 5\n", "pointer"),
        (b"", "no safetensors"),
        (b"PK\x03\x04 something else", "no safetensors"),
        (struct.pack("<Q", 1 << 40) + b"{}", "no safetensors"),
        (struct.pack("<Q", 4) + b"[12]", "no safetensors"),
        (struct.pack("<Q", 18) + b'{"a": {"dtype":1}}', "no place"),
    ],
)
def test_files_that_hold_no_weights(tmp_path, content, why):
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(UsageError, match=why):
        from_headers(tmp_path)


@pytest.mark.parametrize(
    ("config", "dtype"),
    [
        ({}, "bf16"),
        ({"quantization_config": {"quant_method": "awq", "bits": 4}}, "int4"),
        ({"quantization_config": {"quant_method": "gptq", "bits": 8}}, "int8"),
        ({"quantization_config": {"quant_method": "fp8"}}, "fp8"),
        ({"quantization_config": {"quant_method": "mxfp4"}}, "int4"),
        ({"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True}}, "int4"),
        ({"quantization_config": {"quant_method": "novel"}}, None),
        ({"quantization_config": {"config_groups": {"a": {"weights": {"num_bits": [4], "type": {}}}, "b": 5}}}, None),
        ({"quantization_config": {"quant_method": "bitsandbytes", "load_in_8bit": True}}, "int8"),
        ({"quantization_config": {"quant_method": "modelopt", "quant_algo": "NVFP4"}}, "int4"),
        ({"quantization_config": {"config_groups": {"a": {"weights": {"num_bits": 8, "type": "float"}}}}}, "fp8"),
        ({"quantization_config": {"config_groups": {"a": {"weights": {"num_bits": 8, "type": "int"}}}}}, "int8"),
        (
            {"quantization_config": {"config_groups": {n: {"weights": {"num_bits": n, "type": "int"}} for n in (4, 8)}}},
            None,
        ),
    ],
)
def test_the_type_they_are_stored_in(config, dtype):
    assert stored_dtype(config, "bfloat16") == dtype


def test_a_shape_that_is_none_is_no_number_of_parameters(tmp_path):
    text = json.dumps({"a": {"dtype": "BF16", "shape": ["x", "y"], "data_offsets": [0, 8]}}).encode()
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text)
    assert (from_headers(tmp_path).total_bytes, from_headers(tmp_path).parameters) == (8, 0)


def test_the_tiny_model_of_the_engine():
    folder = ROOT / ".engine" / "model"
    if not (folder / "model.safetensors").is_file():
        pytest.skip("no engine in .engine: `make engine` builds it")
    found = read(str(folder))
    assert found.weights.parameters == parameters(found.config)
    assert found.weights.total_bytes == 2 * found.weights.parameters


@pytest.mark.parametrize(
    ("text", "bytes_"),
    [("24GiB", 24 << 30), ("80GB", 80 * 10**9), ("80 GB", 80 * 10**9), ("1.5MiB", 3 << 19), ("0.5TiB", 1 << 39)],
)
def test_sizes_as_they_are_written(text, bytes_):
    assert size(text) == bytes_


@pytest.mark.parametrize(
    "text", ["", "24", "24G", "24Gib", "24gb", "GiB", "-1GiB", "1e9GiB", "0GiB", "nanGiB", "99999999999TiB", "24 GiB free", "7B"]
)
def test_sizes_that_are_none(text):
    with pytest.raises(UsageError, match="write"):
        size(text)
    assert size("0", least=0) == size("0GiB", least=0) == 0


def test_sizes_as_they_are_told():
    assert [binary(bytes_) for bytes_ in (0, 512, 512 << 10, 1 << 31, 512 << 30, 1 << 40, 1_310_720)] == [
        "0 bytes", "512 bytes", "512 KiB", "2 GiB", "512 GiB", "1 TiB", "1.25 MiB",
    ]  # fmt: skip
    assert gib(80 * 10**9) == "74.51 GiB"
