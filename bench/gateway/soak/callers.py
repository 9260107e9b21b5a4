"""Callers that behave as the mix says, so many at a time, and a book of what they sent and got."""

import asyncio
import random
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from gateway.load import Caller
from gateway.soak import mix
from gateway.soak.engine import reset
from gateway.soak.mix import As, Kind, Way

ANSWERS_WITHIN_S: Final = 60.0
BUFFERS: Final = {Way.SLOW: 4096, Way.STUCK: 4096, Way.LATE: 64 * 1024}
"""Of callers that do not read, so that what they do not read stays with the gateway."""
MOST_STUCK: Final = 24


@dataclass(slots=True)
class Book:
    """What was sent and what came of it, by kind."""

    ended: int = 0  # requests, and what never became one, that a caller is done with
    sent: Counter[str] = field(default_factory=Counter)
    answers: Counter[tuple[str, int]] = field(default_factory=Counter)
    wrong: Counter[tuple[str, int]] = field(default_factory=Counter)  # a status that may not be
    broken: Counter[str] = field(default_factory=Counter)  # a reply without an end
    silent: Counter[str] = field(default_factory=Counter)  # no reply in time
    stuck: int = 0

    @property
    def requests(self) -> int:
        return self.sent.total()


class Guest(Caller):
    """A caller that may also send half of something, not read, and break off."""

    def __init__(self) -> None:
        super().__init__()
        self.is_lost = False
        self.is_broken = False  # a reply had begun and did not come to its end
        self.is_error = False  # a stream held an error

    def send(self, request: bytes) -> None:
        self.is_error = False
        super().send(request)

    def data_received(self, data: bytes) -> None:
        self.is_error = self.is_error or b'"error"' in data
        super().data_received(data)

    def connection_lost(self, error: Exception | None) -> None:
        self.is_lost, self.is_broken = True, self.status != 0
        super().connection_lost(error)

    def put(self, data: bytes) -> None:
        assert self._transport is not None
        self._transport.write(data)

    def stop_reading(self) -> None:
        assert self._transport is not None
        self._transport.pause_reading()

    def read_on(self) -> None:
        assert self._transport is not None
        self._transport.resume_reading()

    def leave(self, *, hard: bool) -> None:
        """`hard`: as a process that is killed or a firewall that cuts; else as one that closes."""
        self._waits = False
        if self._transport is None or self.is_lost:
            return
        if hard:
            reset(self._transport)
        else:
            self._transport.close()


class Callers:
    """Serves a list of requests, `together` at a time, each as soon as another is done."""

    def __init__(self, port: int, keys: Mapping[As, str], kinds: Sequence[Kind], together: int, source: random.Random) -> None:
        self._port, self._source, self._together = port, source, together
        self._left = iter(kinds)
        self._requests = {kind.name: mix.request(kind, port, keys[kind.who]) for kind in mix.MIX}
        self._stuck: list[Guest] = []
        self.book = Book()
        self._ways: Mapping[Way, Callable[[Kind, Guest], Awaitable[Guest | None]]] = {
            Way.READ: self._read,
            Way.READ_RESET: self._read_reset,
            Way.LEAVE: self._leave,
            Way.LEAVE_BEGUN: self._leave_begun,
            Way.HALF_BODY: self._half_body,
            Way.HALF_HEAD: self._half_head,
            Way.NOISE: self._noise,
            Way.SLOW: self._slow,
            Way.LATE: self._late,
            Way.STUCK: self._stick,
        }

    async def run(self) -> None:
        await asyncio.gather(*(self._one() for _ in range(self._together)))

    def let_go(self) -> None:
        """Those that are stuck leave as well."""
        for guest in self._stuck:
            guest.leave(hard=False)
        self._stuck.clear()

    async def _one(self) -> None:
        """One after another, on the same connection while it is any good."""
        guest: Guest | None = None
        for kind in self._left:
            if kind.way in BUFFERS:
                await self._ways[kind.way](kind, await self._connect(BUFFERS[kind.way]))
            else:
                if guest is None or guest.is_lost:
                    guest = await self._connect()
                guest = await self._ways[kind.way](kind, guest)
            self.book.ended += 1
        if guest is not None:
            guest.leave(hard=False)

    async def _connect(self, buffer: int = 0) -> Guest:
        loop = asyncio.get_running_loop()
        if not buffer:
            return (await loop.create_connection(Guest, "127.0.0.1", self._port))[1]
        made = socket.socket()
        made.setblocking(False)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        await loop.sock_connect(made, ("127.0.0.1", self._port))
        return (await loop.create_connection(Guest, sock=made))[1]

    def _send(self, kind: Kind, guest: Guest) -> None:
        self.book.sent[kind.name] += 1
        guest.send(self._requests[kind.name])

    def _wait_s(self, kind: Kind) -> float:
        least, most = kind.wait_ms
        return self._source.uniform(least, most) / 1000

    async def _read(self, kind: Kind, guest: Guest) -> Guest | None:
        done = asyncio.Event()
        guest.ended = done.set
        self._send(kind, guest)
        return await self._answer(kind, guest, done)

    async def _read_reset(self, kind: Kind, guest: Guest) -> None:
        if await self._read(kind, guest) is not None:
            guest.leave(hard=True)

    async def _answer(self, kind: Kind, guest: Guest, done: asyncio.Event) -> Guest | None:
        """The caller, if another request may follow on its connection."""
        book = self.book
        try:
            async with asyncio.timeout(ANSWERS_WITHIN_S):
                await done.wait()
        except TimeoutError:
            book.silent[kind.name] += 1
            guest.leave(hard=True)
            return None
        finally:
            guest.ended = _nothing
        if guest.is_broken or (kind.streaming and guest.status == 200 and not guest.is_whole and not guest.is_error):
            book.broken[kind.name] += not kind.may_break
            guest.leave(hard=False)
            return None
        book.answers[kind.name, guest.status] += 1
        if guest.status not in kind.answers:
            book.wrong[kind.name, guest.status] += 1
        if kind.length is not None:  # what comes next would be its body
            guest.leave(hard=False)
            return None
        return guest

    async def _leave(self, kind: Kind, guest: Guest) -> None:
        self._send(kind, guest)
        await asyncio.sleep(self._wait_s(kind))
        self._go(guest)

    async def _leave_begun(self, kind: Kind, guest: Guest) -> None:
        begun = asyncio.Event()
        guest.begun = guest.ended = begun.set
        self._send(kind, guest)
        await begun.wait()
        await asyncio.sleep(self._wait_s(kind))
        self._go(guest)

    async def _half_body(self, kind: Kind, guest: Guest) -> None:
        self.book.sent[kind.name] += 1
        guest.put(self._requests[kind.name][: -self._source.randrange(1, 100)])
        await asyncio.sleep(self._wait_s(kind))
        self._go(guest)

    async def _half_head(self, kind: Kind, guest: Guest) -> None:
        guest.put(self._requests[kind.name][: self._source.randrange(1, 100)])
        await asyncio.sleep(self._wait_s(kind))
        self._go(guest)

    async def _noise(self, kind: Kind, guest: Guest) -> Guest | None:
        done = asyncio.Event()
        guest.ended = done.set
        self.book.sent[kind.name] += 1
        guest.send(b"\x16\x03\x01\x02\x00\x01 hello\r\n\r\n")
        await self._answer(kind, guest, done)
        guest.leave(hard=False)
        return None

    async def _slow(self, kind: Kind, guest: Guest) -> None:
        guest.stop_reading()
        self._send(kind, guest)
        await asyncio.sleep(self._wait_s(kind))
        self._go(guest)

    async def _late(self, kind: Kind, guest: Guest) -> None:
        done = asyncio.Event()
        guest.ended = done.set
        guest.stop_reading()
        self._send(kind, guest)
        await asyncio.sleep(self._wait_s(kind))
        guest.read_on()
        await self._answer(kind, guest, done)
        guest.leave(hard=False)

    async def _stick(self, kind: Kind, guest: Guest) -> None:
        if len(self._stuck) >= MOST_STUCK:
            await self._slow(kind, guest)
            return
        guest.stop_reading()
        self._send(kind, guest)
        self._stuck.append(guest)
        self.book.stuck += 1

    def _go(self, guest: Guest) -> None:
        guest.ended = guest.begun = _nothing
        guest.leave(hard=self._source.random() < 0.5)


def _nothing() -> None:
    """Nobody is told."""
