"""A stream that breaks off anywhere, and what the caller's client makes of it with the gateway's last words behind it."""

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx2
import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lensd_collectors.conventions import Decision
from lensd_collectors.gateway.decisions import Refused, error_body
from lensd_collectors.gateway.frames import HEARTBEAT, error_frames
from lensd_collectors.gateway.record import Record
from lensd_collectors.gateway.sse import Scanner
from openai.types.chat import ChatCompletionChunk
from openai.types.completion import Completion
from openai.types.responses import ResponseStreamEvent
from sse_spec import CHAT, COMPLETED, COMPLETION, MESSAGES, read, sse

CHAT_ROUTE, COMPLETION_ROUTE, RESPONSES, MESSAGES_ROUTE = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"
REFUSAL = Refused(Decision.ENGINE_ERROR, 'the engine\'s stream broke off: "why"', code="stream_cut")
CLIENT = openai.OpenAI(base_url="http://127.0.0.1:9/v1", api_key="k", max_retries=0)

CALL = {"index": 0, "id": "call_1", "function": {"name": "f", "arguments": '{"a": "\\"\\\\", "b": [1, {"c": -1.5e-3}]}'}}
HARD = (
    b'event: chunk\ndata: {"id": "c-1", "object": "chat.completion.chunk", "created": 17, "model": "m",\n'
    b'data:  "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}\n\n'
    + sse(
        {"id": "c-1", "choices": [{"index": 0, "delta": {"content": "Grüße, 世界 🎉 \\ \" \n { [ } ]"}, "finish_reason": None}]},
        {"id": "c-1", "choices": [{"index": 0, "delta": {"tool_calls": [CALL]}, "logprobs": {"content": [{"logprob": -1e-4}]}}]},
        {"id": "c-1", "choices": [], "nothing": {}, "empty": [], "yes": True, "no": False, "time": 1.25e10, "error": None},
    )
    + b'data: {"id":"c-1","choices":[{"index":0,"delta":{"content":"\\u00e9\\ud83c\\udf89\\\\\\n"}}]}\n\n: p\xc3\xafng\n\n'
    + sse({"id": "c-1", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}, "[DONE]")
)  # fmt: skip


def shortened(stream: bytes, *kept: int) -> bytes:
    """Of its events, the first and those that close it: reading one stream for each of its bytes takes its time."""
    events = stream.split(b"\n\n")[:-1]
    return b"".join(events[number] + b"\n\n" for number in kept)


STREAMS = {
    "chat": (shortened(CHAT, 0, 3, -3, -2, -1), CHAT_ROUTE),
    "completion": (shortened(COMPLETION, 0, -2, -1), COMPLETION_ROUTE),
    "responses": (shortened(COMPLETED, 0, 4, 6), RESPONSES),
    "hard": (HARD, CHAT_ROUTE),
    "crlf": (HARD.replace(b"\n", b"\r\n"), CHAT_ROUTE),
    "cr": (HARD.replace(b"\n", b"\r"), CHAT_ROUTE),
}
TYPES: dict[str, Any] = {CHAT_ROUTE: ChatCompletionChunk, COMPLETION_ROUTE: Completion, RESPONSES: ResponseStreamEvent}


def broken_off(stream: bytes, route: str, *, finish: bool = False) -> bytes:
    """The stream with the gateway's error after it."""
    scanner = Scanner()
    scanner.feed(stream)
    if finish:
        scanner.finish()
    return stream + error_frames(REFUSAL, record(route, scanner))


def record(route: str, scanner: Scanner | None) -> Record:
    made = Record(
        wall_ns=5_000_000_000, received=0, method="POST", route=route, trace_id="0" * 32, span_id="0" * 16, parent_span_id=None,
        request_id="r-1", scanner=scanner,
    )  # fmt: skip
    if scanner is not None:
        made.facts = scanner.facts
    return made


def hear(stream: bytes, route: str) -> Iterator[Any]:
    """What OpenAI's own client hands out of a stream, as plain values."""
    response = httpx2.Response(200, content=stream, request=httpx2.Request("POST", "http://127.0.0.1:9" + route))
    for each in openai.Stream(cast_to=TYPES[route], response=response, client=CLIENT):
        yield each.to_dict(mode="json")


def hear_to_the_end(stream: bytes, route: str) -> tuple[list[Any], Exception | None]:
    heard = []
    try:
        for each in hear(stream, route):
            heard.append(each)
    except Exception as error:
        return heard, error
    return heard, None


@pytest.mark.parametrize(("stream", "route"), STREAMS.values(), ids=STREAMS)
def test_a_stream_that_breaks_off_at_any_byte_raises_in_the_client(stream: bytes, route: str) -> None:
    whole, error = hear_to_the_end(stream, route)
    assert error is None
    closed = stream.find(b"[DONE]") + 1 or len(stream.rstrip())  # from here on the engine has said all there is
    for end in range(len(stream) + 1):
        heard, error = hear_to_the_end(broken_off(stream[:end], route), route)
        failed = [each for each in heard if each.get("type") == "response.failed"]
        passed = heard[: len(heard) - len(failed)]
        assert passed == whole[: len(passed)], stream[:end]
        assert len(passed) >= min(len(read(stream[:end]).events), len(whole)), stream[:end]
        if end >= closed:
            assert (error, len(passed)) == (None, len(whole)), stream[:end]
        else:
            assert isinstance(error, openai.APIError), stream[:end]
            assert (error.message, error.code) == (REFUSAL.message, "stream_cut")


@pytest.mark.parametrize(
    ("stream", "route"),
    [(CHAT, CHAT_ROUTE), (COMPLETION, COMPLETION_ROUTE), (COMPLETED, RESPONSES), (MESSAGES, MESSAGES_ROUTE), (HARD, CHAT_ROUTE)],
)
def test_any_client_reads_whole_json_and_one_that_is_the_error(stream: bytes, route: str) -> None:
    sent = [data for _, data in read(stream).events]
    for end in range(0, len(stream) - len(sent[-1]) - 2, 3):
        events = [data for _, data in read(broken_off(stream[:end], route)).events]
        before = len(read(stream[:end]).events)
        assert events[:before] == sent[:before]
        values = [json.loads(data) for data in events if data != b"[DONE]"]
        assert any((value.get("error") or {}).get("code") == "stream_cut" for value in values[before:])


def without_surrogates(text: str) -> bool:
    return not any("\ud800" <= each <= "\udfff" for each in text)


TEXTS = st.text(max_size=5).filter(without_surrogates)
JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), TEXTS),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(TEXTS, inner, max_size=3)),
    max_leaves=6,
)


@given(st.dictionaries(TEXTS, JSON, max_size=4), st.booleans(), st.sampled_from([None, 1]), st.data())
def test_any_half_object_becomes_the_error(value: Any, is_ascii: bool, indent: int | None, data: st.DataObject) -> None:
    lines = json.dumps(value, ensure_ascii=is_ascii, indent=indent).split("\n")
    stream = "".join(f"data: {line}\n" for line in lines).encode()
    cut = data.draw(st.integers(0, len(stream)))
    events = [json.loads(event) for _, event in read(broken_off(stream[:cut], CHAT_ROUTE)).events if event != b"[DONE]"]
    assert events[-1]["error"]["code"] == "stream_cut"
    assert all(event == value or event["error"]["code"] == "stream_cut" for event in events)


def test_at_a_boundary_nothing_stands_before_the_error() -> None:
    frames = broken_off(CHAT[: CHAT.index(b"data: [DONE]")], CHAT_ROUTE)[CHAT.index(b"data: [DONE]") :]
    assert frames == b"data: " + error_body(REFUSAL) + b"\n\ndata: [DONE]\n\n"
    assert error_frames(REFUSAL, record(CHAT_ROUTE, None)) == frames


def test_a_response_fails_by_the_name_it_had_and_counts_on() -> None:
    stream = shortened(COMPLETED, 0, 1, 2, 3)
    named = read(broken_off(stream, RESPONSES)).events[4:]
    (_, failed), (_, error) = named
    assert [name for name, _ in named] == ["response.failed", "error"]
    assert json.loads(failed) == {
        "type": "response.failed",
        "sequence_number": 4,
        "response": {
            "id": "resp_1", "object": "response", "created_at": 5, "model": "tiny-llama", "status": "failed", "output": [],
            "error": {"code": "stream_cut", "message": REFUSAL.message}, "incomplete_details": None,
        },
    }  # fmt: skip
    body = json.loads(error_body(REFUSAL))
    told = {"type": "error", "code": "stream_cut", "message": REFUSAL.message, "param": None, "sequence_number": 5}
    assert json.loads(error) == told | body


def test_where_no_response_was_begun_none_fails() -> None:
    [(name, data)] = read(error_frames(REFUSAL, record(RESPONSES, None))).events
    assert (name, json.loads(data)["sequence_number"]) == ("error", 0)


def test_messages_end_with_their_own_error_event() -> None:
    [(name, data)] = read(error_frames(REFUSAL, record(MESSAGES_ROUTE, None))).events
    assert (name, json.loads(data)) == ("error", {"type": "error"} | json.loads(error_body(REFUSAL)))


@pytest.mark.parametrize(("stream", "route"), [(CHAT, CHAT_ROUTE), (COMPLETED, RESPONSES), (MESSAGES, MESSAGES_ROUTE)])
def test_after_the_closing_event_there_is_no_error(stream: bytes, route: str) -> None:
    assert broken_off(stream, route) == stream
    assert broken_off(stream[:-1], route) == stream
    assert broken_off(stream[:-2], route) == stream


@pytest.mark.parametrize("half", [b'data: {"', b'data: {"\\', b'data: {"a": 1, "\\', b'data: {"error": {"', b"data", b'data: {"a": "\xe0'])
def test_the_error_is_not_taken_for_a_part_of_what_broke_off(half: bytes) -> None:
    [event, *_] = [json.loads(data) for _, data in read(broken_off(half, CHAT_ROUTE)).events if data != b"[DONE]"]
    assert event["error"]["code"] == "stream_cut"


@pytest.mark.parametrize(
    "half",
    [b"data: nonsense", b"data: [1, 2", b'data: {"a": nonsense', b'data: {"a": "' + b"x" * 70_000, b'data: {"a": "' + b"x" * 2_000_000],
)
def test_what_can_not_be_mended_is_ended(half: bytes) -> None:
    assert broken_off(half, CHAT_ROUTE)[len(half) :].startswith(b"\n\ndata: {")


@pytest.mark.parametrize(("stream", "route"), STREAMS.values(), ids=STREAMS)
def test_heartbeats_at_boundaries_change_nothing_for_the_client(stream: bytes, route: str) -> None:
    scanner, beating = Scanner(), HEARTBEAT
    for byte in stream:
        scanner.feed(bytes([byte]))
        beating += bytes([byte]) + (HEARTBEAT if scanner.at_boundary else b"")
    assert hear_to_the_end(beating, route) == hear_to_the_end(stream, route)
    assert beating.count(HEARTBEAT) >= (2 if b"\n" in stream else 1)


@pytest.mark.parametrize("cut", [0, 40, 400, 700])
def test_the_client_as_people_use_it(cut: int) -> None:
    def answer(request: httpx2.Request) -> httpx2.Response:
        stream = COMPLETED if request.url.path == RESPONSES else CHAT
        return httpx2.Response(200, headers={"content-type": "text/event-stream"}, content=broken_off(stream[:cut], request.url.path))

    async def read_async() -> None:
        http = httpx2.AsyncClient(transport=httpx2.MockTransport(answer))
        async with openai.AsyncOpenAI(base_url="http://127.0.0.1:9/v1", api_key="k", http_client=http) as client:
            async for _ in await client.chat.completions.create(model="m", messages=[], stream=True):
                pass

    http = httpx2.Client(transport=httpx2.MockTransport(answer))
    with openai.OpenAI(base_url="http://127.0.0.1:9/v1", api_key="k", http_client=http) as client:
        with pytest.raises(openai.APIError, match="broke off"):
            list(client.chat.completions.create(model="m", messages=[], stream=True))
        with pytest.raises(openai.APIError, match="broke off"):
            list(client.responses.create(model="m", input="x", stream=True))
        with pytest.raises(openai.APIError, match="broke off"), client.responses.stream(model="m", input="x") as stream:
            stream.until_done()
    with pytest.raises(openai.APIError, match="broke off"):
        asyncio.run(read_async())
