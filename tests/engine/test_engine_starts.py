"""The engine that tests and demo build is a real vLLM: it serves, counts, and leaves nothing behind."""

import json
import urllib.request
from typing import Any

import pytest

pytestmark = pytest.mark.engine


def ask(url: str, body: dict[str, Any] | None = None) -> bytes:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data=data, headers={"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as answer:
        content: bytes = answer.read()
        return content


def test_it_answers_a_chat(engine: Any) -> None:
    body = {"model": engine.model, "messages": [{"role": "user", "content": "a token"}], "max_tokens": 8, "ignore_eos": True}
    answer = json.loads(ask(f"{engine.url}/v1/chat/completions", body))
    assert answer["id"].startswith("chatcmpl-")
    assert answer["usage"]["completion_tokens"] == 8
    assert answer["choices"][0]["finish_reason"] == "length"


def test_its_metrics_have_vllm_names(engine: Any) -> None:
    scrape = ask(f"{engine.url}/metrics").decode()
    assert "vllm:num_requests_running{" in scrape
    assert f'model_name="{engine.model}"' in scrape


def test_serves_less_context_than_the_model_has(engine: Any) -> None:
    (served,) = json.loads(ask(f"{engine.url}/v1/models"))["data"]
    model = json.loads((engine.root / "model" / "config.json").read_text())
    assert (served["max_model_len"], model["max_position_embeddings"]) == (512, 2048)


def test_its_processes_are_known_and_no_other_can_be_signalled(engine: Any) -> None:
    titles = " ".join(engine.processes().values())
    assert engine.pid in engine.processes()
    assert "VLLM::EngineCore" in titles
    assert "VLLM::Worker" in titles
    assert engine.processes()[engine.core_pid()].startswith("VLLM::EngineCore")
    with pytest.raises(Exception, match="not one of this engine's"):
        engine.signal(0, 1)
