"""Callers that do not read what they asked for."""

import asyncio
import json
import socket
import time
from collections.abc import Callable

import aiohttp
import pytest
from engine_scripts import sending
from gateway_process import gateway_process
from gateway_stage import Call, FakeEngine, run, stage
from lensd_collectors.gateway.record import Record
from lensd_collectors.gateway.timer import Timer
from stream_pieces import DONE, HEAD, LIMIT_S, REST, SSE, STREAMED


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
