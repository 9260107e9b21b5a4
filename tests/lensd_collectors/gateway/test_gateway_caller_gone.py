"""The caller leaves: how long until the engine sees it, at the engine's own socket, and what is said of the request."""

import asyncio
import json
import time

import pytest
from gateway_stage import CHAT, Call, capture, run, stage

LIMIT_S = 0.05
SSE = capture("http/ok-chat-stream.json")["body"].encode()
HEAD = SSE[: SSE.index(b"\n\n", 600) + 2]
STREAMED = {**CHAT, "stream": True}


async def silent(call: Call) -> None:
    await asyncio.sleep(60)


async def headers_only(call: Call) -> None:
    await call.start_stream()
    await asyncio.sleep(60)


async def midway(call: Call) -> None:
    await call.start_stream()
    await call.chunk(HEAD)
    await asyncio.sleep(60)


async def half_a_reply(call: Call) -> None:
    await call.send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 900\r\n\r\n{")
    await asyncio.sleep(60)


async def endless(call: Call) -> None:
    await call.start_stream()
    while True:
        await call.chunk(b'data: {"choices":[{"delta":{"content":"' + b"x" * 8000 + b'"}}]}\n\n')


@pytest.mark.parametrize(
    ("script", "body", "wait_for", "chunks"),
    [
        pytest.param(silent, CHAT, None, None, id="whole, before the first byte"),
        pytest.param(silent, STREAMED, None, None, id="stream, before the headers"),
        pytest.param(headers_only, STREAMED, None, 0, id="stream, before the first byte"),
        pytest.param(half_a_reply, CHAT, None, None, id="whole, half way"),
        pytest.param(midway, STREAMED, HEAD[-40:], 3, id="stream, half way"),
    ],
)
@pytest.mark.parametrize("abruptly", [True, False], ids=["reset", "close"])
def test_the_engine_sees_it_at_once(script, body, wait_for, chunks, abruptly):
    async def main():
        async with stage(script) as s:
            reader, writer = await s.open(body)
            await s.engine.called.wait()
            await (reader.readuntil(wait_for) if wait_for else asyncio.sleep(0.03))
            left_at = time.perf_counter()
            writer.transport.abort() if abruptly else writer.close()
            call = s.engine.calls[0]
            await asyncio.wait_for(call.gone.wait(), 2)
            return call.gone_at - left_at, await s.record(), s.app.fleet.targets[0].in_flight

    took, record, in_flight = run(main())
    assert took < LIMIT_S
    assert in_flight == 0
    assert (record["lensd.outcome"], record["http.response.status_code"]) == ("caller_gone", 499)
    assert (record["lensd.said_by"], record["lensd.decision"], record["error.type"]) == ("client", "caller_gone", "caller_gone")
    if chunks is not None:
        assert record["lensd.stream.chunks"] == chunks


@pytest.mark.parametrize("body_bytes", [70_000, 500_000, 3_000_000])
def test_after_a_long_body_too(body_bytes):
    """Of which so much is read at a time that the reading is stopped for a moment."""

    async def main():
        async with stage(silent) as s:
            _, writer = await asyncio.open_connection("127.0.0.1", s.port)
            body = json.dumps({**CHAT, "user": "x" * body_bytes}).encode()
            writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(body))
            while not s.app.live:
                await asyncio.sleep(0.002)
            writer.write(body)
            call = await s.engine.posted(1)
            left_at = time.perf_counter()
            writer.close()
            await asyncio.wait_for(call.gone.wait(), 2)
            return call.gone_at - left_at, await s.record()

    took, record = run(main())
    assert took < LIMIT_S
    assert record["lensd.outcome"] == "caller_gone"


def test_while_the_body_is_still_being_sent():
    async def main():
        async with stage(silent) as s:
            _, writer = await asyncio.open_connection("127.0.0.1", s.port)
            writer.write(b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\n{")
            while not s.app.live:
                await asyncio.sleep(0.002)
            writer.close()
            return await s.record(), len(s.engine.calls)

    record, calls = run(main())
    assert (record["lensd.outcome"], calls) == ("caller_gone", 0)


@pytest.mark.parametrize("waiting", [1, 7])
def test_with_more_requests_waiting_on_its_connection(waiting, caplog):
    async def main():
        async with stage(silent) as s:
            _, writer = await s.open()
            call = await s.engine.posted(1)
            data = json.dumps(CHAT).encode()
            for _ in range(waiting):
                writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(data) + data)
                await writer.drain()
            writer.close()
            await asyncio.wait_for(call.gone.wait(), 2)
            return await s.record(), len(s.engine.posts)

    record, posts = run(main())
    assert (record["lensd.outcome"], posts) == ("caller_gone", 1)
    assert not caplog.records


@pytest.mark.parametrize(
    ("last", "outcome", "status", "decision"),
    [
        (b"data: [DONE]\n\n", "ok", 200, "allowed"),
        (b'data: {"error": {"message": "EngineCore encountered an issue."}}\n\n', "failed", 200, "engine_dead"),
    ],
)
def test_a_caller_that_has_read_the_end_has_not_left_early(last, outcome, status, decision):
    async def script(call: Call) -> None:
        await call.start_stream()
        await call.chunk(HEAD + last)
        await asyncio.sleep(60)

    async def main():
        async with stage(script) as s:
            reader, writer = await s.open(STREAMED)
            await reader.readuntil(last)
            writer.transport.abort()
            return await s.record()

    record = run(main())
    assert (record["lensd.outcome"], record["http.response.status_code"], record["lensd.decision"]) == (outcome, status, decision)


def test_a_caller_that_does_not_read_is_let_go_and_the_engine_with_it():
    async def main():
        async with stage(endless, idle_timeout_s=0.2) as s:
            reader, writer = await s.open(STREAMED)
            reader._transport.pause_reading()
            await s.engine.called.wait()
            call = s.engine.calls[0]
            await asyncio.wait_for(call.gone.wait(), 5)
            record = await s.record()
            writer.transport.abort()
            return record

    record = run(main())
    assert (record["lensd.outcome"], record["error.type"]) == ("caller_gone", "caller_not_reading")
    assert (record["lensd.timeout.kind"], record["lensd.timeout.ms"]) == ("idle", 200)


def test_one_caller_leaving_does_not_touch_another():
    async def main():
        async with stage(midway) as s:
            first, second = await s.open(STREAMED), await s.open(STREAMED)
            for reader, _ in (first, second):
                await reader.readuntil(HEAD[-40:])
            first[1].transport.abort()
            gone = [asyncio.create_task(call.gone.wait()) for call in s.engine.calls]
            await asyncio.wait(gone, return_when=asyncio.FIRST_COMPLETED, timeout=2)
            await asyncio.sleep(0.05)
            left = [call.gone.is_set() for call in s.engine.calls]
            open_still = len(s.app.live)
            second[1].close()
            return left, open_still

    left, open_still = run(main())
    assert sorted(left) == [False, True]
    assert open_still == 1
