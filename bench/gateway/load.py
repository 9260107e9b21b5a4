"""Callers: raw connections that send one request after another and time the replies."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from typing import cast

from gateway import wire
from gateway.process import BenchError


class Caller(asyncio.Protocol):
    """One kept connection. A reply sets `status` (0: the connection was lost), `took_ns`, `frames` and `is_whole`, then calls `ended`."""

    def __init__(self) -> None:
        self.status, self.took_ns, self.frames, self.is_whole = 0, 0, 0, False
        self.ended: Callable[[], None] = _nothing
        self.begun: Callable[[], None] = _nothing  # the first bytes of a reply are there
        self._transport: asyncio.Transport | None = None
        self._waits, self._done = False, False
        self._held = b""
        self._needed = 0  # bytes of the reply with its head; 0: not known yet, -1: chunked
        self._sent = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's does not derive from it

    def send(self, request: bytes) -> None:
        assert self._transport is not None
        self._waits, self._held, self._needed, self._done = True, b"", 0, False
        self.frames, self.status = 0, 0
        self._sent = time.perf_counter_ns()
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        if not self._needed:
            data = self._held + data
            end = data.find(wire.HEAD_END)
            if end < 0:
                self._held = data
                return
            self.status = int(data[9:12])
            self._held = b""
            found = wire.CONTENT_LENGTH.search(data, 0, end)
            self._needed = end + 4 + int(found[1]) if found else -1
            self.begun()
        if self._needed > 0:
            self._needed -= len(data)
            if self._needed <= 0:
                self._end(is_whole=True)
        else:
            self._chunked(data)

    def _chunked(self, data: bytes) -> None:
        """Frames are counted by what each begins with, also where it is cut in two; nothing else in a stream looks like it."""
        seen = self._held + data
        self.frames += seen.count(b'data: {"')
        self._done = self._done or b"[DONE]" in seen
        if seen.endswith(wire.LAST_CHUNK):
            self._end(is_whole=self._done)
        else:
            self._held = seen[-7:]

    def _end(self, *, is_whole: bool) -> None:
        self.took_ns = time.perf_counter_ns() - self._sent
        self._waits, self._needed, self.is_whole = False, 0, is_whole and self.status == 200
        self.ended()

    def connection_lost(self, error: Exception | None) -> None:
        if self._waits:
            self.status = 0
            self._end(is_whole=False)

    def close(self) -> None:
        """Leaves, as a client that is ended does: what is being received is no longer waited for."""
        self._waits = False
        if self._transport is not None:
            self._transport.close()


def _nothing() -> None:
    """Nobody is told."""


@dataclass(frozen=True, slots=True)
class Run:
    """What a number of callers got in a stretch of time."""

    requests: int
    failed: int
    frames: int
    seconds: float


@contextlib.asynccontextmanager
async def callers(port: int, number: int) -> AsyncIterator[list[Caller]]:
    """Open connections. Raises BenchError where nothing takes them."""
    made: list[Caller] = []
    try:
        for _ in range(number):
            made.append((await _connect(port))[1])
        yield made
    finally:
        for each in made:
            each.close()
        await asyncio.sleep(0)


async def _connect(port: int) -> tuple[asyncio.BaseTransport, Caller]:
    try:
        return await asyncio.get_running_loop().create_connection(Caller, "127.0.0.1", port)
    except OSError as error:
        raise BenchError(f"no connection to port {port}: {error}") from error


async def take_turns(made: list[Caller], request: bytes, seconds: float, spread_s: float = 0.0) -> Run:
    """Each caller sends its next request as it has the reply to the last, until the time is over; what is under way then is waited for.

    `spread_s`: over how long the first ones start. A caller that loses its connection sends no more.
    """
    loop = asyncio.get_running_loop()
    counts = [0, 0, 0]  # requests, failed, frames
    busy = len(made)
    done = loop.create_future()
    began = time.perf_counter_ns()
    until = began + int(seconds * 1e9)

    def on_end(caller: Caller) -> Callable[[], None]:
        def ended() -> None:
            nonlocal busy
            counts[0] += 1
            counts[1] += not caller.is_whole
            counts[2] += caller.frames
            if caller.status and time.perf_counter_ns() < until:
                caller.send(request)
                return
            busy -= 1
            if not busy:
                done.set_result(None)

        return ended

    for index, caller in enumerate(made):
        caller.ended = on_end(caller)
        loop.call_later(spread_s * index / len(made), caller.send, request)
    await done
    return Run(counts[0], counts[1], counts[2], (time.perf_counter_ns() - began) / 1e9)


async def ask(caller: Caller, request: bytes) -> int:
    """One request; nanoseconds from its sending to the last byte of a good reply, or 0."""
    done = asyncio.Event()
    caller.ended = done.set
    caller.send(request)
    await done.wait()
    return caller.took_ns if caller.is_whole else 0
