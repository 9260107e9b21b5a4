"""A store with a few requests and incidents that any test can name, and the API over it on a free port."""

import contextlib
import threading
import time

import msgspec
import uvicorn
from checkout import serving
from lensd_collectors import conventions as c
from lensd_collectors.rows import DeliveryRow, EngineSample, IncidentRow, SpanRow

from lensd.api.app import build_app
from lensd.api.backend import Backend
from lensd.diagnosis.runbook import load
from lensd.incidents import from_row, to_row
from lensd.store import queries
from lensd.store.arrow import batch_of
from lensd.store.folder import FolderStore
from lensd.store.memory import MemoryStore
from lensd.timeline.assembler import assemble_all
from lensd.timeline.limits import Limits

T0 = 1_795_953_600_000_000  # 2026-11-29T12:00:00Z
TOKEN = "token-of-the-seeded-store"
OK = {c.OUTCOME: "ok", c.DECISION: "allowed", c.HTTP_STATUS: 200, c.KEY_ID: "team-a"}
WRONG_KEY = {c.OUTCOME: "refused", c.DECISION: "key_unknown", c.HTTP_STATUS: 401, c.SAID_BY: "gateway"}
REQUESTS = (
    # name, second of its start, what its gateway span says
    ("ok-1", 0, OK),
    ("wrong-key-1", 10, WRONG_KEY),
    ("twin-a", 20, OK),
    ("twin-b", 20, OK),
    ("twin-c", 20, OK),
    ("again-1", 30, OK),
    ("again-1", 40, WRONG_KEY),
    ("svc/7", 50, OK),
)
INCIDENTS = (
    IncidentRow(
        incident_id="inc-000000000001", revision=2, label="queue-saturation", state="resolved", severity="warning", stage="queue",
        engine="e0", confidence="likely", cause="The line was long.", fix="add replicas", opened_at=T0, last_seen_at=T0 + 60_000_000,
        resolved_at=T0 + 90_000_000, requests_hit=12,
    ),
    IncidentRow(
        incident_id="inc-000000000002", revision=1, label="engine-crash", state="open", severity="critical", stage="engine", engine="e0",
        model="tiny", confidence="certain", cause="The engine died.", fix="restart the engine", opened_at=T0 - 5_000_000,
        last_seen_at=T0 + 30_000_000, requests_hit=1, typical_requests='["ok-1"]',
        evidence='[{"text": "its process ended", "quote": null, "source": null}]',
    ),
)  # fmt: skip


def _span(number: int, name: str, second: int, said: dict) -> SpanRow:
    started = T0 + second * 1_000_000
    attributes = {c.REQUEST_ID: name, c.REQUEST_MODEL: "tiny", c.ENGINE: "e0", c.IS_STREAMING: False} | said
    return SpanRow(
        trace_id=f"{number:032x}", span_id=f"{0xA0 + number:016x}", name="POST /v1/chat/completions", kind="server", scope=c.SCOPE_GATEWAY,
        started_at=started, ended_at=started + 250_000, duration_ms=250.0, status="ok", attributes=msgspec.json.encode(attributes).decode(),
        request_id=name, src=f"span:{0xA0 + number:016x}",
    )  # fmt: skip


def fill(store) -> None:
    """Eight requests, two incidents, one delivery, samples of one engine."""
    spans = [_span(number, *request) for number, request in enumerate(REQUESTS, 1)]
    samples = [
        EngineSample(seen_at=T0 + s * 1_000_000, engine="e0", model="tiny", running=1.0, waiting=float(s), up=True, src=f"scrape:e0@{s}")
        for s in range(5)
    ]
    told = DeliveryRow(
        delivery_id="d1", incident_id="inc-000000000002", destination="ops", reason="opened", attempt=1, attempted_at=T0, status="sent"
    )
    store.append(batch_of({"spans": spans, "engine_samples": samples, "incidents": INCIDENTS, "deliveries": [told]}))
    with store.cursor() as cursor:
        rows = [r.row for r in assemble_all(cursor, None, T0 + 3_600_000_000)]
    store.append(batch_of({"requests": rows}))


def fill_folder(folder) -> None:
    """The same as a store's folder."""
    store = FolderStore(folder)
    fill(store)
    store.close()


class Desk:
    """The judge's part of the API over a store."""

    def __init__(self, store) -> None:
        self._store = store

    def all(self):
        with self._store.cursor() as cursor:
            return [from_row(row) for row in queries.structs(cursor, IncidentRow, "select * from incidents")]

    def acknowledge(self, incident_id):
        return self._move(incident_id, state="acknowledged")

    def close(self, incident_id):
        return self._move(incident_id, state="resolved", resolved_at=T0 + 100_000_000)

    def _move(self, incident_id, **changes):
        found = next((i for i in self.all() if i.incident_id == incident_id and i.state != "resolved"), None)
        if found is None:
            return None
        moved = msgspec.structs.replace(found, revision=found.revision + 1, **changes)
        self._store.append(batch_of({"incidents": [to_row(moved)]}))
        return moved


def health():
    return {
        "version": "0.1.0",
        "pid": 7,
        "started_at": "2026-11-29T12:00:00Z",
        "store": "memory",
        "lag_s": 0.0,
        "journal_bytes": 0,
        "seq": 41,
    }


def backend(store, token: str | None = TOKEN) -> Backend:
    return Backend(store=store, runbooks=load(()), params={}, limits=Limits(), incidents=Desk(store), health=health, token=token)


@contextlib.contextmanager
def served(store=None):
    """URL of the API over a seeded store in memory, or over the one given."""
    mine = store or MemoryStore()
    if store is None:
        fill(mine)
    port = serving.free_port()
    config = uvicorn.Config(build_app(backend(mine)), host="127.0.0.1", port=port, log_level="critical", lifespan="off")
    server = uvicorn.Server(config)
    server.capture_signals = contextlib.nullcontext
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    until = time.monotonic() + 10
    while not server.started:
        assert time.monotonic() < until, "the API did not start"
        time.sleep(0.01)
    yield f"http://127.0.0.1:{port}"
    server.should_exit = True
    thread.join(10)
    mine.close()
