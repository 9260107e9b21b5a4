"""Replies on their way through the gateway: untouched, never held, counted in passing, and ended so that a client notices."""

import asyncio
import contextlib
import itertools
import json
import socket
import time
from collections.abc import Awaitable, Callable
from typing import Any

import aiohttp
import openai
import pytest
from engine_scripts import sending
from gateway_process import gateway_process
from gateway_stage import CHAT, MODEL, Call, FakeEngine, capture, run, stage, stage_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lensd_collectors.gateway.config import Retry
from lensd_collectors.gateway.frames import HEARTBEAT
from lensd_collectors.gateway.record import Record
from lensd_collectors.gateway.timer import Timer
from sse_spec import COMPLETED, read, responses
from uvloop import new_event_loop

SSE = capture("http/ok-chat-stream.json")["body"].encode()
WHOLE = capture("http/ok-chat-nonstream.json")["body"].encode()
HEAD = SSE[: SSE.index(b"\n\n", 600) + 2]
REST = SSE[len(HEAD) :]
DONE = b"data: [DONE]\n\n"
STREAMED = {**CHAT, "stream": True}
LIMIT_S = 0.05


# Any stream, cut anywhere

TEXT = st.text(st.characters(codec="utf-8"), max_size=12)
CHOICES = st.one_of(
    TEXT.map(lambda text: {"index": 0, "delta": {"content": text}}),
    st.just({"index": 0, "delta": {"role": "assistant", "content": ""}}),
    st.just({"index": 0, "delta": {"tool_calls": [{"index": 0, "function": {"arguments": "{"}}]}}),
    TEXT.map(lambda text: {"index": 0, "delta": {"reasoning_content": text}}),
    TEXT.map(lambda text: {"index": 0, "text": text}),
    st.sampled_from(["stop", "length"]).map(lambda why: {"index": 0, "delta": {}, "finish_reason": why}),
)
USAGE = st.tuples(st.integers(0, 10**6), st.integers(0, 10**6), st.none() | st.integers(0, 9)).map(
    lambda n: {"prompt_tokens": n[0], "completion_tokens": n[1], **({"prompt_tokens_details": {"cached_tokens": n[2]}} if n[2] else {})}
)
CHUNK = st.builds(
    lambda choices, usage: {"id": "chatcmpl-1", "model": MODEL, "choices": choices, **({"usage": usage} if usage else {})},
    st.lists(CHOICES, max_size=2), st.none() | USAGE,
)  # fmt: skip


def written(data: dict | str, pretty: bool, space: bool, name: bool) -> list[str]:
    """Lines of an event; a pretty one has a data line a line of JSON."""
    text = data if isinstance(data, str) else json.dumps(data, ensure_ascii=False, indent=1 if pretty else None)
    return [*(["event: chunk"] if name else []), *(f"data:{' ' if space else ''}{line}" for line in text.split("\n")), ""]


EVENT = st.one_of(
    st.builds(written, CHUNK, st.booleans(), st.booleans(), st.booleans()),
    st.builds(written, CHUNK, st.just(False), st.just(True), st.just(False)),
    st.sampled_from([[": ping"], [": ping", ""], ["id: 7", ""], [""], ["data: {nonsense", ""], ["data", ""]]),
)
END = st.sampled_from([[], ["data: [DONE]", ""], ["data: [DONE]"], ["data: [DONE]", "", ": late", ""]])


@st.composite
def streams(draw) -> list[bytes]:
    """A stream in the parts in which it is sent."""
    lines = [line for event in draw(st.lists(EVENT, max_size=12)) for line in event] + draw(END)
    ends = draw(st.sampled_from([["\n"], ["\r\n"], ["\r"], ["\n", "\r\n"]]))
    whole = "".join(line + draw(st.sampled_from(ends)) for line in lines).encode()
    if draw(st.integers(0, 4)) == 0:
        whole = whole[: draw(st.integers(0, len(whole)))]
    cuts = sorted(draw(st.lists(st.integers(0, len(whole)), max_size=10)))
    return [whole[a:b] for a, b in itertools.pairwise([0, *cuts, len(whole)]) if a < b]


def parsed(data: bytes) -> object:
    try:
        return json.loads(data.decode())
    except ValueError:
        return None


def told(stream: bytes) -> dict[str, object]:
    """What the record must say of a stream, read all at once and by the specification."""
    found = read(stream)
    datas = [data for _, data in found.events]
    if last := [value for name, value in found.rest if name == "data"]:
        data = b"\n".join(last)
        datas += [data] if data.startswith(b"[DONE]") or isinstance(parsed(data), dict) else []
    done = any(data.startswith(b"[DONE]") for data in datas)
    datas = [data for data in datas if not data.startswith(b"[DONE]")]
    chunks = [chunk for chunk in map(parsed, datas) if isinstance(chunk, dict)]
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    usage = [chunk["usage"] for chunk in chunks if "usage" in chunk]
    cached = [each["prompt_tokens_details"]["cached_tokens"] for each in usage if "prompt_tokens_details" in each]
    return {
        "lensd.stream.chunks": len(datas),
        "lensd.stream.done_seen": done,
        "gen_ai.response.finish_reasons": [choice["finish_reason"] for choice in choices if choice.get("finish_reason")][:16] or None,
        "gen_ai.usage.input_tokens": usage[-1]["prompt_tokens"] if usage else None,
        "gen_ai.usage.output_tokens": usage[-1]["completion_tokens"] if usage else None,
        "gen_ai.usage.cache_read.input_tokens": cached[-1] if cached else None,
        "gen_ai.response.id": "chatcmpl-1" if chunks else None,
        "gen_ai.response.model": MODEL if chunks else None,
    }


def has_text(stream: bytes) -> bool:
    """Role-only chunks, comments and usage are none."""
    datas = [data for _, data in read(stream + b"\n\n").events]
    for choice in (c for chunk in map(parsed, datas) if isinstance(chunk, dict) for c in chunk["choices"]):
        delta = choice.get("delta", {})
        if choice.get("text") or delta.get("content") or delta.get("reasoning_content") or delta.get("tool_calls"):
            return True
    return False


class Standing:
    """One gateway for all examples, whose engine sends what it is told."""

    def __init__(self, runner: asyncio.Runner) -> None:
        self.runner = runner
        self.parts: list[bytes] = []
        self.stack = contextlib.AsyncExitStack()

    async def script(self, call: Call) -> None:
        await call.start_stream()
        for part in self.parts:
            await call.chunk(part)
            await asyncio.sleep(0)
        await call.end_stream()

    async def open(self) -> None:
        self.stage = await self.stack.enter_async_context(stage(self.script, heartbeat_s=0))

    async def ask(self, parts: list[bytes]) -> tuple[bytes, dict, dict]:
        self.parts = parts
        kept = self.stage.kept.kept_spans
        kept.clear()
        answer = await self.stage.ask(STREAMED)
        record = await self.stage.record()
        (upstream,) = self.stage.upstream_spans()
        return answer.body, record, upstream["attributes"]


@pytest.fixture(scope="module")
def standing():
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        made = Standing(runner)
        runner.run(made.open())
        yield made
        runner.run(made.stack.aclose())


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large])
@given(streams())
def test_any_stream_cut_anywhere_passes_and_is_counted_right(standing, parts):
    stream = b"".join(parts)
    body, record, upstream = standing.runner.run(standing.ask(parts))
    if not stream:
        assert record["http.response.status_code"] == 502
        return
    expected = told(stream)
    is_whole = expected["lensd.stream.done_seen"] or expected["gen_ai.response.finish_reasons"] is not None
    assert body == stream if is_whole else body.startswith(stream)
    assert {name: record.get(name) for name in expected} == expected
    assert record["lensd.bytes_sent"] == len(body)
    assert (record["lensd.outcome"], record.get("error.type")) == (("ok", None) if is_whole else ("cut", "stream_cut"))
    assert ("lensd.upstream.first_content_ms" in upstream) is has_text(stream)
    if not is_whole:
        assert body.endswith(b"\n\ndata: [DONE]\n\n")
        assert b'"code":"stream_cut"' in body[len(stream) :]
        assert b"finish_reason" not in body[len(stream) :]


# Bytes are never held, and signs of life


def test_each_byte_goes_on_as_it_comes():
    """The engine sends the next part only when the caller has the one before."""
    turn = asyncio.Event()

    async def script(call: Call) -> None:
        await call.start_stream()
        for part in parts:
            await call.chunk(part)
            await turn.wait()
            turn.clear()
        await call.end_stream()

    parts = [SSE[:1], SSE[1:5], SSE[5:700], SSE[700:]]

    async def main():
        async with stage(script, heartbeat_s=0) as s:
            reader, writer = await s.open(STREAMED)
            await reader.readuntil(b"\r\n\r\n")
            for part in parts:
                async with asyncio.timeout(2):
                    size = int(await reader.readline(), 16)
                    assert await reader.readexactly(size + 2) == part + b"\r\n"
                turn.set()
            writer.close()

    run(main())


def test_heartbeats_come_at_boundaries_only():
    parts = HEAD, 0.25, REST[:20], 0.25, REST[20:], 0.25

    async def main():
        async with stage(sending(*parts), heartbeat_s=0.06) as s:
            return await s.ask(STREAMED), await s.record()

    answer, record = run(main())
    beats = answer.body.count(HEARTBEAT)
    assert beats >= 1
    assert answer.body == HEAD + HEARTBEAT * beats + REST  # none inside the half event, none after [DONE]
    assert answer.body.replace(HEARTBEAT, b"") == SSE
    assert (record["lensd.outcome"], record["lensd.stream.chunks"], record["lensd.stream.done_seen"]) == ("ok", 18, True)
    assert record["lensd.stream.max_gap_ms"] > 240


@pytest.mark.parametrize(("silence_s", "heartbeat_s"), [(0.2, 0.0), (0.05, 5.0)])
def test_no_heartbeat_where_nobody_wants_one_or_the_stream_is_not_silent(silence_s, heartbeat_s):
    async def main():
        async with stage(sending(HEAD, silence_s, *[REST, silence_s]), heartbeat_s=heartbeat_s) as s:
            return (await s.ask(STREAMED)).body

    assert run(main()) == SSE


@pytest.mark.parametrize("body", [CHAT, STREAMED])
@pytest.mark.parametrize("option", [False, True])
def test_a_heartbeat_before_the_first_byte_is_for_streams_and_by_option(body, option):
    async def late(call: Call) -> None:
        await asyncio.sleep(0.2)
        await (sending(SSE)(call) if call.asked.get("stream") else call.reply(200, WHOLE))

    async def main():
        async with stage(late, heartbeat_s=0.04, heartbeat_before_first_byte=option) as s:
            return await s.ask(body), await s.record(), s.upstream_spans()[0]

    answer, record, upstream = run(main())
    beats = answer.body.count(HEARTBEAT)
    assert answer.body == HEARTBEAT * beats + (SSE if body is STREAMED else WHOLE)
    assert (beats > 0) is (option and body is STREAMED)
    assert answer.headers["content-type"].startswith("text/event-stream" if body is STREAMED else "application/json")
    assert answer.headers["x-lensd-said-by"] == ("gateway" if beats else "engine")
    assert (record["lensd.outcome"], record["lensd.bytes_sent"]) == ("ok", len(SSE if body is STREAMED else WHOLE))
    assert upstream["attributes"]["lensd.upstream.first_byte_ms"] >= 190  # a heartbeat is not the engine's


async def late_error(call: Call) -> None:
    await asyncio.sleep(0.15)
    await call.reply(400, b'{"error": {"message": "no such thing", "type": "BadRequestError", "param": null, "code": 400}}')


async def late_whole(call: Call) -> None:
    await asyncio.sleep(0.15)
    await call.reply(200, WHOLE)


async def late_and_big(call: Call) -> None:
    await asyncio.sleep(0.15)
    await call.reply(200, WHOLE + b" " * (9 << 20))


async def late_and_gone(call: Call) -> None:
    await asyncio.sleep(0.15)
    call.cut()


@pytest.mark.parametrize(
    ("script", "code", "decision", "said_by"),
    [
        (late_error, "BadRequestError", "body_malformed", "engine"),
        (late_whole, "engine_error", "engine_error", "gateway"),
        (late_and_big, "engine_error", "engine_error", "gateway"),
        (late_and_gone, "engine_error", "engine_error", "gateway"),
    ],
)
def test_after_a_heartbeat_an_error_can_only_be_a_frame(script, code, decision, said_by):
    async def main():
        async with stage(script, heartbeat_s=0.04, heartbeat_before_first_byte=True) as s:
            answer = await s.ask(STREAMED)
            with pytest.raises(openai.APIError) as caught:
                await consume(s, STREAMED)
            return answer, (await s.records())[0], caught.value.code

    answer, record, raised = run(main())
    assert answer.status == 200
    assert answer.body.startswith(HEARTBEAT)
    (frame, done, rest) = answer.body.replace(HEARTBEAT, b"").split(b"\n\n")
    assert json.loads(frame.removeprefix(b"data: "))["error"]["code"] == code == raised
    assert (done, rest) == (b"data: [DONE]", b"")
    assert (record["http.response.status_code"], record["lensd.decision"], record["lensd.said_by"]) == (200, decision, said_by)
    assert record["lensd.outcome"] in ("failed", "refused")


def test_after_a_heartbeat_another_engine_can_still_answer():
    async def busy(call: Call) -> None:
        await asyncio.sleep(0.15)
        await call.reply(503, b'{"error": {"message": "full", "type": "x"}}')

    options = {"heartbeat_s": 0.04, "heartbeat_before_first_byte": True, "retry": Retry(most=1, first_s=0.01)}

    async def main():
        async with stage_of(FakeEngine(busy), FakeEngine(sending(SSE)), **options) as s:
            return await s.ask(STREAMED), await s.record()

    answer, record = run(main())
    assert answer.body.startswith(HEARTBEAT)
    assert answer.body.replace(HEARTBEAT, b"") == SSE
    assert (record["lensd.outcome"], record["lensd.attempts"]) == ("ok", 2)


# The official client


def client(s) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{s.port}/v1", api_key="none", max_retries=0)


async def consume(s, body: dict) -> str:
    """The text of a chat stream, as the client reads it."""
    async with client(s) as made:
        stream = await made.chat.completions.create(**body)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])


def test_the_official_client_reads_through_heartbeats():
    plain = "".join(chunk["choices"][0]["delta"].get("content") or "" for chunk in map(parsed, datas(SSE)) if chunk and chunk["choices"])

    async def main():
        script = sending(0.15, HEAD, 0.15, REST[:10], REST[10:])
        async with stage(script, heartbeat_s=0.04, heartbeat_before_first_byte=True) as s:
            return await consume(s, STREAMED)

    assert run(main()) == plain


def datas(stream: bytes) -> list[bytes]:
    return [data for _, data in read(stream).events]


IN_BAND = b'data: {"error": {"message": "EngineCore encountered an issue.", "type": "InternalServerError", "param": null, "code": 500}}\n\n'


@pytest.mark.parametrize(
    ("script", "says"),
    [
        pytest.param(sending(HEAD), "broke off before its end", id="no end"),
        pytest.param(sending(HEAD, then="cut"), "broke off before its end", id="engine dies"),
        pytest.param(sending(HEAD + REST[:30], then="cut"), "broke off before its end", id="engine dies inside an event"),
        pytest.param(sending(HEAD, IN_BAND, DONE), "EngineCore encountered an issue.", id="engine's own error frame"),
        pytest.param(sending(HEAD, IN_BAND, then="cut"), "EngineCore encountered an issue.", id="its error frame, and it dies"),
        pytest.param(sending(HEAD, then="hang"), "stood still for 0.15 s", id="engine stands still"),
    ],
)
def test_the_official_client_raises_where_a_stream_has_no_good_end(script, says):
    async def main():
        async with stage(script, idle_timeout_s=0.15) as s:
            with pytest.raises(openai.APIError) as caught:
                await consume(s, STREAMED)
            body = (await s.ask(STREAMED)).body
            return caught.value.message, body, await s.records()

    message, body, records = run(main())
    assert says in message
    assert b'"finish_reason":"stop"' not in body
    errors = [chunk["error"] for chunk in map(parsed, datas(body)) if isinstance(chunk, dict) and "error" in chunk]
    assert len({each["message"] for each in errors}) == 1  # a half event can only be ended as the error itself
    assert body.endswith(b"\n\n")
    assert all(record["lensd.outcome"] in ("cut", "failed", "timed_out") for record in records)
    assert "gen_ai.response.finish_reasons" not in records[0]


async def keep(opening: Awaitable[openai.AsyncStream[Any]], seen: list[str]) -> None:
    async for event in await opening:
        seen.append(event.type)


RESPONSES = {"model": MODEL, "input": "x", "stream": True}
HALF = responses()


@pytest.mark.parametrize("torn", [b"", b'event: response.output_text.delta\ndata: {"type": "resp'])
def test_a_stream_of_responses_that_breaks_off_is_a_failed_response(torn):
    async def main():
        async with stage(sending(HALF + torn, then="cut")) as s:
            answer = await s.ask(RESPONSES, "/v1/responses")
            seen = []
            async with client(s) as made:
                with pytest.raises(openai.APIError):
                    await keep(made.responses.create(**RESPONSES), seen)
            return answer, seen, (await s.records())[0]

    answer, seen, record = run(main())
    assert answer.body.startswith(HALF + torn)
    failed = next(parsed(data) for name, data in read(answer.body).events if name == "response.failed")
    assert failed["response"]["status"] == "failed"
    assert failed["response"]["error"]["code"] == "stream_cut"
    assert seen[:2] == ["response.created", "response.in_progress"]
    assert "response.completed" not in seen
    assert (record["lensd.outcome"], record["lensd.stream.done_seen"], record["http.route"]) == ("cut", False, "/v1/responses")


def test_a_whole_stream_of_responses_passes():
    async def main():
        async with stage(sending(COMPLETED)) as s:
            answer = await s.ask(RESPONSES, "/v1/responses")
            async with client(s) as made:
                seen = [event.type async for event in await made.responses.create(**RESPONSES)]
            return answer, seen, (await s.records())[0]

    answer, seen, record = run(main())
    assert answer.body == COMPLETED
    assert seen[-1] == "response.completed"
    assert (record["lensd.outcome"], record["lensd.stream.done_seen"]) == ("ok", True)
    assert (record["gen_ai.usage.input_tokens"], record["gen_ai.usage.output_tokens"]) == (7, 2)


# Other endpoints and other replies

EMBEDDING = (
    b'{"object":"list","model":"tiny-llama","data":[{"index":0,"embedding":[0.10,1e-3]}],"usage":{"prompt_tokens":3,"total_tokens":3}}'
)
RESPONSE = b'{"id":"resp_1","object":"response","status":"completed","output":[],"usage":{"input_tokens":3,"output_tokens":5}}'
SPEECH = bytes(range(256)) * 8192


@pytest.mark.parametrize(
    ("path", "body", "content_type", "usage"),
    [
        ("/v1/embeddings", EMBEDDING, "application/json", (3, None)),
        ("/v1/responses", RESPONSE, "application/json", (3, 5)),
        ("/v1/completions", WHOLE, "application/json", (12, 16)),
        ("/v1/rerank", b'{"results": [ ]}', "application/json", (None, None)),
        ("/v1/audio/speech", SPEECH, "audio/mpeg", (None, None)),
        ("/v1/chat/completions", b"<html>not JSON</html>", "text/html; charset=latin-1", (None, None)),
        ("/v1/chat/completions", b"", "application/json", (None, None)),
        ("/v1/chat/completions", WHOLE + b" " * (9 << 20), "application/json", (None, None)),  # over what is held back
    ],
)
def test_whole_replies_pass_whatever_they_are(path, body, content_type, usage):
    async def script(call: Call) -> None:
        await call.reply(200, body, content_type)

    async def main():
        async with stage(script, routes=("/v1/rerank", "/v1/audio/speech")) as s:
            return await s.ask({"model": MODEL, "input": "x"}, path), s.engine.calls[0], await s.record()

    answer, call, record = run(main())
    assert (answer.status, answer.body) == (200, body)
    assert answer.headers["content-type"] == content_type
    assert call.path == path
    assert (record.get("gen_ai.usage.input_tokens"), record.get("gen_ai.usage.output_tokens")) == usage
    assert (record["lensd.outcome"], record["lensd.bytes_sent"], record["http.route"]) == ("ok", len(body), path)
    if len(body) < 8 << 20:
        assert answer.headers["content-length"] == str(len(body))


def test_a_large_reply_that_breaks_off_is_seen_to_break_off():
    async def script(call: Call) -> None:
        size = 12 << 20
        await call.send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % size + b"x" * (size // 2))
        await call.send(b"x" * (size // 4))
        await asyncio.sleep(0.02)
        call.cut()

    async def main():
        async with stage(script) as s:
            with pytest.raises(aiohttp.ClientError):
                await s.ask()
            return await s.record()

    record = run(main())
    assert (record["lensd.outcome"], record["error.type"]) == ("cut", "reply_cut")


def test_what_counts_as_the_first_content_and_the_largest_gap():
    role = b'data: {"id": "c", "choices": [{"index": 0, "delta": {"role": "assistant", "content": ""}}]}\n\n'
    text = b'data: {"id": "c", "choices": [{"index": 0, "delta": {"content": "x"}}]}\n\n'
    script = sending(role, 0.08, b": comment\n\n", 0.08, text, 0.3, text, 0.05, DONE)

    async def main():
        async with stage(script) as s:
            await s.ask(STREAMED)
            return await s.record(), s.upstream_spans()[0]["attributes"]

    record, upstream = run(main())
    assert upstream["lensd.upstream.first_byte_ms"] < upstream["lensd.upstream.first_content_ms"] - 150
    assert upstream["lensd.upstream.last_byte_ms"] > upstream["lensd.upstream.first_content_ms"] + 340
    assert 295 < record["lensd.stream.max_gap_ms"] < 450


# Slow readers


def event_of(size: int) -> bytes:
    return b'data: {"choices":[{"delta":{"content":"' + b"x" * size + b'"}}]}\n\n'


async def endless(call: Call) -> None:
    await call.start_stream()
    while True:
        await call.chunk(event_of(8000))


async def slow(port: int) -> socket.socket:
    """A connection with a request sent, of which nobody reads."""
    loop = asyncio.get_running_loop()
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.setblocking(False)
    await loop.sock_connect(sock, ("127.0.0.1", port))
    data = json.dumps(STREAMED).encode()
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nx-who: slow\r\ncontent-length: %d\r\n\r\n" % len(data)
    await loop.sock_sendall(sock, head + data)
    return sock


def test_a_caller_that_leaves_while_it_is_written_to():
    async def main():
        async with stage(endless) as s:
            sock = await slow(s.port)
            async with asyncio.timeout(5):
                while not any(record.is_sending for record in s.app.live):
                    await asyncio.sleep(0.01)
            await asyncio.sleep(0.05)
            call = s.engine.calls[0]
            left_at = time.perf_counter()
            sock.close()
            await asyncio.wait_for(call.gone.wait(), 2)
            return call.gone_at - left_at, await s.record(), s.app.fleet.targets[0].in_flight

    took, record, in_flight = run(main())
    assert took < LIMIT_S
    assert in_flight == 0
    assert (record["lensd.outcome"], record["http.response.status_code"], record["error.type"]) == ("caller_gone", 499, "caller_gone")


@pytest.mark.parametrize("end", ["end", "cut"])
def test_a_caller_that_does_not_read_the_end_is_let_go(end):
    """All is sent but the last few bytes, which find the caller's connection full."""

    async def main():
        async with stage(sending(event_of(110_000) + (DONE if end == "end" else b""), then=end), idle_timeout_s=0.2, send_buffer=8192) as s:
            sock = await slow(s.port)
            await s.engine.posted(1)
            record = await s.record()
            received = 0
            async with asyncio.timeout(2):
                while data := await asyncio.get_running_loop().sock_recv(sock, 65536):
                    received += len(data)
            sock.close()
            return record, received

    record, received = run(main())
    assert (record["lensd.outcome"], record["error.type"]) == ("caller_gone", "caller_not_reading")
    assert (record["lensd.timeout.kind"], record["lensd.said_by"]) == ("idle", "client")
    assert received < 110_000  # nothing is kept for it after that


def test_the_last_words_do_not_wait_for_a_caller_that_does_not_read():
    """The engine stands still after the caller's connection is full."""

    async def main():
        script = sending(event_of(110_000), then="hang")
        async with stage(script, idle_timeout_s=0.2, send_buffer=8192) as s:
            sock = await slow(s.port)
            await s.engine.posted(1)
            record = await s.record()
            sock.close()
            return record

    record = run(main())
    assert (record["lensd.outcome"], record["lensd.timeout.kind"]) == ("timed_out", "idle")


def test_a_caller_that_leaves_before_it_could_read_done_has_missed_it():
    async def main():
        async with stage(sending(event_of(110_000) + DONE), send_buffer=8192) as s:
            sock = await slow(s.port)
            await s.engine.posted(1)
            async with asyncio.timeout(5):
                while not any(record.is_sending for record in s.app.live):
                    await asyncio.sleep(0.01)
            sock.close()
            return await s.record()

    record = run(main())
    assert (record["lensd.outcome"], record["http.response.status_code"]) == ("caller_gone", 499)


def test_a_heartbeat_that_comes_too_late_changes_nothing():
    """The request ends between the timer's look at it and the beat."""

    async def main():
        async with stage(sending(SSE), heartbeat_s=0.01, heartbeat_before_first_byte=True) as s:
            app = s.app
            timer = Timer({record}, app.limits, app.fleet, app._client, app.reporter, lambda: None, time.monotonic_ns, time.time_ns)
            timer._look_at_live(time.monotonic_ns())
            record.status, record.send, record.task = 499, None, None
            await asyncio.sleep(0.01)

    now = time.monotonic_ns() - 10**9
    record = Record(
        wall_ns=0, received=now, method="POST", route="/v1/chat/completions", trace_id="", span_id="", parent_span_id=None, request_id="",
        streaming=True, body_read=now, send=[].append,
    )  # fmt: skip
    run(main())
    assert (record.status, record.started_out, record.beat > 0) == (499, False, True)


def test_a_caller_that_does_not_read_costs_little_and_holds_up_nobody():
    """64 MB for a caller that reads nothing: they stay with the engine."""
    total = 64 << 20
    sent = {"slow": 0}

    async def script(call: Call) -> None:
        if call.headers.get("x-who") != "slow":
            await sending(HEAD, 0.05, REST)(call)
            return
        await call.start_stream()
        event = event_of(32_000)
        while sent["slow"] < total:
            await call.chunk(event)
            sent["slow"] += len(event)
        await call.end_stream()

    async def main():
        engine = FakeEngine(script)
        await engine.listen()
        try:
            async with gateway_process(engine.port, idle_timeout_s=1.5) as gateway:
                for _ in range(20):
                    assert (await ask(gateway.port)).endswith(DONE)
                before = gateway.memory_bytes()
                sock = await slow(gateway.port)
                stopped_at = await settled(lambda: sent["slow"])
                call = next(call for call in engine.calls if call.headers.get("x-who") == "slow")
                began = time.perf_counter()
                others = await asyncio.gather(*(ask(gateway.port) for _ in range(8)))
                took = time.perf_counter() - began
                grown = gateway.memory_bytes() - before
                moved = sent["slow"] - stopped_at
                await asyncio.wait_for(call.gone.wait(), 5)
                async with asyncio.timeout(3):
                    while not (gone := [each for each in engine.server_spans() if each["lensd.outcome"] == "caller_gone"]):
                        await asyncio.sleep(0.02)
                sock.close()
                return stopped_at, moved, others, took, grown, gone
        finally:
            engine.die()

    stopped_at, moved, others, took, grown, gone = run(main())
    assert 0 < stopped_at < total // 2
    assert moved == 0
    assert all(body == SSE for body in others)
    assert took < 1.5
    assert grown < 4 << 20
    assert [each["error.type"] for each in gone] == ["caller_not_reading"]


async def ask(port: int) -> bytes:
    url = f"http://127.0.0.1:{port}/v1/chat/completions"
    async with aiohttp.ClientSession() as session, session.post(url, json=STREAMED) as response:
        return await response.read()


async def settled(value: Callable[[], int]) -> int:
    """The value once it has not changed for a while."""
    seen, since = -1, time.perf_counter()
    async with asyncio.timeout(10):
        while time.perf_counter() - since < 0.3:
            if (now := value()) != seen:
                seen, since = now, time.perf_counter()
            await asyncio.sleep(0.02)
    return seen
