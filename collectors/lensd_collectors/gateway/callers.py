"""A caller's connection: uvicorn's, where it can be fooled or answers in a form of its own, made the gateway's."""

import math
import sys
from collections.abc import Callable
from typing import Any, Final
from urllib.parse import unquote

import httptools
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from lensd_collectors.conventions import Decision
from lensd_collectors.gateway.app import CONNECTION, UNREAD
from lensd_collectors.gateway.decisions import Refused
from lensd_collectors.gateway.sending import Cycle

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
    _served: Cycle | None = None  # the request under way; `cycle` may be one that waits behind it
    _closes_at = math.inf  # the loop's time at which the connection is closed, should nothing more come

    on_lost: Callable[[], None] | None = None  # set while a request is served

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._close_in(self.timeout_keep_alive)  # one that says nothing at first is idle like one that says nothing any more

    def connection_lost(self, exc: Exception | None) -> None:
        if self._served is not None and not self._served.response_complete:
            self._served.disconnected = True  # which uvicorn sets on `cycle` only
        super().connection_lost(exc)
        if self.timeout_keep_alive_task is not None:
            self.timeout_keep_alive_task.cancel()
            self.timeout_keep_alive_task = None
        if self.on_lost is not None:
            self.on_lost()

    def _start_asgi_task(self, cycle: Any, app: Any) -> None:
        self._served = cycle
        task = cycle.task = self.loop.create_task(cycle.serve(app, self.tasks))
        self.tasks.add(task)

    def _close_in(self, seconds: float) -> None:
        """One timer a connection, which looks again when it is due: one a request would cost more than what it guards."""
        now = self.loop.time()
        at = self._closes_at = now + seconds
        timer = self.timeout_keep_alive_task
        if timer is None or timer.when() > at:
            if timer is not None:
                timer.cancel()
            self.timeout_keep_alive_task = self.loop.call_later(seconds, self.timeout_keep_alive_handler)

    def timeout_keep_alive_handler(self) -> None:
        self.timeout_keep_alive_task = None
        left_s = self._closes_at - self.loop.time()
        if left_s <= 0:
            self.transport.close()
        elif left_s < math.inf:
            self.timeout_keep_alive_task = self.loop.call_later(left_s, self.timeout_keep_alive_handler)

    def _unset_keepalive_if_required(self) -> None:
        """Whatever uvicorn does about its own timer."""
        self._closes_at = math.inf

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
            self._close_in(max(self._head_since + HEAD_WITHIN_S - self.loop.time(), 0))

    def on_response_complete(self) -> None:
        self.server_state.total_requests += 1
        if self.transport.is_closing():
            return
        self.flow.resume_reading()
        if self.pipeline:
            self._start_asgi_task(*self.pipeline.pop())
        elif self._in_head:
            self._wait_for_head()
        else:
            self._close_in(self.timeout_keep_alive)

    def on_message_begin(self) -> None:
        self.url, self.headers = b"", []
        self._in_head, self._head_since = True, self.loop.time()
        self._head_bytes, self._is_at_start = len(self._data) if self._is_at_start else 0, False

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._in_head:  # else a trailer: whoever is in front of the gateway has not looked at it, and nobody reads it
            self.headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self._in_head = False
        if len(self._data) + self._head_bytes > MAX_HEAD and self._head_size() > MAX_HEAD:  # the first is as good as free
            self._is_too_long = True
            raise _TooLongError
        parser, url = self.parser, self.url
        if parser.should_upgrade():
            self._in_body = True
            return
        if url.startswith(b"/") and b"#" not in url:
            raw, _, query = url.partition(b"?")
        else:
            parts = httptools.parse_url(url)
            raw, query = parts.path, parts.query or b""
        path = raw.decode("ascii")
        version = parser.get_http_version()
        scope = {
            "type": "http", "http_version": version, "method": parser.get_method().decode("ascii"),
            "path": unquote(path) if "%" in path else path, "query_string": query, "headers": self.headers, "client": self.client,
            CONNECTION: self,
        }  # fmt: skip
        self._begin(scope, keep_alive=version != "1.0" and parser.should_keep_alive())
        self._in_body, self._bare_bytes = True, 0

    def _begin(self, scope: dict[str, Any], *, keep_alive: bool) -> None:
        before = self.cycle
        cycle: Any = Cycle(
            scope, self.transport, self.flow, self.server_state.default_headers, self.on_response_complete, keep_alive=keep_alive
        )
        self.cycle = cycle
        if before is None or before.response_complete:
            self._start_asgi_task(cycle, self.app)
        else:
            self.flow.pause_reading()
            self.pipeline.appendleft((cycle, self.app))

    def on_body(self, body: bytes) -> None:
        self._bare_bytes = 0
        cycle = self.cycle
        if not self.parser.should_upgrade() and not cycle.response_complete:
            cycle.body += body
            if len(cycle.body) > HIGH_WATER_LIMIT:
                self.flow.pause_reading()
            cycle.message_event.set()

    def on_message_complete(self) -> None:
        self._in_body = False
        cycle = self.cycle
        if not self.parser.should_upgrade() and not cycle.response_complete:
            cycle.more_body = False
            cycle.message_event.set()
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
        self._begin(scope, keep_alive=False)

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
