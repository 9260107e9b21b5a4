"""Whoever should take the gateway's records is dead, silent, full or broken: requests do not notice, and what is lost is counted."""

import asyncio
import contextlib
import re
import socket
import statistics
import time

import pytest
from gateway_stage import CHAT, Call, FakeEngine, capture, run, stage, stage_of
from lensd_collectors.export import Backoff, Exporter

WHOLE = capture("http/ok-chat-nonstream.json")["body"].encode()
STREAM = capture("http/ok-chat-stream.json")["body"].encode()
REQUESTS = 100
CAPACITY = 40  # far less than what so many requests leave behind


async def whole(call: Call) -> None:
    if not call.asked.get("stream"):
        await call.reply(200, WHOLE)
        return
    await call.start_stream()
    await call.chunk(STREAM)
    await call.end_stream()


@contextlib.asynccontextmanager
async def dead():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    yield port


@contextlib.asynccontextmanager
async def full():
    """Nobody takes its connections, and there is no room for more."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        waiting = [socket.socket() for _ in range(3)]
        for each in waiting:
            each.setblocking(False)
            each.connect_ex(listener.getsockname())
        yield listener.getsockname()[1]
        for each in waiting:
            each.close()


def door(answer: bytes | None):
    """Takes what is sent, and gives this answer; None: never any."""

    @contextlib.asynccontextmanager
    async def opened():
        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
                await reader.readuntil(b"\r\n\r\n")
                if answer is not None:
                    writer.write(answer)
                    writer.write_eof()
                await reader.read()
            writer.close()

        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        yield server.sockets[0].getsockname()[1]
        server.close()

    return opened


def status(code: int, *headers: str) -> bytes:
    return f"HTTP/1.1 {code} X\r\ncontent-length: 0\r\n{''.join(f'{each}{chr(13)}{chr(10)}' for each in headers)}\r\n".encode()


async def took(s, count: int) -> list[float]:
    """How long each of so many requests took, streams among them."""
    times = []
    for number in range(count):
        began = time.perf_counter()
        answer = await s.ask({**CHAT, "stream": bool(number % 2)})
        times.append(time.perf_counter() - began)
        assert (answer.status, answer.body) == (200, STREAM if number % 2 else WHOLE)
    return times


async def counted(s, name: str) -> float:
    page = (await s.ask(None, "/metrics", "GET")).body.decode()
    return float(re.search(rf"^lensd_gateway_{name} (\S+)$", page, re.M)[1])


@pytest.mark.parametrize(
    ("receiver", "lost_as"),
    [
        pytest.param(dead, "export_dropped_total", id="dead"),
        pytest.param(full, "export_dropped_total", id="takes no connections"),
        pytest.param(door(None), "export_dropped_total", id="silent"),
        pytest.param(door(status(429, "retry-after: 1")), "export_dropped_total", id="full"),
        pytest.param(door(status(500)), "export_failed_total", id="broken"),
        pytest.param(door(status(401)), "export_failed_total", id="refuses the token"),
        pytest.param(door(b"\x00\xff nonsense"), "export_dropped_total", id="speaks something else"),
    ],
)
def test_requests_do_not_notice_and_what_is_lost_is_counted(receiver, lost_as):
    async def main():
        async with stage(whole) as s:
            await took(s, 10)
            usual = await took(s, REQUESTS // 2)
        async with receiver() as port:
            exporter = Exporter(
                f"http://127.0.0.1:{port}", token="t", service="lensd-gateway", scope="lensd.gateway", capacity=CAPACITY,
                flush_every_s=0.02, timeout_s=5, backoff=Backoff(first_s=0.005, most_s=0.02),
            )  # fmt: skip
            try:
                async with stage_of(FakeEngine(whole), exporter=exporter) as s:
                    await took(s, 10)
                    times = await took(s, REQUESTS)
                    async with asyncio.timeout(5):
                        while not (lost := await counted(s, lost_as)):
                            await asyncio.sleep(0.02)
                    return usual, times, lost, exporter.sent, exporter._held
            finally:
                await asyncio.to_thread(exporter.close, 0.05)

    usual, times, lost, sent, held = run(main())
    assert lost > 0
    assert sent == 0
    assert held <= CAPACITY
    assert statistics.median(times) < 3 * statistics.median(usual) + 0.003
    assert sorted(times)[-4] < 0.5  # the machine itself stands still at times
    assert max(times) < 4  # nobody has waited for the receiver, which is given 5 s


def told_lost(s) -> int:
    """How many records its own events say are lost."""
    told = [each["body"] for each in s.kept.events if each["attributes"].get("lensd.gateway.act") == "records_dropped"]
    return sum(int(each.split(" ")[0]) for each in told)


def test_the_gateways_own_queue_is_bounded_and_says_what_it_lost():
    async def main():
        async with stage(whole, max_records=5) as s:
            for _ in range(3):
                await asyncio.gather(*(s.ask() for _ in range(30)))
            async with asyncio.timeout(3):
                while not (told := told_lost(s)) or told != await counted(s, "records_dropped_total"):
                    await asyncio.sleep(0.01)
            return told, len(await s.records())

    lost, kept = run(main())
    assert kept == 90 - lost
