"""A process that is everything around the proxy that is measured: the engine behind it, and the OTLP door its records go to.

usage: python -m gateway.engine     prints "ENGINE_PORT SINK_PORT"; ends when its standard input does

Raw protocols over uvloop, so that it costs far less than any proxy. Beside the engine's own paths it answers GET /bench/events, a
line for each tagged request that arrives or loses its connection, and GET /bench/records, how many requests the sink was told of.
"""

import asyncio
import contextlib
import gc
import sys
import time
import zlib
from typing import ClassVar, Final, cast

import uvloop
from lensd_collectors.conventions import SPAN_AUTH_ROUTING

from gateway import wire

OF_A_REQUEST: Final = SPAN_AUTH_ROUTING.encode()
"""What the records of one request hold once: the name of a span."""


class Server(asyncio.Protocol):
    """Takes HTTP/1.1 requests with a Content-Length off a connection, one after the other."""

    def __init__(self) -> None:
        self._held = bytearray()
        self._needed = 0
        self.write = _nowhere

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.write = cast(asyncio.Transport, transport).write  # uvloop's does not derive from it

    def data_received(self, data: bytes) -> None:
        if self._held:
            self._held += data
            if len(self._held) < self._needed:
                return
            data = bytes(self._held)
            self._held.clear()
        end = data.find(wire.HEAD_END)
        if end >= 0:
            found = wire.CONTENT_LENGTH.search(data, 0, end)
            whole = end + 4 + (int(found[1]) if found else 0)
            if len(data) >= whole:
                self.asked(data[: data.index(b"\r")], data[end + 4 : whole])
                return
            self._needed = whole
        else:
            self._needed = 0
        self._held += data

    def asked(self, line: bytes, body: bytes) -> None:
        raise NotImplementedError


class Engine(Server):
    """Answers as an engine that needs no time to think."""

    listeners: ClassVar[set["Engine"]] = set()

    def __init__(self) -> None:
        super().__init__()
        self._tag = b""
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._left, self._gap_s, self._due = 0, 0.0, 0.0

    def asked(self, line: bytes, body: bytes) -> None:
        if line.startswith(b"POST /v1/chat/completions "):
            found = wire.WISH.search(body)
            if found is None:
                self.write(wire.COMPLETION)
                return
            self._tag = found[4]
            if self._tag:
                _tell(b"begun", self._tag)
            if found[3] == b"0":
                self._stream(int(found[1]) / 1000, int(found[2]))
        elif line.startswith(b"GET /v1/models "):
            self.write(wire.MODELS)
        elif line.startswith(b"GET /bench/events "):
            self.listeners.add(self)
        elif line.startswith(b"GET /bench/records "):
            self.write(wire.reply(b"%d" % Sink.count(), "text/plain"))
        else:
            self.write(wire.NOT_FOUND)

    def _stream(self, gap_s: float, chunks: int) -> None:
        self.write(wire.STREAM_HEAD + wire.FIRST)
        self._left, self._gap_s, self._due = chunks - 1, gap_s, self._loop.time()
        self._later()

    def _later(self) -> None:
        self._due += self._gap_s  # from the chunk before as it was due: a late one makes none after it late
        self._timer = self._loop.call_at(self._due, self._next)

    def _next(self) -> None:
        self._left -= 1
        if self._left:
            self.write(wire.NEXT)
            self._later()
        else:
            self._tag = b""
            self.write(wire.END)

    def connection_lost(self, error: Exception | None) -> None:
        self.listeners.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        if self._tag:
            _tell(b"gone", self._tag)


class Sink(Server):
    """The OTLP door: takes what comes and looks into it only when it is asked."""

    bodies: ClassVar[list[bytes]] = []
    counted: ClassVar[int] = 0

    def asked(self, line: bytes, body: bytes) -> None:
        self.bodies.append(body)
        self.write(wire.TAKEN)

    @classmethod
    def count(cls) -> int:
        """Requests whose records have come, up to now."""
        for body in cls.bodies:
            plain = zlib.decompress(body, 31) if body.startswith(b"\x1f\x8b") else body
            cls.counted += plain.count(OF_A_REQUEST)
        cls.bodies.clear()
        return cls.counted


def _tell(what: bytes, tag: bytes) -> None:
    for each in Engine.listeners:
        each.write(b"%s %s %d\n" % (what, tag, time.monotonic_ns()))


def _nowhere(data: bytes) -> None:
    """Where a connection writes before there is one."""


async def serve() -> None:
    loop = asyncio.get_running_loop()
    servers = [await loop.create_server(kind, "127.0.0.1", 0, backlog=2048) for kind in (Engine, Sink)]
    print(*(server.sockets[0].getsockname()[1] for server in servers), flush=True)
    gc.freeze()
    gc.disable()
    with contextlib.suppress(asyncio.CancelledError):
        await loop.run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    uvloop.run(serve())
