"""Streams on their way through the gateway: never held, with signs of life, and ended so that a client notices."""

import asyncio
import json
from collections.abc import Awaitable
from typing import Any

import openai
import pytest
from engine_scripts import sending
from gateway_stage import CHAT, MODEL, Call, FakeEngine, run, stage, stage_of
from lensd_collectors.gateway.config import Retry
from lensd_collectors.gateway.frames import HEARTBEAT
from sse_spec import COMPLETED, parsed, read, responses
from stream_pieces import DONE, HEAD, REST, SSE, STREAMED, WHOLE

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
