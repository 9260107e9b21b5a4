"""What must not be kept is not; what may be quoted is an exact part of the line."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lensd_collectors.read import scrub

KEPT = [
    "VLLM_API_KEY=your-key",
    '{"error":"Unauthorized"}',
    'curl -H "Authorization: Bearer sk-...x9Rt"',
    "engine env: VLLM_API_KEY (secret ref) added on 11-18; router env: no key",
    'INFO:     10.0.0.1:5 - "POST /v1/chat/completions HTTP/1.1" 200 OK',
    "Chunked prefill is enabled with max_num_batched_tokens=2048.",
    '{"message":"The model `a` does not exist.","type":"NotFoundError","param":"model","code":404}',
]
GONE = [
    ("Authorization: Bearer abc.def-123456", "abc.def-123456"),
    ("authorization: Basic dXNlcjpwYXNz", "dXNlcjpwYXNz"),
    ("'api_key': 'topsecret'", "topsecret"),
    ("api_key=['one-key', 'two-key']", "two-key"),
    ("--api-key s3cr3tvalue --port 1", "s3cr3tvalue"),
    ('export VLLM_API_KEY="s3cr3tvalue"', "s3cr3tvalue"),
    ("using sk-proj-AbCdEf123456 for it", "sk-proj-AbCdEf123456"),
    ("HF_TOKEN=hf_abcdefghijklmnop", "hf_abcdefghijklmnop"),
    ("https://bob:hunter2@proxy.corp.example/v1", "hunter2"),
    ("GET /v1/models?api_key=s3cr3tvalue HTTP/1.1", "s3cr3tvalue"),
    ('"Set-Cookie", "session=s3cr3tvalue"', "s3cr3tvalue"),
    ('{"messages": [{"role": "user", "content": "my diagnosis"}], "n": 1}', "my diagnosis"),
    (r'"body": "{\"prompt\": \"my \\\"own\\\" diagnosis\", \"n\": 1}"', "diagnosis"),
    ("{'type': 'missing', 'input': \"it's my diagnosis\"}", "diagnosis"),
]


@pytest.mark.parametrize("line", KEPT)
def test_evidence_stays(line: str) -> None:
    assert scrub.clean(line) == line


@pytest.mark.parametrize(("line", "secret"), GONE)
def test_secrets_and_content_go(line: str, secret: str) -> None:
    assert secret in line
    assert secret not in scrub.clean(line)
    assert scrub.MARK in scrub.clean(line)


@given(st.one_of(st.text(), st.lists(st.sampled_from([line for line, _ in GONE] + KEPT)).map(" ".join)))
def test_segments_and_spans_are_the_whole_line(line: str) -> None:
    gone, kept = scrub.spans(line), scrub.segments(line)
    assert "".join(line[start:end] for start, end in sorted(gone + kept)) == line
    assert scrub.clean(line).replace(scrub.MARK, "") == "".join(line[start:end] for start, end in kept).replace(scrub.MARK, "")


@given(
    st.text(alphabet="abcXYZ0189-_", min_size=12, max_size=40),
    st.sampled_from(["Bearer {}", "api_key='{}'", "--api-key {}", "VLLM_API_KEY={}"]),
)
def test_no_key_survives(secret: str, form: str) -> None:
    if not scrub.is_placeholder(secret):
        assert secret not in scrub.clean("x " + form.format(secret) + " y")
