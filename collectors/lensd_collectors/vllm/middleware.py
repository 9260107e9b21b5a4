"""ASGI middleware that sends one span a request, also for those that no metric of an engine counts.

For vLLM: `--middleware lensd_collectors.vllm.middleware.LensdMiddleware`, which makes it the outermost layer, so that it sees
refused keys and callers that leave. For any app of FastAPI's or Starlette's: `app.add_middleware(LensdMiddleware)`. A request
reaches the app with an id and with the middleware's span as its parent, so that the engine's records can be joined, and the
reply names the id. Where nothing says where to send to, LENSD_OTLP in the environment or an argument, it hands through untouched.
"""

import asyncio
import functools
import logging
import random
import time
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any, Final

from lensd_collectors import conventions
from lensd_collectors.gateway.ids import IdSource
from lensd_collectors.gateway.report import progress_attributes
from lensd_collectors.vllm.exchange import LONG_PART, MOST_UNREAD, Exchange
from lensd_collectors.vllm.headers import read_headers, with_request_id
from lensd_collectors.vllm.sender import SERVICE, Sender, sender

log = logging.getLogger("lensd.vllm")

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

# The API, and its calls as they look when a client has left /v1 out
OBSERVED: Final = ("/v1/*", "/chat/completions", "/completions", "/responses", "/embeddings")
QUIET: Final = frozenset({"/health", "/metrics", "/ping", "/version", "/load", "/is_sleeping"})
STARTED_AFTER_NS: Final = 1_000_000_000
PROGRESS_EVERY_NS: Final = 5_000_000_000
TICK_S: Final = 0.5
MOST_ROUTE_CHARS: Final = 256
MOST_WAITING: Final = 512  # records at the exporter, beyond which no request waits there with parts of its body unread


class LensdMiddleware:
    """Wraps an ASGI app and looks at its POST requests to `paths`: whole, or their beginning where one ends in `*`."""

    def __init__(
        self,
        app: App,
        *,
        endpoint: str = "",
        token: str = "",
        service: str = SERVICE,
        paths: Sequence[str] = OBSERVED,
        made: Sender | None = None,
        ids: IdSource | None = None,
    ) -> None:
        """`endpoint` is the OTLP receiver's URL, `token` its bearer token; by default those in the environment. Never raises for them."""
        self._app = app
        self._sender = made or sender(endpoint, token, service)
        self._ids = ids or IdSource(random.SystemRandom())
        self._paths = frozenset(path for path in paths if not path.endswith("*"))
        self._prefixes = tuple(path[:-1] for path in paths if path.endswith("*"))
        self._live: set[Exchange] = set()
        self._ticking = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._sender is None or scope["type"] != "http" or scope["method"] != "POST" or not self._observes(scope["path"]):
            await self._app(scope, receive, send)
            return
        try:
            exchange = self._begin(scope)
        except Exception as error:
            _tell(error)
            await self._app(scope, receive, send)
            return
        parts, stamps, clock = exchange.parts, exchange.stamps, time.monotonic_ns

        async def received() -> Message:
            message = await receive()
            if message["type"] == "http.disconnect":
                exchange.gone()
            return message

        def sent(message: Message) -> Awaitable[None]:
            try:
                if message.get("more_body"):  # nearly all of them: as little as can be
                    part = message.get("body", b"")
                    parts.append(part)
                    stamps.append(clock())
                    if len(stamps) >= MOST_UNREAD or len(part) > LONG_PART:
                        exchange.read()
                else:
                    message = _other(exchange, message, clock())
            except Exception as error:  # what the app says goes on to the caller, whatever it is
                _tell(error)
            return send(message)

        self._live.add(exchange)
        try:
            await self._app(scope, received, sent)
        except BaseException as error:
            exchange.raised = type(error).__name__
            raise
        finally:
            self._live.discard(exchange)
            self._end(exchange, scope)

    def _observes(self, path: str) -> bool:
        return (path.startswith(self._prefixes) or path in self._paths) and path not in QUIET

    def _begin(self, scope: Scope) -> Exchange:
        """Reads the ids of a request or gives it some; the app sees them in its headers, and our span as its parent."""
        given = read_headers(scope["headers"], self._ids)
        now = time.monotonic_ns()
        exchange = Exchange(
            wall_ns=time.time_ns(),
            received=now,
            sent=now,
            method=scope["method"],
            route=scope["path"][:MOST_ROUTE_CHARS],
            request_id=given.request_id,
            trace_id=given.trace_id,
            span_id=given.span_id,
            parent_span_id=given.parent.span_id if given.parent else None,
            session_id=given.session_id,
            client_timeout_ms=given.client_timeout_ms,
            has_key=given.has_key,
        )
        scope["headers"] = given.headers
        if not self._ticking:
            self._ticking = True
            asyncio.get_running_loop().call_later(TICK_S, self._tick)
        return exchange

    def _end(self, exchange: Exchange, scope: Scope) -> None:
        """Has the span sent; what is left to read is read where that is made, unless too much would wait there."""
        try:
            assert self._sender is not None
            exchange.close(time.monotonic_ns(), scope)
            if self._sender.exporter.held > MOST_WAITING or sum(map(len, exchange.parts)) > LONG_PART:
                exchange.judge()
            self._sender.exporter.spans(functools.partial(exchange.span, self._sender.attributes), 1)
        except Exception as error:
            _tell(error)

    def _tick(self) -> None:
        """Says which requests are still open, and runs only while some are."""
        now = time.monotonic_ns()
        for exchange in self._live:
            try:
                self._report_open(exchange, now)
            except Exception as error:
                _tell(error)
        self._ticking = bool(self._live)
        if self._ticking:
            asyncio.get_running_loop().call_later(TICK_S, self._tick)

    def _report_open(self, exchange: Exchange, now: int) -> None:
        if self._sender is None or now - exchange.received < STARTED_AFTER_NS:
            return
        exchange.read()
        stage, _ = exchange.stage()
        if exchange.reported_stage is stage and now < exchange.report_due:
            return
        name = conventions.EVENT_STARTED if exchange.reported_stage is None else conventions.EVENT_PROGRESS
        exchange.reported_stage, exchange.report_due = stage, now + PROGRESS_EVERY_NS
        attributes = {**progress_attributes(exchange, now), **self._sender.attributes}
        self._sender.exporter.event(
            name, at_ns=exchange.wall(now), attributes=attributes, trace_id=exchange.trace_id, span_id=exchange.span_id
        )


def _other(exchange: Exchange, message: Message, now: int) -> Message:
    """The beginning of a reply, which is to name its request, and the end of its body."""
    if message["type"] == "http.response.start":
        headers = list(message.get("headers") or ())  # any iterable, which can perhaps be read only once
        exchange.start(message["status"], headers)
        return {**message, "headers": with_request_id(headers, exchange.request_id)}
    if message["type"] == "http.response.body":
        if body := message.get("body", b""):
            exchange.parts.append(body)
            exchange.stamps.append(now)
        exchange.is_finished = True
    return message


def _tell(error: Exception) -> None:
    log.warning("lensd could not report a request (%s: %s)", type(error).__name__, error)
