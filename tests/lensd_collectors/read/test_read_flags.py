"""Command lines, environments and a model's config.json → facts."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lensd_collectors.read.flags import read_flags, read_model_config
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


@given(st.text())
def test_no_text_makes_it_raise(text: str) -> None:
    read_flags(text, name="x")
    read_flags("vllm serve " + text, name="x")
    read_model_config(text, name="x")
