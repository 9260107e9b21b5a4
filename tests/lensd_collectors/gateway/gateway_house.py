"""A gateway with keys and several engines in a thread of its own, for callers that block; its clock can be put forward.

Everything that no reply may give away has PLANT in its name.
"""

import asyncio
import contextlib
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Coroutine, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import uvloop
from gateway_stage import MODEL, PROMPT, Call, FakeEngine, Kept, Served, capture
from lensd_collectors.gateway import server
from lensd_collectors.gateway.app import Gateway
from lensd_collectors.gateway.config import GatewayConfig, Retry, Upstream
from lensd_collectors.gateway.keys import KeyEntry, append, entry_of

PLANT = "plant"
HIDDEN = "plant-model-9f"  # a key with narrow scopes may not use it
ALIAS, HIDDEN_ALIAS = "tiny", "tiny-plant-alias"
UNLOADED = "odd-unloaded"
CREDENTIAL = "plant-credential-of-the-engine"
CONTEXT = 512
ENGINE = "plant-engine-1"
WHOLE = capture("http/ok-chat-nonstream.json")["body"].encode()
SSE = capture("http/ok-chat-stream.json")["body"].encode()
HEAD = SSE[: SSE.index(b"\n\n", 600) + 2]
TALK = b'data: {"choices":[{"index":0,"delta":{"content":"a"}}]}\n\n' * 250 + b"data: [DONE]\n\n"  # and no usage
BUSY = capture("http-preempt/err-admission-queue-full.json")["body"].encode()
DEAD = capture("killworker-nonstream.json")["body"].encode()
CUT_OFF = "sk-lensd-" + "Q" * 20

_PAST = datetime(2026, 1, 1, tzinfo=UTC)
_LIMITS: dict[str, dict[str, Any]] = {
    # a key a row: what it may use, and its limits
    "wide": {"models": ("*",)},
    "narrow": {"models": ("tiny*", UNLOADED, "plant-glob-*")},
    "expired": {"models": ("*",), "expires": _PAST},
    "disabled": {"models": ("*",), "disabled": True},
    "embeds": {"models": ("*",), "routes": ("/v1/embeddings",)},
    "short": {"models": ("*",), "max_prompt_tokens": 50},
    "brief": {"models": ("*",), "max_tokens": 64},
    "rare": {"models": ("*",), "requests_per_min": 1},
    "thrifty": {"models": ("*",), "tokens_per_min": 10},
    "frugal": {"models": ("*",), "tokens_per_min": 200},
    "single": {"models": ("*",), "concurrency": 1},
}
KEYS = {name: f"sk-lensd-{name.ljust(43, 'K')}" for name in _LIMITS}


def key_id(name: str) -> str:
    return f"plant-key-{name}"


def _entry(name: str) -> KeyEntry:
    given = dict(_LIMITS[name])
    return msgspec.structs.replace(entry_of(key_id(name), KEYS[name], given.pop("models")), **given)


class ShiftedClock:
    def __init__(self) -> None:
        self._by = 0

    def __call__(self) -> int:
        return time.monotonic_ns() + self._by

    def shift(self, seconds: float) -> None:
        self._by += int(seconds * 1e9)


async def _reply(call: Call, status: int, body: bytes, *headers: str) -> None:
    lines = [f"HTTP/1.1 {status} X", "content-type: application/json", f"content-length: {len(body)}", *headers]
    await call.send("\r\n".join((*lines, "", "")).encode() + body)


class House:
    """`do` runs a coroutine where the gateway runs."""

    def __init__(self, app: Gateway, engines: Sequence[FakeEngine], kept: Kept, port: int, clock: ShiftedClock) -> None:
        self.app, self.kept, self.port, self.clock = app, kept, port, clock
        self.engine = engines[0]
        self.places = [f"127.0.0.1:{engine.port}" for engine in engines]
        self.loading = engines[3]
        self._loop = asyncio.get_running_loop()

    def do(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(10)

    def span(self, request_id: str) -> dict[str, Any]:
        """Of the whole request, once it has ended."""
        self.do(self._ended(request_id))
        sent = self.kept.kept_spans
        (only,) = [span for span in sent if span["kind"] == "server" and span["attributes"]["lensd.request.id"] == request_id]
        return only

    async def _ended(self, request_id: str) -> None:
        async with asyncio.timeout(5):
            while any(each.request_id == request_id for each in self.app.live):
                await asyncio.sleep(0.002)
        for _ in self.app.reporter.drain():
            pass

    def told(self) -> str:
        """All that has left the gateway for the daemon."""
        return repr(self.kept.kept_spans) + repr(self.kept.events)

    @contextlib.contextmanager
    def held(self, key: str, count: int = 1) -> Iterator[None]:
        """So many requests of the key's stand at the engine."""
        before = len(self.engine.calls)
        body = json.dumps({"model": "tiny-silent", "messages": [{"role": "user", "content": PROMPT}]}).encode()
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {KEYS[key]}\r\ncontent-length: {len(body)}\r\n\r\n"
        with contextlib.ExitStack() as connections:
            for _ in range(count):
                connection = connections.enter_context(socket.create_connection(("127.0.0.1", self.port)))
                connection.sendall(head.encode() + body)
            wait_for(lambda: len(self.engine.calls) >= before + count)
            yield
        wait_for(lambda: not self.app.live)


def wait_for(true: Any) -> None:
    end = time.monotonic() + 10
    while not true():
        assert time.monotonic() < end, "it did not come about in 10 s"
        time.sleep(0.002)


def _script(clock: ShiftedClock) -> Any:
    """What the engine does is in the model's name."""

    async def play(call: Call) -> None:
        if call.path == "/tokenize":
            await call.reply(200, json.dumps({"count": call.body.count(b"word"), "max_model_len": CONTEXT}).encode())
            return
        model = json.loads(call.body)["model"]
        if model in _FORWARD:
            if model == "tiny-idle-stream":
                await call.start_stream()
                await call.chunk(HEAD)
            elif model == "tiny-idle":
                await call.send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 900\r\n\r\n{")
            await asyncio.sleep(0.05)  # else the gateway has not read it yet
            clock.shift(_FORWARD[model])
            await asyncio.sleep(60)
        elif model in REPLIES:
            await _reply(call, *REPLIES[model])
        elif model in _STREAMS:
            await call.start_stream()
            await call.chunk(HEAD + _STREAMS[model])
            await asyncio.sleep(0.02)
            call.cut()
        elif model == "tiny-open":
            await call.start_stream()
            await call.chunk(HEAD)
            await asyncio.sleep(60)
        elif model == "tiny-silent":
            await asyncio.sleep(60)
        elif model == "tiny-breaks":
            await call.send(b"HTTP/1.1 2")
            await asyncio.sleep(0.02)  # what is aborted takes along what was not read yet
            call.cut()
        elif json.loads(call.body).get("stream"):
            await call.start_stream()
            await call.chunk(TALK if model == "tiny-talks" else SSE)
            await call.end_stream()
        else:
            await call.reply(200, WHOLE)

    return play


_FORWARD = {
    # seconds by which time goes on while the engine has the request
    "tiny-first-byte": 301, "tiny-total": 61, "tiny-idle": 121, "tiny-idle-stream": 121,
}  # fmt: skip
REPLIES: dict[str, tuple[Any, ...]] = {
    "tiny-spoof": (
        200, WHOLE, "x-request-id: other", "traceparent: other", "x-lensd-said-by: gateway", "x-lensd-stage: other", "server: other",
        "keep-alive: timeout=1",
    ),
    "tiny-busy": (503, BUSY, "retry-after: 7"),
    "tiny-busy-often": (503, BUSY, "retry-after-ms: 1"),
    "tiny-crowded": (429, b'{"error":{"message":"slow down","type":"TooManyRequests","param":null,"code":429}}', "retry-after: 3"),
    "tiny-strict": (422, b'{"error":{"message":"no such thing","type":"Unprocessable","param":"x","code":422}}'),
    "tiny-failing": (500, b'{"error":{"message":"boom","type":"InternalServerError","param":null,"code":500}}'),
    "tiny-locked": (401, b'{"error":"Unauthorized: plant-credential"}'),
    "tiny-forbidden": (403, b'{"error":"Forbidden: plant-credential"}'),
    "tiny-moved": (307, b"", "location: http://plant-host:9/v1/chat/completions"),
    UNLOADED: (404, b'{"error":{"message":"The model `plant-base` does not exist.","type":"NotFoundError","param":"model","code":404}}'),
    "tiny-long": (
        400,
        b'{"error":{"message":"This model\'s maximum context length is 512 tokens.","type":"BadRequestError","param":null,"code":400}}',
    ),
}  # fmt: skip
_STREAMS = {
    "tiny-cut": b"",
    "tiny-torn": b'data: {"id": "half',
    "tiny-dying": b'data: {"error": {"message": "EngineCore encountered an issue.", "type": "InternalServerError", "code": 500}}\n\n',
}
SERVED = [
    MODEL, HIDDEN, f"{UNLOADED}-plant", "tiny-org/slashed", "tiny-silent", "tiny-open", "tiny-talks", "tiny-breaks",
    *_FORWARD, *REPLIES, *_STREAMS,
]  # fmt: skip


class FullListener:
    """An engine that answered, and takes no connections any more: its process hangs, the kernel's queue is full."""

    def __init__(self) -> None:
        self.listening = socket.socket()
        self.listening.bind(("127.0.0.1", 0))
        self.port = self.listening.getsockname()[1]
        self._waiting: list[socket.socket] = []

    def fill(self) -> None:
        self._waiting = [socket.socket() for _ in range(4)]
        for each in self._waiting:
            each.setblocking(False)
            each.connect_ex(self.listening.getsockname())

    def close(self) -> None:
        for each in (*self._waiting, self.listening):
            each.close()


@contextlib.asynccontextmanager
async def _built(folder: Path, settings: dict[str, Any]) -> AsyncIterator[House]:
    """The gateway before an engine whose models are its scripts, and one each that is dead, gone, loading and stuck."""
    clock, kept, stuck = ShiftedClock(), Kept(), FullListener()
    play = _script(clock)
    served = settings.pop("served", None)  # in place of all that is
    engines = [
        FakeEngine(play, SERVED), FakeEngine(lambda call: _reply(call, 500, DEAD), ["tiny-dead"]), FakeEngine(play, ["tiny-gone"]),
        FakeEngine(play), FakeEngine(play, ["tiny-stuck"]),
    ]  # fmt: skip
    _, _, gone, loading, hanging = engines
    if served is not None:
        for engine in engines:
            engine.models = served
    loading.list_status = settings.pop("list_status", 503 if served is None else 200)
    for engine in engines[:4]:
        await engine.listen()
    accepting = await asyncio.start_server(hanging.serve, sock=stuck.listening.dup(), backlog=1)
    hanging.port = stuck.port
    credential, keys = folder / "credential", folder / "keys.toml"
    credential.write_text(CREDENTIAL)
    for name in _LIMITS:
        append(keys, _entry(name))
    configured = {loading: settings.pop("loading", ("tiny-loading",) if served is None else ())}
    upstreams = tuple(
        Upstream(
            url=f"http://127.0.0.1:{engine.port}",
            name=f"plant-engine-{at}",
            models=configured.get(engine, ()),
            api_key_file=str(credential),
        )
        for at, engine in enumerate(engines, 1)
    )
    config = GatewayConfig(
        upstreams=upstreams, keys_file=str(keys), aliases={ALIAS: MODEL, HIDDEN_ALIAS: HIDDEN},
        **{"retry": Retry(most=0), "max_body_bytes": 20_000, "total_timeout_s": 60.0, **settings},
    )  # fmt: skip
    app = server.build_app(config, kept, clock=clock)
    listener = server._listener("127.0.0.1", 0)
    served = Served(server.server_config(app), app)
    serving = asyncio.create_task(served.serve(sockets=[listener]))
    try:
        async with asyncio.timeout(10):
            while not served.started:
                await asyncio.sleep(0.002)
        gone.die()
        accepting.close()
        stuck.fill()
        yield House(app, engines, kept, listener.getsockname()[1], clock)
    finally:
        served.should_exit = True
        await serving
        await app.stop()
        for engine in engines:
            engine.die()
        stuck.close()


@contextlib.contextmanager
def house(folder: Path, **settings: Any) -> Iterator[House]:
    """In a thread, so that a client that blocks can call it."""
    made: list[House] = []
    is_made, is_over = threading.Event(), threading.Event()

    async def live() -> None:
        async with _built(folder, settings) as built:
            made.append(built)
            is_made.set()
            while not is_over.is_set():
                await asyncio.sleep(0.01)

    def run() -> None:
        try:
            with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
                runner.run(live())
        finally:
            is_made.set()

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        assert is_made.wait(20)
        yield made[0]
    finally:
        is_over.set()
        thread.join(20)
