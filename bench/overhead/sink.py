"""What plugin and middleware send to: answers as the OTLP/HTTP door does, keeps nothing, and counts of how many requests it was told."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Final

from gateway import wire
from gateway.engine import Server
from lensd_collectors.conventions import EVENT_ENGINE_REQUEST
from lensd_collectors.span_json import BEGINNING

OF_A_SPAN: Final = BEGINNING.encode()
OF_A_RECORD: Final = f'"eventName":"{EVENT_ENGINE_REQUEST}"'.encode()


@dataclass(slots=True)
class Told:
    """How many requests were told of so far, by the middleware's span and by the plugin's record."""

    port: int = 0
    spans: int = 0
    records: int = 0

    def least(self) -> int:
        """By both."""
        return min(self.spans, self.records)


class Sink(Server):
    def __init__(self, told: Told) -> None:
        super().__init__()
        self._told = told

    def asked(self, line: bytes, body: bytes) -> None:
        if line.startswith(b"POST /v1/traces "):
            self._told.spans += body.count(OF_A_SPAN)
        elif line.startswith(b"POST /v1/logs "):
            self._told.records += body.count(OF_A_RECORD)
        self.write(wire.TAKEN)


@contextlib.asynccontextmanager
async def listening() -> AsyncIterator[Told]:
    """A sink at a free port of 127.0.0.1, in this process."""
    told = Told()
    server = await asyncio.get_running_loop().create_server(lambda: Sink(told), "127.0.0.1", 0)
    told.port = server.sockets[0].getsockname()[1]
    try:
        yield told
    finally:
        server.close()
