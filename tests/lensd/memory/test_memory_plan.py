"""The plan: what is needed, what fits, what is refused, and how it is told."""

import re

import model_shapes
import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lensd_collectors.client.budget import budget

from lensd.errors import EvidenceError, UsageError
from lensd.memory.ask import Question, asked
from lensd.memory.catalogue import KNOWN, card
from lensd.memory.lengths import Lengths
from lensd.memory.plan import context_for, plan, recommended_concurrency, safe_utilization
from lensd.memory.sheet import as_markdown
from lensd.memory.text import as_text
from lensd.memory.weights import Weights

GIB = 1 << 30
SEVEN = model_shapes.of("llama", 32, 32, 32, 4096, "float16", intermediate_size=11008, vocab_size=32000, max_position_embeddings=1 << 21)
EIGHT = model_shapes.of("llama", 32, 32, 8, 4096, intermediate_size=14336, vocab_size=128256, max_position_embeddings=131072)
MEASURED = Lengths(
    requests=500,
    tokens_p50=700,
    tokens_p95=1800,
    tokens_p99=2000,
    tokens_max=2100,
    samples=100,
    running_p99=6,
    ttft_p95_s=0.4,
    tpot_p95_s=0.03,
)


def ask(config=SEVEN, gpu="80GB", context=4096, lengths=None, stored=None, **more):
    return asked(Question(gpu=gpu, config=config, context=context, **more), stored, lengths)


def made(*args, **more):
    return plan(ask(*args, **more))


def test_the_figures_of_a_small_model():
    """32 layers of 4096 in 16 bits: 512 KiB a token, 2 GiB at 4,096, 16 GiB at 32,768, 512 GiB at a million."""
    assert made().kv_bytes_per_token == 512 << 10
    assert made().kv_bytes_per_request == 2 * GIB
    assert made(context=32_768).kv_bytes_per_request == 16 * GIB
    assert made(concurrency=32).kv_bytes_total == 64 * GIB
    assert made(context=2048, concurrency=100).kv_bytes_total == 100 * GIB
    assert made(kv_dtype="int8").kv_bytes_per_token == made(kv_dtype="fp8").kv_bytes_per_token == 256 << 10
    never = made(context=1 << 20)
    assert (never.kv_bytes_per_request, never.never, never.fits, never.max_concurrency) == (512 * GIB, True, False, 0)
    assert "never" in never.reasons[0]
    assert "512 GiB" in never.reasons[0]


def test_forty_gib_left_at_two_each_are_twenty_and_fifteen_are_recommended():
    found = made(gpu="60GiB", utilization=1.0, weights="20GiB", overhead="0GiB")
    assert (found.kv_budget_bytes, found.kv_bytes_per_request) == (40 * GIB, 2 * GIB)
    assert (found.max_concurrency, found.recommended_concurrency, found.engine_concurrency) == (20, 15, 20.0)
    assert [recommended_concurrency(most) for most in (0, 1, 2, 3, 4, 20)] == [0, 1, 1, 2, 3, 15]


def test_what_fits_and_what_does_not():
    assert made(gpu="60GiB", utilization=1.0, weights="20GiB", overhead="0GiB", concurrency=20).fits
    over = made(gpu="60GiB", utilization=1.0, weights="20GiB", overhead="0GiB", concurrency=21)
    assert over.fits is False
    assert over.max_context < 4096
    assert made(gpu="60GiB", utilization=1.0, weights="20GiB", overhead="0GiB", concurrency=21, context=over.max_context).fits
    assert not made(gpu="60GiB", utilization=1.0, weights="20GiB", overhead="0GiB", concurrency=21, context=over.max_context + 1).fits
    assert over.flags["--max-model-len"] <= over.max_context


def test_one_request_has_all_but_the_null_block():
    exact = {"gpu": "22GiB", "utilization": 1.0, "weights": "20GiB", "overhead": "0GiB"}
    assert made(**exact).max_concurrency == 1
    assert made(**exact).fits is False
    assert made(**exact, engine_version="0.22.0").fits is True
    assert made(**exact, context=4080).fits is True


def test_weights_that_are_too_large():
    found = made(gpu="L4", context=512, config=model_shapes.of("llama", 80, 64, 8, 8192, intermediate_size=28672, vocab_size=128256))
    assert found.kv_budget_bytes < 0
    assert (found.fits, found.max_concurrency, found.flags) == (False, 0, {})
    assert "weights" in found.reasons[0]
    assert any(variant.weights_dtype == "int4" for variant in found.variants)


def test_weights_that_are_not_known_are_no_zero():
    found = made(config=model_shapes.of("llama", 32, 32, 32, 4096))
    assert (found.weights_bytes, found.kv_budget_bytes, found.fits, found.max_concurrency, found.max_context) == (None,) * 5
    assert found.kv_bytes_per_request == 2 * GIB
    assert any("--parameters" in line for line in found.assumed)
    assert "could not tell" in as_text(found)
    for more in ({"context": 1 << 20}, {"context": 4096, "concurrency": 40}):  # too much, whatever they are
        assert made(config=model_shapes.of("llama", 32, 32, 32, 4096), **more).fits is False


@pytest.mark.parametrize(
    ("more", "bytes_"),
    [
        ({"parameters": "7B"}, 14 * 10**9),
        ({"parameters": "7B", "weights_dtype": "int4"}, 35 * 10**8),
        ({"parameters": "7B", "weights_dtype": "fp8"}, 7 * 10**9),
        ({"weights": "14GB"}, 14 * 10**9),
        ({"parameters": "7B", "tp": 2}, 7 * 10**9),
        ({}, 2 * 6_738_415_616),
        ({"stored": Weights(total_bytes=13 * 10**9, source="headers", dtype="F16")}, 13 * 10**9),
        ({"stored": Weights(total_bytes=26 * 10**9, source="headers", dtype="F32")}, 2 * 6_738_415_616),
        ({"stored": Weights(total_bytes=13 * 10**9, source="headers", dtype="F16"), "weights_dtype": "int4"}, 6_738_415_616 // 2),
    ],
)
def test_where_the_weights_come_from(more, bytes_):
    assert made(**more).weights_bytes == bytes_


def test_a_context_beyond_the_models_positions_is_told():
    found = made(config=SEVEN | {"max_position_embeddings": 4096}, context=8192)
    assert found.fits is False
    assert "made for 4,096 tokens" in found.reasons[0]
    assert found.kv_bytes_per_request == 4 * GIB
    assert found.max_context <= 4096


def test_the_bands_are_the_card():
    for found in (made(), made(concurrency=3, tp=2), made(gpu="L40S", parameters="7B", context=512)):
        assert sum(part.bytes for part in found.memory) == found.gpu.total_bytes


def test_settings_are_safe():
    found = made(config=EIGHT, gpu="H100", context=8192, concurrency=32)
    assert found.flags == {"--max-model-len": 8192, "--max-num-seqs": found.recommended_concurrency, "--gpu-memory-utilization": 0.9}
    assert made(kv_dtype="int8", tp=2, pp=2).flags.items() >= {
        "--kv-cache-dtype": "int8_per_token_head", "--tensor-parallel-size": 2, "--pipeline-parallel-size": 2,
    }.items()  # fmt: skip
    assert safe_utilization(24 * GIB, 0.99) == 0.97
    assert safe_utilization(80 * GIB, 0.95) == 0.95
    assert made(config=EIGHT, gpu="24GiB", context=64).flags["--max-num-seqs"] == 256


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from([SEVEN, EIGHT, model_shapes.MODELS["Gemma-3-27B"][1]]),
    st.sampled_from(["16GiB", "24GiB", "80GB", "H200"]),
    st.integers(1, 200_000),
    st.integers(1, 300),
    st.sampled_from(["4B", "8B", "27B"]),
    st.sampled_from(["auto", "fp8"]),
    st.sampled_from([0.5, 0.9, 0.99, 1.0]),
)
def test_settings_that_are_called_safe_fit(config, gpu, context, concurrency, parameters, kv_dtype, utilization):
    question = {"config": config, "gpu": gpu, "parameters": parameters, "kv_dtype": kv_dtype, "overhead": "1GiB"}
    found = made(**question, context=context, concurrency=concurrency, utilization=utilization)
    share = safe_utilization(found.gpu.total_bytes, utilization)
    shared = made(**question, context=context, concurrency=concurrency, utilization=share)
    assert bool(shared.max_context and shared.recommended_concurrency) <= bool(found.flags)
    if found.flags:
        assert found.flags["--gpu-memory-utilization"] == share <= utilization
        again = made(**question, context=found.flags["--max-model-len"], concurrency=found.flags["--max-num-seqs"], utilization=share)
        assert again.fits
    if found.fits:
        assert context <= found.max_context
        assert concurrency <= found.max_concurrency


def test_settings_fit_by_the_share_that_they_name():
    """All of a card is never named: what fits only then is cut, and that is said."""
    question = ask(gpu="24GiB", utilization=1.0, weights="20GiB", overhead="0GiB", context=8000)
    found = plan(question)
    assert (found.fits, found.flags["--gpu-memory-utilization"]) == (True, 0.97)
    assert found.flags["--max-model-len"] == int((0.97 * 24 - 20) * GIB) // found.kv_block_bytes // 2 * 16 < 8000
    told = "what was asked for fits only with more of the card than 0.97"
    assert told in as_text(found)
    assert told in as_markdown(question, found)
    whole = made(gpu="60GiB", utilization=1.0, weights="20GiB", overhead="0GiB", concurrency=20)
    assert whole.flags == {"--max-model-len": 4096, "--max-num-seqs": 15, "--gpu-memory-utilization": 0.99}
    tight = made(gpu="24GiB", utilization=1.0, weights="23.5GiB", overhead="0GiB", context=500)
    assert (tight.fits, tight.flags) == (True, {})
    assert "none: no request" in as_text(tight)


def test_settings_that_the_plan_rests_on_are_among_the_flags():
    found = made(gpu="H100", max_num_batched_tokens=2048, block_size=32).flags
    assert (found["--max-num-batched-tokens"], found["--block-size"]) == (2048, 32)
    assert not {"--max-num-batched-tokens", "--block-size"} & made(gpu="H100", max_num_batched_tokens=8192, block_size=16).flags.keys()


def test_a_name_that_a_stranger_gave_is_no_command():
    question = ask(model="x; rm -rf ~")
    assert "vllm serve 'x; rm -rf ~' --max-model-len" in as_markdown(question, plan(question))


def test_words_of_no_use_are_no_bug():
    assert made(engine_version=f"0.{'9' * 5000}").fits
    assert "\n" not in made(gpu="24\nGiB").gpu.name


def test_a_quantisation_that_is_not_known_is_not_taken_for_16_bits():
    found = made(config=SEVEN | {"quantization_config": {"quant_method": "novel"}})
    assert (found.weights_bytes, found.fits) == (None, None)
    assert any("quantisation" in line for line in found.assumed)
    packed = {"quant_method": "compressed-tensors", "config_groups": {"group_0": {"weights": {"num_bits": 4, "type": "int"}}}}
    assert made(config=SEVEN | {"quantization_config": packed}).weights_bytes == 6_738_415_616 // 2


def test_a_limit_lets_the_longest_request_in():
    """The 99th of 100 requests decides what is planned for; the hundredth is not to be refused for it."""
    found = plan(ask(config=EIGHT, gpu="H100", context=None, lengths=msgspec.structs.replace(MEASURED, tokens_max=5000)))
    assert (found.context, found.flags["--max-model-len"]) == (2000, 5120)
    found = plan(ask(config=EIGHT, gpu="H100", context=None, lengths=msgspec.structs.replace(MEASURED, tokens_max=131_000)))
    assert found.flags["--max-model-len"] == 131_072
    assert made(config=EIGHT, gpu="H100", context=3000, lengths=MEASURED).flags["--max-model-len"] == 3000


def test_the_timeouts_are_the_clients():
    found = made(max_tokens=500).timeouts
    assert (found.connect_s, found.read_s, found.total_s) == budget(500, 2.0, 0.1)
    assert not found.measured
    found = made(lengths=MEASURED, max_tokens=500).timeouts
    assert (found.connect_s, found.read_s, found.total_s) == budget(500, 0.4, 0.03)
    assert found.measured


def test_what_is_left_open_is_taken_from_the_store():
    found = ask(context=None, lengths=MEASURED)
    assert (found.context, found.concurrency) == (2000, 6)
    assert any("measured over 500 requests" in line for line in found.assumed)
    with pytest.raises(UsageError, match="not measured: 29 settled requests"):
        ask(context=None, lengths=Lengths(requests=29))
    with pytest.raises(UsageError, match="give --context"):
        ask(context=None)


def test_a_conversation():
    assert context_for(5, 200) == 4096  # 5 questions and 5 answers of 200: 2,000 tokens
    assert context_for(20, 200) == 8192
    assert context_for(512, 4) == 4096
    assert context_for(1025, 4) == 16_384
    assert ask(context=None, turns=5, turn_tokens=200).context == 4096
    for wrong in ((0, 5), (5, 0), (-1, 5), (10**9, 10**9)):
        with pytest.raises(UsageError):
            context_for(*wrong)


@pytest.mark.parametrize(
    ("more", "why"),
    [
        ({"context": 0}, "context of 0"),
        ({"context": -5}, "context of -5"),
        ({"concurrency": 0}, "0 requests"),
        ({"concurrency": 10**9}, "requests at once"),
        ({"utilization": 0.0}, "utilization of 0"),
        ({"utilization": 1.01}, "utilization of 1.01"),
        ({"utilization": float("nan")}, "utilization of nan"),
        ({"tp": 0}, "tp = 0"),
        ({"tp": 3}, "does not divide"),
        ({"tp": 10**9}, "ranks"),
        ({"pp": 33}, "stage would be empty"),
        ({"gpu": "A100"}, "A100 40GB, A100 80GB"),
        ({"gpu": "Voodoo 2"}, "Voodoo 2"),
        ({"gpu": ""}, "no card"),
        ({"gpu": "24G"}, "24G"),
        ({"gpu": "0GiB"}, "0GiB"),
        ({"kv_dtype": "int3"}, "int3"),
        ({"weights_dtype": "q4_K_M"}, "q4_K_M"),
        ({"parameters": "seven"}, "seven"),
        ({"parameters": "0B"}, "0B"),
        ({"parameters": "9" * 400}, "no number of parameters"),
        ({"gpu": "9" * 400 + "GiB"}, "no size of a memory"),
        ({"weights": "9" * 400 + "GiB"}, "no size of a memory"),
        ({"config": SEVEN | {"rope_scaling": {"type": "linear", "factor": float("inf")}}}, "factor"),
        ({"config": SEVEN | {"rope_scaling": {"type": "linear", "factor": float("nan")}}}, "factor"),
        ({"config": SEVEN | {"rope_scaling": {"type": "linear", "factor": -2}}}, "factor"),
        ({"weights": "7B"}, "7B"),
        ({"max_tokens": 5000}, "do not go into"),
        ({"max_tokens": 0}, "0 tokens"),
        ({"turns": 5, "turn_tokens": 200}, "without a context"),
        ({"turns": 5, "context": None}, "go together"),
        ({"block_size": 0}, "block_size"),
        ({"max_num_batched_tokens": -1}, "batched_tokens"),
        ({"config": {"a": 1}}, "no model's"),
    ],
)
def test_nonsense_is_refused_in_one_line(more, why):
    with pytest.raises(UsageError, match=re.escape(why)) as refused:
        made(**more)
    assert "\n" not in str(refused.value)


def test_an_architecture_that_is_not_known_is_not_guessed():
    with pytest.raises(EvidenceError, match="could not tell"):
        made(config=SEVEN | {"model_type": "never_heard_of"})


def test_cards_by_name():
    assert card("h100").total_bytes == card("NVIDIA H100 80GB HBM3").total_bytes == round(79.19 * GIB)
    assert card("a100-80gb").name == card("A100 SXM4 80GB").name == "A100 80GB"
    assert card("rtx 4090").name == card("NVIDIA GeForce RTX 4090").name == "RTX 4090"
    assert card("Tesla T4").name == "T4"
    assert card("24 GiB").total_bytes == 24 * GIB
    for name in KNOWN:
        assert card(name).name == name
        if "GB" in name:  # what it is called is more than what it has
            assert card(name).total_bytes <= int(re.search(r"(\d+)GB", name)[1]) * GIB


def test_the_keys_of_the_document():
    document = msgspec.to_builtins(made(concurrency=2))
    assert document.keys() >= {
        "kv_bytes_per_token", "kv_bytes_per_request", "kv_bytes_total", "weights_bytes", "kv_budget_bytes", "fits", "max_concurrency",
        "recommended_concurrency", "max_context", "timeouts", "flags", "schema_version",
    }  # fmt: skip
    assert document["timeouts"].keys() >= {"connect_s", "read_s", "total_s"}


ANSWERS = [
    {},
    {"gpu": "A100 80GB", "concurrency": 12, "tp": 2},
    {"gpu": "80GB", "context": 1 << 20},
    {"config": model_shapes.MODELS["Gemma-3-27B"][1], "parameters": "27B", "gpu": "H200", "context": 100_000},
    {"config": model_shapes.MODELS["Nemotron-Nano-9B-v2"][1], "parameters": "9B", "weights_dtype": "int4", "gpu": "L4"},
    {"config": model_shapes.of("llama", 32, 32, 32, 4096)},
    {"gpu": "16GB", "context": 200, "lengths": MEASURED},
    {"config": SEVEN | {"max_position_embeddings": 2048}, "context": 4096},
]


@pytest.mark.parametrize("more", ANSWERS)
def test_no_line_mixes_units(more):
    question = ask(**more)
    found = plan(question)
    for line in [*as_text(found).splitlines(), *as_markdown(question, found).splitlines(), *found.reasons, *found.assumed]:
        assert not (re.search(r"\b[KMGT]iB\b", line) and re.search(r"\d\s*[kMGT]B\b", line)), line
        assert len(line) < 400
        assert "None" not in line


def test_the_order_of_the_answer():
    told = as_text(made(concurrency=2))
    heads = [line for line in told.splitlines() if line and not line.startswith(" ")][1:]
    assert heads == [
        "What is needed", "What fits", "With other types", "Where the memory goes, on each card", "Safe settings", "Client timeouts",
        "Taken for given",
    ]  # fmt: skip


def test_the_sheet_says_what_breaks():
    question = ask(config=EIGHT, gpu="H100", context=8192, concurrency=32)
    sheet = as_markdown(question, plan(question))
    rows = {row.split(" | ")[0].strip("| "): row for row in sheet.splitlines() if row.startswith("| --max-model-len")}
    assert list(rows) == ["--max-model-len 16384", "--max-model-len 32768", "--max-model-len 131072", "--max-model-len above 131072"]
    longer = made(config=EIGHT, gpu="H100", context=32_768, concurrency=32)
    assert f"{longer.max_concurrency} at once" in rows["--max-model-len 32768"]
    question = ask(config=EIGHT, gpu="24GiB", context=8192)
    assert "does not start: one request needs 16 GiB" in as_markdown(question, plan(question))
    assert all(line.count("|") in (0, *range(3, 9)) for line in sheet.splitlines())
