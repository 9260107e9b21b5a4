import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lensd_collectors.gateway.sse import MAX_EVENT_BYTES, Scanner, read_reply
from sse_spec import CHAT, COMPLETED, COMPLETION, MESSAGES, all_data, capture, dechunked, final_response, parsed, read, responses, sse

STREAMS = {
    "chat": CHAT,
    "completion": COMPLETION,
    "responses": COMPLETED,
    "messages": MESSAGES,
    "crlf": CHAT.replace(b"\n", b"\r\n"),
    "cr": COMPLETED.replace(b"\n", b"\r"),
    "byte order mark": b"\xef\xbb\xbf" + CHAT,
    "comments": b": keep-alive\n\n" + CHAT.replace(b"data: ", b": ping\nevent: x\ndata:", 3),
    "unended": CHAT[: CHAT.index(b"data: [DONE]")],
    "no blank line at the end": CHAT.rstrip(),
    "torn": CHAT[:700],
    "line ends of two kinds": b"data: {}\r\rdata: {}\n\ndata: {\r" + CHAT,
    "killed": dechunked("kill9-raw-stream.bin"),
    "worker killed": dechunked("killworker-raw-stream.bin"),
    "junk": b"data: {nonsense\n\ndata: [1]\n\nid: 4\n\ndata:\n\n\n\ndata: \xff\n\ndata\n\nfoo\n: x",
}


def told(scanner: Scanner) -> dict[str, object]:
    facts = {name: getattr(scanner.facts, name) for name in scanner.facts.__struct_fields__}
    return facts | {"chunks": scanner.chunks, "content_chunks": scanner.content_chunks, "done": scanner.done_seen}


def scan(*parts: bytes) -> tuple[Scanner, bool]:
    """After the end of the bytes, and whether another event could have been written there."""
    scanner = Scanner()
    for part in parts:
        scanner.feed(part)
    at_boundary = scanner.at_boundary
    scanner.finish()
    return scanner, at_boundary


def facts_of(stream: bytes) -> tuple[object, ...]:
    f = scan(stream)[0].facts
    return f.response_id, f.model, f.prompt_tokens, f.completion_tokens, f.cached_tokens, f.finish_reasons, f.has_content


def counted(stream: bytes) -> tuple[int, int, bool, bool]:
    """Chunks, those with content, whether the closing event came and at a boundary or not: by the specification."""
    found = read(stream)
    told = all_data(found)
    is_done = any(data.startswith(b"[DONE]") for data in told)
    values = [parsed(data) for data in told if not data.startswith(b"[DONE]")]
    return len(values), sum(map(has_content, values)), is_done or any(map(is_last, values)), found.at_boundary


def has_content(value: object) -> bool:
    if not isinstance(value, dict):
        return False
    for choice in value.get("choices") or ():
        delta = choice.get("delta") or {}
        if (
            choice.get("text")
            or delta.get("content")
            or delta.get("reasoning")
            or delta.get("reasoning_content")
            or delta.get("tool_calls")
        ):
            return True
    delta = value.get("delta")
    return bool(delta.get("text") if isinstance(delta, dict) else delta)


def is_last(value: object) -> bool:
    return isinstance(value, dict) and value.get("type") in ("response.completed", "response.incomplete", "response.failed", "message_stop")


@pytest.mark.parametrize("stream", STREAMS.values(), ids=STREAMS)
def test_counts_are_those_of_the_specification(stream):
    scanner, at_boundary = scan(stream)
    assert (scanner.chunks, scanner.content_chunks, scanner.done_seen, at_boundary) == counted(stream)


@pytest.mark.parametrize("stream", STREAMS.values(), ids=STREAMS)
@given(st.data())
def test_any_cut_of_the_bytes_gives_the_same(stream, data):
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    edges = [0, *cuts, len(stream)]
    parts = [stream[a:b] for a, b in itertools.pairwise(edges)]
    assert told(scan(*parts)[0]) == told(scan(stream)[0])
    assert told(scan(*by_event(stream))[0]) == told(scan(stream)[0])


@pytest.mark.parametrize("stream", STREAMS.values(), ids=STREAMS)
def test_byte_by_byte_gives_the_same_and_boundaries_are_true(stream):
    scanner = Scanner()
    for end in range(1, len(stream) + 1):
        scanner.feed(stream[end - 1 : end])
        if end % 7 == 0 or end > len(stream) - 8:
            assert scanner.at_boundary == read(stream[:end]).at_boundary, stream[:end][-40:]
    scanner.finish()
    assert told(scanner) == told(scan(stream)[0])


def by_event(stream: bytes) -> list[bytes]:
    """As engines send: an event a write."""
    return [part for part in stream.replace(b"\n\n", b"\n\n\0").split(b"\0") if part]


ODD = (b'","finish_reason":"stop', b"\\", b'"', b"\n", b"\r", b"\x01", b"\xff", b"\\u0061", b"\xe4\xb8\x96")
TEXT = st.one_of(
    st.text(max_size=6).map(lambda text: json.dumps(text, ensure_ascii=False)[1:-1].encode()),
    st.text(max_size=4).map(lambda text: json.dumps(text)[1:-1].encode()),
    st.sampled_from([b"", b"a", b"null", b"content", *ODD]),
)  # fmt: skip
AROUND = [
    (b'data: {"id":"c-1","model":"m","choices":[{"index":0,"delta":{"content":"', b'"},"finish_reason":null}],"usage":null}\n\n'),
    (b'data: {"id":"c-1","model":"m","choices":[{"index":0,"delta":{"content":"', b'"},"finish_reason":"stop"}]}\n\n'),
    (b'data: {"id":"c-1","choices":[{"text":"', b'","finish_reason":null}]}\n\n'),
    (b'data: {"choices":[{"delta":{"reasoning":"r","content":"', b'"}}]}\n\n'),
    (b'data: {"choices":[{"delta":{"content":"x"}},{"delta":{"content":"', b'"}}]}\n\n'),
    (b'data: {"type":"response.output_text.delta","delta":"', b'"}\n\n'),
    (b'data: {"id":"', b'","choices":[{"delta":{"content":"a"}}],"usage":{"prompt_tokens":3,"completion_tokens":1}}\n\n'),
    (b'data: {"error":{"message":"', b'"}}\n\n'),
    (b": ", b"\n\n"),
]  # fmt: skip


@given(
    st.sampled_from(AROUND),
    st.lists(st.one_of(st.just(b"ab"), TEXT), max_size=8),
    st.lists(st.tuples(st.sampled_from(AROUND), TEXT), max_size=3),
    st.booleans(),
)
def test_events_read_in_one_go_say_what_they_say_one_by_one(around, texts, others, is_half):
    """A go that is refused has read nothing."""
    events = [around[0] + text + around[1] for text in (b"t", *texts)] + [other[0] + text + other[1] for other, text in others]
    learns, *reads = events if not is_half else [b"".join(events)[:-1], *events]
    expected = Scanner()
    for read_ in (learns, *reads):
        expected.feed(read_)
    scanner = Scanner()
    scanner.feed(learns)
    if not reads or not scanner.feed_alike(reads):
        for read_ in reads:
            scanner.feed(read_)
    assert (told(scanner), scanner.at_boundary) == (told(expected), expected.at_boundary)


def test_texts_alone_are_read_in_one_go():
    around = AROUND[0]
    texts = (b"a", b" b", b"", "世".encode(), rb"\n\"\\\u4e16")
    learns, *reads = (around[0] + text + around[1] for text in (b"t", *texts))
    scanner = Scanner()
    assert not scanner.feed_alike([learns])
    scanner.feed(learns)
    assert tuple(scanner.feed_alike(reads)) == texts
    assert (scanner.chunks, scanner.content_chunks) == (6, 5)


@given(st.lists(st.tuples(st.sampled_from(AROUND), TEXT), max_size=12), st.data())
def test_events_that_look_alike_are_told_apart(events, data):
    written = [around[0] + text + around[1] for around, text in events]
    stream = b"".join(written)
    cut = data.draw(st.integers(0, len(stream)))
    scanner, at_boundary = scan(*written)
    assert told(scanner) == told(scan(stream[:cut], stream[cut:])[0])
    assert (scanner.chunks, scanner.content_chunks, scanner.done_seen, at_boundary) == counted(stream)


@pytest.mark.parametrize(
    "events",
    [
        *([around[0] + text + around[1] for text in (b"a", b"b", b"", b"c")] for around in AROUND),
        *([AROUND[0][0] + text + AROUND[0][1] for text in (b"a", odd)] for odd in ODD),
        # What the text is also stands elsewhere, or is written in another way
        [sse({"choices": [{"text": "t"}], key: {"prompt_tokens": 3}}) for key in ("t", "usage")],
        [sse({"choices": [{"text": "t"}], key: {"prompt_tokens": 3}}).replace(b':"t"', b':"\\u0074"') for key in ("t", "usage")],
        [sse({"object": name, "choices": [{"text": "chunk"}]}) for name in ("chunk", "error")],
        [sse({"object": "response", "status": "completed", "choices": [{"text": text}]}) for text in "abc"],
    ],
)
def test_an_event_read_by_its_likeness_says_what_it_says_by_itself(events):
    stream = b"".join(events)
    assert told(scan(*events)[0]) == told(scan(*(stream[at : at + 1] for at in range(len(stream))))[0])


LINES = st.sampled_from(
    [b"data: {}", b"data:{", b"data: }", b"data", b"data: [DONE]", b"data:  [DONE]", b"event: x", b"id: 1", b": c", b"", b"da", b" data: 1"]
)  # fmt: skip
ENDS = st.sampled_from([b"\n", b"\r", b"\r\n", b""])


@given(st.lists(st.tuples(LINES, ENDS), max_size=14), st.booleans(), st.lists(st.integers(0, 200), max_size=6))
def test_lines_of_every_kind_are_read_as_specified(lines, has_mark, cuts):
    stream = (b"\xef\xbb\xbf" if has_mark else b"") + b"".join(line + end for line, end in lines)
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    scanner, at_boundary = scan(*(stream[a:b] for a, b in itertools.pairwise(edges)))
    assert (scanner.chunks, scanner.content_chunks, scanner.done_seen, at_boundary) == counted(stream)


def test_a_real_chat_stream_is_counted():
    scanner, at_boundary = scan(CHAT)
    assert scanner.chunks == CHAT.count(b"data: {") == 18
    assert 0 < scanner.content_chunks < 16  # some of its tokens are no character yet
    assert (scanner.done_seen, at_boundary, scanner.facts.error) == (True, True, None)


def ended(kind: str, **given: object) -> bytes:
    return responses({"type": f"response.{kind}", "response": final_response(**given)})


CUT_SHORT = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
FILTERED = {"status": "incomplete", "incomplete_details": {"reason": "content_filter"}}


@pytest.mark.parametrize(
    ("stream", "facts"),
    [
        (CHAT, ("chatcmpl-lens-req-a2", "tiny-llama", 12, 16, None, ("length",), True)),
        (COMPLETION, ("cmpl-lens-req-a4", "tiny-llama", None, None, None, ("length",), True)),
        (COMPLETED, ("resp_1", "tiny-llama", 7, 2, 4, ("stop",), True)),
        (MESSAGES, ("msg_1", "m", 5, 1, None, ("length",), True)),
        (ended("completed", **CUT_SHORT), ("resp_1", "tiny-llama", 7, 2, 4, ("length",), True)),
        (ended("incomplete", status="incomplete"), ("resp_1", "tiny-llama", 7, 2, 4, ("length",), True)),
        (ended("incomplete", **FILTERED), ("resp_1", "tiny-llama", 7, 2, 4, ("content_filter",), True)),
        (responses(), ("resp_1", "tiny-llama", None, None, None, (), True)),
    ],
)  # fmt: skip
def test_what_a_stream_says_of_itself(stream, facts):
    assert facts_of(stream) == facts


@pytest.mark.parametrize(
    ("stream", "done", "error"),
    [
        (STREAMS["killed"], True, {"message": "EngineCore encountered an issue. See stack trace (above) for the root cause.",
                                   "type": "InternalServerError", "param": None, "code": 500}),
        (sse({"error": {"message": "first"}}, {"error": {"message": "second"}}), False, {"message": "first"}),
        (sse({"error": "busy"}), False, "busy"),
        (sse({"object": "error", "message": "m", "type": "BadRequestError", "param": None, "code": 400}), False,
         {"message": "m", "type": "BadRequestError", "param": None, "code": 400}),
        (sse({"type": "error", "message": "m", "code": "server_error", "param": None}), False,
         {"message": "m", "type": None, "code": "server_error", "param": None}),
        (sse({"type": "error", "error": {"type": "overloaded", "message": "m"}}), False, {"type": "overloaded", "message": "m"}),
        (ended("failed", status="failed", error={"code": "server_error", "message": "m"}), True, {"code": "server_error", "message": "m"}),
        (ended("failed", status="failed"), True, None),
    ],
)  # fmt: skip
def test_errors_have_one_form(stream, done, error):
    scanner, _ = scan(stream)
    assert (json.loads(scanner.facts.error), scanner.done_seen) == ({"error": error}, done)
    assert scanner.facts.finish_reasons == ()


@pytest.mark.parametrize(
    ("event", "has"),
    [
        ({"choices": [{"delta": {"role": "assistant", "content": ""}}]}, False),
        ({"choices": [{"delta": {"role": "assistant", "content": None}}]}, False),
        ({"choices": [{"delta": {}, "finish_reason": "stop"}]}, False),
        ({"choices": [], "usage": {"prompt_tokens": 1}}, False),
        ({"choices": [{"text": ""}]}, False),
        ({"type": "response.output_text.done", "text": "all of it"}, False),
        ({"type": "response.output_text.delta", "delta": ""}, False),
        ({"choices": [{"text": "a"}]}, True),
        ({"choices": [{"delta": {"content": "a"}}]}, True),
        ({"choices": [{"delta": {"reasoning": "a"}}]}, True),
        ({"choices": [{"delta": {"reasoning_content": "a"}}]}, True),
        ({"choices": [{"delta": {"tool_calls": [{"index": 0}]}}]}, True),
        ({"type": "response.reasoning_text.delta", "delta": "a"}, True),
        ({"type": "response.function_call_arguments.delta", "delta": "{"}, True),
        ({"type": "content_block_delta", "delta": {"type": "input_json_delta", "partial_json": "{"}}, True),
    ],
)
def test_what_counts_as_content(event, has):
    scanner, _ = scan(b": keep-alive\n\n" + sse(event))
    assert (scanner.chunks, scanner.content_chunks, scanner.facts.has_content) == (1, int(has), has)


@pytest.mark.parametrize(
    ("stream", "boundary"),
    [
        (b"", True),
        (b"data: 1\n\n", True),
        (b"data: 1\n", False),
        (b"data: 1", False),
        (b"da", False),
        (b": x\n", True),
        (b": x", False),
        (b"event: x\n", False),
        (b"data: 1\r\n\r\n", True),
        (b"data: 1\r\n\r", False),
        (b"\xef\xbb", False),
    ],
)
def test_where_another_event_may_be_written(stream, boundary):
    assert scan(stream)[1] is boundary


@pytest.mark.parametrize("before", [b"", b": c\n", b'data: {"choices":\n'])
def test_an_endless_line_is_counted_and_not_held(before):
    scanner = Scanner()
    scanner.feed(before + b'data: {"choices": [{"text": "')
    for _ in range(40):
        scanner.feed(b"x" * 100_000)
        assert sum(map(len, scanner.half.data)) + len(scanner.half.line) <= MAX_EVENT_BYTES
    assert not scanner.half.is_held
    scanner.feed(b'"}]}\n')
    assert not scanner.half.is_held
    scanner.feed(b"\ndata: [DONE]\n\n")
    assert (scanner.chunks, scanner.content_chunks, scanner.done_seen, scanner.at_boundary) == (1, 0, True, True)


def test_an_event_of_endless_lines_is_counted_and_not_held():
    scanner = Scanner()
    for _ in range(60):
        scanner.feed(b"data: " + b"x" * 30_000 + b"\n")
        assert sum(map(len, scanner.half.data)) <= MAX_EVENT_BYTES
    scanner.feed(b"\n" + CHAT)
    assert (scanner.chunks, scanner.done_seen) == (19, True)


def test_an_endless_comment_takes_nothing_from_its_event():
    scanner, _ = scan(b"data: {\n:", b"x" * (MAX_EVENT_BYTES + 1), b"x\ndata: }\n\n", b":" + b"x" * (MAX_EVENT_BYTES + 1))
    assert (scanner.chunks, scanner.half.data) == (1, ())


def test_usage_of_the_last_event_counts_and_nulls_do_not():
    stream = sse(
        {"id": "a", "usage": {"prompt_tokens": 3, "completion_tokens": 1}},
        {"usage": None, "choices": []},
        {"usage": {"prompt_tokens": 3, "completion_tokens": 5, "prompt_tokens_details": {"cached_tokens": 2}}},
        {"usage": {"prompt_tokens": -1, "completion_tokens": True}},
    )
    assert facts_of(stream)[2:5] == (3, 5, 2)


def test_nothing_of_the_text_is_kept():
    scanner = Scanner()
    for text in ("planted-text", "planted-other"):
        scanner.feed(sse({"id": "a", "choices": [{"delta": {"content": text}}]}))
    scanner.feed(sse({"error": {"message": "m"}, "choices": [{"text": "planted-last"}]}))
    kept = [getattr(scanner, name) for name in Scanner.__slots__] + [
        getattr(scanner.facts, name) for name in scanner.facts.__struct_fields__
    ]
    assert "planted" not in repr(kept)


@pytest.mark.parametrize(
    ("body", "facts"),
    [
        (capture("http/ok-chat-nonstream.json"), ("chatcmpl-lens-req-a1", "tiny-llama", 12, 16, None, ("length",))),
        (capture("http/ok-completion-nonstream.json"), ("cmpl-lens-req-a3", "tiny-llama", 5, 16, None, ("length",))),
        (json.dumps(final_response()).encode(), ("resp_1", "tiny-llama", 7, 2, 4, ("stop",))),
        (b'{"id":"embd-1","object":"list","model":"e","data":[{"embedding":[0.5]}],"usage":{"prompt_tokens":9,"total_tokens":9}}',
         ("embd-1", "e", 9, None, None, ())),
        (b'{"id":"msg_1","type":"message","model":"m","stop_reason":"end_turn","usage":{"input_tokens":5,"output_tokens":1}}',
         ("msg_1", "m", 5, 1, None, ("stop",))),
        (b'{"id":"batch_1","object":"batch","status":"completed"}', ("batch_1", None, None, None, None, ())),
        (b"not json", (None, None, None, None, None, ())),
        (b'{"usage":[]}', (None, None, None, None, None, ())),
    ],
)  # fmt: skip
def test_a_whole_reply_is_read(body, facts):
    f = read_reply(body)
    assert (f.response_id, f.model, f.prompt_tokens, f.completion_tokens, f.cached_tokens, f.finish_reasons) == facts
