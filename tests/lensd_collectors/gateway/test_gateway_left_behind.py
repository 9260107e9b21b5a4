"""Nothing of a caller stays behind: neither of one that stays and reads nothing, nor of one whose connection was reset."""

import asyncio
import json
import socket
import struct

import pytest
from gateway_stage import CHAT, Call, run, stage
from lensd_collectors.gateway import server

WHOLE = b'{"id": "x", "choices": [], "text": "%s"}' % (b"a" * 1_000_000)
EVENT = b'data: {"choices":[{"delta":{"content":"%s"}}]}\n\n' % (b"x" * 8000)


def request() -> bytes:
    data = json.dumps(CHAT).encode()
    return b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: %d\r\n\r\n" % len(data) + data


async def small(call: Call) -> None:
    await call.reply(200, b"small")


async def whole(call: Call) -> None:
    await call.reply(200, WHOLE)


async def endless(call: Call) -> None:
    await call.start_stream()
    while True:
        await call.chunk(EVENT)


async def half(call: Call) -> None:
    """The engine falls silent when the caller's connection is full already."""
    await call.start_stream()
    for _ in range(15):
        await call.chunk(EVENT)
    await asyncio.sleep(60)


@pytest.mark.parametrize("asks", [False, True])
def test_no_timer_keeps_what_was_reset(asks, monkeypatch):
    """The server's timers run for a minute, and each holds all that belongs to its connection."""

    async def main():
        loop = asyncio.get_running_loop()
        async with stage(small) as s:
            with socket.socket() as sock:
                sock.setblocking(False)
                await loop.sock_connect(sock, ("127.0.0.1", s.port))
                await asyncio.wait_for(made.wait(), 5)
                if asks:
                    await loop.sock_sendall(sock, request())
                    reply = b""
                    while not reply.endswith(b"small"):
                        reply += await loop.sock_recv(sock, 65536)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            await asyncio.wait_for(lost.wait(), 5)

    made, lost = asyncio.Event(), asyncio.Event()
    timers = []

    class Seen(server.CallerProtocol):
        def connection_made(self, transport) -> None:
            super().connection_made(transport)
            made.set()

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            timers.append((type(exc), self.timeout_keep_alive_task))
            lost.set()

    monkeypatch.setattr(server, "CallerProtocol", Seen)
    run(main())
    assert timers == [(ConnectionResetError, None)]


@pytest.mark.skipif(not hasattr(socket, "TCP_USER_TIMEOUT"), reason="only Linux can be told when to give up")
@pytest.mark.parametrize("script", [whole, endless, half])
def test_a_connection_of_which_nobody_reads_is_broken_off(script, capfd, monkeypatch):
    async def main():
        loop = asyncio.get_running_loop()
        async with stage(script, idle_timeout_s=0.2, send_buffer=8192) as s:
            with socket.socket() as sock:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
                sock.setblocking(False)
                await loop.sock_connect(sock, ("127.0.0.1", s.port))
                await loop.sock_sendall(sock, request())
                await asyncio.wait_for(lost.wait(), 10)
                return len(await s.records())

    lost = asyncio.Event()

    class Seen(server.CallerProtocol):
        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            lost.set()

    monkeypatch.setattr(server, "CallerProtocol", Seen)
    monkeypatch.setattr(server, "UNREAD_GRACE_S", 0.1)
    assert run(main()) == 1
    assert capfd.readouterr().err == ""
