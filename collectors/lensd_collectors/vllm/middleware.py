"""ASGI middleware for vLLM's `--middleware`: one span a request, also for those that no metric of the engine counts.

It is vLLM's outermost layer, so it sees refused keys and callers that leave. It gives a request an id and a trace where it
has none, so that the engine's records can be joined. Without LENSD_OTLP in the environment it hands through untouched.
"""

import asyncio
import logging
import random
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, Final

from lensd_collectors import conventions
from lensd_collectors.conventions import Outcome
from lensd_collectors.gateway.ids import IdSource, read_traceparent, sane_id, write_traceparent
from lensd_collectors.vllm.exchange import Exchange
from lensd_collectors.vllm.sender import Sender, sender

log = logging.getLogger("lensd.vllm")

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

QUIET: Final = frozenset({"/health", "/metrics", "/ping", "/version", "/load", "/is_sleeping"})
STARTED_AFTER_NS: Final = 1_000_000_000
PROGRESS_EVERY_NS: Final = 5_000_000_000
TICK_S: Final = 0.5


class LensdMiddleware:
    """Wraps an ASGI app; use: `--middleware lensd_collectors.vllm.middleware.LensdMiddleware`."""

    def __init__(self, app: App, made: Sender | None = None, ids: IdSource | None = None) -> None:
        self._app = app
        self._sender = made or sender()
        self._ids = ids or IdSource(random.SystemRandom())
        self._live: set[Exchange] = set()
        self._ticking = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._sender is None or scope["type"] != "http" or scope["path"] in QUIET:
            await self._app(scope, receive, send)
            return
        exchange = self._begin(scope)

        async def received() -> Message:
            message = await receive()
            if message["type"] == "http.disconnect":
                exchange.gone()
            return message

        def sent(message: Message) -> Awaitable[None]:
            kind = message["type"]
            if kind == "http.response.body":
                exchange.body(message.get("body", b""), message.get("more_body", False), time.monotonic_ns())
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

    def _begin(self, scope: Scope) -> Exchange:
        """Reads the ids of a request or gives it some; the app sees them in its headers."""
        given = {name: value for name, value in scope["headers"] if name in (b"x-request-id", b"traceparent")}
        parent = read_traceparent(given.get(b"traceparent"))
        trace_id = parent.trace_id if parent else self._ids.trace_id()
        exchange = Exchange(
            wall_ns=time.time_ns(),
            received=time.monotonic_ns(),
            method=scope.get("method", ""),
            path=scope["path"],
            request_id=sane_id(given.get(b"x-request-id")) or trace_id,
            trace_id=trace_id,
            span_id=self._ids.span_id(),
            parent_span_id=parent.span_id if parent else None,
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
        """Sends the span; a successful GET (a list of models, asked for again and again) is not worth one."""
        try:
            if self._sender is None or (exchange.method != "POST" and exchange.status < 400 and not exchange.raised):
                return
            attributes = {**self._sender.attributes, **exchange.attributes(scope)}
            outcome = exchange.outcome()
            self._sender.exporter.span(
                f"{exchange.method} {attributes[conventions.HTTP_ROUTE]}",
                trace_id=exchange.trace_id,
                span_id=exchange.span_id,
                parent_span_id=exchange.parent_span_id,
                kind="server",
                start_ns=exchange.wall_ns,
                end_ns=exchange.wall(time.monotonic_ns()),
                attributes=attributes,
                ok=outcome in (Outcome.OK, Outcome.REFUSED, Outcome.CALLER_GONE) and exchange.status < 500,
                message=str(attributes[conventions.ERROR_MESSAGE] or ""),
            )
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
        stage = "streaming" if exchange.first_byte else "upstream"
        due = not exchange.reported_stage or stage != exchange.reported_stage or now - exchange.reported >= PROGRESS_EVERY_NS
        if self._sender is None or exchange.method != "POST" or now - exchange.received < STARTED_AFTER_NS or not due:
            return
        since = exchange.first_byte or exchange.received
        attributes = {
            **self._sender.attributes,
            **exchange.identity(),
            conventions.HTTP_ROUTE: exchange.path[:256],
            conventions.PARENT_SPAN_ID: exchange.parent_span_id,
            conventions.OUTCOME: Outcome.OPEN.value,
            conventions.PROGRESS_STAGE: stage,
            conventions.PROGRESS_AGE_MS: (now - exchange.received) / 1e6,
            conventions.PROGRESS_STAGE_AGE_MS: (now - since) / 1e6,
            conventions.PROGRESS_SILENT_MS: (now - exchange.last_byte) / 1e6 if exchange.last_byte else None,
        }
        name = conventions.EVENT_PROGRESS if exchange.reported_stage else conventions.EVENT_STARTED
        exchange.reported_stage, exchange.reported = stage, now
        self._sender.exporter.event(
            name, at_ns=exchange.wall(now), attributes=attributes, trace_id=exchange.trace_id, span_id=exchange.span_id
        )
