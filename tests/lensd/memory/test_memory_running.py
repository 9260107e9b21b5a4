"""What a running engine sets aside and does not use: its own words, and a store's measured lengths."""

import json

import msgspec
import pytest
from checkout import ROOT
from lensd_collectors.host.engine import Engine, FetchError, FetchFailure

from lensd.errors import EvidenceError, ServerError, UsageError
from lensd.memory.lengths import Lengths
from lensd.memory.running import Running, as_text, block_bytes, look, waste

CAPTURES = ROOT / "tests" / "captures" / "vllm-0.32.0"
ENGINE = Engine(name="e0", kind="vllm", host="127.0.0.1", port=8000)
MODELS = b'{"data": [{"id": "tiny", "root": "/models/tiny", "max_model_len": 512}]}'
GIB = 1 << 30


def answers(**paths):
    def fetch(engine, path):
        if path not in paths:
            raise FetchError(FetchFailure.STATUS, 404)
        return paths[path]

    return fetch


def test_what_a_real_engine_says():
    metrics = (CAPTURES / "metrics-4-after-load.txt").read_bytes()
    found = look(ENGINE, answers(**{"/metrics": metrics, "/v1/models": MODELS, "/version": b'{"version": "0.32.0"}'}))
    assert found == Running(
        url="http://127.0.0.1:8000", version="0.32.0", max_model_len=512, model="tiny", model_dir="/models/tiny", block_size=128,
        blocks=16_384, tokens=2_097_152, kv_bytes=GIB, utilization=0.92, kv_dtype="auto",
    )  # fmt: skip


def test_older_ones_say_less():
    metrics = b'vllm:cache_config_info{block_size="16",num_gpu_blocks="1000",gpu_memory_utilization="0.9"} 1.0\n'
    found = look(ENGINE, answers(**{"/metrics": metrics}))
    assert (found.tokens, found.kv_bytes, found.max_model_len, found.version) == (16_000, None, None, None)


def test_what_is_no_vllm_is_told():
    with pytest.raises(EvidenceError, match="cache_config_info"):
        look(ENGINE, answers(**{"/metrics": b"sglang:num_running_reqs 1\n"}))
    with pytest.raises(EvidenceError, match="cache_config_info"):
        look(ENGINE, answers(**{"/metrics": b"<html>"}))
    with pytest.raises(ServerError, match="no engine at"):
        look(ENGINE, answers())


RUNNING = Running(url="http://e:8000", version="0.32.0", max_model_len=32_768, block_size=16, blocks=10_000, tokens=160_000, kv_bytes=None)
LENGTHS = Lengths(requests=900, tokens_p50=300, tokens_p95=1500, tokens_p99=1990, tokens_max=2500, samples=400, running_p99=5)


def test_the_folder_that_an_engine_names_is_of_use_or_is_left(tmp_path):
    said = lambda place: msgspec.structs.replace(RUNNING, model_dir=str(place))  # noqa: E731
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 64}))
    (tmp_path / "model.safetensors").write_text("version 1 of a pointer")
    assert block_bytes(said(tmp_path), None) == 2 * 2 * 64 * 2 * 16
    config.write_text("{}")
    assert block_bytes(said(tmp_path), None) is None
    assert block_bytes(said("/" + "x" * 5000), None) is None
    with pytest.raises(UsageError):
        block_bytes(RUNNING, str(tmp_path))


def test_what_lies_idle():
    found = waste(RUNNING, LENGTHS, block_bytes=2 << 20)
    assert found.used_tokens == 5 * 2000  # in whole blocks
    assert found.idle_tokens == 150_000
    assert found.idle_share == pytest.approx(0.9375)
    assert found.idle_bytes == round(10_000 * (2 << 20) * 0.9375)
    assert "13,333 tokens" in found.advice[0]
    assert "2,500 of 32,768" in found.advice[1]
    assert "150,000 tokens of KV cache (93.8%), 18.31 GiB" in as_text(found)


def test_what_is_used_is_not_called_waste():
    full = waste(RUNNING, Lengths(requests=900, tokens_p99=20_000, tokens_max=30_000, samples=400, running_p99=12))
    assert full.idle_tokens == 0
    assert full.advice == ("less than a quarter is spare: nothing to take away",)


@pytest.mark.parametrize(
    ("running", "lengths", "missing"),
    [
        (RUNNING, Lengths(requests=29), "requests.completion_tokens"),
        (RUNNING, Lengths(requests=900, tokens_p99=2000), "engine_samples.running"),
        (RUNNING, Lengths(requests=900, tokens_p99=2000, samples=400, running_p99=0), "engine_samples.running"),
        (Running(url="http://e:8000"), LENGTHS, "kv_cache_size_tokens"),
        (Running(url="http://e:8000", tokens=0, blocks=0, block_size=0), LENGTHS, "kv_cache_size_tokens"),
    ],
)
def test_what_was_not_measured_is_not_waste(running, lengths, missing):
    found = waste(running, lengths)
    assert (found.used_tokens, found.idle_tokens, found.idle_share, found.idle_bytes) == (None,) * 4
    assert missing in found.missing
    assert "could not tell" in as_text(found)
