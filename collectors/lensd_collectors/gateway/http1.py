"""One connection to an engine: HTTP/1.1, a request at a time, the reply's bytes as they come. Parsing is httptools'."""

import asyncio
from collections.abc import Callable
from typing import Final, cast

import httptools

from lensd_collectors.gateway.heads import Header

HIGH_WATER: Final = 256 * 1024  # bytes of a reply that wait to be read; beyond it the engine is held up
PART_COST: Final = 64  # what a part takes beside its bytes
MAX_BARE: Final = 64 * 1024  # bytes that may come without one of a body: heads, sizes of chunks, trailers
MAX_HEADERS: Final = 256
COPY_BELOW: Final = 64 * 1024  # a longer body is sent from where it is


class BrokenError(Exception):
    """The engine closed the connection before the end of its reply, or before any of it, or did not speak HTTP."""


class StaleError(BrokenError):
    """A connection kept from an earlier request was closed before a byte of the reply came: the request may be sent again."""


class Connection(asyncio.Protocol):
    """Made by `loop.create_connection`; after a reply read to its end it may carry the next request."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.idle_since = 0
        self.is_lost = False  # nothing more comes
        self.used = False  # for an earlier request
        self.status = 0
        self.headers: list[Header] = []
        self._parser = httptools.HttpResponseParser(self)
        self._waiter: asyncio.Future[None] | None = None
        self._take: Callable[[bytes], bool] | None = None
        self._parts: list[bytes] = []
        self._held = 0
        self._bare = 0  # bytes since the last one of a body
        self._is_paused = False
        self._is_asked = False  # a request is out whose reply has not ended
        self._has_head = False
        self._is_whole = False
        self._ends_with_connection = False  # neither a length nor chunks: the end of the connection is the end of the body
        self._keeps = False
        self._is_gone = False
        self._why = ""  # it was broken off from here

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's are of a class of their own

    def request(self, head: bytes, body: bytes) -> None:
        """Sends a whole request; `head` waits for the reply."""
        assert self.transport is not None
        self.status, self.headers, self._bare = 0, [], 0
        self._has_head = self._is_whole = False
        self._is_asked = True
        if len(body) < COPY_BELOW:
            self.transport.write(head + body)
        else:
            self.transport.writelines((head, body))

    async def head(self) -> None:
        """Returns when `status` and `headers` are there. Raises BrokenError."""
        while not self._has_head:
            if self.is_lost:
                if self.used and not self._bare:
                    raise StaleError("closed before it answered")
                raise BrokenError(self._why or ("closed in the middle of its reply's head" if self._bare else "closed before it answered"))
            await self._wait()

    async def read(self) -> bytes:
        """All that has come of the body, at least a byte; empty at its end. Raises BrokenError."""
        while True:
            if parts := self._parts:
                self._parts, self._held = [], 0
                if self._is_paused and self.transport is not None:
                    self._is_paused = False
                    self.transport.resume_reading()
                return parts[0] if len(parts) == 1 else b"".join(parts)
            if self._is_whole:
                return b""
            if self.is_lost:
                raise BrokenError(self._why or "closed in the middle of its reply")
            await self._wait()

    def whole(self) -> bytes | None:
        """The body, if all of it has come and nothing of it was read; None else."""
        if not self._is_whole or self._is_paused or len(self._parts) != 1:
            return None
        [body], self._parts, self._held = self._parts, [], 0
        return body

    async def hand_on(self, take: Callable[[bytes], bool]) -> None:
        """Gives what comes of the body to `take` as it comes, until that returns False or no more comes; `read` has what is left.

        For streams: waking the task for each chunk costs more than the rest. What `take` raises is raised here.
        """
        if self._parts or self._is_whole or self.is_lost:
            return
        self._take = take
        try:
            await self._wait()
        finally:
            self._take = None

    @property
    def can_be_kept(self) -> bool:
        """Nothing is under way in either direction, not the rest of a request either that was answered early."""
        if not self._is_whole or not self._keeps or self._parts or self.is_lost or self.transport is None:
            return False
        return not self.transport.get_write_buffer_size()

    def close(self) -> None:
        """In good order where nothing is under way; else at once, for the engine to see that nobody waits any more."""
        self.is_lost = True
        self._parts = []
        if self.transport is None:
            return
        if self._is_asked or self.transport.get_write_buffer_size():
            self.transport.abort()
        else:
            self.transport.close()

    async def closed(self) -> None:
        """Returns when the connection is there no more, after `close`."""
        while not self._is_gone:
            await self._wait()

    async def _wait(self) -> None:
        waiter = self._waiter = asyncio.get_running_loop().create_future()
        try:
            await waiter
        finally:
            self._waiter = None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def _break_off(self, why: str) -> None:
        """What was read of the body before stays to be had."""
        self.is_lost, self._why = True, why
        if self.transport is not None:
            self.transport.abort()

    def data_received(self, data: bytes) -> None:
        if not self._is_asked:
            self._break_off("said more than it was asked")  # what comes next would be taken for the answer to the next request
            return
        self._bare += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._break_off("wants to speak another protocol than HTTP/1.1")
        except httptools.HttpParserError as error:
            cause = error.__context__
            self._break_off(str(cause) if isinstance(cause, BrokenError) else f"does not answer in HTTP/1.1: {error}")
        if self._bare > MAX_BARE and not self._is_whole and not self.is_lost:
            self._break_off(f"sent {self._bare} bytes without one of a body")
        if self._take is not None and self._parts:
            self._give(self._take)
        if self._held > HIGH_WATER and not self._is_paused and not self.is_lost and self.transport is not None:
            self._is_paused = True
            self.transport.pause_reading()
        if self._take is None or self._is_whole or self.is_lost:
            self._wake()

    def _give(self, take: Callable[[bytes], bool]) -> None:
        parts, self._parts, self._held = self._parts, [], 0
        try:
            if not take(parts[0] if len(parts) == 1 else b"".join(parts)):
                self._take = None
        except Exception as error:
            self._take = None
            if self._waiter is not None and not self._waiter.done():
                self._waiter.set_exception(error)

    def eof_received(self) -> bool:
        if self._has_head and self._ends_with_connection:
            self._is_whole, self._is_asked = True, False
        self.is_lost = True  # here already: the transport may still be busy with the rest of a request that nobody reads
        self._wake()
        return False

    def connection_lost(self, error: Exception | None) -> None:
        self.is_lost = self._is_gone = True
        del self._parser  # which refers to this object
        self._wake()

    # What httptools calls. What is raised here reaches `data_received` as the context of an HttpParserError.

    def on_message_begin(self) -> None:
        if self._is_whole:
            raise BrokenError("said more than it was asked")

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._has_head:  # else a trailer, which nobody reads
            self.headers.append((name.lower(), value.rstrip()))

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        if not 100 <= self.status < 600:
            raise BrokenError(f"answers with the status {self.status}")
        if self.status < 200:
            return
        headers = self.headers
        if len(headers) > MAX_HEADERS or (self._bare > MAX_BARE and sum(len(name) + len(value) for name, value in headers) > MAX_BARE):
            raise BrokenError("the head of its reply is too long")
        named = dict(headers)
        is_chunked = b"transfer-encoding" in named
        if is_chunked and [value.lower() for name, value in headers if name == b"transfer-encoding"] != [b"chunked"]:
            raise BrokenError("its reply has a transfer coding other than chunked")
        self._has_head, self._ends_with_connection = True, not is_chunked and b"content-length" not in named

    def on_body(self, body: bytes) -> None:
        self._parts.append(body)
        self._held += len(body) + PART_COST
        self._bare = 0

    def on_message_complete(self) -> None:
        if self.status < 200:  # 100 Continue, 103 Early Hints: the answer is still to come
            self.status, self.headers = 0, []
            return
        self._is_whole, self._is_asked = True, False
        self._keeps = self._parser.should_keep_alive()
