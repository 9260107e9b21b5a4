"""Runs the gateway as a process of its own."""

import contextlib
import ipaddress
import random
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator

import uvicorn

from lensd_collectors import conventions, export
from lensd_collectors.gateway.app import Gateway
from lensd_collectors.gateway.config import GatewayConfig
from lensd_collectors.gateway.report import Exporter
from lensd_collectors.gateway.routes import GatewayError

GRACE_S = 5
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
    exporter = export.Exporter(config.export_url, token=token, service="lensd-gateway", scope=conventions.SCOPE_GATEWAY)
    try:
        app = build_app(config, exporter)
        with _listener(host, port) as listener:
            _Server(server_config(app)).run(sockets=[listener])
    finally:
        exporter.close()


def server_config(app: Gateway) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http="httptools",
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


def _listener(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.socket(family, socket.SOCK_STREAM)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind((host, port))
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise GatewayError(f"cannot listen on {host}:{port}: {(error.strerror or str(error)).lower()}") from error
    return listener


class _Server(uvicorn.Server):
    """A signal ends the process in the ordinary way, instead of being raised again once everything is closed."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {each: signal.signal(each, self.handle_exit) for each in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)
