"""An engine at the level of its socket: a script a connection, which says what is sent, when, and how the connection ends."""

import asyncio
import contextlib
import socket
import ssl
import struct
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from typing import Any

import uvloop
from lensd_collectors.gateway.http1 import Connection

OK = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok"
REQUEST = b"POST /v1/x HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\n\r\n"
STATUS = b"HTTP/1.1 200 OK\r\n"
LENGTH = b"content-length: 2\r\n\r\n"
CHUNKED = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"
LOOPS = {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}

Run = Callable[[Coroutine[Any, Any, Any]], Any]


def runner(name: str) -> Run:
    """Runs a coroutine on that loop; whatever the loop has to complain about is a failure."""

    def run(main: Coroutine[Any, Any, Any]) -> Any:
        complaints: list[dict[str, Any]] = []

        async def guarded() -> Any:
            asyncio.get_running_loop().set_exception_handler(lambda _, context: complaints.append(context))
            async with asyncio.timeout(20):
                return await main

        with asyncio.Runner(loop_factory=LOOPS[name]) as made:
            result = made.run(guarded())
        assert not complaints, complaints
        return result

    return run


class Wire:
    """A connection at the engine's end."""

    def __init__(self, number: int, sock: socket.socket) -> None:
        self.number, self.sock = number, sock
        self._loop = asyncio.get_running_loop()
        self._rest = b""
        self.sent = 0
        self.gone_at = 0.0

    async def send(self, data: bytes) -> None:
        await self._loop.sock_sendall(self.sock, data)
        self.sent += len(data)

    async def head(self) -> bytes:
        """Of the next request; empty when there is none."""
        while b"\r\n\r\n" not in self._rest:
            data = await self._loop.sock_recv(self.sock, 65536)
            if not data:
                return b""
            self._rest += data
        head, _, self._rest = self._rest.partition(b"\r\n\r\n")
        return head

    async def request(self) -> tuple[bytes, bytes]:
        head = await self.head()
        length = next((int(line[15:]) for line in head.lower().split(b"\r\n") if line.startswith(b"content-length:")), 0)
        body = bytearray(self._rest)
        while len(body) < length:
            body += await self._loop.sock_recv(self.sock, 1 << 20)
        self._rest = bytes(body[length:])
        return head, bytes(body[:length])

    async def gone(self) -> None:
        """Until the other side has closed, in whatever way."""
        with contextlib.suppress(ConnectionError):
            while await self._loop.sock_recv(self.sock, 65536):
                pass
        self.gone_at = time.perf_counter()

    def finish(self) -> None:
        """Nothing more is sent; the connection stays."""
        self.sock.shutdown(socket.SHUT_WR)

    def end(self) -> None:
        self.sock.close()

    def reset(self) -> None:
        self.sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.sock.close()


Script = Callable[[Wire], Awaitable[None]]


class RawEngine:
    def __init__(self, script: Script, listener: socket.socket) -> None:
        self._script, self._listener = script, listener
        self._playing: set[asyncio.Task[None]] = set()
        self.host, self.port = listener.getsockname()[:2]
        self.url = f"http://{f'[{self.host}]' if ':' in self.host else self.host}:{self.port}/v1/x"
        self.wires: list[Wire] = []

    async def accept(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            sock, _ = await loop.sock_accept(self._listener)
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            wire = Wire(len(self.wires), sock)
            self.wires.append(wire)
            self._playing.add(asyncio.create_task(self._play(wire)))

    async def _play(self, wire: Wire) -> None:
        try:
            await self._script(wire)
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            wire.sock.close()

    async def played(self) -> None:
        """Every script has come to its end."""
        for task in self._playing:
            await task

    async def stop(self) -> None:
        for task in self._playing:
            task.cancel()
        await asyncio.gather(*self._playing)


@contextlib.asynccontextmanager
async def raw_engine(script: Script, host: str = "127.0.0.1") -> AsyncIterator[RawEngine]:
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as listener:
        listener.bind((host, 0))
        listener.listen(512)
        listener.setblocking(False)
        engine = RawEngine(script, listener)
        accepting = asyncio.create_task(engine.accept())
        try:
            yield engine
        finally:
            accepting.cancel()
            await asyncio.gather(accepting, return_exceptions=True)
            await engine.stop()


class Answering(asyncio.Protocol):
    """Gives the same reply to every request without a body."""

    def __init__(self, reply: bytes, gone: asyncio.Event) -> None:
        self._reply, self._gone = reply, gone

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        for _ in range(data.count(b"\r\n\r\n")):
            self._transport.write(self._reply)

    def eof_received(self) -> None:
        self._gone.set()

    def connection_lost(self, error: Exception | None) -> None:
        self._gone.set()


@contextlib.asynccontextmanager
async def tls_engine(reply: bytes, context: ssl.SSLContext) -> AsyncIterator[tuple[str, asyncio.Event]]:
    """An engine that gives the same reply to every request, over TLS: its URL, and what is set when a caller has closed."""
    gone = asyncio.Event()
    server = await asyncio.get_running_loop().create_server(lambda: Answering(reply, gone), "127.0.0.1", 0, ssl=context)
    async with server:
        yield f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1/x", gone


async def connect(engine: RawEngine) -> Connection:
    _, made = await asyncio.get_running_loop().create_connection(Connection, engine.host, engine.port)
    return made


async def read_body(connection: Connection) -> bytes:
    await connection.head()
    parts = []
    while part := await connection.read():
        parts.append(part)
    return b"".join(parts)


def replies(data: bytes, *, end: str = "stay") -> Any:
    """A script: one request, one reply, and then."""

    async def script(wire: Wire) -> None:
        await wire.request()
        await wire.send(data)
        if end == "close":
            wire.end()
        elif end == "reset":
            wire.reset()
        else:
            await wire.gone()

    return script
