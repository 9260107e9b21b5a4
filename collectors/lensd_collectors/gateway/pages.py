"""The gateway's own pages: health, readiness and metrics. They need no key, and no record is kept of them."""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Set
from typing import Any

import msgspec

from lensd_collectors.conventions import Decision
from lensd_collectors.gateway.decisions import Refused
from lensd_collectors.gateway.degrade import Switches
from lensd_collectors.gateway.ending import refuse
from lensd_collectors.gateway.fleet import Fleet
from lensd_collectors.gateway.keyring import KeyRing
from lensd_collectors.gateway.meter import Meter
from lensd_collectors.gateway.metrics import Metrics, ModelState, State, UpstreamState
from lensd_collectors.gateway.record import Record
from lensd_collectors.gateway.reply import Send, send_whole
from lensd_collectors.gateway.report import Reporter
from lensd_collectors.gateway.routes import Kind

Scope = Mapping[str, Any]


class Pages:
    """Shows how the gateway stands; changes nothing."""

    def __init__(
        self,
        metrics: Metrics | None,
        fleet: Fleet,
        switches: Switches,
        meter: Meter,
        keys: KeyRing | None,
        reporter: Reporter,
        live: Set[Record],
        is_draining: Callable[[], bool],
    ) -> None:
        """`metrics` is None where there is to be no such page."""
        self._metrics, self._fleet, self._switches, self._meter, self._keys = metrics, fleet, switches, meter, keys
        self._reporter, self._live, self._is_draining = reporter, live, is_draining

    async def answer(self, kind: Kind, record: Record, scope: Scope, send: Send) -> None:
        if kind is Kind.HEALTH:
            await send_whole(record, send, 200, b'{"status":"ok"}')
        elif kind is Kind.READY:
            why = self.not_ready()
            await send_whole(record, send, 503 if why else 200, msgspec.json.encode({"status": why or "ready"}))
        elif self._metrics is None or not _is_local(scope):
            await refuse(record, send, Refused(Decision.PATH_UNKNOWN, "metrics are for callers on the gateway's own machine"))
        else:
            body, content_type = await asyncio.to_thread(self._metrics.render, self._state())
            await send_whole(record, send, 200, body, content_type.encode())

    def not_ready(self) -> str:
        """Why no new request should be sent here; empty while all is well."""
        if self._is_draining():
            return "draining"
        return "" if self._fleet.any_ready() else "no engine is ready"

    def _state(self) -> State:
        """What the gauges show."""
        busy = Counter(record.dispatched_model for record in self._live)
        exporter = self._reporter.exporter
        return State(
            open_requests=len(self._live),
            key_in_flight=self._meter.all_in_flight,
            tasks=len(asyncio.all_tasks()),
            models=tuple(ModelState(name, busy[name], name in self._switches.on) for name in self._fleet.models()),
            upstreams=tuple(UpstreamState(each.name, each.state, each.in_flight) for each in self._fleet.status()),
            records_dropped=self._reporter.dropped,
            export_dropped=exporter.dropped,
            export_failed=exporter.failed,
            keys_loaded=len(self._keys) if self._keys is not None else 0,
            is_ready=not self.not_ready(),
        )


def _is_local(scope: Scope) -> bool:
    """The caller is on this machine, and not one that a proxy on it speaks for."""
    peer = (scope.get("client") or ("",))[0]
    return peer in ("127.0.0.1", "::1", "") and all(name != b"x-forwarded-for" for name, _ in scope["headers"])
