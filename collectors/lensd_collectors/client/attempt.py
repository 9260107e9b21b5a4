"""One attempt of a call, from sending to the end of its reply: what the caller's side saw of it, as one span.

Nothing here raises into the library that reports to it, and no text of a prompt or a completion is kept past the end.
"""

import functools
import logging
import secrets
import time
import zlib
from collections.abc import Callable
from typing import Any, Final, ParamSpec, Protocol

from lensd_collectors import conventions as c
from lensd_collectors import span_json
from lensd_collectors.client.asked import Asked, Limits
from lensd_collectors.client.calls import Call
from lensd_collectors.client.failures import kind_of
from lensd_collectors.client.naming import name_request
from lensd_collectors.gateway.sse import Facts, Scanner, read_reply

log = logging.getLogger("lensd.client")

MOST_HELD_BYTES: Final = 1 << 20  # of a reply that is no stream; nothing is read in a larger one
MAX_ROUTE: Final = 256
P = ParamSpec("P")


class Send(Protocol):
    """Takes the maker of a finished span. `later`: from a destructor, which may run while a lock is held that sending needs."""

    def __call__(self, make: Callable[[], list[str]], *, later: bool = False) -> None: ...


def quietly(method: Callable[P, None]) -> Callable[P, None]:
    """A fault of ours costs what we know of the request, never the request."""

    @functools.wraps(method)
    def guarded(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            method(*args, **kwargs)
        except Exception as error:
            log.debug("lensd could not follow a request (%s: %s)", type(error).__name__, error)

    return guarded


class Attempt:
    """Made when the request is sent. The library tells of headers, each read, and one of `end`, `close` or `fail`."""

    __slots__ = (
        "_answered", "_began", "_clock", "_error", "_facts", "_first_content", "_held", "_inflate", "_is_sse", "_last", "_max_gap",
        "_message", "_read", "_room", "_scanner", "_send", "_wall", "asked", "call", "is_ended", "limits", "method", "number",
        "parent_span_id", "request_id", "route", "session_id", "span_id", "status", "trace_id",
    )  # fmt: skip

    def __init__(
        self,
        call: Call,
        send: Send,
        *,
        method: str,
        route: str,
        asked: Asked,
        limits: Limits,
        request_id: str,
        session_id: str | None,
        clock: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        call.attempts += 1
        self.call, self._send, self._clock = call, send, clock
        self.method, self.route, self.asked, self.limits = method, route[:MAX_ROUTE], asked, limits
        self.trace_id, self.parent_span_id, self.span_id = call.trace_id, call.parent_span_id, secrets.token_hex(8)
        self.request_id, self.session_id, self.number = request_id, session_id, call.attempts
        self.is_ended, self.status = False, 0
        self._wall, self._began = time.time_ns(), clock()
        self._answered = self._first_content = self._last = self._max_gap = self._read = 0
        self._error = self._message = ""
        self._is_sse = False
        self._scanner: Scanner | None = None
        self._facts = Facts()
        self._held: list[bytes] = []
        self._room = MOST_HELD_BYTES
        self._inflate: Any = None

    @quietly
    def answered(self, status: int, content_type: str, encoding: str = "") -> None:
        """The reply's headers are here. `encoding` is that of the bytes which `received` will be given."""
        self._answered, self.status = self._clock(), status
        self._is_sse = content_type.startswith("text/event-stream") and status < 400
        if self._is_sse:
            self._scanner = Scanner()
            self._facts = self._scanner.facts
        if encoding in ("gzip", "deflate"):
            self._inflate = zlib.decompressobj(zlib.MAX_WBITS | 32)
        elif encoding not in ("", "identity"):
            self._scanner, self._room = None, -1  # there is no reading it

    @quietly
    def asks(self) -> None:
        """The caller begins to read on; the silence that follows is the server's."""
        self._last = self._clock()

    @quietly
    def received(self, data: bytes) -> None:
        """Bytes of the body, as the caller gets them."""
        if self.is_ended or not data:
            return
        now = self._clock()
        self._note_gap(now)
        self._read += len(data)
        self._last = now
        if self.status < 400:
            self.call.has_content = True
        self._look(data if self._inflate is None else self._inflate.decompress(data))
        if not self._first_content and self._facts.has_content and self._scanner is not None:
            self._first_content = now

    def end(self) -> None:
        """The body is whole."""
        self._finish(is_whole=True)

    def close(self) -> None:
        """The caller wants no more of it."""
        self._finish(is_whole=False)

    def fail(self, error: BaseException) -> None:
        """The library raises this to its caller: the id goes into its text. After the end, errors are not this request's."""
        if self.is_ended:
            return
        if isinstance(error, GeneratorExit):
            self.close()
            return
        name_request(error, self.request_id)
        self._note_failure(error)
        self._finish(is_whole=False)

    def refused(self, error: Exception) -> None:
        """The library raises this for the reply's status, after which nobody need read on or close it."""
        name_request(error, self.request_id)
        self.close()

    def forget(self) -> None:
        """It was never sent, and is not to be told of."""
        self.is_ended = True

    def __del__(self) -> None:
        self._finish(is_whole=False, later=True)

    @property
    def limit_ms(self) -> float | None:
        """The limit that fired, else the one in force."""
        limit = self.limits.fired_s(self._error)
        return None if limit is None else limit * 1000

    @quietly
    def _note_failure(self, error: BaseException) -> None:
        self._error = kind_of(error)
        self._message = type(error).__name__
        if self._error != "cancelled":
            self._note_gap(self._clock())

    def _note_gap(self, now: int) -> None:
        if self._read and now - self._last > self._max_gap:
            self._max_gap = now - self._last

    def _look(self, data: bytes) -> None:
        if self._scanner is not None:
            self._scanner.feed(data)
        elif self._room >= 0:
            self._room -= len(data)
            self._held.append(data)

    @quietly
    def _finish(self, is_whole: bool, later: bool = False) -> None:
        if self.is_ended:
            return
        self.is_ended = True
        ended = self._clock()
        if self._scanner is not None:
            self._scanner.finish()
        elif self._held and self._room >= 0 and self.status < 400:
            self._facts = read_reply(b"".join(self._held))
        self._held.clear()
        if not self._error:
            self._error = self._judged(is_whole)
        self._send(functools.partial(self._span, ended), later=later)

    def _judged(self, is_whole: bool) -> str:
        """The code of an end that raised nothing; empty where all is well."""
        scanner = self._scanner
        if self.status >= 400:
            return str(self.status)
        if self._facts.error is not None:
            return "stream_error"
        if scanner is None or scanner.done_seen or (is_whole and self._facts.finish_reasons):
            return ""
        return "unexpected_eof" if is_whole else "cancelled"

    def _span(self, ended: int) -> list[str]:
        return [
            span_json.write(
                c.CLIENT_REQUEST,
                span_json.pairs(self._attributes()),
                trace_id=self.trace_id,
                span_id=self.span_id,
                parent_span_id=self.parent_span_id,
                kind="client",
                start_ns=self._wall,
                end_ns=self._wall + ended - self._began,
                ok=not self._error,
                message=self._message or self._error,
            )
        ]

    def _attributes(self) -> dict[str, Any]:
        facts, scanner = self._facts, self._scanner
        return {
            c.REQUEST_ID: self.request_id,
            c.SESSION_ID: self.session_id,
            c.HTTP_METHOD: self.method,
            c.HTTP_ROUTE: self.route,
            c.HTTP_STATUS: self.status or None,
            c.ERROR_TYPE: self._error or None,
            c.REQUEST_MODEL: self.asked.model_name,
            c.MAX_TOKENS: self.asked.token_limit,
            c.IS_STREAMING: self.asked.stream is True if self.asked.stream is not None else (self._is_sse or None),
            c.CLIENT_TIMEOUT_MS: self.limit_ms,
            c.CLIENT_ATTEMPT: self.number,
            c.CLIENT_HEADERS_MS: self._since(self._answered),
            c.CLIENT_FIRST_CONTENT_MS: self._since(self._first_content),
            c.CLIENT_MAX_GAP_MS: self._max_gap / 1e6 if self._max_gap else None,
            c.RESPONSE_ID: facts.response_id,
            c.RESPONSE_MODEL: facts.model,
            c.FINISH_REASONS: facts.finish_reasons or None,
            c.INPUT_TOKENS: facts.prompt_tokens,
            c.OUTPUT_TOKENS: facts.completion_tokens,
            c.CACHED_TOKENS: facts.cached_tokens,
            c.CHUNKS: scanner.chunks if scanner is not None else None,
            c.DONE_SEEN: scanner.done_seen if scanner is not None else None,
        }

    def _since(self, stamp: int) -> float | None:
        return (stamp - self._began) / 1e6 if stamp else None
