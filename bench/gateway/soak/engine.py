"""A fake engine that fails in every way it is asked to.

usage: python -m gateway.soak.engine PORT MODEL...     serves until it is killed

A request's last message says what becomes of it: "soak act=NAME stream=0|1.", see ACTS. Idle connections stay open for ever.
"""

import asyncio
import json
import random
import re
import socket
import struct
import sys
from collections.abc import Callable, Mapping
from typing import Any, Final, cast

import uvloop

from gateway import wire
from gateway.engine import Server
from gateway.soak.mix import CONTEXT

WISH: Final = re.compile(rb"soak act=([a-z]+)(?:=(-?\d+))? stream=([01])\.")
CHUNKS: Final = 8
GAP_S: Final = 0.008
LATE_S: Final = 0.03
FLOOD: Final = 256  # blocks of a stream that is too much for all buffers on its way
BLOCK: Final = 32 * 1024
LARGE: Final = 4 << 20
HUGE: Final = 9 << 20  # more than the gateway holds back

CHANCE: Final = random.Random()


def _error(status: int, message: str, kind: str, headers: str = "") -> bytes:
    body = json.dumps({"error": {"message": message, "type": kind, "param": None, "code": status}})
    return f"HTTP/1.1 {status} X\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n{headers}\r\n{body}".encode()


def _frame(data: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(data), data)


BUSY: Final = _error(503, "the queue is full", "ServiceUnavailable", "retry-after: 0\r\n")
BUSY_LONG: Final = _error(503, "the queue is full", "ServiceUnavailable", "retry-after: 30\r\n")
LIMITED: Final = _error(429, "too many requests", "RateLimit")
FAILED: Final = _error(500, "it went wrong", "InternalServerError")
DEAD: Final = _error(500, "EngineCore encountered an issue. See stack trace (above) for the root cause.", "EngineDeadError")
OWN_STATUS: Final = (wire.reply(b"{}").replace(b"200 OK", b"777 Odd"), wire.reply(b"{}").replace(b"200 OK", b"599 Odd"))
GARBAGE: Final = (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc", b"HTTP/1.1 999999 \r\n\r\n", b"220 mail.example ESMTP\r\n", b"\r\n" * 40_000)
SICK: Final = _frame(b'data: {"error": {"message": "it went wrong", "type": "InternalServerError", "code": 500}}\n\n')
ODD: Final = (
    _frame(b": a comment\n\n"),
    _frame(b"data: {not json}\n\n"),
    _frame(b"event: whatever\r\nid: 7\r\ndata: {}\r\n\r\n"),
    _frame(b"data:" + b" " * 70_000 + b"\n\n"),
    _frame(b"data: " + b'{"choices": [{"delta": {"content": "' + b"\xc3"),
    _frame(b"\xa4" + b'"}}]}\n'),
    _frame(b"\n\n\n"),
)
LARGE_REPLY: Final = wire.reply(b'{"id": "x", "choices": [], "text": "%s"}' % (b"a" * LARGE))
BLOCK_FRAME: Final = _frame(b'data: {"choices": [{"index": 0, "delta": {"content": "%s"}}]}\n\n' % (b"a" * BLOCK))
METRICS: Final = b"vllm:num_requests_running 3.0\nvllm:num_requests_waiting 0.0\nvllm:kv_cache_usage_perc 0.25\n"


class Engine(Server):
    """One connection."""

    models: bytes = b""

    def __init__(self) -> None:
        super().__init__()
        self._transport: asyncio.Transport | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._blocks = 0  # of a flood, still to be written
        self._is_full = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, error: Exception | None) -> None:
        self._blocks = 0
        if self._timer is not None:
            self._timer.cancel()

    def asked(self, line: bytes, body: bytes) -> None:
        path = line.split(b" ")[1]
        wish = WISH.search(body)
        if path == b"/v1/models":
            self.write(self.models)
        elif path == b"/metrics":
            self.write(wire.reply(METRICS, "text/plain"))
        elif path == b"/tokenize":
            self._count(int(wish[2] or 0) if wish else 0)
        elif wish is None:
            self.write(wire.COMPLETION)
        else:
            ACTS[wish[1].decode()](self, wish[3] == b"1")

    def _count(self, tokens: int) -> None:
        if tokens >= 0:
            self.write(wire.reply(b'{"count": %d, "max_model_len": %d, "tokens": []}' % (tokens, CONTEXT)))

    def reply(self, is_stream: bool) -> None:
        if is_stream:
            self.stream(is_stream)
        else:
            self.write(wire.COMPLETION)

    def late(self, is_stream: bool) -> None:
        self._later(LATE_S, lambda: self.reply(is_stream))

    def pieces(self, _: bool) -> None:
        whole = wire.COMPLETION
        self.write(whole[:9])
        self._later(0.002, lambda: self._rest([whole[9:40], whole[40:-20], whole[-20:]], 0.002))

    def stream(self, _: bool) -> None:
        self._rest([wire.STREAM_HEAD + wire.FIRST, *[wire.NEXT] * (CHUNKS - 2), wire.END], 0.0)

    def slow(self, _: bool) -> None:
        self._rest([wire.STREAM_HEAD + wire.FIRST, *[wire.NEXT] * (CHUNKS - 2), wire.END], GAP_S)

    def odd(self, _: bool) -> None:
        self._rest([wire.STREAM_HEAD + wire.FIRST, *ODD, wire.END], 0.0)

    def bye(self, is_stream: bool) -> None:
        """Closes a connection that it said to keep: whoever uses it again may find it closed."""
        self.reply(is_stream)
        self._later(CHANCE.random() * 0.005, self._close)

    def huge(self, _: bool) -> None:
        self.write(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % HUGE + b" " * HUGE)

    def large(self, _: bool) -> None:
        self.write(LARGE_REPLY)

    def flood(self, _: bool) -> None:
        self.write(wire.STREAM_HEAD + wire.FIRST)
        self._blocks = FLOOD
        self._pour()

    def hold(self, _: bool) -> None:
        """No answer at all."""

    def stall(self, _: bool) -> None:
        self.write(wire.STREAM_HEAD + wire.FIRST + wire.NEXT)

    def reset(self, _: bool) -> None:
        self._reset()

    def close(self, _: bool) -> None:
        self._close()

    def head(self, _: bool) -> None:
        self.write(wire.STREAM_HEAD[: CHANCE.randrange(1, len(wire.STREAM_HEAD) - 4)])
        self._later(0.001, self._reset)

    def short(self, _: bool) -> None:
        self.write(wire.COMPLETION[: -CHANCE.randrange(1, 200)])
        self._later(0.001, self._close)

    def mid(self, _: bool) -> None:
        self.write(wire.STREAM_HEAD + wire.FIRST + wire.NEXT)
        self._later(CHANCE.random() * 0.01, self._reset)

    def half(self, _: bool) -> None:
        self.write(wire.STREAM_HEAD + wire.FIRST + _frame(b'data: {"id": "x", "choices": [{"delta": {"cont'))
        self._later(CHANCE.random() * 0.01, self._close)

    def open(self, _: bool) -> None:
        self.write(wire.STREAM_HEAD + wire.FIRST + wire.NEXT + wire.LAST_CHUNK)

    def sick(self, _: bool) -> None:
        self.write(wire.STREAM_HEAD + wire.FIRST + SICK + wire.LAST_CHUNK)

    def flaky(self, is_stream: bool) -> None:
        CHANCE.choice((self.reply, self.reply, self.busy, self.reset, self.head))(is_stream)

    def busy(self, _: bool) -> None:
        self.write(BUSY if CHANCE.random() < 0.9 else BUSY_LONG)

    def limited(self, _: bool) -> None:
        self.write(LIMITED)

    def fail(self, _: bool) -> None:
        self.write(FAILED)

    def dead(self, _: bool) -> None:
        self.write(DEAD)

    def garbage(self, _: bool) -> None:
        self.write(CHANCE.choice(GARBAGE))
        self._later(0.02, self._close)

    def more(self, is_stream: bool) -> None:
        self.reply(is_stream)
        self.write(wire.COMPLETION[:60])

    def status(self, _: bool) -> None:
        self.write(CHANCE.choice(OWN_STATUS))

    def _later(self, seconds: float, act: Callable[[], None]) -> None:
        self._timer = self._loop.call_later(seconds, act)

    def _rest(self, parts: list[bytes], gap_s: float) -> None:
        """Writes one part after another, each for itself."""
        self.write(parts[0])
        if len(parts) > 1:
            self._later(gap_s, lambda: self._rest(parts[1:], gap_s))

    def _pour(self) -> None:
        while self._blocks and not self._is_full:
            self._blocks -= 1
            self.write(BLOCK_FRAME if self._blocks else wire.END)

    def pause_writing(self) -> None:
        self._is_full = True

    def resume_writing(self) -> None:
        self._is_full = False
        self._pour()

    def _close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def _reset(self) -> None:
        if self._transport is not None:
            reset(self._transport)


def reset(transport: asyncio.BaseTransport) -> None:
    """Breaks a connection off so that the other side sees an error rather than an end."""
    held = transport.get_extra_info("socket")
    if held is not None and held.fileno() >= 0:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    cast(asyncio.Transport, transport).abort()


ACTS: Final[Mapping[str, Callable[[Engine, bool], None]]] = {
    name: getattr(Engine, name)
    for name in (
        "reply", "late", "pieces", "stream", "slow", "odd", "bye", "huge", "large", "flood", "hold", "stall", "reset", "close", "head",
        "short", "mid", "half", "open", "sick", "flaky", "busy", "limited", "fail", "dead", "garbage", "more", "status",
    )
}  # fmt: skip
"""What a request can ask for; `count` is for /tokenize only, the request itself is answered."""


async def serve(port: int, models: list[str]) -> None:
    cards: list[dict[str, Any]] = [{"id": name, "object": "model", "created": 1_790_000_000, "max_model_len": CONTEXT} for name in models]
    Engine.models = wire.reply(json.dumps({"object": "list", "data": cards}).encode())
    server = await asyncio.get_running_loop().create_server(Engine, "127.0.0.1", port, backlog=2048)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(int(sys.argv[1]), sys.argv[2:]))
