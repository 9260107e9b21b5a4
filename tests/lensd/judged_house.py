"""A judge with everything around it but threads and time: a store, an outbox, a receiver of webhooks, and a clock that the test sets."""

import json
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import msgspec
from lensd_collectors import conventions as c
from lensd_collectors.rows import EngineSample, Event, SpanRow

from lensd.alerts.destinations.alertmanager_webhook import AlertmanagerWebhook, Webhook
from lensd.alerts.outbox import Outbox
from lensd.alerts.post import post
from lensd.alerts.stages import Retry
from lensd.diagnosis.diagnose import diagnose_row
from lensd.diagnosis.runbook import load
from lensd.judge import Judge
from lensd.store import queries
from lensd.store.arrow import batch_of
from lensd.store.memory import MemoryStore
from lensd.timeline.assembler import Assembler, answered, sender_started, touched
from lensd.timeline.limits import Limits

S = 1_000_000
T0 = 1_790_000_000 * S
BOOKS = load()


@dataclass
class Call:
    """One request as its parties tell of it; `at` seconds after T0, all else in milliseconds from there."""

    number: int
    at: float
    total: float = 120
    queue: float = 5
    prefill: float = 20
    decode: float = 60
    trace: str = ""
    request_id: str = ""
    key: str = "k1"
    engine: str = "e0"
    client_ahead: float = 0  # how far the caller's clock is ahead
    about: dict = field(default_factory=dict)

    def __post_init__(self):
        self.trace = self.trace or f"{self.number:032x}"
        self.request_id = self.request_id or f"r{self.number}"

    def id(self, part):
        return f"{self.number:08x}{sum(map(ord, part)):08x}"

    def span(self, part, parent, name, kind, scope, start, end, about=(), status="ok"):
        begin = T0 + round(self.at * S)
        return SpanRow(
            trace_id=self.trace, span_id=self.id(part), parent_span_id=parent, name=name, kind=kind, scope=scope, engine=self.engine,
            started_at=begin + round(start * 1000), ended_at=begin + round(end * 1000), duration_ms=end - start, status=status,
            attributes=msgspec.json.encode(dict(about)).decode(), src=f"span:{self.id(part)}",
        )  # fmt: skip

    def identity(self):
        return {
            c.REQUEST_ID: self.request_id, c.REQUEST_MODEL: "tiny", c.ENGINE: self.engine, c.KEY_ID: self.key,
            c.IS_STREAMING: True, c.UPSTREAM: "10.0.0.1:8000",
        }  # fmt: skip

    def client(self, parent=None):
        a, b = self.client_ahead, self.total + self.client_ahead
        return [self.span("client", parent, c.CLIENT_REQUEST, "client", c.SCOPE_CLIENT, a, b, {c.REQUEST_ID: self.request_id})]

    def gateway(self, parent="client", **about):
        said = {c.OUTCOME: "ok", c.DECISION: "allowed", c.HTTP_STATUS: 200, c.DONE_SEEN: True, c.FINISH_REASONS: ["stop"]}
        reply = {c.RESPONSE_ID: f"chatcmpl-{self.request_id}", c.RESPONSE_MODEL: "tiny", c.OUTPUT_TOKENS: 11, c.CHUNKS: 11}
        whole = self.identity() | said | reply | self.about | about
        top, first, end = self.id("gateway"), 15 + self.queue + self.prefill, self.total - 2
        above = self.id(parent) if parent == "client" else parent
        spans = [
            self.span("gateway", above, "POST /v1/chat/completions", "server", c.SCOPE_GATEWAY, 2, end, whole),
            self.span("auth", top, c.SPAN_AUTH_ROUTING, "internal", c.SCOPE_GATEWAY, 2, 4),
        ]
        if whole[c.OUTCOME] != "refused":
            told = {c.FIRST_BYTE_MS: first - 4, c.LAST_BYTE_MS: end - 6} if whole[c.CHUNKS] else {}
            spans.append(self.span("upstream", top, c.SPAN_UPSTREAM, "client", c.SCOPE_GATEWAY, 4, end - 1, told))
        if whole[c.OUTCOME] != "refused" and whole[c.CHUNKS]:
            spans.append(self.span("streaming", top, c.SPAN_STREAMING, "internal", c.SCOPE_GATEWAY, first + 1, end - 1))
        return spans

    def llm_request(self, part="engine", parent="upstream", **about):
        latency = {"time_in_queue": self.queue, "time_in_model_prefill": self.prefill, "time_in_model_decode": self.decode}
        told = {f"gen_ai.latency.{k}": v / 1e3 for k, v in latency.items()} | {"gen_ai.usage.completion_tokens": 11} | about
        return [self.span(part, self.id(parent) if parent else None, c.SPAN_VLLM_REQUEST, "server", "vllm", 6, self.total - 6, told)]

    def middleware(self, **about):
        told = {c.REQUEST_ID: self.request_id, c.OUTCOME: "ok", c.HTTP_STATUS: 200} | about
        return [self.span("middleware", self.id("upstream"), "POST /v1/chat/completions", "server", c.SCOPE_VLLM, 5, self.total - 5, told)]

    def all(self):
        return self.client() + self.gateway() + self.llm_request()

    def open(self, ms, stage="upstream", part="gateway", **about):
        """An event of the still open request, `ms` after its start."""
        told = (self.identity() if part == "gateway" else {c.REQUEST_ID: self.request_id, c.ENGINE: self.engine}) | {
            c.OUTCOME: "open", c.PROGRESS_STAGE: stage, c.PROGRESS_AGE_MS: ms, c.PROGRESS_STAGE_AGE_MS: ms - 4,
            c.PARENT_SPAN_ID: self.id("client" if part == "gateway" else "upstream"),
        } | about  # fmt: skip
        name = c.EVENT_STARTED if ms <= 1000 else c.EVENT_PROGRESS
        return Event(
            seen_at=T0 + round(self.at * S + ms * 1000), trace_id=self.trace, span_id=self.id(part), name=name, engine=self.engine,
            request_id=self.request_id, fields=msgspec.json.encode(told).decode(), src=f"event:{self.number}/{ms}",
        )  # fmt: skip

    def record(self, at, queue=None):
        """What the engine's plugin says of it, `at` seconds after T0."""
        told = {c.QUEUE_MS: self.queue if queue is None else queue, c.PREFILL_MS: self.prefill, c.DECODE_MS: self.decode}
        return Event(
            seen_at=T0 + round(at * S), name=c.EVENT_ENGINE_REQUEST, engine=self.engine, request_id=f"chatcmpl-{self.request_id}",
            fields=msgspec.json.encode(told).decode(), src=f"record:{self.number}",
        )  # fmt: skip


def scrape(at, *, running=1, waiting=0, up=True, engine="e0"):
    told = {"running": running, "waiting": waiting, "kv_usage": 0.2, "generation_tokens_total": max(0.0, at + 1000) * 50} if up else {}
    return EngineSample(seen_at=T0 + round(at * S), engine=engine, model="tiny" if up else None, up=up, src=f"scrape:{engine}@{at}", **told)


def logged(at, name, engine="e0"):
    """A line of the engine's log that means `name`."""
    return Event(seen_at=T0 + round(at * S), engine=engine, name=name, severity="error", line=name, src=f"log:{engine}@{at}")


def process(at, state, code=None, engine="e0"):
    told = {c.PROCESS_STATE: state, c.PROCESS_PID: 7} | ({c.PROCESS_EXIT: code} if code is not None else {})
    fields = msgspec.json.encode(told).decode()
    return Event(seen_at=T0 + round(at * S), engine=engine, name=c.EVENT_ENGINE_PROCESS, fields=fields, src=f"log:h/agent@{at}")


GATEWAY_SERVICE, LISTEN = "lensd-gateway", "127.0.0.1:8080"


def sent_by(event, instance="old", *, host="h", service=GATEWAY_SERVICE, **told):
    """The event as it is stored when this process has sent it."""
    fields = {c.SERVICE_NAME: service, c.SERVICE_INSTANCE_ID: instance, **told, **json.loads(event.fields)}
    return msgspec.structs.replace(event, host=host, fields=msgspec.json.encode(fields).decode())


def act(at, instance="old", what="started", *, listen=LISTEN, engine=None, **sender):
    """What a gateway (or a middleware, that says its engine instead of an address) did to itself, `at` seconds after T0."""
    told = {c.ACT: what} | ({c.LISTEN: listen} if listen else {})
    event = Event(
        seen_at=T0 + round(at * S), engine=engine, name=c.EVENT_GATEWAY_ACT, fields=msgspec.json.encode(told).decode(),
        src=f"act:{instance}@{at}",
    )  # fmt: skip
    return sent_by(event, instance, **sender)


class House:
    """`now` in seconds after T0. The destination, where there is one, is named "hook"."""

    def __init__(self, hook_url=None, *, installed=-3600, store=None):
        self.now = 0.0
        self.store = store or MemoryStore()
        self._installed = installed
        self._destinations = (AlertmanagerWebhook(Webhook(name="hook", url=hook_url), "http://lensd.example"),) if hook_url else ()
        self.start()

    def start(self):
        """A new process on the same store."""
        self.outbox = Outbox(
            lambda rows: self.store.append(batch_of({"deliveries": rows})),
            self._destinations,
            self._now,
            chance=lambda: 0.5,
            post=post,
            retry=Retry(first_s=1.0),
        )
        self.judge = Judge(self.store, BOOKS, {}, Assembler(Limits()), self.outbox, T0 + round(self._installed * S), clock=self._now)
        self.judge.restore(self._now())

    def _now(self):
        return T0 + round(self.now * S)

    def receive(self, *rows):
        """What the door takes in; rows or lists of rows."""
        sorted_rows = {"spans": [], "events": [], "engine_samples": []}
        tables = {SpanRow: "spans", Event: "events", EngineSample: "engine_samples"}
        for row in (one for some in rows for one in (some if isinstance(some, list) else [some])):
            sorted_rows[tables[type(row)]].append(row)
        self.store.append(batch_of(sorted_rows))
        self.judge.touch(touched(sorted_rows), answered(sorted_rows), started=sender_started(sorted_rows))

    def tick(self, at):
        self.now = at
        self.judge.tick(self._now())
        self.outbox.step(self._now())

    def rows(self, sql="select * from requests order by started_at, request_key"):
        with self.store.cursor() as cursor:
            return queries.rows(cursor, sql)

    def one(self):
        (row,) = self.rows()
        return row

    def listed(self, **wanted):
        with self.store.cursor() as cursor:
            return queries.list_requests(cursor, queries.RequestFilter(**wanted)).items

    def diagnose(self, row):
        with self.store.cursor() as cursor:
            return diagnose_row(cursor, row, BOOKS, {}, Limits(), self._now())


@contextmanager
def webhooks():
    """A receiver on a free port of this machine: its URL and the bodies it got."""
    got = []

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self):
            got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/alerts", got
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
