"""How a reply is written to its caller, in uvicorn's place: there the head is a write of its own, and every header is looked through."""

from typing import Any, Final

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, RequestResponseCycle

_NO_BODY: Final = (204, 304)


class Sending:
    """ASGI's `send` of one request. A reply's head goes out together with the first bytes of its body."""

    __slots__ = ("_cycle", "_head", "_is_chunked", "_left")

    def __init__(self, cycle: RequestResponseCycle) -> None:
        self._cycle = cycle
        self._head = b""
        self._is_chunked = False
        self._left = -1  # bytes of the body that are still to come; -1: as many as there are

    @property
    def is_full(self) -> bool:
        """What is sent next waits until the caller has read on."""
        return self._cycle.flow.write_paused

    def pass_on(self, data: bytes) -> None:
        """A part of a body that has begun, without waiting; to a caller that has left, nothing is sent."""
        if not self._cycle.disconnected:
            self._body(data, more=True)

    async def __call__(self, message: Any) -> None:
        """Raises RuntimeError for what would not be one reply; to a caller that has left, nothing is sent."""
        cycle = self._cycle
        if cycle.flow.write_paused and not cycle.disconnected:
            await cycle.flow.drain()
        if cycle.disconnected:
            return
        if not cycle.response_started:
            self._start(message["status"], message["headers"])
        elif not cycle.response_complete:
            self._body(message["body"], more=message.get("more_body", False))
        else:
            raise RuntimeError("a reply goes on after its end")

    def _start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        cycle = self._cycle
        cycle.response_started, cycle.waiting_for_100_continue = True, False
        has_body = cycle.scope["method"] != "HEAD" and status not in _NO_BODY
        self._is_chunked = has_body and cycle.scope["http_version"] != "1.0"  # there the connection's end is the body's
        is_closing = False
        lines = [STATUS_LINE[status]]
        for name, value in (*cycle.default_headers, *headers):
            if name == b"content-length":
                self._is_chunked, self._left = False, int(value) if has_body else -1
            elif name == b"connection" and value == b"close":
                cycle.keep_alive, is_closing = False, True
            lines += (name, b": ", value, b"\r\n")
        if not cycle.keep_alive and not is_closing:
            lines.append(b"connection: close\r\n")
        if self._is_chunked:
            lines.append(b"transfer-encoding: chunked\r\n")
        lines.append(b"\r\n")
        head = self._head = b"".join(lines)
        expected = len(cycle.default_headers) + len(headers) + 2 + self._is_chunked + (not cycle.keep_alive and not is_closing)
        if not head.count(b"\n") == head.count(b"\r") == expected:
            raise RuntimeError("a reply's header holds a line end: it would be more than one header")

    def _body(self, body: bytes, *, more: bool) -> None:
        cycle = self._cycle
        if cycle.scope["method"] == "HEAD":
            data = b""
        elif self._is_chunked:
            data = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            if not more:
                data += b"0\r\n\r\n"
        else:
            data = body
            if self._left >= 0:
                self._left -= len(body)
                if self._left < 0 or (self._left and not more):
                    raise RuntimeError("a reply's body is not as long as its head says")
        if self._head:
            data, self._head = self._head + data, b""
        if data:
            cycle.transport.write(data)
        if not more:
            cycle.response_complete = True
            cycle.message_event.set()
            if not cycle.keep_alive:
                cycle.transport.close()
            cycle.on_response()
