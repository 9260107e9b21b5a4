"""Runs the gateway as a process of its own."""

import asyncio
import contextlib
import ctypes
import gc
import ipaddress
import random
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType

import uvicorn

from lensd_collectors import conventions, export
from lensd_collectors.gateway.app import Gateway
from lensd_collectors.gateway.callers import CallerProtocol
from lensd_collectors.gateway.config import GatewayConfig
from lensd_collectors.gateway.report import Exporter
from lensd_collectors.gateway.routes import GatewayError

GRACE_S = 2
FAREWELL_S = 5.0  # for the last records, where their receiver does not take them
UNREAD_GRACE_S = 1.0  # the gateway's own limit comes first, since it is recorded
LARGE_BYTES = 128 * 1024
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # see mallopt(3)
CALLER_KEEP_ALIVE_S = 75  # longer than what clients keep: they, not we, close an idle connection


def build_app(
    config: GatewayConfig,
    exporter: Exporter,
    *,
    clock: Callable[[], int] = time.monotonic_ns,
    wall: Callable[[], int] = time.time_ns,
    source: random.Random | None = None,
) -> Gateway:
    """The ASGI application. Raises GatewayError or KeysError, one line each, for a configuration that cannot work."""
    return Gateway(config, exporter, clock=clock, wall=wall, source=source)


def run(config: GatewayConfig, token: str | None) -> None:
    """Serves until SIGTERM or SIGINT, then lets open streams end for a moment. Raises GatewayError or KeysError before it starts."""
    host, port = read_listen(config.listen)
    if not config.require_key and not _is_loopback(host):
        raise GatewayError(f"listen '{config.listen}' with require_key = false: without keys the gateway listens on loopback only")
    exporter = export.Exporter(
        config.export_url, token=token, service="lensd-gateway", scope=conventions.SCOPE_GATEWAY,
        resource={conventions.LISTEN: config.listen},
    )  # fmt: skip
    farewell_s = FAREWELL_S
    try:
        app = build_app(config, exporter)
        with _listener(host, port, config.idle_timeout_s) as listener:
            _spare_garbage_collection()
            _give_memory_back()
            serving = _Server(server_config(app), app)
            serving.run(sockets=[listener])
            if serving.should_exit:  # somebody is in a hurry
                farewell_s = GRACE_S
    finally:
        exporter.close(farewell_s)


def server_config(app: Gateway) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=CallerProtocol,
        loop="uvloop",
        ws="none",
        lifespan="on",
        log_level="warning",
        access_log=False,
        server_header=False,
        date_header=True,
        proxy_headers=False,
        timeout_keep_alive=CALLER_KEEP_ALIVE_S,
        timeout_graceful_shutdown=GRACE_S,
    )


def read_listen(listen: str) -> tuple[str, int]:
    """Host and port of "HOST:PORT"; raises GatewayError for anything else."""
    host, colon, port = listen.rpartition(":")
    if not colon or not host or not port.isdigit() or int(port) > 65535:
        raise GatewayError(f"listen '{listen}' must be HOST:PORT, such as 127.0.0.1:8080")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _listener(host: str, port: int, unread_s: float = 0.0) -> socket.socket:
    """`unread_s`: the system breaks a connection off after about so long without the other side taking anything; 0: when it likes."""
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if unread_s and hasattr(socket, "TCP_USER_TIMEOUT"):  # its connections have it from here
                listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int((unread_s + UNREAD_GRACE_S) * 1000))
            listener.bind((host, port))
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise GatewayError(f"cannot listen on {host}:{port}: {(error.strerror or str(error)).lower()}") from error
    return listener


def _give_memory_back() -> None:
    """Large buffers go back to the system when they are freed: the C library's own limit for that grows with each, up to 32 MiB."""
    with contextlib.suppress(OSError, AttributeError):  # another C library than GNU's
        set_limit = ctypes.CDLL(None).mallopt
        set_limit(M_MMAP_THRESHOLD, LARGE_BYTES)
        set_limit(M_TRIM_THRESHOLD, 2 * LARGE_BYTES)


def _spare_garbage_collection() -> None:
    """What is there at the start stays and need not be looked at again; of a request's objects nearly all are freed without it."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)


class _Server(uvicorn.Server):
    """SIGTERM lets open requests run on, SIGINT and a second signal end them; the process ends in the ordinary way."""

    def __init__(self, config: uvicorn.Config, app: Gateway) -> None:
        super().__init__(config)
        self._app = app

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if sig == signal.SIGTERM and not self._app.draining_since:
            self._app.drain()
        else:
            super().handle_exit(sig, frame)

    async def on_tick(self, counter: int) -> bool:
        """Ten times a second, as the server does."""
        return await super().on_tick(counter) or self._app.is_drained()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._app.end_open()
        await super().shutdown(sockets)

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Signals are handled between two steps of the loop: inside one, the handler could wait for a lock that the step itself holds."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        loop = asyncio.get_running_loop()
        for each in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(each, self.handle_exit, each, None)
        try:
            yield
        finally:
            for each in (signal.SIGINT, signal.SIGTERM):
                loop.remove_signal_handler(each)
