"""Records what our own collectors post: the real gateway, agent, middleware and plugin, each with a small engine and a sink.

usage: record_bodies.py FOLDER     writes gateway.jsonl, agent.jsonl, middleware.jsonl, plugin.jsonl: a body a line

A folder that exists is never written anew: senders of that day are still out there, and what they send must be read.
"""

import asyncio
import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, Final

TESTS: Final = Path(__file__).parents[2]
CAPTURES: Final = TESTS / "captures" / "vllm-0.32.0"
HOST: Final = "gpu-1"
WITHIN_S: Final = 20.0
LOG_LINES: Final = 30
PATHS: Final = (TESTS.parent, TESTS.parent / "collectors", TESTS, TESTS / "lensd_collectors" / "vllm")
GATEWAY: Final = f"""
import socket, sys, msgspec
socket.gethostname = lambda: {HOST!r}
from lensd_collectors.gateway.config import GatewayConfig
from lensd_collectors.gateway.server import run
run(msgspec.json.decode(sys.argv[1], type=GatewayConfig), None)
"""
AGENT: Final = f"""
import signal, socket, sys, threading, msgspec
socket.gethostname = lambda: {HOST!r}
from lensd_collectors.host.agent import run
from lensd_collectors.host.config import AgentConfig
stop = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: stop.set())
run(msgspec.json.decode(sys.argv[1], type=AgentConfig), None, stop=stop)
"""

Body = tuple[str, dict[str, Any]]
"""Path, and the JSON that was posted to it."""


class Stage(BaseHTTPRequestHandler):
    """An engine that answers with what a real one answered, and the door that keeps what is posted."""

    bodies: list[Body]

    def do_GET(self) -> None:
        page = {"/metrics": "metrics-3-under-load-queue-2.txt", "/v1/models": "models.json"}.get(self.path)
        self._answer(404 if page is None else 200, b"" if page is None else (CAPTURES / page).read_bytes(), "text/plain")

    def do_POST(self) -> None:
        given = self.rfile.read(int(self.headers.get("content-length", "0")))
        if self.path in ("/v1/traces", "/v1/metrics", "/v1/logs"):
            self.bodies.append((self.path, json.loads(given)))
            self._answer(200, b"{}", "application/json")
            return
        asked = json.loads(given)
        name = "ok-chat-stream" if asked.get("stream") else "ok-chat-nonstream" if asked["model"] == "tiny-llama" else "err-model-unknown"
        told = json.loads((CAPTURES / "http" / f"{name}.json").read_text())
        self._answer(told["status"], told["body"].encode(), dict(told["headers"])["content-type"])

    def _answer(self, status: int, body: bytes, kind: str) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: Any) -> None: ...


@contextlib.contextmanager
def stage() -> Iterator[tuple[str, list[Body]]]:
    bodies: list[Body] = []
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Here", (Stage,), {"bodies": bodies}))
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", bodies
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def wait_for(what: Callable[[], object]) -> None:
    until = time.monotonic() + WITHIN_S
    while not what():
        if time.monotonic() > until:
            raise TimeoutError("it did not come")
        time.sleep(0.05)


@contextlib.contextmanager
def process(code: str, settings: dict[str, Any], env: dict[str, str] | None = None) -> Iterator[None]:
    paths = os.pathsep.join(map(str, PATHS))
    made = subprocess.Popen([sys.executable, "-c", code, json.dumps(settings)], env={**os.environ, **(env or {}), "PYTHONPATH": paths})
    try:
        yield
    finally:
        made.send_signal(signal.SIGTERM)
        made.wait(WITHIN_S)


def ask(url: str, model: str, *, stream: bool = False) -> None:
    body = json.dumps({"model": model, "stream": stream, "max_tokens": 8, "messages": [{"role": "user", "content": "hi"}]}).encode()
    request = urllib.request.Request(f"{url}/v1/chat/completions", body, {"content-type": "application/json", "x-session-id": "run-7"})
    with contextlib.suppress(urllib.error.HTTPError), urllib.request.urlopen(request, timeout=WITHIN_S) as answer:
        answer.read()


def is_up(url: str) -> bool:
    with contextlib.suppress(OSError), urllib.request.urlopen(f"{url}/readyz", timeout=1):
        return True
    return False


def gateway() -> list[Body]:
    """A whole answer, a stream, and a model that nobody has."""
    with stage() as (url, bodies):
        port = _free_port()
        settings = {
            "listen": f"127.0.0.1:{port}", "require_key": False, "export_url": url,
            "upstreams": [{"url": url, "name": "e0"}],
        }  # fmt: skip
        with process(GATEWAY, settings):
            here = f"http://127.0.0.1:{port}"
            wait_for(lambda: is_up(here))
            ask(here, "tiny-llama")
            ask(here, "tiny-llama", stream=True)
            ask(here, "nobody-has-it")
        return bodies


def agent() -> list[Body]:
    """An engine's counters, its log from start to stop, two cards of which one reports a fault."""
    from nvml_stub.build import built, environment
    from nvml_stub.scripts import GIB, TOTAL, cards, series, text

    with stage() as (url, bodies), tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        log, script = folder / "engine.log", folder / "script"
        log.write_text("")
        used = series("0", "used", [TOTAL - step * GIB for step in (3, 2, 1)])
        script.write_text(text(cards(2), used, ["2 1 xid 79"]))
        env = environment(built(folder / "nvml"), script, step_ms=250, call_us=1000)
        settings = {
            "export_url": url, "kmsg": False, "gpu_interval_s": 0.5, "memory_interval_s": 1.0, "scrape_interval_s": 60.0,
            "engines": [{"url": url, "name": "e0", "log": str(log)}],
        }  # fmt: skip
        with process(AGENT, settings, env):
            wait_for(lambda: _told(bodies, "vllm:num_requests_running"))
            starting = (CAPTURES / "startup-http-otlp-compile.log").read_bytes().splitlines(keepends=True)[:LOG_LINES]
            with log.open("ab") as file:
                file.writelines([*starting, (CAPTURES / "sigterm-stuck-drain-log.txt").read_bytes()])
            wait_for(lambda: _told(bodies, "lensd.engine.log") and _told(bodies, "xid"))
        return [(path, json.loads(json.dumps(body).replace(str(folder), "/var/log"))) for path, body in bodies]


def middleware() -> list[Body]:
    """A stream that ends, an error of the engine's, and a caller who leaves."""
    from lensd_collectors.gateway.ids import IdSource
    from lensd_collectors.vllm.middleware import LensdMiddleware
    from lensd_collectors.vllm.sender import make_sender
    from middleware_calls import BUSY, DONE, JSON, LAST, ROLE, SSE, TEXT, USAGE, answer

    with stage() as (url, bodies):
        made = make_sender({"LENSD_OTLP": url, "LENSD_ENGINE": "e0"})
        assert made is not None
        ids = IdSource(random.Random(1))
        for app in (
            answer(200, SSE, ROLE, TEXT, TEXT, LAST, USAGE, DONE),
            answer(503, JSON, BUSY),
            _left(answer(200, SSE, ROLE, TEXT, ends=False)),
        ):
            asyncio.run(_pass(LensdMiddleware(app, made=made, ids=ids)))
        made.exporter.close()
        return bodies


def _left(app: Any) -> Any:
    """The app of a request whose caller leaves before its answer."""

    async def noticing(scope: Any, receive: Any, send: Any) -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        await app(scope, receive, send)

    return noticing


async def _pass(app: Any) -> None:
    coming = [{"type": "http.disconnect"}, {"type": "http.request", "body": b"{}", "more_body": False}]

    async def receive() -> Any:
        return coming.pop()

    async def send(message: Any) -> None: ...

    headers = [(b"x-session-id", b"run-7")]
    await app({"type": "http", "method": "POST", "path": "/v1/chat/completions", "headers": headers, "state": {}}, receive, send)


def plugin() -> list[Body]:
    """The steps of a real server that served five requests."""
    from lensd_collectors.vllm import plugin as module
    from lensd_collectors.vllm.sender import make_sender
    from stats_objects import recorded

    with stage() as (url, bodies):
        made = make_sender({"LENSD_OTLP": url, "LENSD_ENGINE": "e0"})
        assert made is not None
        module.sender = lambda: made
        logger = module.LensdStatLogger()
        for step in recorded():
            logger.record(step.scheduler_stats, step.iteration_stats)
        made.exporter.flush()
        made.exporter.close()
        return bodies


def _told(bodies: list[Body], word: str) -> bool:
    return any(word in json.dumps(body) for _, body in bodies)


def _free_port() -> int:
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


COLLECTORS: Final = {"gateway": gateway, "agent": agent, "middleware": middleware, "plugin": plugin}


def main() -> None:
    import socket

    folder = Path(sys.argv[1])
    folder.mkdir(parents=True)
    sys.path[:0] = map(str, PATHS)
    socket.gethostname = lambda: HOST
    for name, record in COLLECTORS.items():
        lines = [json.dumps({"path": path, "body": body}, separators=(",", ":"), ensure_ascii=False) for path, body in record()]
        (folder / f"{name}.jsonl").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


if __name__ == "__main__":
    main()
