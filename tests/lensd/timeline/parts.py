"""Rows as single parties send them, without a gateway: what a caller, a middleware, an engine's span, its plugin and its log say."""

import msgspec
from judged_house import T0, S
from lensd_collectors import conventions as c
from lensd_collectors.rows import Event, SpanRow

from lensd.store.arrow import batch_of
from lensd.store.memory import MemoryStore
from lensd.timeline.assembler import assemble_all

TRACE, CALLER = "ab" * 16, "cc" * 8


def at(ms):
    return T0 + round(ms * 1000)


def encode(fields):
    return msgspec.json.encode(fields).decode()


def span(span_id, parent, name, kind, scope, start, end, about=(), *, trace=TRACE, engine="e0", request_id=None, status="ok"):
    return SpanRow(
        trace_id=trace, span_id=span_id, parent_span_id=parent, name=name, kind=kind, scope=scope, engine=engine, request_id=request_id,
        status=status,
        started_at=at(start), ended_at=at(end), duration_ms=end - start, attributes=encode(dict(about)), src=f"span:{span_id}",
    )  # fmt: skip


def caller(start, end, span_id=CALLER, parent=None, status="ok", **about):
    return span(span_id, parent, c.CLIENT_REQUEST, "client", c.SCOPE_CLIENT, start, end, about, engine=None, status=status)


def middleware(span_id, parent, request_id, start, end, first=None, **about):
    """`first` and `last`: the first and the last content chunk, in milliseconds like all else."""
    last = about.pop("last", end)
    told = {c.REQUEST_ID: request_id, c.ENGINE: "e0", c.OUTCOME: "ok", c.HTTP_STATUS: 200, c.RESPONSE_ID: f"chatcmpl-{request_id}"}
    if first is not None:
        told |= {c.IS_STREAMING: True, c.FIRST_BYTE_MS: first - start, c.FIRST_CONTENT_MS: first - start, c.LAST_BYTE_MS: last - start}
    trace = about.pop("trace", TRACE)
    return span(
        span_id, parent, "POST /v1/chat/completions", "server", c.SCOPE_VLLM, start, end, told | about, request_id=request_id, trace=trace
    )


def llm_request(span_id, parent, engine_id, arrival, *, queue=10.0, prefill=20.0, decode=60.0, front=1.0, tokens=11, **where):
    told = {
        c.ENGINE_REQUEST_ID: engine_id, "gen_ai.latency.time_in_queue": queue / 1e3, "gen_ai.latency.time_in_model_prefill": prefill / 1e3,
        "gen_ai.latency.time_in_model_decode": decode / 1e3, "gen_ai.latency.time_to_first_token": (front + queue + prefill) / 1e3,
        "gen_ai.usage.completion_tokens": tokens, "gen_ai.usage.prompt_tokens": 7,
    }  # fmt: skip
    end = where.pop("end", arrival + front + queue + prefill + decode + 1)
    return span(span_id, parent, c.SPAN_VLLM_REQUEST, "server", "vllm.tracing.otel", arrival, end, told, request_id=engine_id, **where)


def record(engine_id, ended, *, queue=10.0, prefill=20.0, decode=60.0, engine="e0", **about):
    """The plugin's, as the receiver stores it: in `request_id` stands the id of the reply."""
    e2e = sum(ms or 0 for ms in (queue, prefill, decode)) + 2
    told = {
        c.RESPONSE_ID: engine_id, c.RESPONSE_MODEL: "tiny", c.QUEUE_MS: queue, c.PREFILL_MS: prefill, c.DECODE_MS: decode, c.E2E_MS: e2e,
        c.INPUT_TOKENS: 7, c.OUTPUT_TOKENS: 11, c.FINISH_REASONS: ["stop"],
    } | about  # fmt: skip
    fields = encode({name: value for name, value in told.items() if value is not None})
    return Event(seen_at=at(ended), name=c.EVENT_ENGINE_REQUEST, engine=engine, request_id=engine_id, fields=fields, src=f"record:{ended}")


def logged(name, engine_id, ms, engine="e0", **fields):
    """A line of an engine's log: request.received, request.aborted, request.failed."""
    told = encode(fields) if fields else None
    return Event(seen_at=at(ms), name=name, engine=engine, request_id=engine_id, fields=told, src=f"engine.log:{round(ms)}")


def tables(rows):
    return {"spans": [r for r in rows if isinstance(r, SpanRow)], "events": [r for r in rows if isinstance(r, Event)]}


def told(*rows, now_s=3600, traces=None):
    """Every request of these rows once nothing more can come, in the order they began."""
    store = MemoryStore()
    store.append(batch_of(tables(rows)))
    with store.cursor() as cursor:
        found = assemble_all(cursor, traces, T0 + now_s * S)
    store.close()
    return sorted(found, key=lambda r: (r.row.started_at, r.row.request_key))


def stages(request):
    return {s.stage: s for s in request.timeline.stages}


def adds_up(request):
    timeline = request.timeline
    exclusive = [round((s.exclusive_ms or 0) * 1000) for s in timeline.stages]
    whole, rest = round(timeline.total_ms * 1000), round(timeline.unattributed_ms * 1000)
    assert min([*exclusive, rest]) >= 0
    assert max(exclusive) <= whole
    assert sum(exclusive) + rest == whole
