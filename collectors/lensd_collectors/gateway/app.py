"""The gateway as one ASGI application: admits a request, hands it to an engine, and sees to its end whatever happens."""

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import aiohttp
import msgspec

from lensd_collectors.conventions import Decision, Outcome, SaidBy
from lensd_collectors.gateway.body import MalformedBodyError, read_body
from lensd_collectors.gateway.config import GatewayConfig
from lensd_collectors.gateway.decisions import Refused
from lensd_collectors.gateway.ending import interrupted, refuse
from lensd_collectors.gateway.heads import Heads, read_heads
from lensd_collectors.gateway.ids import IdSource, read_traceparent, sane_id, write_traceparent
from lensd_collectors.gateway.keys import Key, KeyRing, KeysError
from lensd_collectors.gateway.record import Limits, Record, Stop
from lensd_collectors.gateway.reply import Receive, Send, send_json
from lensd_collectors.gateway.report import Exporter, Reporter
from lensd_collectors.gateway.routes import HEALTH, MODELS, Fleet, ModelCard, Target, check_route
from lensd_collectors.gateway.upstream import Relay, open_session

log = logging.getLogger("lensd.gateway")

DRAIN_S: Final = 0.2
KEYS_CHECK_S: Final = 1.0
STOP_WAIT_S: Final = 1.0
MAX_MODEL: Final = 256
MAX_ROUTE: Final = 128

Scope = Mapping[str, Any]


class _ModelsReply(msgspec.Struct):
    object: str
    data: list[ModelCard]


class Gateway:
    """`start` and `stop` frame its life; a server calls them through the lifespan protocol."""

    def __init__(
        self,
        config: GatewayConfig,
        exporter: Exporter,
        *,
        clock: Callable[[], int] = time.monotonic_ns,
        wall: Callable[[], int] = time.time_ns,
        source: random.Random | None = None,
    ) -> None:
        """Raises KeysError or GatewayError for a configuration that cannot work."""
        self._config, self._clock, self._wall = config, clock, wall
        self._ids = IdSource(source or random.SystemRandom())
        self._limits = Limits.of(config)
        self._keys = KeyRing(Path(config.keys_file)) if config.require_key else None
        self.reporter = Reporter(config, exporter, self._ids)
        self.fleet = Fleet(config.upstreams, self._upstream_changed)
        self.live: set[Record] = set()
        self._session: aiohttp.ClientSession | None = None
        self._background: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        self._session = open_session(self._clock)
        await self.fleet.refresh(self._session)
        if self._keys is not None and not len(self._keys):
            message = f"{self._config.keys_file} holds no keys: every request is refused until one is added"
            self.reporter.act("keys_missing", message, at_ns=self._wall(), severity="warning")
        self._background = [asyncio.create_task(each) for each in (self.fleet.keep_fresh(self._session), self._tick())]

    async def stop(self) -> None:
        """Ends what is still open, then sends all records."""
        for record in list(self.live):
            record.halt(Stop.SHUTDOWN)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_WAIT_S):
                while self.live:
                    await asyncio.sleep(0.005)
        for task in self._background:
            task.cancel()
        await asyncio.gather(*self._background, return_exceptions=True)
        for _ in self.reporter.drain():
            pass
        self.reporter.tell_dropped(self._wall())
        if self._session is not None:
            await self._session.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1000})
            return
        heads = read_heads(scope["headers"])
        record = self._open(scope, heads)
        if record.route == HEALTH and record.method in ("GET", "HEAD"):
            await send_json(record, send, b'{"status":"ok"}')
            return
        self.live.add(record)
        try:
            await self._serve(record, heads, receive, send)
        except asyncio.CancelledError:
            assert record.task is not None
            record.task.uncancel()
            await interrupted(record, send, self._limits)
        except Exception:
            log.exception("request %s failed inside the gateway", record.request_id)
            await self._failed(record, send)
        finally:
            record.task = None
            self.live.discard(record)
            record.ended = self._clock()
            self.reporter.finished(record)

    async def _failed(self, record: Record, send: Send) -> None:
        """A fault of the gateway's own: said as such, the engine is not to blame."""
        refusal = Refused(Decision.ENGINE_ERROR, "the gateway failed on this request", status=500, code="gateway_error")
        if record.started_out:
            record.error_type, record.error_message = refusal.code, refusal.message
        else:
            await refuse(record, send, refusal)
        record.outcome, record.said_by, record.decision = Outcome.FAILED, SaidBy.GATEWAY, Decision.ALLOWED

    def _open(self, scope: Scope, heads: Heads) -> Record:
        parent = read_traceparent(heads.traceparent)
        trace_id = parent.trace_id if parent else self._ids.trace_id()
        return Record(
            wall_ns=self._wall(),
            received=self._clock(),
            method=scope["method"][:16],
            route="".join(each if each.isprintable() else "?" for each in scope["path"][:MAX_ROUTE]),
            trace_id=trace_id,
            span_id=self._ids.span_id(),
            parent_span_id=parent.span_id if parent else None,
            request_id=sane_id(heads.request_id) or trace_id,
            session_id=sane_id(heads.session_id),
            client_timeout_ms=heads.client_timeout_ms,
            task=asyncio.current_task(),
        )

    async def _serve(self, record: Record, heads: Heads, receive: Receive, send: Send) -> None:
        watcher: asyncio.Task[None] | None = None
        try:
            check_route(record.method, record.route)
            key = self._authenticate(record, heads)
            if record.route == MODELS:
                await self._list_models(record, key, send)
                return
            if len(self.live) > self._config.max_in_flight:
                raise Refused(Decision.RATE_LIMITED, f"the gateway has {self._config.max_in_flight} requests in flight already")
            body = await self._read(record, heads, receive)
            watcher = asyncio.create_task(_watch(record, receive))
            target = self._route(record, key, body)
            await self._forward(record, target, heads, body, send)
        except Refused as refusal:
            await refuse(record, send, refusal)
        finally:
            if watcher is not None:
                watcher.cancel()

    def _authenticate(self, record: Record, heads: Heads) -> Key | None:
        if self._keys is None:
            return None
        key = self._keys.find(heads.authorization)
        record.key_id = key.id
        if key.entry.disabled:
            raise Refused(Decision.KEY_UNKNOWN)
        return key

    async def _list_models(self, record: Record, key: Key | None, send: Send) -> None:
        cards = [card for card in self.fleet.cards() if key is None or key.allows(card.id)]
        record.outcome, record.said_by = Outcome.OK, SaidBy.GATEWAY
        body = msgspec.json.encode(_ModelsReply("list", cards))
        await send_json(record, send, body)
        record.bytes_out = len(body)

    async def _read(self, record: Record, heads: Heads, receive: Receive) -> bytes:
        most = self._config.max_body_bytes
        too_large = Refused(Decision.BODY_TOO_LARGE, f"the body is larger than {most} bytes")
        if heads.content_length is not None and heads.content_length > most:
            raise too_large
        parts: list[bytes] = []
        size = 0
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                record.halt(Stop.CALLER_GONE)
                await asyncio.sleep(0)  # where the cancellation arrives
                continue
            part = message.get("body", b"")
            size += len(part)
            if size > most:
                raise too_large
            parts.append(part)
            if not message.get("more_body", False):
                return parts[0] if len(parts) == 1 else b"".join(parts)

    def _route(self, record: Record, key: Key | None, body: bytes) -> Target:
        try:
            asked = read_body(body)
        except MalformedBodyError as error:
            raise Refused(Decision.BODY_MALFORMED, str(error), param=error.param) from error
        record.model, record.streaming, record.max_tokens = asked.model[:MAX_MODEL], asked.streaming, asked.max_tokens
        self.fleet.check_model(asked.model)
        if key is not None and not key.allows(asked.model):
            raise Refused(Decision.MODEL_NOT_ALLOWED, param="model")
        target = self.fleet.pick(asked.model)
        record.engine, record.upstream = target.name, target.place
        return target

    async def _forward(self, record: Record, target: Target, heads: Heads, body: bytes, send: Send) -> None:
        assert self._session is not None
        record.upstream_span_id = self._ids.span_id()
        headers = [
            *heads.forwarded,
            ("X-Request-Id", record.request_id),
            ("traceparent", write_traceparent(record.trace_id, record.upstream_span_id)),
        ]
        if target.credential:
            headers.append(("Authorization", target.credential))
        target.in_flight += 1
        try:
            await Relay(record, send, self._clock).run(self._session, target, body, headers)
        except Refused as refusal:
            if refusal.decision is Decision.NO_UPSTREAM:
                self.fleet.mark_out(target, "does not take connections")
            raise
        finally:
            target.in_flight -= 1

    async def _tick(self) -> None:
        """The one timer: limits and open requests are looked at, finished records sent, the keys file watched."""
        every = min(DRAIN_S, self._limits.shortest / 4e9)
        keys_due = drain_due = 0
        while True:
            await asyncio.sleep(max(every, 0.01))
            now = self._clock()
            try:
                self._hold_limits(now)
                if now >= drain_due:
                    drain_due = now + int(DRAIN_S * 0.9e9)
                    await self._report(now)
                if now >= keys_due:
                    keys_due = now + int(KEYS_CHECK_S * 1e9)
                    self._reload_keys()
            except Exception:  # without this timer no limit would hold any more
                log.exception("the gateway's timer failed once")

    def _hold_limits(self, now: int) -> None:
        for record in list(self.live):
            if (stop := self._limits.broken(record, now)) is not None:
                record.halt(stop)

    async def _report(self, now: int) -> None:
        self.reporter.progress(self.live, now)
        for _ in self.reporter.drain():
            await asyncio.sleep(0)
        self.reporter.tell_dropped(self._wall())

    def _reload_keys(self) -> None:
        if self._keys is None:
            return
        try:
            if done := self._keys.reload():
                self.reporter.act("keys_reloaded", done, at_ns=self._wall())
        except KeysError as error:
            self.reporter.act("keys_rejected", str(error), at_ns=self._wall(), severity="error")

    def _upstream_changed(self, act: str, engine: str, message: str) -> None:
        self.reporter.act(act, message, at_ns=self._wall(), engine=engine, severity="info" if act == "upstream_in" else "warning")

    async def _lifespan(self, receive: Receive, send: Send) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                await self.start()
                await send({"type": "lifespan.startup.complete"})
            elif message["type"] == "lifespan.shutdown":
                await self.stop()
                await send({"type": "lifespan.shutdown.complete"})
                return


async def _watch(record: Record, receive: Receive) -> None:
    """Sees the caller leave, which nothing else shows: writing to a connection that is gone succeeds."""
    while (await receive())["type"] != "http.disconnect":
        pass
    record.halt(Stop.CALLER_GONE)
