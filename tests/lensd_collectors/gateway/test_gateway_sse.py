import itertools
import json

import pytest
from gateway_stage import CAPTURES, capture
from hypothesis import given
from hypothesis import strategies as st
from lensd_collectors.gateway.sse import MAX_EVENT_BYTES, Scanner, read_reply


def dechunked(name: str) -> bytes:
    """Body of a raw HTTP capture in chunked encoding."""
    rest = (CAPTURES / name).read_bytes().split(b"\r\n\r\n", 1)[1]
    body = b""
    while size := int((line := rest.split(b"\r\n", 1))[0], 16):
        body += line[1][:size]
        rest = line[1][size + 2 :]
    return body


CHAT = capture("http/ok-chat-stream.json")["body"].encode()
COMPLETION = capture("http/ok-completion-stream.json")["body"].encode()
STREAMS = {
    "chat": CHAT,
    "completion": COMPLETION,
    "crlf": CHAT.replace(b"\n", b"\r\n"),
    "comments": b": keep-alive\n\n" + CHAT.replace(b"data: ", b": ping\nevent: x\ndata:", 3),
    "unended": CHAT[: CHAT.index(b"data: [DONE]")],
    "torn": CHAT[:700],
    "killed": dechunked("kill9-raw-stream.bin"),
    "worker killed": dechunked("killworker-raw-stream.bin"),
    "junk": b"data: {nonsense\n\ndata: [1]\n\nid: 4\n\ndata:\n\n\n\ndata: \xff\n\n",
}


def scan(*parts: bytes):
    scanner = Scanner()
    for part in parts:
        scanner.feed(part)
    boundary = scanner.at_boundary
    scanner.finish()
    f = scanner.facts
    told = (f.response_id, f.model, f.prompt_tokens, f.completion_tokens, f.cached_tokens, f.finish_reasons, f.has_content, f.error)
    return scanner.chunks, scanner.done_seen, boundary, told


def test_a_real_chat_stream_is_counted():
    chunks, done, boundary, told = scan(CHAT)
    assert chunks == CHAT.count(b"data: {") == 18
    assert (done, boundary) == (True, True)
    assert told == ("chatcmpl-lens-req-a2", "tiny-llama", 12, 16, None, ("length",), True, None)


def test_the_first_event_of_a_chat_names_the_role_and_has_no_content():
    scanner = Scanner()
    head, _, rest = CHAT.partition(b"\n\n")
    scanner.feed(head + b"\n\n")
    assert not scanner.facts.has_content
    scanner.feed(rest)
    assert scanner.facts.has_content


@pytest.mark.parametrize(("name", "before"), [("killed", 0), ("worker killed", None)])
def test_a_dead_engine_is_seen_although_done_follows(name, before):
    chunks, done, _, told = scan(STREAMS[name])
    assert done
    assert b"EngineCore encountered an issue" in told[-1]
    assert chunks == STREAMS[name].count(b"data: {")
    assert before is None or chunks == before + 1


@pytest.mark.parametrize("stream", STREAMS.values(), ids=STREAMS)
@given(st.data())
def test_any_cut_of_the_bytes_gives_the_same(stream, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    edges = [0, *cuts, len(stream)]
    parts = [stream[a:b] for a, b in itertools.pairwise(edges)]
    assert scan(*parts) == scan(stream)


def test_byte_by_byte_gives_the_same():
    assert scan(*(bytes([each]) for each in STREAMS["worker killed"])) == scan(STREAMS["worker killed"])


@pytest.mark.parametrize(
    ("stream", "boundary"),
    [
        (b"", True),
        (b"data: 1\n\n", True),
        (b"data: 1\n", False),
        (b"data: 1", False),
        (b"da", False),
        (b": x\n", True),
        (b"data: 1\r\n\r\n", True),
    ],
)
def test_where_another_event_may_be_written(stream, boundary):
    assert scan(stream)[2] is boundary


def test_an_endless_line_is_counted_and_not_held():
    scanner = Scanner()
    scanner.feed(b'data: {"choices": [{"text": "')
    for _ in range(40):
        scanner.feed(b"x" * 100_000)
        assert len(scanner._carry) <= MAX_EVENT_BYTES
    scanner.feed(b'"}]}\n\ndata: [DONE]\n\n')
    assert (scanner.chunks, scanner.done_seen, scanner.at_boundary) == (1, True, True)


def test_usage_of_the_last_event_counts_and_nulls_do_not():
    events = [
        {"id": "a", "usage": {"prompt_tokens": 3, "completion_tokens": 1}},
        {"usage": None, "choices": []},
        {"usage": {"prompt_tokens": 3, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 2}}},
    ]
    stream = b"".join(b"data: " + json.dumps(each).encode() + b"\n\n" for each in events)
    assert scan(stream)[3][2:5] == (3, 5, 2)


def test_nothing_of_the_text_is_kept():
    scanner = Scanner()
    scanner.feed(b'data: {"id":"a","choices":[{"delta":{"content":"planted-text"}}]}\n\n')
    kept = [getattr(scanner, name) for name in Scanner.__slots__] + [
        getattr(scanner.facts, name) for name in scanner.facts.__struct_fields__
    ]
    assert "planted-text" not in repr(kept)


def test_a_whole_reply_is_read():
    facts = read_reply(capture("http/ok-chat-nonstream.json")["body"].encode())
    assert (facts.response_id, facts.prompt_tokens, facts.completion_tokens, facts.finish_reasons) == (
        "chatcmpl-lens-req-a1",
        12,
        16,
        ("length",),
    )
    assert read_reply(b"not json").response_id is None
