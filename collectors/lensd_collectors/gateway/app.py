"""The gateway as one ASGI application: admits a request, hands it to an engine, and sees to its end whatever happens."""

import asyncio
import contextlib
import functools
import logging
import random
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from lensd_collectors.conventions import Decision, Outcome, SaidBy
from lensd_collectors.gateway.admission import Admission
from lensd_collectors.gateway.config import GatewayConfig
from lensd_collectors.gateway.context import ANSWER_WITHIN_S, ContextCheck
from lensd_collectors.gateway.decisions import Refused
from lensd_collectors.gateway.degrade import Moved, Switches
from lensd_collectors.gateway.dispatch import Dispatcher
from lensd_collectors.gateway.ending import interrupted, refuse
from lensd_collectors.gateway.fleet import Fleet, ModelCard, TargetState
from lensd_collectors.gateway.heads import Heads, read_heads
from lensd_collectors.gateway.ids import IdSource, read_traceparent, sane_id
from lensd_collectors.gateway.keyring import Key, KeyRing
from lensd_collectors.gateway.keys import KeysError
from lensd_collectors.gateway.meter import Meter
from lensd_collectors.gateway.metrics import Metrics
from lensd_collectors.gateway.pages import Pages
from lensd_collectors.gateway.record import Limits, Record, Stop
from lensd_collectors.gateway.reply import Receive, Sender, send_whole
from lensd_collectors.gateway.report import Exporter, Reporter
from lensd_collectors.gateway.routes import MODEL_PREFIX, Kind, Route, Routes, shown
from lensd_collectors.gateway.timer import Timer, watch_load
from lensd_collectors.gateway.upstream import Client, PooledClient

log = logging.getLogger("lensd.gateway")

GRACE_S: Final = 1.0
"""After SIGTERM requests that are on their way are still served for so long: whoever watches /readyz cannot be quicker."""
STOP_WAIT_S: Final = 1.0
UNREAD: Final = "lensd.unread"  # in a scope: why its connection could read no request
CONNECTION: Final = "lensd.connection"  # in the scope: the server's protocol, see callers.CallerProtocol
MAX_COUNTED_BYTES: Final = 32 << 20  # an answer of /tokenize holds the tokens themselves

_GOOD_NEWS: Final = frozenset(("upstream_in", "upstream_models", "credential_reloaded"))

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
        make_client: Callable[[Callable[[], int]], Client] = PooledClient,
    ) -> None:
        """Raises KeysError or GatewayError for a configuration that cannot work."""
        self._config, self._clock, self._wall = config, clock, wall
        random_source = source or random.SystemRandom()
        # Seeded once: asking the system for each id would be a call each.
        self._ids = IdSource(random.Random(random_source.getrandbits(256)))
        self._jitter = random_source.random
        self._make_client = make_client
        self._client: Client | None = None
        self.limits = Limits.of(config)
        self.routes = Routes(config.routes)
        self.keys = KeyRing(Path(config.keys_file)) if config.require_key else None
        self.fleet = Fleet(config, self._upstream_changed, clock)
        self.metrics = (
            Metrics(
                routes=self.routes.templates, is_served=self.fleet.is_served, aliases=self.fleet.aliases, upstream_states=list(TargetState)
            )
            if config.metrics
            else None
        )
        self.reporter = Reporter(
            config,
            exporter,
            IdSource(random.Random(random_source.getrandbits(256))),
            self.metrics.observe if self.metrics is not None else None,
        )
        aliases = self.fleet.aliases
        smaller = {aliases.get(model, model): aliases.get(other, other) for model, other in config.degrade.models.items()}
        self.switches = Switches(msgspec.structs.replace(config.degrade, models=smaller), self._degrade_moved)
        self._meter = Meter(clock)
        self.live: set[Record] = set()
        self.draining_since = 0
        self._pages = Pages(
            self.metrics, self.fleet, self.switches, self._meter, self.keys, self.reporter, self.live, lambda: bool(self.draining_since)
        )
        self._background: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        client = self._client = self._make_client(self._clock)
        context = ContextCheck(functools.partial(self._count_tokens, client), clock_ns=self._clock)
        self._admission = Admission(self._config, self.keys, self._meter, self.fleet, self.switches, context)
        self._dispatcher = Dispatcher(self._config.retry, self.fleet, client, self._ids, self._clock, self._jitter)
        self.reporter.started(self._config.listen, self._wall())
        await self.fleet.refresh(client)
        self._tell_keyless()
        timer = Timer(self.live, self.limits, self.fleet, client, self.reporter, self._reload_keys, self._clock, self._wall)
        work = [self.fleet.keep_fresh(client), timer.run()]
        if self._config.degrade.enabled:
            work.append(watch_load(self._config.degrade, self.fleet, self.switches, client, self._clock))
        self._background = [asyncio.create_task(each) for each in work]

    async def _count_tokens(self, client: Client, root: str, question: bytes) -> tuple[int, bytes]:
        """What an engine says to how many tokens a prompt has."""
        credential = next((each.credential for each in self.fleet.targets if each.root == root), "")
        headers = [("content-type", "application/json"), *([("authorization", credential)] if credential else [])]
        return await client.ask(
            "POST", f"{root}/tokenize", headers=headers, body=question, timeout_s=ANSWER_WITHIN_S, most=MAX_COUNTED_BYTES
        )

    def drain(self) -> None:
        """Says at /readyz that it is leaving; what is open runs on, what is new is refused after a moment."""
        if not self.draining_since:
            self.draining_since = self._clock()
            self._act("draining", "", f"{len(self.live)} requests are open and may run on for {self._config.drain_timeout_s:g} s")

    def is_drained(self) -> bool:
        """Nothing is open any more; what is still open after the time for it is ended here."""
        if not self.draining_since:
            return False
        for_ns = self._clock() - self.draining_since
        if for_ns > self._config.drain_timeout_s * 1e9 + GRACE_S * 1e9:
            self.end_open()
        return for_ns > GRACE_S * 1e9 and not self.live

    def end_open(self) -> None:
        """Ends all that is open; each caller is told."""
        for record in list(self.live):
            record.halt(Stop.SHUTDOWN)

    async def stop(self) -> None:
        """Ends what is still open, then sends all records."""
        self.end_open()
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
        if self._client is not None:
            await self._client.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Sender) -> None:
        if scope["type"] == "lifespan":
            await self._lifespan(receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1000})
            return
        connection = scope[CONNECTION]
        heads = read_heads(scope["headers"])
        route = scope[UNREAD] if UNREAD in scope else self.routes.find(scope["method"], scope["path"])
        record = self._open(scope, heads, route, send.task)
        if isinstance(route, Route) and route.kind.is_own:
            await self._pages.answer(route.kind, record, scope, send)
            return
        record.send, record.flow = send, connection.flow
        connection.on_lost = functools.partial(record.halt, Stop.CALLER_GONE)
        self.live.add(record)
        try:
            await self._serve(route, record, heads, scope, receive, send)
        except asyncio.CancelledError:
            assert record.task is not None
            record.task.uncancel()
            await interrupted(record, send, self.limits)
            if record.stop is Stop.CALLER_STUCK:
                connection.transport.abort()  # else it would stay for as long as nobody reads what was written to it
        except Exception:
            log.exception("request %s failed inside the gateway", record.request_id)
            await self._failed(record, send)
        finally:
            record.task = record.send = record.flow = connection.on_lost = None
            self.live.discard(record)
            record.ended = self._clock()
            self.reporter.finished(record)

    async def _failed(self, record: Record, send: Sender) -> None:
        """A fault of the gateway's own: said as such, the engine is not to blame."""
        refusal = Refused(Decision.GATEWAY_ERROR)
        if record.started_out and not record.is_sse:
            record.error_type, record.error_message = refusal.code, refusal.message
        else:
            await refuse(record, send, refusal)
        record.outcome, record.said_by, record.decision = Outcome.FAILED, SaidBy.GATEWAY, Decision.GATEWAY_ERROR

    def _open(self, scope: Scope, heads: Heads, route: Route | Refused, task: asyncio.Task[None] | None) -> Record:
        parent = read_traceparent(heads.traceparent)
        trace_id = parent.trace_id if parent else self._ids.trace_id()
        return Record(
            wall_ns=self._wall(),
            received=self._clock(),
            method=scope["method"][:16],
            route=route.template if isinstance(route, Route) else shown(scope["path"]),
            trace_id=trace_id,
            span_id=self._ids.span_id(),
            parent_span_id=parent.span_id if parent else None,
            request_id=sane_id(heads.request_id) or trace_id,
            session_id=sane_id(heads.session_id),
            client_timeout_ms=heads.client_timeout_ms,
            is_last=bool(self.draining_since),
            task=task,
        )

    async def _serve(self, route: Route | Refused, record: Record, heads: Heads, scope: Scope, receive: Receive, send: Sender) -> None:
        ticket = None
        try:
            if isinstance(route, Refused):
                raise route
            self._check_room()
            key = self._admission.authenticate(record, heads, self._wall())
            if route.kind in (Kind.MODELS, Kind.MODEL):
                await self._list_models(route, record, key, scope, send)
                return
            body = send.whole_body()
            if body is None or len(body) > self._config.max_body_bytes:
                body = await self._read(heads, record, receive)
            record.body_read = self._clock()
            ticket = await self._admission.admit(record, key, body, scope["query_string"])
            await self._dispatcher.run(record, ticket.order, heads, send)
        except Refused as refusal:
            await refuse(record, send, refusal, self.routes.allowed(scope["path"]) if refusal.status == 405 else "")
        finally:
            if ticket is not None:
                ticket.end(record)

    def _check_room(self) -> None:
        if self.draining_since and self._clock() - self.draining_since > GRACE_S * 1e9:
            raise Refused(Decision.GATEWAY_STOPPING)
        if len(self.live) > self._config.max_in_flight:
            raise Refused(
                Decision.OVERLOADED, reason=f"{len(self.live) - 1} requests are in flight, max_in_flight = {self._config.max_in_flight}"
            )

    async def _list_models(self, route: Route, record: Record, key: Key | None, scope: Scope, send: Sender) -> None:
        cards = self.fleet.cards(_everything if key is None else key.allows)
        if route.kind is Kind.MODEL:
            name = scope["path"].removeprefix(MODEL_PREFIX)
            record.model = shown(name)
            self._admission.resolve(name, key)
            body = msgspec.json.encode(next(card for card in cards if card.id == name))
        else:
            body = msgspec.json.encode(_ModelsReply("list", cards))
        record.outcome, record.said_by = Outcome.OK, SaidBy.GATEWAY
        await send_whole(record, send, 200, body)
        record.bytes_out = len(body)

    async def _read(self, heads: Heads, record: Record, receive: Receive) -> bytes:
        """A body that has not come whole yet."""
        most = self._config.max_body_bytes
        too_large = heads.content_length is not None and heads.content_length > most
        parts: list[bytes] = []
        size = 0
        while not too_large:
            message = await receive()
            if message["type"] == "http.disconnect":
                record.halt(Stop.CALLER_GONE)
                await asyncio.sleep(0)  # where the cancellation arrives
                continue
            part = message.get("body", b"")
            record.waits_since = self._clock()
            size += len(part)
            too_large = size > most
            parts.append(part)
            if not message.get("more_body", False) and not too_large:
                return parts[0] if len(parts) == 1 else b"".join(parts)
        raise Refused(Decision.BODY_TOO_LARGE, f"the body is larger than {most} bytes")

    def _reload_keys(self) -> None:
        if self.keys is None:
            return
        try:
            if done := self.keys.reload():
                self._meter.keep(self.keys.ids)
                self._act("keys_reloaded", "", done)
                self._tell_keyless()
        except KeysError as error:
            self._act("keys_rejected", "", str(error), "error")

    def _tell_keyless(self) -> None:
        if self.keys is not None and not len(self.keys):
            self._act("keys_missing", "", f"{self._config.keys_file} holds no keys: every request is refused until one is added", "warning")

    def _act(self, act: str, engine: str, message: str, severity: str = "info") -> None:
        if severity != "info":
            log.warning("%s%s: %s", act, f" {engine}" if engine else "", message)
        self.reporter.act(act, message, at_ns=self._wall(), engine=engine, severity=severity)

    def _degrade_moved(self, moved: Moved) -> None:
        self._act(moved.act, "", moved.text, "warning" if moved.is_on else "info")

    def _upstream_changed(self, act: str, engine: str, message: str) -> None:
        self._act(act, engine, message, "info" if act in _GOOD_NEWS else "warning")

    async def _lifespan(self, receive: Receive, send: Sender) -> None:
        while True:
            message = await receive()
            if message["type"] == "lifespan.startup":
                await self.start()
                await send({"type": "lifespan.startup.complete"})
            elif message["type"] == "lifespan.shutdown":
                await self.stop()
                await send({"type": "lifespan.shutdown.complete"})
                return


def _everything(_: str) -> bool:
    return True
