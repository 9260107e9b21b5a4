"""The OTLP door of the soak, in whatever mood it is told to be.

usage: python -m gateway.soak.door     prints "PORT CONTROL"; ends when its standard input does

On the control port GET /mood/NAME puts it into a mood, and GET /count says what it was told of: finished requests, by their
server spans, each once; `twice` counts those that came again, as they do after an answer that was lost.
"""

import asyncio
import contextlib
import json
import re
import socket
import sys
import zlib
from enum import StrEnum
from typing import ClassVar, Final, cast

import uvloop
from lensd_collectors.otlp import SPAN_KIND

from gateway import wire
from gateway.engine import Server

SLOW_S: Final = 0.4
BUSY: Final = b"HTTP/1.1 429 Too Many Requests\r\nretry-after: 1\r\ncontent-length: 0\r\n\r\n"
SERVER_SPAN: Final = re.compile(
    rb'"spanId":"([0-9a-f]{16})",(?:"parentSpanId":"[0-9a-f]*",)?"name":"(?:[^"\\]|\\.)*","kind":%d,' % SPAN_KIND["server"]
)


class Mood(StrEnum):
    GOOD = "good"
    SLOW = "slow"
    BUSY = "busy"  # 429
    CUT = "cut"  # takes a body and closes without an answer
    DEAD = "dead"  # takes no connection


class Door(Server):
    """One connection of the sender's."""

    mood: ClassVar[Mood] = Mood.GOOD
    seen: ClassVar[set[bytes]] = set()
    twice: ClassVar[int] = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._transport = cast(asyncio.Transport, transport)

    def asked(self, line: bytes, body: bytes) -> None:
        if self.mood is Mood.BUSY:
            self.write(BUSY)
            return
        self._take(body)
        if self.mood is Mood.CUT:
            self._transport.abort()
        elif self.mood is Mood.SLOW:
            asyncio.get_running_loop().call_later(SLOW_S, self.write, wire.TAKEN)
        else:
            self.write(wire.TAKEN)

    @classmethod
    def _take(cls, body: bytes) -> None:
        plain = zlib.decompress(body, 31) if body.startswith(b"\x1f\x8b") else body
        for span_id in SERVER_SPAN.findall(plain):
            cls.twice += span_id in cls.seen
            cls.seen.add(span_id)


class Control(Server):
    doors: ClassVar["Doors"]

    def asked(self, line: bytes, body: bytes) -> None:
        _, _, name = line.split(b" ")[1].decode().rpartition("/")
        if name != "count":
            self.doors.become(Mood(name))
        self.write(wire.reply(json.dumps({"requests": len(Door.seen), "twice": Door.twice}).encode()))


class Doors:
    """The one port, open or not. It stays bound, so that nobody else gets it meanwhile."""

    def __init__(self) -> None:
        self._bound = _bound(0)
        self.port = int(self._bound.getsockname()[1])
        self._server: asyncio.Server | None = None

    def become(self, mood: Mood) -> None:
        Door.mood = mood
        if mood is Mood.DEAD and self._server is not None:
            self._server.close()
            self._server = None
        elif mood is not Mood.DEAD and self._server is None:
            asyncio.get_running_loop().create_task(self.open())

    async def open(self) -> None:
        self._server = await asyncio.get_running_loop().create_server(Door, sock=_bound(self.port), backlog=128)


def _bound(port: int) -> socket.socket:
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.bind(("127.0.0.1", port))
    return made


async def serve() -> None:
    loop = asyncio.get_running_loop()
    doors = Control.doors = Doors()
    await doors.open()
    control = await loop.create_server(Control, "127.0.0.1", 0)
    print(doors.port, control.sockets[0].getsockname()[1], flush=True)
    with contextlib.suppress(asyncio.CancelledError):
        await loop.run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    uvloop.run(serve())
