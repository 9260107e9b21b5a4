"""One request of a caller's connection and the way back to it, in uvicorn's place: there the head of a reply is a write of its own,
every header is looked through, and most of what is made for a request nobody here asks for."""

import asyncio
import logging
from collections.abc import Callable, Iterable, MutableSet
from typing import Any, Final

from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

log = logging.getLogger("lensd.gateway")

_NO_BODY: Final = (204, 304)
_LAST_CHUNK: Final = b"0\r\n\r\n"


class Cycle(RequestResponseCycle):
    """A request from its head on, and ASGI's `send` for it. A reply's head goes out together with the first bytes of its body."""

    def __init__(
        self,
        scope: dict[str, Any],
        transport: asyncio.Transport,
        flow: FlowControl,
        default_headers: Iterable[tuple[bytes, bytes]],
        on_response: Callable[[], None],
        *,
        keep_alive: bool,
    ) -> None:
        # All that uvicorn's own code asks of it; not its __init__, which takes as long as the rest.
        self.scope: Any = scope
        self.transport, self.flow, self.on_response = transport, flow, on_response
        self.message_event = _NOBODY_WAITS
        self.disconnected, self.keep_alive, self.waiting_for_100_continue = False, keep_alive, False
        self.body, self.more_body = bytearray(), True
        self.response_started = self.response_complete = False
        self.task: asyncio.Task[None] | None = None
        self._default_headers = default_headers
        self._head = b""
        self._is_chunked = False
        self._left = -1  # bytes of the body that are still to come; -1: as many as there are

    async def serve(self, app: Any, tasks: MutableSet[asyncio.Task[None]]) -> None:
        """A reply without its end is broken off: all that can be said then."""
        try:
            await app(self.scope, self.receive, self)
        except Exception:
            log.exception("a request failed before it had a record")
            if not self.response_started:
                await self.send_500_response()
        finally:
            if not self.response_complete and not self.disconnected:
                self.transport.close()
            self.on_response = _nothing  # of the connection, which refers to this
            tasks.discard(self.task)  # type: ignore[arg-type]

    async def receive(self) -> Any:
        """ASGI's; for what has not come yet, the one thing that a request waits for."""
        if self.message_event is _NOBODY_WAITS:
            self.message_event = asyncio.Event()
            self.waiting_for_100_continue = not self.response_started and self._expects_100()
            if not self.more_body or self.body:
                self.message_event.set()
        return await super().receive()

    def _expects_100(self) -> bool:
        return any(name == b"expect" and value.lower() == b"100-continue" for name, value in self.scope["headers"])

    def whole_body(self) -> bytes | None:
        """The request's body, if all of it has come."""
        if self.more_body or self.disconnected or self.response_complete:
            return None
        return bytes(self.body)

    @property
    def is_full(self) -> bool:
        """What is sent next waits until the caller has read on."""
        return self.flow.write_paused

    def reply(self, status: int, headers: list[tuple[bytes, bytes]], body: bytes) -> None:
        """A whole reply, without waiting; to a caller that has left, nothing is sent."""
        if not self.disconnected:
            self._start(status, headers)
            self._write(body, more=False)

    def pass_on(self, data: bytes) -> None:
        """A part of a body that has begun, without waiting; to a caller that has left, nothing is sent."""
        if not self.disconnected:
            self._write(data, more=True)

    async def __call__(self, message: Any) -> None:
        """Raises RuntimeError for what would not be one reply; to a caller that has left, nothing is sent."""
        if self.flow.write_paused and not self.disconnected:
            await self.flow.drain()
        if self.disconnected:
            return
        if not self.response_started:
            self._start(message["status"], message["headers"])
        elif not self.response_complete:
            self._write(message["body"], more=message.get("more_body", False))
        else:
            raise RuntimeError("a reply goes on after its end")

    send = __call__

    def _start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self.response_started = True
        self.waiting_for_100_continue = False
        has_body = self.scope["method"] != "HEAD" and status not in _NO_BODY
        self._is_chunked = has_body and self.scope["http_version"] != "1.0"  # there the connection's end is the body's
        lines = [*map(b": ".join, self._default_headers), *map(b": ".join, headers)]
        named = dict(headers)
        if (length := named.get(b"content-length")) is not None:
            self._is_chunked, self._left = False, int(length) if has_body else -1
        if named.get(b"connection") == b"close":
            self.keep_alive = False
        elif not self.keep_alive:
            lines.append(b"connection: close")
        if self._is_chunked:
            lines.append(b"transfer-encoding: chunked")
        lines += (b"", b"")
        head = self._head = STATUS_LINE[status] + b"\r\n".join(lines)
        if not head.count(b"\n") == head.count(b"\r") == len(lines):
            raise RuntimeError("a reply's header holds a line end: it would be more than one header")

    def _write(self, body: bytes, *, more: bool) -> None:
        if self._is_chunked:
            data = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            if not more:
                data += _LAST_CHUNK
        elif self.scope["method"] == "HEAD":
            data = b""
        else:
            data = body
            if self._left >= 0:
                self._left -= len(body)
                if self._left < 0 or (self._left and not more):
                    raise RuntimeError("a reply's body is not as long as its head says")
        if self._head:
            data, self._head = self._head + data, b""
        if data:
            self.transport.write(data)
        if not more:
            self.response_complete = True
            self.message_event.set()
            if not self.keep_alive:
                self.transport.close()
            self.on_response()


class _NobodyWaits(asyncio.Event):
    """In place of an event until somebody waits for it: most bodies are there before they are asked for."""

    def set(self) -> None:
        """Nobody is woken."""


_NOBODY_WAITS: Final = _NobodyWaits()


def _nothing() -> None:
    """Nobody is told any more."""
