"""The two engines: the same model, options and niceness; one has our plugin and middleware, which tell a sink."""

import asyncio
import contextlib
import json
import re
import urllib.request
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from checkout import ENGINE, serving
from gateway.process import BenchError
from plugged import MIDDLEWARE, plugged

from overhead import processor
from overhead.figures import PLAIN, PLUGGED

SLOTS: Final = 4  # as the tests' engines have
TOKENS: Final = 64
"""Of each reply."""
PROMPT: Final = "My drill stops after about a minute of work and starts again when it has cooled down. What should I look at first?"
ANSWERS_WITHIN_S: Final = 20.0

_GENERATED: Final = re.compile(r"^vllm:generation_tokens_total\{.*\} (\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Server:
    """An engine that is up. Both are there all the time; only one has work."""

    arm: str
    engine: Any  # tools/engine/serve.py's, which is loaded by its path

    def request(self) -> bytes:
        """A streamed chat of `TOKENS` tokens, as bytes: each token passes the middleware on its own."""
        body = json.dumps({
            "model": self.engine.model, "messages": [{"role": "user", "content": PROMPT}], "max_tokens": TOKENS, "ignore_eos": True,
            "stream": True,
        }).encode()  # fmt: skip
        head = (
            f"POST /v1/chat/completions HTTP/1.1\r\nHost: {self.engine.host}\r\nAccept: text/event-stream\r\n"
            f"Content-Type: application/json\r\nUser-Agent: bench\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        return head.encode() + body

    def threads(self) -> processor.Threads:
        """What its processes have used. Raises BenchError where it has died."""
        if not self.engine.running:
            raise BenchError(f"the {self.arm} engine has died (log: {self.engine.log})")
        return processor.threads(self.engine.processes())

    def generated(self) -> int:
        """Tokens by the engine's own counter. Raises BenchError where it does not say."""
        try:
            with urllib.request.urlopen(f"{self.engine.url}/metrics", timeout=ANSWERS_WITHIN_S) as answer:
                found = _GENERATED.findall(answer.read().decode())
        except OSError as error:
            raise BenchError(f"the {self.arm} engine's /metrics cannot be read: {error}") from error
        if not found:
            raise BenchError(f"the {self.arm} engine's /metrics has no vllm:generation_tokens_total")
        return round(sum(map(float, found)))


@contextlib.asynccontextmanager
async def running(folder: Path, port: int, *, alike: bool = False) -> AsyncIterator[dict[str, Server]]:
    """Both by arm, started side by side; the plugged one tells the door at a port of 127.0.0.1. `alike`: neither is plugged.

    Their logs stay in `folder`. Raises EngineError where one does not come up.
    """
    given: dict[str, dict[str, Any]] = {PLAIN: {}, PLUGGED: {}}
    if not alike:
        told = {"LENSD_TOKEN": "token-of-the-bench", "LENSD_ENGINE": "e0"}
        given[PLUGGED] = {"options": MIDDLEWARE, "environment": plugged(folder / "installed", f"http://127.0.0.1:{port}", **told)}
    with contextlib.ExitStack() as held:
        servers: dict[str, Server] = {}
        for arm, more in given.items():
            log = folder / f"{arm}.log"
            log.unlink(missing_ok=True)
            engine = serving.Engine(ENGINE, log, max_num_seqs=SLOTS, **more)
            held.callback(engine.stop)
            servers[arm] = Server(arm, engine.start())
        for server in servers.values():
            await asyncio.to_thread(server.engine.wait_ready)
        yield servers
