"""A request told in milliseconds: spans and events as the gateway, the engine and the client send them."""

from dataclasses import dataclass, field

import msgspec
from lensd_collectors import conventions as c
from lensd_collectors.rows import EngineSample, Event, SpanRow

from lensd.store.arrow import batch_of
from lensd.store.memory import MemoryStore
from lensd.timeline.assembler import assemble_all

T0 = 1_790_000_000_000_000
TRACE, CLIENT, GATEWAY, AUTH, UPSTREAM, STREAM, ENGINE = "ab" * 16, "c" * 16, "1" * 16, "2" * 16, "3" * 16, "4" * 16, "5" * 16


def at(ms):
    return T0 + round(ms * 1000)


def encode(attributes):
    return msgspec.json.encode(attributes).decode()


@dataclass
class Story:
    spans: list = field(default_factory=list)
    events: list = field(default_factory=list)
    samples: list = field(default_factory=list)
    clock_ahead_ms: float = 0.0

    def span(self, span_id, parent, name, start, end, scope, kind="internal", status="ok", **attributes):
        row = SpanRow(
            trace_id=TRACE,
            span_id=span_id,
            parent_span_id=parent,
            name=name,
            kind=kind,
            scope=scope,
            started_at=at(start),
            ended_at=at(end),
            duration_ms=end - start,
            status=status,
            attributes=encode(attributes),
            src=f"span:{span_id}",
        )
        self.spans.append(row)
        return self

    def client(self, start, end, **attributes):
        ahead = self.clock_ahead_ms
        return self.span(CLIENT, None, c.CLIENT_REQUEST, start + ahead, end + ahead, c.SCOPE_CLIENT, "client", **attributes)

    def gateway(self, start, end, **attributes):
        base = {
            c.REQUEST_ID: "req-1",
            c.REQUEST_MODEL: "tiny",
            c.ENGINE: "e0",
            c.OUTCOME: "ok",
            c.DECISION: "allowed",
            c.IS_STREAMING: True,
        }
        return self.span(GATEWAY, CLIENT, "POST /v1/chat/completions", start, end, c.SCOPE_GATEWAY, "server", **(base | attributes))

    def auth(self, start, end):
        return self.span(AUTH, GATEWAY, c.SPAN_AUTH_ROUTING, start, end, c.SCOPE_GATEWAY)

    def upstream(self, start, end, first=None, last=None):
        byte = {c.FIRST_BYTE_MS: first - start, c.LAST_BYTE_MS: (last or end) - start} if first is not None else {}
        return self.span(UPSTREAM, GATEWAY, c.SPAN_UPSTREAM, start, end, c.SCOPE_GATEWAY, "client", **byte)

    def streaming(self, start, end):
        return self.span(STREAM, GATEWAY, c.SPAN_STREAMING, start, end, c.SCOPE_GATEWAY)

    def engine(self, arrival, end, queue, prefill, decode, parent=UPSTREAM, **more):
        latencies = {
            "time_in_queue": queue / 1e3,
            "time_in_model_prefill": prefill / 1e3,
            "time_in_model_decode": decode / 1e3,
            "time_to_first_token": (queue + prefill + 1) / 1e3,
            "e2e": (end - arrival) / 1e3,
        }
        attributes = {f"gen_ai.latency.{k}": v for k, v in latencies.items()} | {"gen_ai.usage.completion_tokens": 11} | more
        return self.span(ENGINE, parent, "llm_request", arrival, end, "vllm.tracing.otel", "server", **attributes)

    def event(self, name, ms, **fields):
        row = Event(
            seen_at=at(ms), trace_id=TRACE, span_id=GATEWAY, name=name, fields=encode(fields), request_id="req-1", src=f"event:{ms}"
        )
        self.events.append(row)
        return self

    def scrape(self, ms, running, waiting, engine="e0", made=None):
        self.samples.append(
            EngineSample(
                seen_at=at(ms), engine=engine, running=running, waiting=waiting, generation_tokens_total=made, up=True, src=f"scrape:{ms}"
            )
        )
        return self

    def told(self, now_ms=60_000):
        """Every request of the story at `now_ms`."""
        store = MemoryStore()
        store.append(batch_of({"spans": self.spans, "events": self.events, "engine_samples": self.samples}))
        with store.cursor() as cursor:
            found = assemble_all(cursor, None, at(now_ms))
        store.close()
        return found

    def one(self, now_ms=60_000):
        found = self.told(now_ms)
        assert len(found) == 1
        return found[0]
