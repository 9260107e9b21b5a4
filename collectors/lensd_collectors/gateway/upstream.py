"""The way to an engine: what the gateway needs of an HTTP client, and the one it has."""

import asyncio
import os
import re
import socket
import ssl
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, NoReturn, Protocol
from urllib.parse import quote, urlsplit

import msgspec

from lensd_collectors.gateway.heads import Header
from lensd_collectors.gateway.http1 import BrokenError, Connection
from lensd_collectors.gateway.record import Record

POOL_IDLE_NS: Final = 4_000_000_000  # below the 5 s after which uvicorn, so vLLM, closes an idle connection
MAX_IDLE: Final = 1024  # connections kept to one engine
TLS_FAREWELL_S: Final = 1.0  # how long a connection that is closed in good order waits for the engine's word

_LONE_PERCENT: Final = re.compile("%(?![0-9A-Fa-f]{2})")

Clock = Callable[[], int]


class NotTakenError(Exception):
    """The engine does not take connections."""


class Place(msgspec.Struct, frozen=True):
    """Where an engine listens: what a connection to it needs."""

    host: str
    port: int
    is_tls: bool


class Address(msgspec.Struct, frozen=True):
    """What a URL says, as it is needed for a request."""

    place: Place
    authority: bytes  # Host header
    path: bytes

    @classmethod
    def of(cls, url: str) -> "Address":
        """Of an http:// or https:// URL without user and query; raises ValueError, which repeats nothing that could be a secret."""
        try:
            parts = urlsplit(url)
            host, port = parts.hostname or "", parts.port
            host = host if host.isascii() else host.encode("idna").decode()
        except ValueError:  # whose text holds what was taken for the host or port
            host, port = "", None
        if not host or port == 0 or parts.scheme not in ("http", "https"):
            raise ValueError("an engine's URL must be http://HOST:PORT or https://HOST:PORT with a path")
        if "@" in parts.netloc or parts.query or parts.fragment:
            raise ValueError("an engine's URL must have no user, query or fragment")
        place = Place(host, port or (443 if parts.scheme == "https" else 80), parts.scheme == "https")
        named = f"[{host}]" if ":" in host else host
        authority = named if port is None else f"{named}:{port}"
        path = _LONE_PERCENT.sub("%25", parts.path or "/")
        return cls(place, authority.encode(), quote(path, safe="/%:@!$&'()*+,;=~-._").encode())


class Reply(Protocol):
    """The head of an engine's reply, and its body as it comes."""

    status: int
    headers: list[Header]  # names in lower case

    async def read(self) -> bytes:
        """What has come, at least a byte; empty at the end. Raises BrokenError."""

    def whole(self) -> bytes | None:
        """The body, if all of it has come already and in one piece; it is read with that."""

    async def hand_on(self, take: Callable[[bytes], bool]) -> None:
        """Gives what comes to `take`, until that returns False or no more comes; `read` has the rest, or says why there is none."""

    def close(self) -> None:
        """Gives the connection back after a reply read to its end; any other is broken off, which the engine sees."""


class Client(Protocol):
    """Asks engines. Has no time limits of its own: who calls holds them, and ends a call by cancelling it."""

    async def post(self, address: Address, headers: Sequence[Header], body: bytes, record: Record) -> Reply:
        """The reply's head; sets `sent` and `reused` on the record when a connection is there. Raises NotTakenError, BrokenError.

        ValueError for a header that would not be one on the wire.
        """

    async def ask(
        self, method: str, url: str, *, headers: Sequence[tuple[str, str]], body: bytes | None, timeout_s: float, most: int
    ) -> tuple[int, bytes]:
        """A short exchange of the gateway's own, GET or POST: status and body. Raises NotTakenError, BrokenError, TimeoutError."""

    def sweep(self) -> None:
        """Closes connections that were idle for too long; called now and then."""

    async def close(self) -> None: ...


class PooledReply:
    __slots__ = ("_connection", "_pool", "hand_on", "headers", "read", "status", "whole")

    def __init__(self, connection: Connection, pool: "Pool") -> None:
        self._connection: Connection | None = connection
        self._pool = pool
        self.status, self.headers = connection.status, connection.headers
        self.read, self.whole, self.hand_on = connection.read, connection.whole, connection.hand_on

    def close(self) -> None:
        connection, self._connection = self._connection, None
        if connection is not None:  # else somebody else's by now
            self.read, self.whole, self.hand_on = _closed, _nothing, _closed
            self._pool.give_back(connection)


def _nothing() -> None:
    """Of a reply that was closed."""


async def _closed(take: object = None) -> NoReturn:
    raise BrokenError("read after it was closed")


class Pool:
    """Connections to one engine."""

    def __init__(self, place: Place, clock: Clock, tls: ssl.SSLContext | None) -> None:
        self._place, self._clock, self._tls = place, clock, tls
        self._idle: deque[Connection] = deque()  # the one that was used last is the last
        self._is_closed = False

    def idle(self) -> Connection | None:
        """The one that was used last, of those that are idle."""
        oldest = self._clock() - POOL_IDLE_NS
        while self._idle:
            connection = self._idle.pop()
            if not connection.is_lost and connection.idle_since > oldest:
                connection.used = True
                return connection
            connection.close()
        return None

    async def connect(self) -> Connection:
        """A new one, to the first of the host's addresses that takes it. Raises NotTakenError."""
        loop, place, tls = asyncio.get_running_loop(), self._place, self._tls
        reasons: list[str] = []
        try:
            # Resolved here: uvloop's create_connection leaves an error that nobody sees when it is cancelled while it resolves.
            for family, _, _, _, address in await loop.getaddrinfo(place.host, place.port, type=socket.SOCK_STREAM):
                try:
                    _, made = await loop.create_connection(
                        Connection,
                        str(address[0]),
                        place.port,
                        family=family,
                        ssl=tls,
                        server_hostname=place.host if tls else None,
                        ssl_shutdown_timeout=TLS_FAREWELL_S if tls else None,
                    )
                except OSError as error:  # ssl.SSLError is one
                    reasons.append(_reason(error))
                else:
                    return made
        except (OSError, ValueError) as error:  # ValueError: no name of a host
            raise NotTakenError(_reason(error)) from error
        raise NotTakenError("; ".join(dict.fromkeys(reasons)) or "its host has no address")

    def give_back(self, connection: Connection) -> None:
        idle = self._idle
        if not connection.can_be_kept or len(idle) >= MAX_IDLE or self._is_closed:
            connection.close()
            return
        now = connection.idle_since = self._clock()
        idle.append(connection)
        if idle[0].idle_since <= now - POOL_IDLE_NS:
            self.sweep()

    def sweep(self) -> None:
        """Closes those that were idle for too long."""
        oldest = self._clock() - POOL_IDLE_NS
        while self._idle and (self._idle[0].is_lost or self._idle[0].idle_since <= oldest):
            self._idle.popleft().close()

    def close(self) -> list[Connection]:
        """Those that were idle, which are about to be gone; whatever is given back from now on is closed."""
        self._is_closed = True
        idle = list(self._idle)
        self._idle.clear()
        for connection in idle:
            connection.close()
        return idle


class PooledClient:
    """HTTP/1.1 over pools of kept connections, a pool an engine."""

    def __init__(self, clock: Clock, tls: ssl.SSLContext | None = None) -> None:
        """`tls`: whom to trust; without it, whom this machine trusts."""
        self._clock, self._tls = clock, tls
        self._pools: dict[Place, Pool] = {}

    async def post(self, address: Address, headers: Sequence[Header], body: bytes, record: Record) -> Reply:
        head = _request_head(b"POST", address, headers, len(body))
        pool = self._pool(address.place)
        connection = pool.idle() or await pool.connect()
        record.sent, record.reused = self._clock(), connection.used
        try:
            connection.request(head, body)
            await connection.head()
        except BaseException:
            connection.close()
            raise
        return PooledReply(connection, pool)

    async def ask(
        self, method: str, url: str, *, headers: Sequence[tuple[str, str]], body: bytes | None, timeout_s: float, most: int
    ) -> tuple[int, bytes]:
        address = Address.of(url)
        body = body or b""
        head = _request_head(method.encode(), address, [(name.encode(), value.encode()) for name, value in headers], len(body))
        async with asyncio.timeout(timeout_s):
            # A connection of its own: a request must not be handed one that the engine is about to close.
            connection = await self._pool(address.place).connect()
            try:
                connection.request(head, body)
                await connection.head()
                parts = bytearray()
                while part := await connection.read():
                    parts += part
                    if len(parts) > most:
                        raise BrokenError(f"answered more than {most} bytes")
                return connection.status, bytes(parts)
            finally:
                connection.close()

    def sweep(self) -> None:
        """Where requests come, the pools see to it themselves."""
        for pool in self._pools.values():
            pool.sweep()

    async def close(self) -> None:
        """Returns when what was idle is gone."""
        for connection in [each for pool in self._pools.values() for each in pool.close()]:
            await connection.closed()

    def _pool(self, place: Place) -> Pool:
        return self._pools.get(place) or self._pools.setdefault(place, Pool(place, self._clock, self._trust() if place.is_tls else None))

    def _trust(self) -> ssl.SSLContext:
        if self._tls is None:
            self._tls = ssl.create_default_context()
        return self._tls


def _request_head(method: bytes, address: Address, headers: Sequence[Header], length: int) -> bytes:
    lines = [b"%s %s HTTP/1.1\r\nhost: %s\r\ncontent-length: %d" % (method, address.path, address.authority, length)]
    lines += map(b": ".join, headers)
    lines += (b"", b"")
    head = b"\r\n".join(lines)
    if not head.count(b"\n") == head.count(b"\r") == len(headers) + 4 or b"\0" in head:
        raise ValueError("a request header holds a line end or a zero byte: it would be more than one header")
    return head


def _reason(error: Exception) -> str:
    """Why there is no connection, in a few words and one line."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"no TLS with it: {(error.reason or 'unknown').replace('_', ' ').lower()}"
    if isinstance(error, socket.gaierror):
        return f"its host cannot be resolved: {error.strerror}"
    if isinstance(error, OSError) and error.errno is not None:
        return os.strerror(error.errno)
    return " ".join(str(error).split()) or "the connection was closed"
