"""The times that vLLM puts into a reply (--enable-per-request-metrics), at the gateway and in the middleware."""

import itertools
import json
from typing import Any

import pytest
from checkout import ROOT
from hypothesis import given, settings
from hypothesis import strategies as st
from lensd_collectors.gateway.replies import Facts, read_reply
from lensd_collectors.gateway.sse import Scanner
from middleware_calls import DONE, JSON, SSE, TEXT, Kept, answer, call, said

STREAM = json.loads((ROOT / "tests/captures/vllm-0.32.0/http/ok-per-request-metrics-stream.json").read_text())["body"].encode()
# of a chat completion of the same server that was not streamed
WHOLE = (
    b'{"id":"chatcmpl-m1","object":"chat.completion","created":1795963530,"model":"tiny-llama","choices":[{"index":0,"message":{"role":'
    b'"assistant","content":" clien"},"finish_reason":"length"}],"usage":{"prompt_tokens":12,"total_tokens":28,"completion_tokens":16},'
    b'"metrics":{"time_to_first_token_ms":11.761874000058015,"generation_time_ms":52.431924000075014,"queue_time_ms":'
    b'0.029503999940061476,"mean_itl_ms":3.495461600005001,"tokens_per_second":249.24526197946477,"speculative_decoding":null}}'
)


def times(facts: Facts) -> tuple[float | None, float | None, float | None]:
    return facts.queue_ms, facts.prefill_ms, facts.decode_ms


def of_stream(data: bytes, cuts: list[int]) -> Facts:
    scanner = Scanner()
    edges = sorted({0, len(data), *(min(cut, len(data)) for cut in cuts)})
    for begin, end in itertools.pairwise(edges):
        scanner.feed(data[begin:end])
    scanner.finish()
    return scanner.facts


def test_a_whole_reply() -> None:
    facts = read_reply(WHOLE)
    assert times(facts) == (0.029503999940061476, 11.761874000058015, 52.431924000075014)
    assert (facts.response_id, facts.completion_tokens) == ("chatcmpl-m1", 16)


@settings(deadline=None)
@given(st.lists(st.integers(0, len(STREAM)), max_size=6))
def test_a_stream_wherever_it_is_cut(cuts: list[int]) -> None:
    last = json.loads(STREAM.strip().split(b"\n\n")[-2].removeprefix(b"data: "))["metrics"]
    assert times(of_stream(STREAM, cuts)) == (last["queue_time_ms"], last["time_to_first_token_ms"], last["generation_time_ms"])


@pytest.mark.parametrize(
    ("metrics", "expected"),
    [
        (None, (None, None, None)),  # without the flag, or with n > 1
        ({}, (None, None, None)),
        ({"queue_time_ms": 1.5, "time_to_first_token_ms": None, "generation_time_ms": None}, (1.5, None, None)),  # no token was made
        ({"queue_time_ms": 0, "time_to_first_token_ms": 2}, (0.0, 2.0, None)),
        ({"queue_time_ms": -3.0, "time_to_first_token_ms": "2", "generation_time_ms": True}, (None, None, None)),
        ([1, 2], (None, None, None)),  # another engine's, of another form
        ("fast", (None, None, None)),
    ],
)
def test_what_is_not_there_is_not_known(metrics: Any, expected: tuple[float | None, ...]) -> None:
    facts = read_reply(json.dumps({"id": "cmpl-1", "choices": [], "usage": {"prompt_tokens": 3}, "metrics": metrics}).encode())
    assert times(facts) == expected
    assert (facts.response_id, facts.prompt_tokens) == ("cmpl-1", 3)


@pytest.mark.parametrize(("headers", "bodies"), [(JSON, (WHOLE,)), (SSE, (STREAM,))], ids=["whole", "stream"])
def test_the_middleware_tells_them_on_its_span(headers: list[tuple[bytes, bytes]], bodies: tuple[bytes, ...]) -> None:
    kept = Kept()
    call(kept, answer(200, headers, *bodies))
    facts = read_reply(WHOLE) if headers is JSON else of_stream(STREAM, [])
    attributes = said(kept)
    assert tuple(attributes[f"lensd.engine.{stage}_ms"] for stage in ("queue", "prefill", "decode")) == times(facts)


def test_without_them_the_span_says_nothing_of_the_engine() -> None:
    kept = Kept()
    call(kept, answer(200, SSE, TEXT, DONE))
    assert not any(name.startswith("lensd.engine.") for name in said(kept))
