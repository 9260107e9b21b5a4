import json

import pytest
from gateway_stage import capture
from lensd_collectors import dialects
from lensd_collectors.conventions import Decision, Outcome
from lensd_collectors.gateway.faults import kept_text, read_fault, read_stream_fault

REAL = [
    ("http/err-404-path.json", Decision.PATH_UNKNOWN, "404"),
    ("http/err-405.json", Decision.METHOD_NOT_ALLOWED, "405"),
    ("http/err-bad-param.json", Decision.BODY_MALFORMED, "BadRequestError"),
    ("http/err-bad-type.json", Decision.BODY_MALFORMED, "Bad Request"),
    ("http/err-key-wrong.json", Decision.UPSTREAM_CREDENTIAL_REFUSED, "401"),
    ("http/err-malformed-json.json", Decision.BODY_MALFORMED, "Bad Request"),
    ("http/err-max_tokens-too-large.json", Decision.CONTEXT_TOO_LONG, "BadRequestError"),
    ("http/err-missing-field.json", Decision.BODY_MALFORMED, "Bad Request"),
    ("http/err-model-unknown.json", Decision.MODEL_UNKNOWN, "NotFoundError"),
    ("http/err-prompt-too-long.json", Decision.CONTEXT_TOO_LONG, "BadRequestError"),
    ("http/err-prompt-too-long-completion.json", Decision.CONTEXT_TOO_LONG, "BadRequestError"),
    ("http-preempt/err-admission-queue-full.json", Decision.ENGINE_BUSY, "Service Unavailable"),
    ("killworker-nonstream.json", Decision.ENGINE_DEAD, "InternalServerError"),
]


@pytest.mark.parametrize(("name", "decision", "code"), REAL)
def test_replies_of_a_real_engine(name, decision, code):
    seen = capture(name)
    fault = read_fault(seen["status"], seen["body"].encode())
    assert (fault.decision, fault.code) == (decision, code)
    assert fault.outcome is (Outcome.FAILED if decision is Decision.ENGINE_DEAD else Outcome.REFUSED)


@pytest.mark.parametrize(("name", "decision", "code"), REAL)
def test_the_engines_dialect_says_the_same(name, decision, code):
    seen = capture(name)
    meaning = dialects.classify(dialects.load().values(), seen["status"], seen["body"])
    expected = Decision.KEY_UNKNOWN if decision is Decision.UPSTREAM_CREDENTIAL_REFUSED else decision
    assert meaning is not None
    assert meaning.decision is expected


def nested(message="", **more):
    return json.dumps({"error": {"message": message, **more}}).encode()


@pytest.mark.parametrize(
    ("status", "body", "decision"),
    [
        (500, b"", Decision.ENGINE_ERROR),
        (500, nested("Internal server error", type="InternalServerError"), Decision.ENGINE_ERROR),
        (500, nested("The server had an error while processing your request."), Decision.ENGINE_ERROR),  # says too little
        (
            404,
            json.dumps({"object": "error", "message": "The model `x` does not exist.", "type": "NotFoundError"}).encode(),
            Decision.MODEL_UNKNOWN,
        ),
        (404, nested("model 'x' not found", type="not_found_error"), Decision.MODEL_UNKNOWN),  # Ollama
        (404, nested("File Not Found", type="not_found_error", code=404), Decision.PATH_UNKNOWN),  # llama.cpp
        (404, b"<html>model</html>", Decision.PATH_UNKNOWN),
        (
            400,
            nested("request (919 tokens) exceeds the available context size (512 tokens)", type="exceed_context_size_error"),
            Decision.CONTEXT_TOO_LONG,
        ),
        (400, nested("too long", param="input_tokens"), Decision.CONTEXT_TOO_LONG),
        (400, nested("Requested token count exceeds the model's maximum context length of 9 tokens."), Decision.CONTEXT_TOO_LONG),
        (503, json.dumps({"error": "The model is currently scaling. Please try again later."}).encode(), Decision.ENGINE_BUSY),
        (429, b"", Decision.RATE_LIMITED),
        (501, b"{}", Decision.ENGINE_ERROR),
        (403, b'{"error":"Forbidden"}', Decision.ENGINE_ERROR),
        (400, b'{"error": [1, 2]}', Decision.BODY_MALFORMED),
    ],
)
def test_other_shapes(status, body, decision):
    assert read_fault(status, body).decision is decision


@pytest.mark.parametrize(
    ("error", "decision"),
    [
        ({"message": "EngineCore encountered an issue. See stack trace", "type": "BadRequestError", "code": 400}, Decision.ENGINE_DEAD),
        ({"message": "Internal server error", "code": 500}, Decision.ENGINE_ERROR),
        ({"message": "something", "type": "BadRequestError", "code": 400}, Decision.ENGINE_ERROR),
        ({"message": "busy", "code": 503}, Decision.ENGINE_BUSY),
    ],
)
def test_errors_inside_a_stream_are_failures(error, decision):
    fault = read_stream_fault(json.dumps({"error": error}).encode())
    assert (fault.decision, fault.outcome) == (decision, Outcome.FAILED)


@pytest.mark.parametrize(
    ("message", "kept"),
    [
        ("1 validation error:\n  {'type': 'missing', 'input': 'planted'}", "1 validation error:"),
        (
            "[{'type': 'missing', 'msg': 'Field required', 'input': {'content': 'planted'}}]",
            "[{'type': 'missing', 'msg': 'Field required',",
        ),
        ("bad value [type=int_parsing, input_value='planted', input_type=str]", "bad value [type=int_parsing,"),
        (
            "max_tokens=9 cannot be greater (parameter=max_tokens, value=9)",
            "max_tokens=9 cannot be greater (parameter=max_tokens, value=9)",
        ),
        ("x" * 900, "x" * 500),
    ],
)
def test_what_is_kept_of_a_text(message, kept):
    assert kept_text(message) == kept
