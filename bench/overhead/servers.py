"""The engine: it has our plugin and middleware, which tell a sink while they are switched on."""

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
from plugged import plugged

from overhead import processor, switch

BENCH: Final = Path(__file__).resolve().parent.parent
SLOTS: Final = 4  # as the tests' engines have
TOKENS: Final = 64
"""Of each reply."""
PROMPT: Final = "My drill stops after about a minute of work and starts again when it has cooled down. What should I look at first?"
ANSWERS_WITHIN_S: Final = 20.0

_GENERATED: Final = re.compile(r"^vllm:generation_tokens_total\{.*\} (\S+)$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Server:
    """An engine that is up."""

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

    def switch(self, *, on: bool) -> None:
        """Raises BenchError where it does not answer."""
        path = next(path for path, is_on in switch.PATHS.items() if is_on is on)
        self._asked(path)

    def threads(self) -> processor.Threads:
        """What its processes have used. Raises BenchError where it has died."""
        if not self.engine.running:
            raise BenchError(f"the engine has died (log: {self.engine.log})")
        return processor.threads(self.engine.processes())

    def generated(self) -> int:
        """Tokens by the engine's own counter. Raises BenchError where it does not say."""
        found = _GENERATED.findall(self._asked("/metrics"))
        if not found:
            raise BenchError("the engine's /metrics has no vllm:generation_tokens_total")
        return round(sum(map(float, found)))

    def _asked(self, path: str) -> str:
        try:
            with urllib.request.urlopen(f"{self.engine.url}{path}", timeout=ANSWERS_WITHIN_S) as answer:
                return str(answer.read().decode())
        except OSError as error:
            raise BenchError(f"the engine does not answer at {path}: {error}") from error


@contextlib.asynccontextmanager
async def running(folder: Path, port: int) -> AsyncIterator[Server]:
    """Switched off, it tells nothing; on, the door at a port of 127.0.0.1. Its log stays in `folder`.

    Raises EngineError where it does not come up.
    """
    told = {"LENSD_TOKEN": "token-of-the-bench", "LENSD_ENGINE": "e0"}
    environment = plugged(folder / "installed", f"http://127.0.0.1:{port}", stat_logger=switch.STAT_LOGGER, **told)
    environment["PYTHONPATH"] += f":{BENCH}"
    log = folder / "engine.log"
    log.unlink(missing_ok=True)
    engine = serving.Engine(ENGINE, log, max_num_seqs=SLOTS, options=switch.MIDDLEWARE, environment=environment)
    with contextlib.ExitStack() as held:
        held.callback(engine.stop)
        server = Server(engine.start())
        await asyncio.to_thread(engine.wait_ready)
        yield server
