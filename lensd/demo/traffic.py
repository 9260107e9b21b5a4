"""The callers of the demo: each with a key of its own, all through the gateway, all with a client span."""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import NamedTuple

from lensd_collectors.client.call import Caller, CallError
from lensd_collectors.client.spans import tracer


class Shown(NamedTuple):
    """What the caller of one request saw."""

    request_id: str
    said: str


class Traffic:
    """Sends requests through the gateway. `keys` are secrets by what they may do: full, other, none (unknown to the gateway)."""

    def __init__(
        self,
        gateway_url: str,
        otlp_url: str,
        token: str | None,
        model: str,
        keys: Mapping[str, str],
        kill_engine: Callable[[], None] | None,
    ) -> None:
        self._tracer, self._provider = tracer(otlp_url, token)
        self._gateway_url = gateway_url
        self._model = model
        self._keys = keys
        self._kill_engine = kill_engine
        self._count = 0

    @property
    def own_engine(self) -> bool:
        """The engine was started by the demo: it may be flooded and killed."""
        return self._kill_engine is not None

    def chat(
        self,
        key: str,
        *,
        max_tokens: int,
        model: str | None = None,
        words: int = 6,
        stream: bool = True,
        timeout_s: float = 60.0,
        at_first_chunk: Callable[[], None] | None = None,
    ) -> Shown:
        """One chat completion; what went wrong is part of what is shown, never raised."""
        self._count += 1
        request_id = f"demo-{int(time.time()):x}-{self._count}"
        body = {
            "model": model or self._model,
            "messages": [{"role": "user", "content": " ".join(["the queue waits for a token"] * (words // 6 or 1))}],
            "max_tokens": max_tokens,
            "stream": stream,
            "ignore_eos": True,
        }
        if stream:
            body["stream_options"] = {"include_usage": True}
        first = [at_first_chunk] if at_first_chunk is not None else []
        caller = Caller(self._gateway_url, self._keys[key], self._tracer)
        try:
            reply = caller.chat(body, timeout_s=timeout_s, request_id=request_id, on_chunk=lambda _: first.pop()() if first else None)
        except CallError as error:
            return Shown(request_id, str(error))
        finally:
            self._provider.force_flush()
        broken = " with an error inside the stream" if reply.status == 200 and b'data: {"error"' in reply.body else ""
        return Shown(request_id, f"HTTP {reply.status}{broken}")

    @contextmanager
    def flood(self, callers: int, max_tokens: int) -> Iterator[None]:
        """That many callers at once for as long as the block lasts; each gives up when it ends."""
        threads = [
            threading.Thread(target=self.chat, args=("full",), kwargs={"max_tokens": max_tokens, "timeout_s": 8.0}, daemon=True)
            for _ in range(callers)
        ]
        for thread in threads:
            thread.start()
        time.sleep(0.5)  # they are in the engine's line before the one who is watched
        yield
        for thread in threads:
            thread.join(60)

    def kill_engine(self) -> None:
        """Only ever an engine that the demo started itself."""
        if self._kill_engine is None:
            raise RuntimeError("this engine is not ours to kill")
        self._kill_engine()

    def close(self) -> None:
        self._provider.shutdown()
