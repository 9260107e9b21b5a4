"""The arithmetic of a KV cache, to the byte: worked examples, and what an engine printed at its start."""

import re

import model_shapes
import pytest
from checkout import ROOT

from lensd.errors import EvidenceError, UsageError
from lensd.memory import kv
from lensd.memory.serving import Serving, reserves_null_block, stages
from lensd.memory.shape import Shape

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30
CAPTURES = ROOT / "tests" / "captures" / "vllm-0.32.0"
ONE = Serving(batches=1)


def shape(name):
    return Shape.from_config(model_shapes.MODELS[name][1])


@pytest.mark.parametrize(
    ("name", "serving", "token"),
    [
        ("Llama-3.1-8B", ONE, 131_072),
        ("Llama-2-7B", ONE, 524_288),
        ("Qwen2-7B", ONE, 57_344),
        ("DeepSeek-V3", ONE, 70_272),
        ("DeepSeek-V3", Serving(kv_dtype="fp8"), 35_136),
        ("DeepSeek-V3", Serving(kv_dtype="fp8_ds_mla"), 40_016),
        ("DeepSeek-V3", Serving(tp=8), 70_272),
        ("Gemma-3-27B", ONE, 507_904),
        ("gpt-oss-20b", ONE, 49_152),
        ("Llama-2-7B", Serving(kv_dtype="int8"), 262_144),
        ("Llama-3.1-8B", Serving(tp=2), 65_536),
        ("Qwen2-7B", Serving(tp=2), 28_672),
        ("Qwen2-7B", Serving(tp=4), 14_336),
        ("Qwen2-7B", Serving(tp=28), 14_336),
        ("Llama-3.1-8B", Serving(pp=2), 65_536),
    ],
)
def test_bytes_of_a_token(name, serving, token):
    assert kv.bytes_per_token(shape(name), serving) == token


@pytest.mark.parametrize(
    ("name", "growth"), [("Gemma-3-27B", 81_920), ("gpt-oss-20b", 24_576), ("Mistral-7B-v0.1", 0), ("Llama-2-7B", 524_288)]
)
def test_beyond_its_windows_only_full_attention_grows(name, growth):
    assert kv.growth_per_token(shape(name), ONE) == growth


@pytest.mark.parametrize(
    ("name", "serving", "block"),
    [
        ("Llama-3.1-8B", ONE, 2 * MIB),
        ("Llama-2-7B", ONE, 8 * MIB),
        ("Qwen2-7B", ONE, 896 * KIB),
        ("DeepSeek-V3", Serving(block_size=64), 4_497_408),
        ("Gemma-3-27B", ONE, 1_310_720),
        ("Mistral-7B-v0.1", ONE, 2 * MIB),
    ],
)
def test_bytes_of_a_block(name, serving, block):
    assert kv.block_bytes(shape(name), serving) == block


@pytest.mark.parametrize(
    ("name", "serving", "tokens", "gib"),
    [
        ("Llama-3.1-8B", ONE, 8192, 1.0),
        ("Llama-3.1-8B", ONE, 131_072, 16.0),
        ("Llama-2-7B", ONE, 4096, 2.0),
        ("Llama-2-7B", ONE, 32_768, 16.0),
        ("Llama-2-7B", ONE, 1_048_576, 512.0),
        ("Llama-2-7B", Serving(kv_dtype="int8"), 4096, 1.0),
        ("Qwen2-7B", ONE, 32_768, 1.75),
        ("DeepSeek-V3", Serving(block_size=64, tp=8), 163_840, 10.72),
        ("Gemma-3-27B", ONE, 8192, 4.38),
        ("Gemma-3-27B", ONE, 32_768, 6.73),
        ("Gemma-3-27B", ONE, 131_072, 14.23),
        ("Gemma-3-27B", Serving(hybrid=False), 8192, 3.88),
        ("Gemma-3-27B", Serving(hybrid=False), 32_768, 15.5),
        ("Gemma-3-27B", Serving(hybrid=False), 131_072, 62.0),
        ("Mistral-7B-v0.1", Serving(batches=1, batched_tokens=2048), 32_768, 0.75),
    ],
)
def test_bytes_of_a_request(name, serving, tokens, gib):
    assert round(kv.request_bytes(shape(name), serving, tokens) / GIB, 2) == gib


def test_a_request_takes_whole_blocks():
    model = shape("Llama-2-7B")
    assert kv.request_bytes(model, ONE, 1) == kv.request_bytes(model, ONE, 16) == 8 * MIB
    assert kv.request_bytes(model, ONE, 17) == 16 * MIB


def test_many_requests():
    each = shape("Llama-2-7B")
    assert 32 * kv.request_bytes(each, ONE, 4096) == 64 * GIB
    assert 100 * kv.request_bytes(each, ONE, 2048) == 100 * GIB


def printed(name):
    """Tokens, longest request and concurrency that a captured start-up log gives, or what it says where the engine refuses."""
    text = (CAPTURES / name).read_text()
    said = re.search(r"KV cache size: ([\d,]+) tokens, Maximum concurrency for ([\d,]+) tokens per request: ([\d.]+)x", text)
    if said:
        tokens, length = (int(number.replace(",", "")) for number in said.groups()[:2])
        return tokens, length, float(said[3])
    refused = re.search(
        r"max seq len \((\d+)\), \(([\d.]+) GiB KV.*?memory \(([\d.]+) GiB\).*?maximum model length is (\d+)", text, re.DOTALL
    )
    return int(refused[1]), float(refused[2]), float(refused[3]), int(refused[4])


def tiny(layers, heads, size):
    """A small model, one of those that the captures were made with."""
    return Shape.from_config(model_shapes.of("llama", layers, heads, heads, heads * size, head_dim=size))


CPU = Serving(block_size=128, batches=1)


def test_a_real_start_is_predicted():
    """VLLM_CPU_KVCACHE_SPACE=1, 4 KiB and 512 bytes a token: what is printed is computed."""
    tokens, length, concurrency = printed("startup-http-otlp-compile.log")
    held = kv.capacity(tiny(2, 2, 32), CPU, GIB, length, version="0.32.0")
    assert (held.tokens, held.concurrency, held.blocks) == (tokens, concurrency, 16_384)


def test_an_override_decides_the_blocks():
    """With `--num-gpu-blocks-override 9` vLLM 0.32.0 printed 1,152 tokens, and 2.25x for 512 tokens a request."""
    held = kv.capacity(tiny(2, 2, 32), CPU, GIB, 512, version="0.32.0", blocks_override=9)
    assert (held.tokens, held.concurrency, held.blocks) == (1152, 2.25, 9)
    assert held.usable_bytes == 8 * 128 * 512


def test_a_real_refusal_is_predicted():
    length, need, have, estimate = printed("startup-err-kv-too-small.log")
    model = tiny(8, 2, 64)
    assert kv.bytes_per_token(model, CPU) == 4096
    held = kv.capacity(model, CPU, GIB, length, version="0.32.0")
    assert not held.fits
    assert (round(held.need_bytes / GIB, 2), round(held.usable_bytes / GIB, 2)) == (need, have)
    assert held.longest == estimate == 262_016
    assert held.blocks == 2048  # the null block is among them


def test_the_null_block_by_version():
    model = tiny(8, 2, 64)
    assert [reserves_null_block(version) for version in ("0.33.0", "0.32.0", "v0.32.1", "0.22.1", "0.6.6", "0.27.1", None, "x")] == [
        True, True, True, False, False, None, None, None,
    ]  # fmt: skip
    assert kv.capacity(model, CPU, GIB, 300_000, version="0.22.1").longest == 262_144
    assert kv.capacity(model, CPU, GIB, 262_144, version="0.22.1").fits
    for version in ("0.32.0", None):  # not known: the smaller figure
        assert kv.capacity(model, CPU, GIB, 300_000, version=version).longest == 262_016
        assert not kv.capacity(model, CPU, GIB, 262_144, version=version).fits


def test_nothing_fits_into_nothing():
    held = kv.capacity(shape("Llama-3.1-8B"), ONE, 0, 4096)
    assert (held.blocks, held.tokens, held.concurrency, held.fits, held.longest) == (0, 0, 0.0, False, 0)


@pytest.mark.parametrize(
    ("name", "serving"), [("Llama-3.1-8B", Serving(tp=3)), ("Qwen2-7B", Serving(tp=14)), ("Llama-3.1-8B", Serving(pp=33))]
)
def test_ranks_that_the_engine_refuses(name, serving):
    with pytest.raises(UsageError, match=r"parallel|stages"):
        kv.bytes_per_token(shape(name), serving)


def test_settings_that_are_none():
    for changed in ({"tp": 0}, {"block_size": 0}, {"batched_tokens": -1}):
        with pytest.raises(UsageError, match=next(iter(changed))):
            Serving(**changed)


def test_a_type_with_scales_in_it_is_not_guessed():
    with pytest.raises(EvidenceError, match="int8_per_token_head"):
        kv.bytes_per_token(shape("Llama-3.1-8B"), Serving(kv_dtype="int8_per_token_head"))


def test_pipeline_stages_as_the_engine_makes_them():
    assert [len(stage) for stage in stages(61, 4)] == [15, 15, 16, 15]
    assert [len(stage) for stage in stages(32, 3)] == [11, 11, 10]
    assert [number for stage in stages(10, 4) for number in stage] == list(range(10))
