"""Command lines, environments and a model's config.json → facts."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lensd_collectors.read import settings
from lensd_collectors.read.flags import read_flags, read_model_config
from lensd_collectors.read.lines import rfc3339
from lensd_collectors.rows import ConfigFact, Row


def facts(rows: list[Row]) -> dict[str | None, str | None]:
    return {row.name: row.value for row in rows if isinstance(row, ConfigFact)}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "vllm serve Qwen/Qwen3-32B --served-model-name qwen3-32b --max-num-seqs 64 --enable-prefix-caching --no-enable-chunked-prefill",
            {
                "model": "Qwen/Qwen3-32B",
                "served_model_name": "qwen3-32b",
                "max_num_seqs": "64",
                "enable_prefix_caching": "true",
                "enable_chunked_prefill": "false",
            },
        ),
        ("--model /srv/m --max-model-len 2000   # no --served-model-name", {"model": "/srv/m", "max_model_len": "2000"}),
        (
            "python -m vllm.entrypoints.openai.api_server --model=m -tp 2 --kv-cache-dtype fp8",
            {"model": "m", "tensor_parallel_size": "2", "cache_dtype": "fp8"},
        ),
        (
            "vllm serve m \\\n  --max-model-len 512 \\\n  --served-model-name a b\n",
            {"model": "m", "max_model_len": "512", "served_model_name": "a b"},
        ),
        ("vllm serve m --api-key s3cr3tvalue", {"model": "m", "api_key": "***"}),
        ("$ env | grep VLLM\nVLLM_API_KEY=your-key\nexport VLLM_USE_V1=1", {"api_key": "your-key", "vllm_use_v1": "1"}),
        ("VLLM_API_KEY=s3cr3tvalue", {"api_key": "***"}),
        ("""vllm serve m --override-generation-config '{"a": 1}' --host "it's""", {"model": "m", "override_generation_config": "'{a: 1}'"}),
    ],
)
def test_flags(text: str, expected: dict[str, str]) -> None:
    found = facts(read_flags(text, name="serve.args").rows)
    assert {key: found.get(key) for key in expected if key != "override_generation_config"} == {
        key: value for key, value in expected.items() if key != "override_generation_config"
    }
    assert "s3cr3tvalue" not in str(found)


def test_the_place_is_the_first_line_of_a_command() -> None:
    rows = read_flags("# start\nvllm serve m \\\n  --max-model-len 512\n", name="serve.args").rows
    assert {row.src for row in rows} == {"serve.args:2"}


def test_a_model_config() -> None:
    text = json.dumps(
        {"architectures": ["X"], "max_position_embeddings": 131072, "sliding_window": None, "torch_dtype": "bfloat16", "head_dim": 128},
        indent=1,
    )
    rows = read_model_config(text, name="config.json").rows
    assert facts(rows) == {"max_position_embeddings": "131072", "dtype": "bfloat16", "head_dim": "128"}
    assert [row.src for row in rows if isinstance(row, ConfigFact) and row.name == "max_position_embeddings"] == ["config.json:5"]
    inner = read_model_config(json.dumps({"text_config": {"max_position_embeddings": 8192}}), name="config.json").rows
    assert facts(inner) == {"max_position_embeddings": "8192"}
    older = read_model_config('{"architectures":["MPTForCausalLM"],"max_seq_len":8192,"n_heads":64}', name="config.json").rows
    assert facts(older) == {"max_position_embeddings": "8192"}


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        ("--max-model-len 32k", ("max_model_len", "32000")),
        ("--max-model-len 32K", ("max_model_len", "32768")),
        ("--max-model-len 32,768", ("max_model_len", "32768")),
        ("--max-model-len auto", ("max_model_len", "auto")),
        ("--max-num-batched-tokens 25.6k", ("max_num_batched_tokens", "25600")),
        ("--gpu-memory-utilization 0.90", ("gpu_memory_utilization", "0.9")),
        ("--swap-space 4.0", ("swap_space", "4")),
        ("--dtype torch.bfloat16", ("dtype", "bfloat16")),
        ("--enforce-eager True", ("enforce_eager", "true")),
        ("--served-model-name 32k", ("served_model_name", "32k")),
    ],
)
def test_one_value_has_one_spelling(raw: str, expected: tuple[str, str]) -> None:
    assert facts(read_flags(raw, name="x").rows) == {expected[0]: expected[1]}


def changed(text: str) -> list[tuple[str | None, str | None, str | None, str | None]]:
    rows = read_flags(text, name="values.diff").rows
    return [(row.name, row.value, row.was, row.src) for row in rows if isinstance(row, ConfigFact)]


DIFF = """\
--- a/values.yaml
+++ b/values.yaml
@@ -12,7 +12,7 @@
         args:
         - --model=/srv/m
-        - --max-model-len=8192
+        - --max-model-len=32768
-        - --enforce-eager
         - --max-num-seqs=64
"""


def test_a_diff_says_what_was_and_what_is() -> None:
    assert changed(DIFF) == [
        ("model", "/srv/m", None, "values.diff:5"),
        ("max_num_seqs", "64", None, "values.diff:9"),
        ("max_model_len", "32768", "8192", "values.diff:7"),
        ("enforce_eager", None, "true", "values.diff:8"),
    ]


def test_a_diff_of_whole_commands() -> None:
    text = "-vllm serve m --max-num-seqs 64 --port 1\n+vllm serve m --max-num-seqs 256 --port 1\n"
    assert [(name, value, was) for name, value, was, _ in changed(text) if was] == [("max_num_seqs", "256", "64")]


def test_flags_in_lines_of_their_own_are_no_diff() -> None:
    assert changed("--model m\n--max-model-len 8192\n- --port 1\n") == [
        ("model", "m", None, "values.diff:1"), ("max_model_len", "8192", None, "values.diff:2"), ("port", "1", None, "values.diff:3"),
    ]  # fmt: skip


@pytest.mark.parametrize("date", ["# 2026-11-17 09:00 rev 41", "2026-11-17T09:00:00Z "])
def test_a_date_is_the_instant_of_what_follows(date: str) -> None:
    text = f"{date}\nvllm serve m --max-num-seqs 64\n2026-11-18 10:30:00 vllm serve m --max-num-seqs 256\n"
    rows = [row for row in read_flags(text, name="x").rows if isinstance(row, ConfigFact) and row.name == "max_num_seqs"]
    assert [(row.value, row.seen_at, row.src) for row in rows] == [
        ("64", rfc3339("2026-11-17T09:00:00Z"), "x:2"),
        ("256", rfc3339("2026-11-18T10:30:00Z"), "x:3"),
    ]


REVISIONS = {
    "revisions": "REVISION 41:\nvllm serve m --max-num-seqs 64 --swap-space 4\nREVISION 42:\nvllm serve m --max-num-seqs 256\n",
    "newest first": "# rev 42\nvllm serve m --max-num-seqs 256\n# rev 41\nvllm serve m --max-num-seqs 64 --swap-space 4\n",
    "words": "# before\n--model m --max-num-seqs 64 --swap-space 4\n# now\n--model m --max-num-seqs 256\n",
    "days": "# until 11-17\n--model m --max-num-seqs 64 --swap-space 4\n# since 11-18\n--model m --max-num-seqs 256\n",
}


@pytest.mark.parametrize("text", REVISIONS.values(), ids=REVISIONS.keys())
def test_the_newer_of_two_commands_says_what_was_changed(text: str) -> None:
    assert {(name, value, was) for name, value, was, _ in changed(text) if was} == {
        ("max_num_seqs", "256", "64"),
        ("swap_space", None, "4"),
    }


@pytest.mark.parametrize(
    "text",
    [
        "vllm serve a --max-num-seqs 64\nvllm serve b --max-num-seqs 256\n",
        "# rev 41\nvllm serve a --max-num-seqs 64\n# now\nvllm serve a --max-num-seqs 256\n",
        "# rev 41\nvllm serve a --max-num-seqs 64\n# rev 41\nvllm serve b --max-num-seqs 256\n",
        "# the new node\nvllm serve a --max-num-seqs 64\nvllm serve b --max-num-seqs 256\n",
    ],
)
def test_two_commands_without_an_order_are_no_change(text: str) -> None:
    assert [was for _, _, was, _ in changed(text) if was] == []


def test_whose_word_it_is() -> None:
    assert {row.origin for row in read_flags("vllm serve m --port 1", name="x").rows if isinstance(row, ConfigFact)} == {"flag"}
    rows = read_model_config('{"model_type": "llama"}', name="x").rows
    assert [row.origin for row in rows if isinstance(row, ConfigFact)] == ["model"]


def test_layers_are_counted() -> None:
    config = {
        "model_type": "gemma3_text",
        "layer_types": (["sliding_attention"] * 5 + ["full_attention"]) * 10 + ["sliding_attention"] * 2,
        "hybrid_override_pattern": "M-M*M-",
        "quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128},
        "linear_attn_config": {"a": 1},
        "head_dim": None,
    }
    assert facts(read_model_config(json.dumps(config), name="c").rows) == {
        "model_type": "gemma3_text",
        "layer_types": "full_attention=10 sliding_attention=52",
        "hybrid_override_pattern": "*=1 -=2 M=3",
        "quant_method": "awq",
        "quant_bits": "4",
        "linear_attn_config": "given",
    }


@given(st.text())
def test_no_text_makes_it_raise(text: str) -> None:
    read_flags(text, name="x")
    read_flags("vllm serve " + text, name="x")
    read_model_config(text, name="x")
    read_flags("+--port 1\n" + text, name="x")


@pytest.mark.parametrize(
    "command",
    [
        """vllm serve m --additional-config '{"api_key": "sk-live-0123456789abcdef", "depth": 2}'""",
        "vllm serve m --middleware-headers Authorization: Bearer sk-live-0123456789abcdef",
        "vllm serve m --default-header=authorization=sk-live-0123456789abcdef",
    ],
)
def test_a_key_inside_another_value_is_not_kept(command: str) -> None:
    assert "sk-live" not in str(read_flags(command, name="serve.args").rows)


CONNECTORS = {
    "{'model': 'm', 'kv_transfer_config': KVTransferConfig(kv_connector='NixlConnector', engine_id='3f0c', kv_role='kv_producer', "
    + "kv_buffer_device='cuda', kv_buffer_size=1000000000.0, kv_rank=None, kv_parallel_size=1, kv_ip='127.0.0.1', kv_port=14579, "
    + "kv_connector_extra_config={}, kv_connector_module_path=None)}": "NixlConnector",
    "{'model': 'm', 'kv_transfer_config': {'kv_connector': 'MooncakeConnector', 'kv_role': 'kv_both'}}": "MooncakeConnector",
    "{'model': 'm', 'kv_transfer_config': None}": None,
    "{'model': 'm'}": None,
}


@pytest.mark.parametrize(("text", "connector"), CONNECTORS.items())
def test_of_what_is_printed_in_pieces_the_connector_is_a_setting(text: str, connector: str | None) -> None:
    found = settings.from_dict_text(text)
    assert (found["model"], found.get("kv_connector")) == ("m", connector)


TURNED = [
    ('  args[6]: "--gpu-memory-utilization"\n+/- args[7]: "0.88" => "0.98"', "gpu_memory_utilization", "0.88", "0.98"),
    ('  ~ "--max-num-seqs=64"\n  ~ args[2]: "--max-num-seqs=64" -> "--max-num-seqs=512"', "max_num_seqs", "64", "512"),
    ('    ~ max_model_len = "8192" -> "32768" # in-place', "max_model_len", "8192", "32768"),
]


@pytest.mark.parametrize(("text", "name", "was", "now"), TURNED)
def test_a_planned_change_on_one_line_has_both_its_sides(text: str, name: str, was: str, now: str) -> None:
    found = [row for row in read_flags(text, name="plan.txt").rows if isinstance(row, ConfigFact) and row.name == name]
    assert [(row.was, row.value) for row in found if row.was is not None] == [(was, now)]


def test_what_is_no_setting_of_a_plan_is_not_kept() -> None:
    assert read_flags('+/- args[0]: "serve" => "run"\n~ api_key = "a" -> "b"', name="plan.txt").rows == []


def test_a_diff_of_a_command_over_several_lines_has_both_its_sides() -> None:
    text = (
        " srun vllm serve m \\\n   --tensor-parallel-size 2 \\\n"
        "-  --max-model-len 32768 \\\n+  --max-model-len 262144 \\\n   --max-num-seqs 8\n"
    )
    found = {row.name: (row.was, row.value) for row in read_flags(text, name="job.diff").rows if isinstance(row, ConfigFact)}
    assert found["max_model_len"] == ("32768", "262144")
    assert (found["tensor_parallel_size"], found["max_num_seqs"]) == ((None, "2"), (None, "8"))
