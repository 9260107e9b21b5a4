"""More context, more requests and wider types never need less, whatever the model."""

import model_shapes
from hypothesis import given, settings
from hypothesis import strategies as st

from lensd.errors import LensdError
from lensd.memory import kv
from lensd.memory.ask import Question, asked
from lensd.memory.facts import derived
from lensd.memory.plan import plan
from lensd.memory.pool import pool
from lensd.memory.serving import Serving, stages
from lensd.memory.shape import Shape
from lensd.memory.text import as_text

SHAPES = {name: Shape.from_config(config) for name, (_, config) in model_shapes.MODELS.items()}
names = st.sampled_from(sorted(SHAPES))
servings = st.builds(
    Serving,
    block_size=st.sampled_from([16, 32, 64, 128]),
    batched_tokens=st.integers(1, 20_000),
    batches=st.integers(1, 3),
    hybrid=st.booleans(),
    prefix_caching=st.booleans(),
)
tokens = st.integers(1, 300_000)
budgets = st.integers(0, 200 << 30)
few = settings(max_examples=200, deadline=None)


def other(serving, **changed):
    given_ = {name: getattr(serving, name) for name in serving.__struct_fields__}
    return Serving(**given_ | changed)


@few
@given(names, servings, tokens, st.integers(0, 5000))
def test_monotone_in_context(name, serving, length, more):
    held = pool(SHAPES[name], serving)
    assert held.request_bytes(length) <= held.request_bytes(length + more)


@few
@given(names, servings, tokens, budgets, st.integers(0, 1 << 30))
def test_monotone_in_memory(name, serving, length, bytes_, more):
    small, large = (kv.capacity(SHAPES[name], serving, size, length) for size in (bytes_, bytes_ + more))
    assert small.blocks <= large.blocks
    assert small.concurrency <= large.concurrency
    assert small.longest <= large.longest
    assert small.fits <= large.fits


@few
@given(names, servings, tokens, budgets, st.integers(0, 5000))
def test_longer_requests_leave_room_for_fewer(name, serving, length, bytes_, more):
    short, long = (kv.capacity(SHAPES[name], serving, bytes_, each) for each in (length, length + more))
    assert short.concurrency >= long.concurrency
    assert short.fits >= long.fits


@few
@given(names, servings, tokens)
def test_monotone_in_dtype(name, serving, length):
    sizes = [kv.bytes_per_token(SHAPES[name], other(serving, kv_dtype=dtype)) for dtype in ("fp8", "bf16", "float32")]
    assert sizes[0] * 4 == sizes[1] * 2 == sizes[2]
    if not any(layer.state for kept in SHAPES[name].layers for layer in kept):
        needs = [kv.request_bytes(SHAPES[name], other(serving, kv_dtype=dtype), length) for dtype in ("fp8", "bf16", "float32")]
        assert needs == sorted(needs)


@few
@given(st.sampled_from(["Llama-3.1-8B", "DeepSeek-V3", "Gemma-3-27B", "gpt-oss-20b"]), servings, tokens)
def test_more_ranks_never_need_more_each(name, serving, length):
    needs = [kv.request_bytes(SHAPES[name], other(serving, tp=tp), length) for tp in (1, 2, 4, 8, 16, 32)]
    assert needs == sorted(needs, reverse=True)
    assert needs[-1] > 0  # heads are held once on each rank at least


@few
@given(names, servings, tokens, budgets)
def test_what_is_said_to_fit_fits(name, serving, length, bytes_):
    held = kv.capacity(SHAPES[name], serving, bytes_, length)
    blocks = pool(SHAPES[name], serving)
    assert held.fits == (held.longest == length)
    if held.longest:
        assert blocks.request_bytes(held.longest) <= held.usable_bytes
    if held.longest < length:
        assert blocks.request_bytes(held.longest + 1) > held.usable_bytes
    assert held.blocks * blocks.block_bytes <= bytes_ < (held.blocks + 1) * blocks.block_bytes


@few
@given(st.integers(1, 200), st.integers(1, 40))
def test_stages_hold_each_layer_once(layers, pp):
    if pp <= layers:
        held = stages(layers, pp)
        assert [number for stage in held for number in stage] == list(range(layers))
        assert max(map(len, held)) - min(map(len, held)) <= 1


KEYS = [
    "model_type", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "hidden_size", "head_dim", "sliding_window",
    "sliding_window_pattern", "layer_types", "hybrid_override_pattern", "no_rope_layers", "no_rope_layer_interval", "attention_chunk_size",
    "kv_lora_rank", "qk_rope_head_dim", "attn_layer_period", "attn_layer_offset", "full_attention_interval", "max_window_layers",
    "use_sliding_window", "max_position_embeddings", "rope_scaling", "torch_dtype", "text_config", "attn_config", "architectures",
    "quantization_config", "vocab_size", "intermediate_size", "num_experts", "mlp_only_layers", "mamba_d_conv", "mamba_expand",
    "attn_layer_indices", "decoder_sparse_step", "n_shared_experts", "tie_word_embeddings", "_name_or_path",
]  # fmt: skip
MODEL_TYPES = [
    "llama",
    "gemma3_text",
    "qwen3_next",
    "jamba",
    "llama4_text",
    "qwen2",
    "deepseek_v3",
    "bamba",
    "nemotron_h",
    "falcon_h1",
    "mixtral",
]
junk = st.one_of(
    st.none(), st.booleans(), st.integers(-3, 64), st.floats(), st.text(max_size=6), st.sampled_from(MODEL_TYPES),
    st.lists(st.one_of(st.integers(-2, 9), st.text(max_size=4), st.none()), max_size=4),
    st.dictionaries(st.sampled_from(["rope_type", "type", "factor", "kv_n_heads", "bits", "num_hidden_layers"]), st.integers(-2, 9)),
)  # fmt: skip
configs = st.builds(
    lambda model_type, plain, more: {**plain, "model_type": model_type, **more},
    st.sampled_from(MODEL_TYPES),
    st.fixed_dictionaries(
        {}, optional={"num_hidden_layers": st.integers(1, 8), "num_attention_heads": st.just(8), "hidden_size": st.just(64)}
    ),
    st.dictionaries(st.sampled_from(KEYS), junk, max_size=5),
)


@settings(max_examples=1500, deadline=None)
@given(configs)
def test_whatever_a_config_says_it_is_a_model_or_refused(config):
    """What is refused is refused in one line and expected: no configuration brings lensd down."""
    question = Question(gpu="24GiB", config=config, context=100, concurrency=2)
    found, refused = None, ""
    try:
        found = plan(asked(question))
    except LensdError as error:
        refused = str(error)
    assert "\n" not in refused
    if found is not None:
        assert found.kv_bytes_per_request > 0
        as_text(found)
    told = {name: str(value) for name, value in config.items()}
    assert all(value.isdecimal() for value in derived(told | {"dtype": "bfloat16", "max_model_len": "100"}).values())
