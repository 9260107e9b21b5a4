"""Facts of an engine's set-up out of its model list, its model's config and its log."""

import json
from pathlib import Path
from typing import Any

import pytest
from lensd_collectors.dialects import load
from lensd_collectors.host.config import WatchedEngine
from lensd_collectors.host.engine import Engine, FetchError, FetchFailure, resolve
from lensd_collectors.host.facts import Facts, from_line, from_model_dir, from_models
from lensd_collectors.read import settings
from lensd_collectors.read.engine_log import LineReader
from lensd_collectors.rows import ConfigFact

CAPTURES = Path(__file__).parents[2] / "captures" / "vllm-0.32.0"
MODELS = (CAPTURES / "models.json").read_bytes()
ENGINE = resolve(WatchedEngine(url="http://127.0.0.1:8100", name="e0"))


def test_models_answer() -> None:
    facts, root = from_models(MODELS)
    assert facts == {"served_model_name": "tiny-llama", "max_model_len": "512"}
    assert root == "/srv/llm/engine0/model"


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b"<html>", b'{"error":"Unauthorized"}', b'{"data":[]}', b"\xff"])
def test_other_answers_say_nothing(body: bytes) -> None:
    assert from_models(body) == ({}, "")


def test_adapters_are_no_models_of_their_own() -> None:
    body = json.dumps({"data": [{"id": "base", "max_model_len": 8}, {"id": "lora", "parent": "base", "max_model_len": 4}]})
    assert from_models(body.encode())[0] == {"served_model_name": "base", "max_model_len": "8"}


@pytest.mark.parametrize(
    ("config", "facts"),
    [
        ('{"max_position_embeddings": 2048}', {"max_position_embeddings": "2048"}),
        ('{"text_config": {"max_position_embeddings": 131072}}', {"max_position_embeddings": "131072"}),
        ("{}", {}),
        ("not json", {}),
    ],
)
def test_model_config(tmp_path: Path, config: str, facts: dict[str, str]) -> None:
    (tmp_path / "config.json").write_text(config)
    assert from_model_dir(tmp_path) == facts


def test_model_config_that_is_not_there(tmp_path: Path) -> None:
    assert from_model_dir(tmp_path / "absent") == {}


def test_real_arguments_line() -> None:
    [line] = [line for line in (CAPTURES / "startup-err-max-len-gt-derived.log").read_text().splitlines() if "non-default args" in line]
    facts, origin = from_line(line)
    assert origin == "flag"
    assert facts["max_model_len"] == "99999"
    assert facts["served_model_name"] == "tiny-llama"
    assert facts["enforce_eager"] == "true"
    assert "api_key" not in facts


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("{'api_key': ['sk-planted-1'], 'hf_token': 'hf_planted123456', 'max_num_seqs': 4}", {"max_num_seqs": "4"}),
        (
            "{'max_num_seqs': 4, 'compilation_config': CompilationConfig(level=3)}",
            {"max_num_seqs": "4", "compilation_config": "CompilationConfig(level=3)"},
        ),
        ("{'max_num_seqs': 4, 'mode': <Mode.NONE: 0>, 'model': 'm'}", {"max_num_seqs": "4", "model": "m"}),
        ("{'a': __import__('os').system('true')}", {"a": "__import__('os').system('true')"}),
        ("{'url': 'http://u:planted-1@h/'}", {"url": "http://[key]@h/"}),
        ("[1, 2]", {}),
        ("", {}),
        ("{" * 5000, {}),
    ],
)
def test_arguments(text: str, facts: dict[str, str]) -> None:
    assert from_line(f"(APIServer pid=1) INFO 11-29 15:06:31 [api_utils.py:286] non-default args: {text}")[0] == facts


def test_length_line() -> None:
    line = "(APIServer pid=1) INFO 11-29 14:53:50 [model.py:2152] Using max model len 512"
    assert from_line(line) == ({"max_model_len": "512"}, "effective")


def test_engine_start(recorder: Any, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 2048}')
    body = MODELS.replace(b"/srv/llm/engine0/model", str(tmp_path).encode())
    Facts(ENGINE, recorder, lambda engine, path: body, lambda: 7).engine_started()
    assert recorder.facts() == {"served_model_name": "tiny-llama", "max_model_len": "512", "max_position_embeddings": "2048"}
    event = recorder.events[0]
    assert recorder.attributes(event) == {
        "event.name": "lensd.config", "lensd.engine": "e0", "lensd.engine.kind": "vllm",
        "lensd.config.subject": "e0", "lensd.config.name": "served_model_name", "lensd.config.value": "tiny-llama",
        "lensd.config.origin": "effective",
    }  # fmt: skip


def test_engine_start_without_a_model_list(recorder: Any, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"max_position_embeddings": 2048}')

    def refuse(engine: Engine, path: str) -> bytes:
        raise FetchError(FetchFailure.STATUS, 401)

    engine = resolve(WatchedEngine(url="http://127.0.0.1:8100", model_dir=str(tmp_path)))
    Facts(engine, recorder, refuse, lambda: 7).engine_started()
    assert recorder.facts() == {"max_position_embeddings": "2048"}
    assert [recorder.attributes(event)["lensd.config.origin"] for event in recorder.events] == ["model"]


LINES = [
    "(APIServer pid=1) INFO 11-29 15:06:31 [api_utils.py:286] non-default args: {'model_tag': 'm', 'enforce_eager': True, "
    "'served_model_name': ['a', 'b'], 'max_model_len': '32k', 'gpu_memory_utilization': 0.90, 'kv_cache_dtype': 'fp8', "
    "'compilation_config': CompilationConfig(level=3)}",
    "(APIServer pid=1) INFO 11-29 15:06:33 [model.py:2152] Using max model len 32000",
]


@pytest.mark.parametrize("line", LINES)
def test_a_line_says_the_same_whether_the_agent_or_the_receiver_reads_it(line: str) -> None:
    facts, origin = from_line(line)
    rows = LineReader(load()["vllm"], engine="e", path="x").feed(line, number=1, at_us=1)
    assert {row.name: (row.value, row.origin) for row in rows if isinstance(row, ConfigFact)} == {
        settings.name_of(name): (value, origin) for name, value in facts.items()
    }
