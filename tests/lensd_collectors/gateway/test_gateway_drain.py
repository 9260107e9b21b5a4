"""The end of a gateway: who is still served, who is sent elsewhere, and how long it takes. Processes of their own, with real signals."""

import asyncio
import json
import signal
import socket
import time

import aiohttp
import pytest
from gateway_process import PROGRAM, GatewayProcess, gateway_process
from gateway_stage import CHAT, Call, FakeEngine, run, stage
from lensd_collectors.gateway.app import GRACE_S

STREAMED = {**CHAT, "stream": True}
DONE = b"data: [DONE]\n\n"


def event(number: int) -> bytes:
    return b'data: {"id": "c", "choices": [{"index": 0, "delta": {"content": "%d "}}]}\n\n' % number


FINISH = b'data: {"id": "c", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}\n\n'


class Held:
    """An engine whose streams go on until they are let go."""

    def __init__(self) -> None:
        self.let_go = asyncio.Event()

    async def __call__(self, call: Call) -> None:
        if not call.asked.get("stream"):
            await call.reply(200, b'{"id": "c", "choices": []}')
            return
        await call.start_stream()
        await call.chunk(event(0))
        await self.let_go.wait()
        await call.chunk(FINISH + DONE)
        await call.end_stream()


async def open_stream(port: int, seen: bytes = b'"0 "') -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """One whose first event has come."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    data = json.dumps(STREAMED).encode()
    writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(data) + data)
    await asyncio.wait_for(reader.readuntil(seen), 5)
    return reader, writer


async def ask(url: str) -> tuple[int, dict, bytes]:
    async with aiohttp.ClientSession() as session, session.post(f"{url}/v1/chat/completions", json=CHAT) as response:
        return response.status, {name.lower(): value for name, value in response.headers.items()}, await response.read()


def with_gateway(scene, **settings):
    """Runs a scene before a held engine."""

    async def main():
        script = Held()
        engine = FakeEngine(script)
        await engine.listen()
        try:
            async with gateway_process(engine.port, **settings) as gateway:
                return await scene(gateway, script, engine)
        finally:
            engine.die()

    return run(main())


async def not_ready(gateway: GatewayProcess) -> float:
    """Seconds until /readyz says that it is leaving."""
    began = time.perf_counter()
    async with asyncio.timeout(2):
        while await gateway.ready() == 200:
            await asyncio.sleep(0.002)
    return time.perf_counter() - began


def test_it_says_so_at_once_serves_what_is_on_its_way_and_lets_streams_run_on():
    async def scene(gateway, script, engine):
        reader, _ = await open_stream(gateway.port)
        gateway.signal()
        began = time.perf_counter()
        took = await not_ready(gateway)
        on_its_way = await ask(gateway.url)
        assert time.perf_counter() - began < GRACE_S
        await asyncio.sleep(GRACE_S + 0.1)
        late = await ask(gateway.url)
        posts = len(engine.posts)
        script.let_go.set()
        rest = await asyncio.wait_for(reader.readuntil(b"0\r\n\r\n"), 2)
        return took, on_its_way, late, posts, rest, await gateway.ended(3)

    took, on_its_way, late, posts, rest, (code, said) = with_gateway(scene, drain_timeout_s=20)
    assert took < 0.3
    assert on_its_way[0] == 200
    status, headers, body = late
    assert (status, json.loads(body)["error"]["code"]) == (503, "gateway_stopping")
    assert int(headers["retry-after"]) >= 1
    assert headers["x-lensd-said-by"] == "gateway"
    assert "x-should-retry" not in headers  # the next try may find another gateway
    assert posts == 2
    assert rest.endswith(DONE + b"\r\n0\r\n\r\n")
    assert b"error" not in rest
    assert (code, said) == (0, "")


def test_what_is_open_after_the_time_for_it_gets_an_error_frame():
    async def scene(gateway, script, engine):
        reader, _ = await open_stream(gateway.port)
        gateway.signal()
        began = time.perf_counter()
        rest = await asyncio.wait_for(reader.read(), 10)
        took = time.perf_counter() - began
        ended = await gateway.ended(3)
        await asyncio.wait_for(engine.posts[0].gone.wait(), 1)
        return rest, took, ended, engine.server_spans()

    rest, took, (code, said), records = with_gateway(scene, drain_timeout_s=0.2)
    assert [(each["lensd.outcome"], each["lensd.decision"]) for each in records] == [("cut", "gateway_stopping")]
    assert b'"code":"gateway_stopping"' in rest
    assert rest.endswith(DONE + b"\r\n0\r\n\r\n")
    assert GRACE_S + 0.2 <= took < GRACE_S + 1.5
    assert (code, said) == (0, "")


@pytest.mark.parametrize("signals", [(signal.SIGTERM, signal.SIGTERM), (signal.SIGTERM, signal.SIGINT), (signal.SIGINT,)])
def test_a_second_signal_or_an_interrupt_ends_it_at_once(signals):
    async def scene(gateway, script, engine):
        reader, _ = await open_stream(gateway.port)
        for how in signals[:-1]:
            gateway.signal(how)
            await not_ready(gateway)  # two of a kind at the same time are one
        gateway.signal(signals[-1])
        began = time.perf_counter()
        rest = await asyncio.wait_for(reader.read(), 10)
        return rest, await gateway.ended(5), time.perf_counter() - began

    rest, (code, said), took = with_gateway(scene, drain_timeout_s=60)
    assert took < 2
    assert b'"code":"gateway_stopping"' in rest
    assert rest.endswith(DONE + b"\r\n0\r\n\r\n")
    assert (code, said) == (0, "")


def test_idle_connections_do_not_hold_it_up():
    async def scene(gateway, script, engine):
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector) as session:
            for _ in range(3):
                async with session.post(f"{gateway.url}/v1/chat/completions", json=CHAT) as response:
                    assert (await response.json())["id"] == "c"
            bare = await asyncio.open_connection("127.0.0.1", gateway.port)
            half = await asyncio.open_connection("127.0.0.1", gateway.port)
            half[1].write(b"POST /v1/chat/completions HTTP/1.1\r\nhost:")
            gateway.signal()
            began = time.perf_counter()
            ended = await gateway.ended(5)
            took = time.perf_counter() - began
            for _, writer in (bare, half):
                writer.close()
            return ended, took

    (code, said), took = with_gateway(scene, drain_timeout_s=60)
    assert took < GRACE_S + 1
    assert (code, said) == (0, "")


def test_a_caller_that_does_not_read_does_not_hold_it_up():
    async def scene(gateway, script, engine):
        async def endless(call: Call) -> None:
            await call.start_stream()
            while True:
                await call.chunk(event(1) * 500)

        engine.script = endless
        sock = socket.socket()
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.setblocking(False)
        loop = asyncio.get_running_loop()
        await loop.sock_connect(sock, ("127.0.0.1", gateway.port))
        data = json.dumps(STREAMED).encode()
        await loop.sock_sendall(sock, b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(data) + data)
        await engine.posted(1)
        await asyncio.sleep(0.3)
        gateway.signal()
        began = time.perf_counter()
        code, _ = await gateway.ended(10)
        took = time.perf_counter() - began
        sock.close()
        return code, took

    code, took = with_gateway(scene, drain_timeout_s=0.1)
    assert code == 0
    assert took < GRACE_S + 4


SIGNALLED_INSIDE = f"""
import collections, os, signal
from lensd_collectors import export
class Queue(collections.deque):
    '''Its owner is signalled while it holds the queue's lock, on the first record of a request.'''
    signalled = False
    def append(self, item):
        if item.weight > 1 and not Queue.signalled:
            Queue.signalled = True
            os.kill(os.getpid(), signal.SIGTERM)
        super().append(item)
export.deque = Queue
{PROGRAM}
"""


def test_a_signal_that_comes_at_the_worst_moment():
    """It must not run into the lock that the interrupted code holds."""

    async def scene(gateway, script, engine):
        assert (await ask(gateway.url))[0] == 200
        return await gateway.ended(6)

    code, said = with_gateway(scene, drain_timeout_s=1, program=SIGNALLED_INSIDE)
    assert (code, said) == (0, "")


def test_what_is_ready_and_what_is_not():
    async def silent(call: Call) -> None:
        await asyncio.sleep(60)

    async def main():
        async with stage(silent) as s:
            ready = await s.ask(None, "/readyz", "GET")
            s.app.drain()
            draining = await s.ask(None, "/readyz", "GET")
            healthy = await s.ask(None, "/healthz", "GET")
            acts = s.kept.acts()
            s.app.drain()
            return ready, draining, healthy, acts, s.kept.acts()

    ready, draining, healthy, acts, again = run(main())
    assert (ready.status, json.loads(ready.body)) == (200, {"status": "ready"})
    assert (draining.status, json.loads(draining.body)) == (503, {"status": "draining"})
    assert healthy.status == 200
    assert acts[-1] == "draining"
    assert again == acts


# A rolling restart

STREAMS = 64
EVENTS = 20


async def paced(call: Call) -> None:
    await call.start_stream()
    for number in range(EVENTS):
        await call.chunk(event(number))
        await asyncio.sleep(0.04)
    await call.chunk(FINISH + DONE)
    await call.end_stream()


EXPECTED = b"".join(map(event, range(EVENTS))) + FINISH + DONE


class Caller:
    """One stream after the other, each by a gateway that says it is ready."""

    def __init__(self, number: int, gateways: list[GatewayProcess], session: aiohttp.ClientSession) -> None:
        self._turn, self._gateways, self._session = number, gateways, session
        self.done = 0
        self.lost: list[object] = []

    async def go_on(self, stop: asyncio.Event) -> None:
        while not stop.is_set():
            url = await self._ready()
            try:
                async with self._session.post(f"{url}/v1/chat/completions", json=STREAMED) as response:
                    body = await response.read()
                if (response.status, body) != (200, EXPECTED):
                    self.lost.append((response.status, body[-300:]))
            except (OSError, aiohttp.ClientError) as error:
                self.lost.append(repr(error))
            self.done += 1

    async def _ready(self) -> str:
        async with asyncio.timeout(20):
            while True:
                self._turn += 1
                url = self._gateways[self._turn % len(self._gateways)].url
                try:
                    async with self._session.get(f"{url}/readyz") as response:
                        if response.status == 200:
                            return url
                except (OSError, aiohttp.ClientError):
                    pass
                await asyncio.sleep(0.02)


def test_a_rolling_restart_under_load_loses_nothing():
    async def main():
        engine = FakeEngine(paced)
        await engine.listen()
        gateways = [GatewayProcess(engine.port, drain_timeout_s=15) for _ in range(2)]
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        stop = asyncio.Event()
        try:
            await asyncio.gather(*(gateway.start() for gateway in gateways))
            async with aiohttp.ClientSession(connector=connector) as session:
                callers = [Caller(number, gateways, session) for number in range(STREAMS)]
                working = [asyncio.create_task(caller.go_on(stop)) for caller in callers]
                await engine.posted(STREAMS)
                ends = []
                for gateway in gateways * 2:
                    assert sum(call.gone.is_set() is False for call in engine.posts[-STREAMS:]) > 0
                    gateway.signal()
                    ends.append(await gateway.ended(20))
                    await gateway.start()
                stop.set()
                await asyncio.gather(*working)
                for gateway in gateways:
                    gateway.signal()
                    ends.append(await gateway.ended(20))
                outcomes = [(each["lensd.outcome"], each["lensd.stream.done_seen"]) for each in engine.server_spans()]
                return [caller.done for caller in callers], [lost for caller in callers for lost in caller.lost], ends, outcomes
        finally:
            for gateway in gateways:
                gateway.kill()
            engine.die()

    done, lost, ends, outcomes = run(main())
    assert lost == []
    assert min(done) >= 4
    assert ends == [(0, "")] * 6
    assert outcomes == [("ok", True)] * sum(done)  # nor does it lose a record
