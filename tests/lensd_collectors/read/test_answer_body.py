"""What an answer's body shows of its shape, in the forms that servers write; never its text."""

import json

import pytest
from lensd_collectors.read.answer_body import is_answer, read_answer
from lensd_collectors.rows import HttpExchange

BODIES = {
    "OpenAI, whole": (
        json.dumps(
            {"choices": [{"message": {"content": "four"}, "finish_reason": "stop"}], "usage": {"prompt_tokens": 7, "completion_tokens": 2}}
        ),
        {"finish_reason": "stop", "prompt_tokens": 7, "completion_tokens": 2, "content_chars": 4},
    ),
    "OpenAI, nothing but reasoning": (
        json.dumps({"choices": [{"message": {"content": None, "reasoning_content": "well"}, "finish_reason": "length"}]}),
        {"finish_reason": "length", "content_chars": 0},
    ),
    "a call whose arguments break off": (
        json.dumps(
            {"choices": [{"message": {"tool_calls": [{"function": {"name": "f", "arguments": '{"a": '}}]}, "finish_reason": "tool_calls"}]}
        ),
        {"tool_calls": 1, "json_broken": True},
    ),
    "a stream": (
        "\n".join(
            f"data: {json.dumps({'choices': [{'delta': {'content': part}, 'finish_reason': end}]})}"
            for part, end in (("fo", None), ("ur", None), ("", "max_tokens"))
        ),
        {"finish_reason": "length", "content_chars": 4},
    ),
    "TGI": (
        json.dumps({"generated_text": '{"a": 1', "details": {"finish_reason": "length", "generated_tokens": 256}}),
        {"finish_reason": "length", "completion_tokens": 256, "json_broken": True},
    ),
    "TGI's details alone": (
        json.dumps({"finish_reason": "eos_token", "generated_tokens": 118}),
        {"finish_reason": "stop", "content_chars": None},
    ),
    "Ollama": (
        json.dumps(
            {
                "done": True,
                "done_reason": "stop",
                "response": "x",
                "prompt_eval_count": 4096,
                "eval_count": 20,
                "eval_duration": 400_000_000,
            }
        ),
        {"finish_reason": "stop", "prompt_tokens": 4096, "completion_tokens": 20},
    ),
    "SGLang": (
        json.dumps(
            {"text": "x", "meta_info": {"finish_reason": {"type": "length", "length": 64}, "prompt_tokens": 5, "completion_tokens": 64}}
        ),
        {"finish_reason": "length", "prompt_tokens": 5, "completion_tokens": 64},
    ),
    "llama.cpp": (
        json.dumps({"content": "x", "stop": True, "stop_type": "limit", "tokens_predicted": 64, "tokens_evaluated": 9}),
        {"finish_reason": "length", "completion_tokens": 64, "prompt_tokens": 9},
    ),
}


@pytest.mark.parametrize(("body", "wanted"), BODIES.values(), ids=BODIES.keys())
def test_the_shape_of_an_answer(body, wanted):
    row = HttpExchange(src="x:1")
    answer = read_answer(body)
    assert answer is not None
    answer.into(row)
    assert {column: getattr(row, column) for column in wanted} == wanted


@pytest.mark.parametrize(
    ("body", "tpot_ms"),
    [
        ({"choices": [], "usage": {"completion_tokens": 9}, "metrics": {"mean_itl_ms": 7.08, "generation_time_ms": 63.7}}, 7.08),
        ({"choices": [], "usage": {"completion_tokens": 15}, "timings": {"predicted_per_token_ms": 15.47, "predicted_ms": 232.0}}, 15.47),
        ({"done": True, "response": "", "eval_count": 20, "eval_duration": 400_000_000}, 20.0),
    ],
)
def test_an_answer_that_says_how_long_a_token_took(body, tpot_ms):
    answer = read_answer(json.dumps(body))
    (event,) = answer.events(HttpExchange(src="calls.txt:1", structured=True), 4)
    fields = json.loads(event.fields)
    assert (event.name, event.src, fields["tpot_ms"], fields["structured"]) == ("request.decode", "calls.txt:4", tpot_ms, True)


def test_a_call_left_in_the_text_is_told_without_the_text():
    body = {"choices": [{"message": {"content": "<tool_call>{secret words}"}, "finish_reason": "stop"}]}
    (event,) = read_answer(json.dumps(body)).events(HttpExchange(src="x:1"), 1)
    assert event.name == "request.call_leaked"
    assert "secret" not in (event.fields or "") + (event.line or "")


def test_text_that_somebody_took_out_is_not_counted():
    body = {"choices": [{"message": {"content": '{"name": "<redacted>", "lines": [<redacted: 8 more>, {"unit'}, "finish_reason": "length"}]}
    row = HttpExchange(src="x:1")
    read_answer(json.dumps(body)).into(row)
    assert (row.content_chars, row.json_broken) == (None, True)


def test_what_a_client_logs_of_a_call_is_no_answer_of_a_server():
    assert not is_answer({"ts": "2026-11-06T08:31:07Z", "usage": {"completion_tokens": 5}, "ttft_s": 0.4})
    assert is_answer({"done": True, "eval_count": 3})
