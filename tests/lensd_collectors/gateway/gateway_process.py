"""A gateway as a process of its own, with an engine of the test's in front of it, and what can be asked of it from outside."""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
from lensd_collectors.gateway.config import GatewayConfig, Upstream

PROGRAM = """
import sys, msgspec
from lensd_collectors.gateway.config import GatewayConfig
from lensd_collectors.gateway.server import run
run(msgspec.json.decode(sys.argv[1], type=GatewayConfig), None)
"""
STARTS_WITHIN_S = 15


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return free.getsockname()[1]


class GatewayProcess:
    """Serves the same port each time it is started, and exports to the engine."""

    def __init__(self, engine_port: int, *, program: str = PROGRAM, **settings: Any) -> None:
        self.port = free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        engine_url = f"http://127.0.0.1:{engine_port}"
        upstream = Upstream(url=engine_url, name="engine-a")
        told = {"require_key": False, "export_url": engine_url, **settings}
        self._config = msgspec.json.encode(GatewayConfig(listen=f"127.0.0.1:{self.port}", upstreams=(upstream,), **told)).decode()
        self._program = program
        self._process: subprocess.Popen[bytes] | None = None

    async def start(self) -> None:
        """Returns when it is ready."""
        command = [sys.executable, "-c", self._program, self._config]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env={**os.environ, "NO_COLOR": "1"})
        async with asyncio.timeout(STARTS_WITHIN_S):
            while await self.ready() != 200:
                assert self._process.poll() is None, self._process.communicate()[0]
                await asyncio.sleep(0.02)

    async def ready(self) -> int:
        """Status of /readyz; 0 where nobody listens."""
        try:
            async with aiohttp.ClientSession() as session, session.get(f"{self.url}/readyz") as response:
                return response.status
        except (OSError, aiohttp.ClientError):
            return 0

    async def metrics(self) -> str:
        async with aiohttp.ClientSession() as session, session.get(f"{self.url}/metrics") as response:
            return await response.text()

    def signal(self, how: signal.Signals = signal.SIGTERM) -> None:
        assert self._process is not None
        self._process.send_signal(how)

    async def ended(self, within_s: float) -> tuple[int, str]:
        """Exit code, and all that it has said."""
        process = self._process
        assert process is not None
        async with asyncio.timeout(within_s):
            while process.poll() is None:
                await asyncio.sleep(0.01)
        return process.returncode, process.communicate()[0].decode()

    def memory_bytes(self) -> int:
        """What it has in memory now."""
        assert self._process is not None
        pages = int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            self._process.communicate()


@contextlib.asynccontextmanager
async def gateway_process(engine_port: int, **settings: Any) -> AsyncIterator[GatewayProcess]:
    made = GatewayProcess(engine_port, **settings)
    try:
        await made.start()
        yield made
    finally:
        made.kill()
