"""A gateway on a free port before a fake engine whose every byte the test decides, and an exporter that keeps what it is given."""

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from pathlib import Path
from typing import Any

import aiohttp
import uvloop
from lensd_collectors.gateway import server
from lensd_collectors.gateway.app import Gateway
from lensd_collectors.gateway.config import GatewayConfig, Upstream

CAPTURES = Path(__file__).parents[2] / "captures" / "vllm-0.32.0"
MODEL = "tiny-llama"
PROMPT = "planted-prompt-8c1f"
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": PROMPT}], "max_tokens": 16}


def capture(name: str) -> dict[str, Any]:
    return json.loads((CAPTURES / name).read_text())


def run(main: Coroutine[Any, Any, Any]) -> Any:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


class Kept:
    """An exporter that keeps what it is given."""

    def __init__(self) -> None:
        self.spans: list[dict[str, Any]] = []
        self.events: list[dict[str, Any]] = []

    def span(self, name: str, **given: Any) -> None:
        self.spans.append({"name": name, **given})

    def event(self, name: str, **given: Any) -> None:
        self.events.append({"name": name, **given})

    def acts(self) -> list[str]:
        return [e["attributes"]["lensd.gateway.act"] for e in self.events if e["name"] == "lensd.gateway.act"]


class Call:
    """One request as the engine got it, and the means to answer it byte by byte."""

    def __init__(self, method: str, path: str, headers: dict[str, str], body: bytes, writer: asyncio.StreamWriter) -> None:
        self.method, self.path, self.headers, self.body = method, path, headers, body
        self._writer = writer
        self.gone = asyncio.Event()
        self.gone_at = 0.0

    async def send(self, data: bytes) -> None:
        self._writer.write(data)
        await self._writer.drain()

    async def reply(self, status: int, body: bytes, content_type: str = "application/json") -> None:
        head = f"HTTP/1.1 {status} X\r\nserver: uvicorn\r\ncontent-type: {content_type}\r\ncontent-length: {len(body)}\r\n\r\n"
        await self.send(head.encode() + body)

    async def start_stream(self) -> None:
        head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\ntransfer-encoding: chunked\r\n\r\n"
        await self.send(head.encode())

    async def chunk(self, data: bytes) -> None:
        await self.send(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    async def end_stream(self) -> None:
        await self.send(b"0\r\n\r\n")

    def cut(self) -> None:
        self._writer.transport.abort()


Script = Callable[[Call], Awaitable[None]]


class FakeEngine:
    def __init__(self, script: Script) -> None:
        self.script = script
        self.models = [MODEL]
        self.calls: list[Call] = []
        self.called = asyncio.Event()

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            begun: bytes | None = b""
            while begun is not None:
                begun = await self._one(begun, reader, writer)
        writer.close()

    async def _one(self, begun: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes | None:
        """One request and its answer; the first byte of the next one, or None at the end of the connection."""
        head = (begun + await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
        method, path, _ = head[0].split(" ")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        call = Call(method, path, headers, body, writer)
        if path == "/v1/models":
            cards = [{"id": name, "object": "model", "root": "/srv/secret-path", "max_model_len": 512} for name in self.models]
            await call.reply(200, json.dumps({"object": "list", "data": cards}).encode())
            return b""
        self.calls.append(call)
        self.called.set()
        script = asyncio.create_task(self._play(call))
        try:
            rest = await reader.read(1)
        except ConnectionError:
            rest = b""
        if rest:
            return rest
        call.gone_at = time.perf_counter()
        call.gone.set()
        script.cancel()
        return None

    async def _play(self, call: Call) -> None:
        with contextlib.suppress(ConnectionError):
            await self.script(call)


class Answer:
    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status, self.headers, self.body = status, headers, body

    @property
    def error(self) -> dict[str, Any]:
        return json.loads(self.body)["error"]


class Stage:
    def __init__(self, app: Gateway, engine: FakeEngine, kept: Kept, port: int) -> None:
        self.app, self.engine, self.kept, self.port = app, engine, kept, port

    async def ask(
        self, body: Any = CHAT, path: str = "/v1/chat/completions", method: str = "POST", headers: dict[str, str] | None = None
    ) -> Answer:
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        async with (
            aiohttp.ClientSession(auto_decompress=False) as session,
            session.request(method, f"http://127.0.0.1:{self.port}{path}", data=data, headers=headers) as response,
        ):
            return Answer(response.status, {k.lower(): v for k, v in response.headers.items()}, await response.read())

    async def open(self, body: Any = CHAT) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A bare connection on which a request has been sent."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        data = json.dumps(body).encode()
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(data) + data)
        return reader, writer

    async def records(self) -> list[dict[str, Any]]:
        """Attributes of the server spans, once nothing is open any more."""
        async with asyncio.timeout(3):
            while self.app.live:
                await asyncio.sleep(0.002)
        for _ in self.app.reporter.drain():
            pass
        return [span["attributes"] for span in self.kept.spans if span["kind"] == "server"]

    async def record(self) -> dict[str, Any]:
        (only,) = await self.records()
        return only


@contextlib.asynccontextmanager
async def stage(script: Script, *, upstream: dict[str, Any] | None = None, **settings: Any) -> AsyncIterator[Stage]:
    engine, kept = FakeEngine(script), Kept()
    listening = await asyncio.start_server(engine.serve, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}"
    config = GatewayConfig(
        upstreams=(Upstream(**{"url": url, "name": "engine-a", **(upstream or {})}),), **{"require_key": False, **settings}
    )
    app = server.build_app(config, kept)
    listener = server._listener("127.0.0.1", 0)
    served = server._Server(server.server_config(app))
    task = asyncio.create_task(served.serve(sockets=[listener]))
    try:
        async with asyncio.timeout(5):
            while not served.started:
                await asyncio.sleep(0.002)
        yield Stage(app, engine, kept, listener.getsockname()[1])
    finally:
        served.should_exit = served.force_exit = True
        await task
        await app.stop()
        listening.close()
