"""A caller's connection: uvicorn's, where it can be fooled or answers in a form of its own, made the gateway's."""

import asyncio
import sys
from typing import Any, Final

import httptools
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle

from lensd_collectors.conventions import Decision
from lensd_collectors.gateway.app import CONNECTION, UNREAD
from lensd_collectors.gateway.decisions import Refused
from lensd_collectors.gateway.sending import Sending

MAX_HEAD: Final = 64 * 1024  # bytes of a request's line and headers
HEAD_WITHIN_S: Final = 30.0  # from a head's first byte to its end
MAX_WAITING: Final = 8  # requests behind the one under way, on the same connection; what comes after them is not read yet

_OFFERS: Final = (b"upgrade", b"http2-settings")


class _TooLongError(Exception):
    """Stops the parser."""


class CallerProtocol(HttpToolsProtocol):
    """What is not HTTP is refused in the form of every other refusal, with ids and a record; a head has a limit and a deadline.

    A request that offers another protocol is answered in this one, as HTTP has it: Java's clients offer h2c with every
    request, and the parser would leave their bodies out.
    """

    _in_head = _in_body = _is_refused = _is_too_long = False
    _is_at_start = False  # what is read next is the first byte of a head
    _head_bytes = 0  # at least so many have come, where it has not ended
    _head_since = 0.0
    _bare_bytes = 0  # so many have come after a head, at most, without one of a body
    _data = b""
    _again = b""  # to be read in place of what was read last
    _served: RequestResponseCycle | None = None  # the request under way; `cycle` may be one that waits behind it

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        # One that says nothing at first is idle like one that says nothing any more.
        self.timeout_keep_alive_task = self.loop.call_later(self.timeout_keep_alive, self.timeout_keep_alive_handler)

    def connection_lost(self, exc: Exception | None) -> None:
        if self._served is not None and not self._served.response_complete:
            self._served.disconnected = True  # which uvicorn sets on `cycle` only
        super().connection_lost(exc)

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: Any) -> None:
        self._served = cycle
        # Not as the cycle's own `send`: the two would hold each other, and only the collector could free them.
        super()._start_asgi_task(cycle, lambda scope, receive, _: app(scope, receive, Sending(cycle)))

    def data_received(self, data: bytes) -> None:
        if self._is_refused:
            return
        if self._in_head:
            self._head_bytes += len(data)
        elif self._in_body:
            self._bare_bytes += len(data)
        while data:
            self._data, self._again = data, b""
            self._is_at_start = not self._in_head and not self._in_body
            super().data_received(data)
            data = self._again
        if self._in_head and not self._is_refused:
            if self._head_bytes > MAX_HEAD:
                self._is_too_long = True
                self.send_400_response("")
            else:
                self._wait_for_head()
        elif self._bare_bytes > MAX_HEAD and self._in_body and not self._is_refused:
            self.send_400_response("")  # a chunk's extensions or trailers without end

    def _wait_for_head(self) -> None:
        """Not while a reply is on its way: it would be cut off."""
        if self.cycle is None or self.cycle.response_complete:
            self._unset_keepalive_if_required()
            left_s = self._head_since + HEAD_WITHIN_S - self.loop.time()
            self.timeout_keep_alive_task = self.loop.call_later(max(left_s, 0), self.timeout_keep_alive_handler)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._in_head and not self.transport.is_closing():
            self._wait_for_head()

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._in_head, self._head_since = True, self.loop.time()
        self._head_bytes, self._is_at_start = len(self._data) if self._is_at_start else 0, False

    def on_headers_complete(self) -> None:
        self._in_head = False
        if len(self._data) + self._head_bytes > MAX_HEAD and self._head_size() > MAX_HEAD:  # the first is as good as free
            self._is_too_long = True
            raise _TooLongError
        super().on_headers_complete()
        self._in_body, self._bare_bytes = True, 0

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # else a trailer: whoever is in front of the gateway has not looked at it, and nobody reads it
            super().on_header(name, value)

    def on_body(self, body: bytes) -> None:
        self._bare_bytes = 0
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._in_body = False
        super().on_message_complete()
        # Long bodies and requests that come too early stop the reading; and who does not read does not see that the caller leaves.
        if len(self.pipeline) < MAX_WAITING:
            self.flow.resume_reading()

    def send_400_response(self, msg: str) -> None:
        """Called for all that the parser does not take; nothing more is read."""
        self._is_refused = True
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            cycle.keep_alive = False
            if self._in_body and not cycle.response_started:
                cycle.body += b"!"  # what was read is not the whole body: it must not be taken for JSON
                cycle.more_body = False
                cycle.message_event.set()
        elif self._in_body:  # of a request that was answered before it had come in whole
            self.transport.close()
        else:
            self._refuse()

    def _refuse(self) -> None:
        if self._is_too_long:
            refusal = Refused(Decision.BODY_TOO_LARGE, f"the request's line and headers are longer than {MAX_HEAD} bytes")
        else:
            refusal = Refused(Decision.BODY_MALFORMED, "the request is not valid HTTP/1.1", code="invalid_http")
        scope: Any = {
            "type": "http", "http_version": "1.1", "method": "_OTHER", "path": "-", "query_string": b"", "headers": [],
            "client": self.client, CONNECTION: self, UNREAD: refusal,
        }  # fmt: skip
        self.cycle = RequestResponseCycle(
            scope=scope,
            transport=self.transport,
            flow=self.flow,
            logger=self.logger,
            access_logger=self.access_logger,
            access_log=self.access_log,
            default_headers=self.server_state.default_headers,
            message_event=asyncio.Event(),
            expect_100_continue=False,
            keep_alive=False,
            on_response=self.on_response_complete,
        )
        self._start_asgi_task(self.cycle, self.app)

    def _should_upgrade(self) -> bool:
        """So that uvicorn leaves such a request to `handle_websocket_upgrade`."""
        return True

    def handle_websocket_upgrade(self) -> None:
        """The request once more, without its offer, and what has come behind its head."""
        stopped = sys.exception()
        if not isinstance(stopped, httptools.HttpParserUpgrade) or self.parser.get_method() == b"CONNECT":
            self.send_400_response("")
            return
        lines = [b"%b %b HTTP/%b" % (self.parser.get_method(), self.url, self.parser.get_http_version().encode())]
        for name, value in self.headers:
            if name == b"connection":
                value = b", ".join(each for each in value.split(b",") if each.strip().lower() not in _OFFERS)
            if name not in _OFFERS:
                lines.append(b"%b: %b" % (name, value))
        head = b"\r\n".join((*lines, b"", b""))
        self.parser = httptools.HttpRequestParser(self)
        self.parser.set_dangerous_leniencies(lenient_data_after_close=True)  # as uvicorn sets it
        self._again = head + self._data[stopped.args[0] :]

    def _head_size(self) -> int:
        return len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
