"""A gateway on a free port before fake engines whose every byte the test decides, and an exporter that keeps what it is given."""

import asyncio
import contextlib
import gzip
import json
import random
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import aiohttp
import uvloop
from lensd_collectors.gateway import server
from lensd_collectors.gateway.app import Gateway
from lensd_collectors.gateway.config import GatewayConfig, Retry, Upstream
from lensd_collectors.otlp import SPAN_KIND

CAPTURES = Path(__file__).parents[2] / "captures" / "vllm-0.32.0"
MODEL = "tiny-llama"
PROMPT = "planted-prompt-8c1f"
CHAT = {"model": MODEL, "messages": [{"role": "user", "content": PROMPT}], "max_tokens": 16}


def capture(name: str) -> dict[str, Any]:
    return json.loads((CAPTURES / name).read_text())


def run(main: Coroutine[Any, Any, Any]) -> Any:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


KINDS = {number: name for name, number in SPAN_KIND.items()}


def read_span(sent: dict[str, Any]) -> dict[str, Any]:
    """A span as it goes over the wire, with plain values."""
    return {
        "name": sent["name"],
        "trace_id": sent["traceId"],
        "span_id": sent["spanId"],
        "parent_span_id": sent.get("parentSpanId"),
        "kind": KINDS[sent["kind"]],
        "start_ns": int(sent["startTimeUnixNano"]),
        "end_ns": int(sent["endTimeUnixNano"]),
        "attributes": {pair["key"]: read_value(pair["value"]) for pair in sent["attributes"]},
        "ok": sent["status"]["code"] == 1,
        "message": sent["status"].get("message", ""),
    }


def read_value(sent: dict[str, Any]) -> Any:
    ((kind, value),) = sent.items()
    if kind == "arrayValue":
        return [read_value(each) for each in value["values"]]
    return int(value) if kind == "intValue" else value


class Kept:
    """An exporter that keeps what it is given."""

    def __init__(self) -> None:
        self.kept_spans: list[dict[str, Any]] = []
        self.events: list[dict[str, Any]] = []

    dropped = failed = 0

    def spans(self, make: Callable[[], list[str]], count: int) -> None:
        made = [read_span(each) for each in json.loads(f"[{','.join(make())}]")]
        assert len(made) == count
        self.kept_spans += made

    @contextlib.contextmanager
    def batch(self) -> Iterator["Kept"]:
        yield self

    def event(self, name: str, **given: Any) -> None:
        self.events.append({"name": name, **given})

    def acts(self) -> list[str]:
        return [e["attributes"]["lensd.gateway.act"] for e in self.events if e["name"] == "lensd.gateway.act"]


class Call:
    """One request as the engine got it, and the means to answer it byte by byte."""

    def __init__(self, method: str, path: str, headers: dict[str, str], body: bytes, writer: asyncio.StreamWriter) -> None:
        self.method, self.path, self.headers, self.body = method, path, headers, body
        self._writer = writer
        self.at = time.perf_counter()
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

    @property
    def asked(self) -> dict[str, Any]:
        return json.loads(self.body)


Script = Callable[[Call], Awaitable[None]]


class FakeEngine:
    """Answers /v1/models by itself, and is an OTLP door; all else is for the script, on a task that ends with the connection."""

    def __init__(self, script: Script, models: Sequence[str] = (MODEL,), adapters: Mapping[str, str] | None = None) -> None:
        """`adapters`: name -> the model it belongs to."""
        self.script = script
        self.models, self.adapters = list(models), dict(adapters or {})
        self.list_status = 200  # of /v1/models
        self.calls: list[Call] = []
        self.called = asyncio.Event()
        self.exported: list[dict[str, Any]] = []  # what came to it as an OTLP door
        self.port = 0
        self._listening: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()

    @property
    def posts(self) -> list[Call]:
        """The requests of callers, without what the gateway asks for itself."""
        return [call for call in self.calls if call.method == "POST" and call.path != "/tokenize"]

    async def posted(self, count: int) -> Call:
        """The last of so many requests, once they have come."""
        async with asyncio.timeout(5):
            while len(self.posts) < count:
                await asyncio.sleep(0.002)
        return self.posts[count - 1]

    async def listen(self) -> None:
        """On a free port, or on the one it had."""
        self._listening = await asyncio.start_server(self.serve, "127.0.0.1", self.port)
        self.port = self._listening.sockets[0].getsockname()[1]

    def close(self) -> None:
        """Takes no connections any more; those that are there stay."""
        if self._listening is not None:
            self._listening.close()

    def die(self) -> None:
        self.close()
        for writer in list(self._open):
            writer.transport.abort()

    def server_spans(self) -> list[dict[str, Any]]:
        """Attributes of those that were exported to it."""
        resources = [each for body in self.exported for each in body.get("resourceSpans", ())]
        spans = [read_span(span) for each in resources for scope in each["scopeSpans"] for span in scope["spans"]]
        return [span["attributes"] for span in spans if span["kind"] == "server"]

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._open.add(writer)
        with contextlib.suppress(ConnectionError, asyncio.IncompleteReadError):
            begun: bytes | None = b""
            while begun is not None:
                begun = await self._one(begun, reader, writer)
        self._open.discard(writer)
        writer.close()

    async def _one(self, begun: bytes, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bytes | None:
        """One request and its answer; the first byte of the next one, or None at the end of the connection."""
        head = (begun + await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, path, _ = head[0].split(" ")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in head[1:] if line)}
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        call = Call(method, path, headers, body, writer)
        if path == "/v1/models":
            known = {"object": "model", "root": "/srv/secret-path", "max_model_len": 512}
            cards = [{**known, "id": name} for name in self.models]
            cards += [{**known, "id": name, "parent": parent} for name, parent in self.adapters.items()]
            await call.reply(self.list_status, json.dumps({"object": "list", "data": cards}).encode())
            return b""
        if path in ("/v1/traces", "/v1/logs"):
            is_packed = headers.get("content-encoding") == "gzip"
            self.exported.append(json.loads(gzip.decompress(body) if is_packed else body))
            await call.reply(200, b"{}")
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
    def __init__(self, app: Gateway, engines: Sequence[FakeEngine], kept: Kept, port: int) -> None:
        self.app, self.engines, self.kept, self.port = app, engines, kept, port
        self.engine = engines[0]

    async def close_engine(self) -> None:
        """The engine takes no connections any more."""
        self.engine.close()
        await asyncio.sleep(0)

    async def ask(
        self, body: Any = CHAT, path: str = "/v1/chat/completions", method: str = "POST", headers: dict[str, str] | None = None
    ) -> Answer:
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        async with (
            aiohttp.ClientSession(auto_decompress=False) as session,
            session.request(method, f"http://127.0.0.1:{self.port}{path}", data=data, headers=headers) as response,
        ):
            return Answer(response.status, {k.lower(): v for k, v in response.headers.items()}, await response.read())

    async def open(self, body: Any = CHAT, *headers: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        """A bare connection on which a request has been sent."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        data = json.dumps(body).encode()
        lines = "".join(f"{each}\r\n" for each in headers).encode()
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\n%bcontent-length: %d\r\n\r\n" % (lines, len(data)) + data)
        return reader, writer

    async def records(self) -> list[dict[str, Any]]:
        """Attributes of the server spans, once nothing is open any more."""
        async with asyncio.timeout(3):
            while self.app.live:
                await asyncio.sleep(0.002)
        for _ in self.app.reporter.drain():
            pass
        return [span["attributes"] for span in self.kept.kept_spans if span["kind"] == "server"]

    async def record(self) -> dict[str, Any]:
        (only,) = await self.records()
        return only

    def upstream_spans(self) -> list[dict[str, Any]]:
        """Of all attempts that were sent, in order; after `records`."""
        return [span for span in self.kept.kept_spans if span["name"] == "lensd.upstream"]


class Jitter(random.Random):
    """A source of ids like any other, whose jitter is always the same."""

    def __init__(self, jitter: float) -> None:
        super().__init__(1)
        self._jitter = jitter

    def random(self) -> float:
        return self._jitter


class Served(server._Server):
    """Ends at once: nobody is waited for at the end of a test."""

    async def main_loop(self) -> None:
        while not await self.on_tick(1):
            await asyncio.sleep(0.01)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for each in self.servers:
            each.close()
        for connection in list(self.server_state.connections):
            connection.transport.abort()
        await self.lifespan.shutdown()


@contextlib.asynccontextmanager
async def stage(script: Script, *, upstream: dict[str, Any] | None = None, **settings: Any) -> AsyncIterator[Stage]:
    """Before one engine, named engine-a."""
    async with stage_of(FakeEngine(script), upstream=upstream, **settings) as made:
        yield made


@contextlib.asynccontextmanager
async def stage_of(
    *engines: FakeEngine,
    upstream: dict[str, Any] | None = None,
    exporter: Any = None,
    jitter: float = 0.5,
    send_buffer: int = 0,
    **settings: Any,
) -> AsyncIterator[Stage]:
    """Before several, named engine-a, engine-b ... `upstream` is set for the first; `send_buffer`: the kernel's, to each caller."""
    kept = Kept()
    for engine in engines:
        await engine.listen()
    upstreams = [{"url": f"http://127.0.0.1:{engine.port}", "name": f"engine-{chr(97 + at)}"} for at, engine in enumerate(engines)]
    upstreams[0] |= upstream or {}
    config = GatewayConfig(
        upstreams=tuple(Upstream(**each) for each in upstreams), **{"require_key": False, "retry": Retry(most=0), **settings}
    )
    app = server.build_app(config, exporter or kept, source=Jitter(jitter))
    listener = server._listener("127.0.0.1", 0, config.idle_timeout_s)
    if send_buffer:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
    served = Served(server.server_config(app), app)
    task = asyncio.create_task(served.serve(sockets=[listener]))
    try:
        async with asyncio.timeout(5):
            while not served.started:
                await asyncio.sleep(0.002)
        yield Stage(app, engines, kept, listener.getsockname()[1])
    finally:
        served.should_exit = True
        await task
        for engine in engines:
            engine.die()
