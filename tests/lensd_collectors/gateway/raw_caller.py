"""A client before an engine at the level of its socket, and a clock that the test moves."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable

from lensd_collectors.gateway.record import Record
from lensd_collectors.gateway.upstream import Address, PooledClient, Reply
from raw_engine import RawEngine, Script, Wire, raw_engine

LIMIT_S = 0.05  # in which an engine sees that nobody waits any more
S = 1_000_000_000


class Clock:
    """Nanoseconds, which pass when the test says so."""

    def __init__(self) -> None:
        self.now = 1000 * S

    def __call__(self) -> int:
        return self.now


def record() -> Record:
    return Record(wall_ns=0, received=0, method="POST", route="/v1/x", trace_id="", span_id="", parent_span_id=None, request_id="")


class Caller:
    """A client and the engine that it asks."""

    def __init__(self, client: PooledClient, engine: RawEngine, clock: Clock) -> None:
        self.client, self.engine, self.clock = client, engine, clock
        self.record = record()

    async def open(self, body: bytes = b"{}", url: str = "") -> Reply:
        self.record = record()
        return await self.client.post(Address.of(url or self.engine.url), [], body, self.record)

    async def post(self, body: bytes = b"{}") -> bytes:
        """The whole body of the reply, the connection given back."""
        return await read_all(await self.open(body))


async def read_all(reply: Reply) -> bytes:
    parts = []
    while part := await reply.read():
        parts.append(part)
    reply.close()
    return b"".join(parts)


@contextlib.asynccontextmanager
async def caller(script: Script) -> AsyncIterator[Caller]:
    clock = Clock()
    client = PooledClient(clock)
    async with raw_engine(script) as engine:
        try:
            yield Caller(client, engine, clock)
        finally:
            await client.close()


async def echo(wire: Wire) -> None:
    """Every request is answered with its own body."""
    while True:
        head, body = await wire.request()
        if not head:
            wire.gone_at = time.perf_counter()
            return
        await wire.send(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))


async def silent(wire: Wire) -> None:
    await wire.request()
    await wire.gone()


def once(data: bytes) -> Script:
    async def script(wire: Wire) -> None:
        await wire.request()
        await wire.send(data)
        await wire.gone()

    return script


async def until(true: Callable[[], object]) -> None:
    while not true():
        await asyncio.sleep(0.001)
