"""Planted keys and texts go, what diagnosis needs stays, and what may be quoted is an exact part of the line."""

import time
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lensd_collectors.scrub import CONTENT, KEY, is_placeholder, is_suspect, scrub, segments, spans

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
    "Authorization: Bearer abc.planted-123456",
    "authorization: Basic planted=",
    "Authorization: Token planted",
    "authorization: bearer planted",
    "Bearer Bearer planted",
    "Basic planted",
    "'api_key': 'planted'",
    "api_key=['one-key', 'planted']",
    "--api-key planted --port 1",
    "--admin-api-key='planted'",
    "['--api-key', 'planted', '--port']",
    'export VLLM_API_KEY="planted"',
    r'{\"api_key\": \"pass planted\"}',
    "password='a pass planted'",
    "using sk-proj-planted123456 for it",
    "hub_token: planted",
    "session_token=planted",
    "https://bob:planted@proxy.corp.example/v1",
    "GET /v1/models?api_key=planted HTTP/1.1",
    '"Set-Cookie", "session=planted"',
    "(b'authorization', b'Bearer planted')",
    "'cookie': 'a=1; b=planted'",
    "api_key=[key]planted",
    "--api-key=[]planted",
    "eyJabcdefghij--sk-planted123456",
    '{"messages": [{"role": "user", "content": "planted"}], "n": 1}',
    '{"messages": [\n  {"role": "user",\n   "content": "planted"',
    r'"body": "{\"prompt\": \"my \\\"own\\\" planted\", \"n\": 1}"',
    "{'type': 'missing', 'input': \"it's planted\"}",
    "{'type': 'missing', 'input': {'model': 'm', 'prompt_': 'planted'}}",
    '"reasoning": "planted"',
    '"system": "planted"',
    r'"content": "a\\", "prompt": "planted"',
    "Request cmpl-1 details: prompt: 'planted', prompt_token_ids: [1], prompt_embeds shape: None.",
    "İ api_key=planted",
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
    "VLLM_API_KEY=your-key",
    "VLLM_API_KEY='your-key'",
    "non-default args: {'api_key': ['***'], 'max_num_seqs': 4, 'api_keys': []}",
    '{"error":"Unauthorized"}',
    'curl -H "Authorization: Bearer sk-...x9Rt"',
    "POST /v1/completions  Authorization: Bearer <valid key>",
    "http://user:***@proxy:3128 refused the connection",
    "engine env: VLLM_API_KEY (secret ref) added on 11-18; router env: no key",
    'INFO:     10.0.0.1:5 - "POST /v1/chat/completions HTTP/1.1" 200 OK',
    "Chunked prefill is enabled with max_num_batched_tokens=2048.",
    '{"message":"The model `a` does not exist.","type":"NotFoundError","param":"model","code":404}',
    '{"choices": [{"text": "", "message": {"content": null, "reasoning": null}}], "usage": {"input": 12, "output": 480}}',
    "Bearer authentication failed: the Authorization header is missing",
]  # fmt: skip


@pytest.mark.parametrize("line", PLANTED)
def test_planted_text_goes(line: str) -> None:
    assert "planted" not in scrub(line)
    assert is_suspect(line)


@pytest.mark.parametrize("line", KEPT)
def test_evidence_stays(line: str) -> None:
    assert scrub(line) == line


@pytest.mark.parametrize(
    ("line", "cleaned"),
    [
        ("got 'api_key': 'a b', then", "got 'api_key': '[key]', then"),
        ("Authorization: Bearer abc.def-1", "Authorization: Bearer [key]"),
        ("vllm serve m --api-key abc --port 1", "vllm serve m --api-key [key] --port 1"),
        ("postgres://user:word@host/db", "postgres://[key]@host/db"),
        ('"GET /v1/models?q=walrus HTTP/1.1" 200 OK', '"GET /v1/models?[content] HTTP/1.1" 200 OK'),
        ("[type=int_type, input_value='a, input_type=b', input_type=str]", "[type=int_type, input_value=[content], input_type=str]"),
        ("Generated response c-1: output: 'x', output_token_ids: [3], finish_reason: stop",
         "Generated response c-1: output: [content], finish_reason: stop"),
        ('{"n": 1, "prompt": "my key: sk-abcdefgh", "user": "u"}', '{"n": 1, "prompt": [content], "user": "u"}'),
        ("Received request c-1: params: SamplingParams(n=1, stop=['a', 'b']), lora_request: None.",
         "Received request c-1: params: SamplingParams(n=1, stop=[[content]]), lora_request: None."),
    ],
)  # fmt: skip
def test_each_kind_has_its_mark_and_the_rest_stays(line: str, cleaned: str) -> None:
    assert scrub(line) == cleaned


@pytest.mark.parametrize(
    "example", ["your-key", "<your key>", "***", "None", "null", "$KEY", "${KEY}", "sk-...x9Rt", "EMPTY", "changeme", "xxxx"]
)
def test_an_example_is_no_key(example: str) -> None:
    assert is_placeholder(example)
    assert scrub(f"api_key='{example}'") == f"api_key='{example}'"


@pytest.mark.parametrize("key", ["yourkey1", "sk-abcdef123456", "none-of-it", "a***", "<a", "$", ""])
def test_a_key_is_no_example(key: str) -> None:
    assert not is_placeholder(key)


def test_token_ids_go() -> None:
    assert scrub("prompt_token_ids: [1, 22, 333], lora_request: None") == "prompt_token_ids: [content], lora_request: None"
    assert scrub("prompt token ids: [1, 22, 333].") == "prompt token ids: [content]."


@pytest.mark.parametrize("line", PLANTED)
def test_rest_of_a_request_line_stays(line: str) -> None:
    if "SamplingParams" in line:
        assert "SamplingParams(n=1)" in scrub(line)
        assert "cmpl-1-0" in scrub(line)


PIECES = st.one_of(
    st.sampled_from(PLANTED + KEPT),
    st.sampled_from(["api_key", "cookie:", "--api-key", "Bearer", "prompt", "'input'", '"text"', ", input_type=", "JSON body: "]),
    st.sampled_from(["'", '"', "\\", '\\"', ":", "=", " ", "[", "]", "{", "}", ",", "\n", KEY, CONTENT, "<", ">", "?a=", "@", "://"]),
    st.text(max_size=5),
)  # fmt: skip
LINES = st.lists(PIECES, max_size=10).map("".join)


@given(st.sampled_from(PLANTED + KEPT), st.text(max_size=20))
def test_scrubbing_twice_changes_nothing(line: str, after: str) -> None:
    once = scrub(line + after)
    assert scrub(once) == once


@given(LINES)
def test_scrubbing_twice_changes_nothing_in_any_line(line: str) -> None:
    once = scrub(line)
    assert scrub(once) == once
    assert not spans(once)


@given(LINES)
def test_segments_and_spans_are_the_whole_line(line: str) -> None:
    gone, kept = [(start, end) for start, end, _ in spans(line)], segments(line)
    assert "".join(line[start:end] for start, end in sorted(gone + kept)) == line
    assert all(first[1] <= second[0] for first, second in pairwise(gone))
    assert all(start < end for start, end in gone)


@pytest.mark.parametrize("line", PLANTED)
def test_no_segment_holds_what_was_planted(line: str) -> None:
    assert not any("planted" in line[start:end] for start, end in segments(line))


@given(
    st.text(alphabet="abcXYZ0189-_", min_size=12, max_size=40),
    st.sampled_from(
        ["Bearer {}", "api_key='{}'", "--api-key {}", "VLLM_API_KEY={}", "'authorization': 'Bearer {}'", "['--api-key', '{}']"]
    ),
)
def test_no_key_survives(secret: str, form: str) -> None:
    if not is_placeholder(secret):
        assert secret not in scrub("x " + form.format(secret) + " y")


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
     "Bearer ", "prompt_token_ids: [1, ", "messages=[", "cookie:", "input_value=", "text: ", " ", "auth-token ", '"GET /?', "eyJaaaaaaaa-",
     'api_key="', "api_key=['", "api_key=<", '\\"content\\":\\"', '"text":"\\\\', "?a=", "basic basic ", "Received request x: ",
     "secret:\n", "input_value=\n", "İ", "[key]cookie:", "token_ids: [", "details: prompt: ", "generated response x "],
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
