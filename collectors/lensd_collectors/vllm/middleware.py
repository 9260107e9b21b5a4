"""ASGI middleware that sends one span a request, also for those that no metric of an engine counts.

For vLLM: `--middleware lensd_collectors.vllm.middleware.LensdMiddleware`, which makes it the outermost layer, so that it sees
refused keys and callers that leave. For any app of FastAPI's or Starlette's: `app.add_middleware(LensdMiddleware)`. It gives
a request an id and a trace where it has none, so that the engine's records can be joined. Where nothing says where to send
to, LENSD_OTLP in the environment or an argument, it hands through untouched.
"""

import asyncio
import functools
import logging
import random
import time
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from typing import Any, Final

from lensd_collectors import conventions
from lensd_collectors.gateway.ids import IdSource, read_traceparent, sane_id, write_traceparent
from lensd_collectors.gateway.report import progress_attributes
from lensd_collectors.vllm.exchange import Exchange
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
        exchange = self._begin(scope)
        clock, body = time.monotonic_ns, exchange.body

        async def received() -> Message:
            message = await receive()
            if message["type"] == "http.disconnect":
                exchange.gone()
            return message

        def sent(message: Message) -> Awaitable[None]:
            kind = message["type"]
            if kind == "http.response.body":
                body(message.get("body", b""), message.get("more_body", False), clock())
            elif kind == "http.response.start":
                exchange.start(message["status"], message.get("headers", ()))
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
        """Reads the ids of a request or gives it some; the app sees them in its headers."""
        given: dict[bytes, bytes] = dict(scope["headers"])
        parent = read_traceparent(given.get(b"traceparent"))
        trace_id = parent.trace_id if parent else self._ids.trace_id()
        now = time.monotonic_ns()
        exchange = Exchange(
            wall_ns=time.time_ns(),
            received=now,
            sent=now,
            method=scope["method"],
            route=scope["path"][:MOST_ROUTE_CHARS],
            request_id=sane_id(given.get(b"x-request-id")) or trace_id,
            trace_id=trace_id,
            span_id=self._ids.span_id(),
            parent_span_id=parent.span_id if parent else None,
            has_key=b"authorization" in given,
        )
        added = []
        if b"x-request-id" not in given:
            added.append((b"x-request-id", exchange.request_id.encode()))
        if parent is None:
            added.append((b"traceparent", write_traceparent(trace_id, exchange.span_id).encode()))
        if added:
            names = {name for name, _ in added}
            scope["headers"] = [pair for pair in scope["headers"] if pair[0] not in names] + added
        if not self._ticking:
            self._ticking = True
            asyncio.get_running_loop().call_later(TICK_S, self._tick)
        return exchange

    def _end(self, exchange: Exchange, scope: Scope) -> None:
        """Has the span sent."""
        try:
            assert self._sender is not None
            exchange.close(time.monotonic_ns(), scope)
            self._sender.exporter.spans(functools.partial(exchange.span, self._sender.attributes), 1)
        except Exception as error:
            log.warning("lensd could not report a request (%s: %s)", type(error).__name__, error)

    def _tick(self) -> None:
        """Says which requests are still open, and runs only while some are."""
        now = time.monotonic_ns()
        for exchange in self._live:
            self._report_open(exchange, now)
        self._ticking = bool(self._live)
        if self._ticking:
            asyncio.get_running_loop().call_later(TICK_S, self._tick)

    def _report_open(self, exchange: Exchange, now: int) -> None:
        stage, _ = exchange.stage()
        if self._sender is None or now - exchange.received < STARTED_AFTER_NS:
            return
        if exchange.reported_stage is stage and now < exchange.report_due:
            return
        name = conventions.EVENT_STARTED if exchange.reported_stage is None else conventions.EVENT_PROGRESS
        exchange.reported_stage, exchange.report_due = stage, now + PROGRESS_EVERY_NS
        attributes = {**progress_attributes(exchange, now), **self._sender.attributes}
        self._sender.exporter.event(
            name, at_ns=exchange.wall(now), attributes=attributes, trace_id=exchange.trace_id, span_id=exchange.span_id
        )
