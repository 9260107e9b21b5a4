"""Planted keys and texts go, what diagnosis needs stays."""

import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lensd_collectors.scrub import scrub

LOG = Path(__file__).parents[1] / "captures" / "vllm-0.32.0" / "startup-err-max-len-gt-derived.log"

PLANTED = [
    "Authorization: Bearer planted-9f3",
    "got header Bearer planted.9f3/x",
    "api_key='planted'",
    "'api_key': ['planted', \"planted2\"]",
    '{"api-key": "planted"}',
    "vllm serve m --api-key planted --port 1",
    "vllm serve m --api-key=planted --port 1",
    "VLLM_API_KEY=planted",
    "key sk-planted123 was refused",
    "HF_TOKEN=hf_plantedplanted",
    "postgres://user:planted@host/db",
    'INFO:     127.0.0.1:1 - "GET /v1/models?api_key=planted HTTP/1.1" 200 OK',
    'INFO:     127.0.0.1:1 - "GET /v1/models?q=planted HTTP/1.1" 200 OK',
    "Cookie: a=planted; b=planted",
    r"Received request cmpl-1-0: prompt: 'planted it\'s planted, params: planted', params: SamplingParams(n=1)",
    'Received request cmpl-1-0: prompt: "it\'s planted", params: SamplingParams(n=1)',
    "Received request cmpl-1-0: prompt: 'planted and cut off",
    "Generated response chatcmpl-1: output: 'planted', finish_reason: stop",
    "Request chatcmpl-1 JSON body: {'messages': 'planted'}",
    "response_body={planted}",
    "messages=[{'role': 'user', 'content': [{'type': 'text', 'text': 'planted'}]}, {'content': 'planted'}]",
    '"content": "planted"',
    "1 validation error: {'type': 'int_parsing', 'input': 'planted'}",
    "[type=missing, input_value={'messages': [{'planted': 1}]}, input_type=dict]",
    "token eyJhbGciOiJIUzI1.eyJzdWIiOiJwbGFudGVk.planted",
]  # fmt: skip

KEPT = [
    "(APIServer pid=1) INFO 11-29 14:43:32 [async_llm.py:578] Added request cmpl-kill-0-0-b4018258.",
    "Received request cmpl-1-0: params: SamplingParams(n=1, max_tokens=480, stop_token_ids=[], min_tokens=0), lora_request: None.",
    "Engine 000: Avg prompt throughput: 1.2 tokens/s, Avg generation throughput: 20.0 tokens/s, Running: 2 reqs, Waiting: 10 reqs",
    "This model's maximum context length is 512 tokens. However, your prompt contains at least 513 input tokens",
    "Worker proc VllmWorker-0 died unexpectedly (exit code: -9), shutting down executor.",
    'INFO:     127.0.0.1:37320 - "POST /v1/completions HTTP/1.1" 401 Unauthorized',
    "SchedulerOutput(scheduled_new_reqs=[NewRequestData(req_id=cmpl-1-0-ab,prompt_token_ids_len=12,prefill_token_ids_len=None)])",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 350.00 MiB. GPU 0 has a total capacity of 23.68 GiB",
    "api_key=None, basic auth is off, bearer of bad news",
]  # fmt: skip


@pytest.mark.parametrize("line", PLANTED)
def test_planted_text_goes(line: str) -> None:
    assert "planted" not in scrub(line)


@pytest.mark.parametrize("line", KEPT)
def test_evidence_stays(line: str) -> None:
    assert scrub(line) == line


def test_token_ids_go() -> None:
    assert scrub("prompt_token_ids: [1, 22, 333], lora_request: None") == "prompt_token_ids: [content], lora_request: None"


@pytest.mark.parametrize("line", PLANTED)
def test_rest_of_a_request_line_stays(line: str) -> None:
    if "SamplingParams" in line:
        assert "SamplingParams(n=1)" in scrub(line)
        assert "cmpl-1-0" in scrub(line)


@given(st.sampled_from(PLANTED + KEPT), st.text(max_size=20))
def test_scrubbing_twice_changes_nothing(line: str, after: str) -> None:
    once = scrub(line + after)
    assert scrub(once) == once


@given(st.text(alphabet="abc'\"\\ ,[]{}:n", max_size=40))
def test_any_prompt_goes_as_python_writes_it(prompt: str) -> None:
    line = f"Received request cmpl-1-0: prompt: {('ZZZ' + prompt)!r}, params: SamplingParams(n=1)."
    assert scrub(line) == "Received request cmpl-1-0: prompt: [content], params: SamplingParams(n=1)."


def test_a_real_log_keeps_its_lines() -> None:
    for line in LOG.read_text().splitlines():
        if "api_key" not in line and "input_value" not in line:
            assert scrub(line) == line


@pytest.mark.parametrize(
    "piece",
    ["x-", "a", "-", "api_key", "api_key=", "'", '"', "\\", '"prompt": ', "prompt: '", "secret-", "sk-", "--a", "1, ", "http://a:", "eyJ",
     "Bearer ", "prompt_token_ids: [1, ", "messages=[", "cookie:", "input_value=", "text: ", " ", "auth-token ", '"GET /?'],
)  # fmt: skip
def test_time_grows_with_the_length_only(piece: str) -> None:
    def seconds(length: int) -> float:
        line = (piece * length)[:length]
        best = float("inf")
        for _ in range(3):
            before = time.process_time()
            scrub(line)
            best = min(best, time.process_time() - before)
        return best

    assert seconds(16_384) < 0.25, "a quadratic pattern takes seconds here"
