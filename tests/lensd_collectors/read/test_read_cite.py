"""A quote is an exact part of the file, short, clean, and the line that matters."""

import json
from pathlib import Path

import pytest
from lensd_collectors.read import CiteError, quote, read

TESTS = Path(__file__).parents[2]
CORPUS = TESTS / "corpus"


def case(number: str) -> Path:
    [folder] = CORPUS.glob(f"{number}-*")
    return folder


@pytest.mark.parametrize(
    ("number", "src", "column", "text", "place"),
    [
        ("43", "engine.log:12", "waiting", "Running: 64 reqs, Waiting: 203 reqs", "engine.log:12"),
        ("43", "metrics.prom:3", "waiting", 'vllm:num_requests_waiting{engine="0",model_name="qwen3-32b"} 203.0', "metrics.prom:6"),
        ("43", "trace.json:3", "queue_ms", '"gen_ai.latency.time_in_queue": 59.97', "trace.json:3"),
        ("43", "trace.json:2", "status_message", '"status_message": "httpx.ReadTimeout: The read operation timed out"', "trace.json:2"),
        ("43", "serve.args:1", "max_num_seqs", "--max-num-seqs 64", "serve.args:1"),
        ("69", "resp.txt:1", "error_message", "maximum context length is 16384 tokens", "resp.txt:2"),
        ("69", "resp.txt:1", "status", "HTTP/1.1 400 Bad Request", "resp.txt:1"),
        ("69", "model_config.json:1", "max_position_embeddings", '"max_position_embeddings":131072', "model_config.json:1"),
        ("89", "curl.txt:6", "served_model_name", '"id":"/srv/models/Qwen1.5-14B-Chat-GPTQ-Int8"', "curl.txt:6"),
        ("89", "curl.txt:2", "model", '"model":"Qwen-14B-Chat-GPTQ-Int8"', "curl.txt:1"),
        ("95", "curl.txt:5", "body_shape", "key_model_access_denied", "curl.txt:6"),
        ("63", "env.txt:3", "api_key", "VLLM_API_KEY=your-key", "env.txt:3"),
        ("27", "engine.log:6", "line", "prompt_logprobs=5", "engine.log:6"),
        ("46", "engine.log:10", "want_bytes", "Tried to allocate 448.00 MiB", "engine.log:10"),
        ("62", "client.txt:2", "limit_ms", "timeout of 10000 ms exceeded", "client.txt:2"),
        ("84", "router.log:1", "status", "401 Client Error: Unauthorized for url: http://10.42.0.14:8000/v1/models", "router.log:1"),
    ],
)
def test_quotes(number: str, src: str, column: str, text: str, place: str) -> None:
    said, where = quote(src, column, case(number))
    assert text in said
    assert where == place


def test_every_quote_is_an_exact_short_part_of_its_file() -> None:
    reached = set[str]()
    for folder in sorted(CORPUS.glob("*-*")):
        must = json.loads((folder / "case.json").read_text())["truth"]["must_cite"]
        for one in json.loads((folder / "case.json").read_text())["artefacts"]:
            whole = (folder / one["file"]).read_text()
            for table, rows in read(folder / one["file"]).rows.items():
                for row in rows:
                    named = [str(row.name)] if table == "config_facts" else []  # type: ignore[attr-defined]
                    for column in [*row.__struct_fields__, *named]:
                        said, place = quote(str(row.src), column, folder)  # type: ignore[attr-defined]
                        assert said in whole
                        assert 0 < len(said) <= 500
                        assert place.startswith(one["file"] + ":")
                        reached |= {text for text in must if text in said}
    assert len(reached) >= 39


def test_a_long_line_is_cut_around_the_value() -> None:
    root = TESTS / "captures" / "vllm-0.32.0"
    whole = (root / "metrics-6-preempt-after.txt").read_text()
    [fact] = [row for row in read(root / "metrics-6-preempt-after.txt").rows["config_facts"] if row.name == "num_gpu_blocks_override"]  # type: ignore[attr-defined]
    said, _ = quote(str(fact.src), "num_gpu_blocks_override", root)  # type: ignore[attr-defined]
    assert 'num_gpu_blocks_override="9"' in said
    assert said in whole
    assert len(said) <= 500


def test_attributes_of_pretty_printed_otlp() -> None:
    root = TESTS / "captures" / "vllm-0.32.0"
    text = (root / "otlp" / "0005.http.json").read_text()
    [first, *_] = [
        row for row in read(root / "otlp" / "0005.http.json", name="otlp/0005.http.json").rows["spans"] if row.name == "llm_request"
    ]  # type: ignore[attr-defined]
    said, _ = quote(str(first.src), "queue_ms", root)  # type: ignore[attr-defined]
    assert said in text
    assert "gen_ai.latency.time_in_queue" in said
    assert str(json.loads(first.attributes)["gen_ai.latency.time_in_queue"]) in said  # type: ignore[attr-defined]


def test_no_prompt_and_no_key_in_a_quote(tmp_path: Path) -> None:
    log = "INFO 12-25 10:00:00 logger.py:37] Received request cmpl-1: prompt: 'my diagnosis', params: SamplingParams(n=1, max_tokens=16), lora_request: None.\n"  # noqa: E501
    (tmp_path / "a.log").write_text(log)
    (tmp_path / "serve.args").write_text("vllm serve m --api-key s3cr3tvalue --max-num-seqs 4\n")
    exchange = {
        "request": {"method": "POST", "path": "/v1/completions", "body": '{"model": "m", "prompt": "my diagnosis"}'},
        "status": 404,
        "body": "{}",
    }
    (tmp_path / "x.json").write_text(json.dumps(exchange, indent=1))
    for src in ("a.log:1", "serve.args:1", *(f"x.json:{line}" for line in range(1, 9))):
        for column in ("line", "request_id", "model", "api_key", "max_tokens", "max_num_seqs", "error_message"):
            said, _ = quote(src, column, tmp_path)
            assert "diagnosis" not in said
            assert "s3cr3t" not in said
    assert "max_tokens=16" in quote("a.log:1", "max_tokens", tmp_path)[0]
    assert quote("serve.args:1", "max_num_seqs", tmp_path)[0] == "--max-num-seqs 4"


@pytest.mark.parametrize("src", ["scrape:http://x@1", "log:e/x@1", "span:abc", "nothing", "missing.log:1", "../outside.log:1", "a.log:99"])
def test_what_is_no_place_is_refused(src: str, tmp_path: Path) -> None:
    root = tmp_path / "in"
    root.mkdir()
    (root / "a.log").write_text("INFO:     Shutting down\n")
    (tmp_path / "outside.log").write_text("INFO:     Shutting down\n")
    with pytest.raises(CiteError):
        quote(src, "line", root)
