"""Requests and all that is stored of them, as SQL: rows are made set-wise, a chunk of requests at a time.

Seven spans a request, as client, gateway, middleware and engine send them, with 15 attributes on average; two or three revisions of
its row, as a daemon leaves them that assembled it early, settled it and judged it; the plugin's record of it.
"""

from collections.abc import Mapping
from typing import Final

from lensd_collectors import conventions as c

CALLS: Final = """
create or replace temp table calls as
with drawn as (
  select i, trace_id, span_id, request_key, hash(i, 1) % 10000 / 1e4 as u1,
         hash(i, 2) % 10000 / 1e4 as u2,
         hash(i, 3) % 10000 / 1e4 as u3, (16 + hash(i, 4) % 400)::int as tokens, 8 + hash(i, 5) % 800 / 1e2 as pace,
         hash(i, 6) % 1000 < 30 as fails,
         (hash(i, 7) % 12)::int as team, (hash(i, 8) % 2)::int as n,
         (50 + hash(i, 9) % 3000)::int as prompt
  from keys
), timed as (
  select *, if(u1 < 0.02, 2000 + 6000 * u2, 1 + 30 * u2 * u2) as queue_ms, 20 + 180 * u3 as prefill_ms, tokens * pace as decode_ms
  from drawn
)
select i, trace_id, span_id, request_key, make_timestamp($begin + i * $spacing) as began, tokens, prompt, fails, queue_ms, prefill_ms,
       decode_ms, pace, 6 + queue_ms + prefill_ms as first_ms, 6 + queue_ms + prefill_ms + decode_ms as last_ms,
       14 + queue_ms + prefill_ms + decode_ms as end_ms, 'e' || n as engine, ['llama-8b', 'qwen-32b'][1 + n] as model,
       'team-' || team as key_id, if(i % 2 = 0, trace_id, 'order-' || i || '-' || left(trace_id, 8)) as request_id,
       if(i % 5 = 0, 'session-' || i // 50, null) as session_id,
       case when fails then 'engine-overload' when u1 < 0.02 then 'queue-saturation' else 'no-incident' end as label
from timed
"""
REQUEST: Final[Mapping[str, str]] = {
    c.REQUEST_ID: "'\"' || request_id || '\"'",
    c.REQUEST_MODEL: "'\"' || model || '\"'",
    c.ENGINE: "'\"' || engine || '\"'",
    c.KEY_ID: "'\"' || key_id || '\"'",
    c.IS_STREAMING: "'true'",
    c.HTTP_METHOD: "'\"POST\"'",
    c.HTTP_ROUTE: "'\"/v1/chat/completions\"'",
    c.MAX_TOKENS: "'512'",
    "server.address": "'\"inference.internal.example\"'",
    "user_agent.original": "'\"OpenAI/Python 2.1.0\"'",
}
REPLY: Final = REQUEST | {
    c.RESPONSE_ID: "'\"chatcmpl-' || request_id || '\"'",
    c.RESPONSE_MODEL: "'\"' || model || '\"'",
    c.INPUT_TOKENS: "prompt",
    c.OUTPUT_TOKENS: "tokens",
    c.CHUNKS: "tokens",
    c.BYTES_SENT: "tokens * 190",
    c.OUTCOME: "if(fails, '\"failed\"', '\"ok\"')",
    c.DECISION: "'\"allowed\"'",
    c.HTTP_STATUS: "if(fails, 500, 200)",
    c.DONE_SEEN: "if(fails, 'false', 'true')",
    c.FINISH_REASONS: "'[\"stop\"]'",
    c.UPSTREAM: "'\"' || engine || ':8000\"'",
}
BYTES: Final = {c.FIRST_BYTE_MS: "first_ms - 4", c.LAST_BYTE_MS: "last_ms - 4"}
LATENCY: Final = {
    "gen_ai.latency.time_in_queue": "queue_ms / 1e3",
    "gen_ai.latency.time_in_model_prefill": "prefill_ms / 1e3",
    "gen_ai.latency.time_in_model_decode": "decode_ms / 1e3",
    "gen_ai.latency.e2e": "(last_ms - 6) / 1e3",
    "gen_ai.latency.time_to_first_token": "(first_ms - 6) / 1e3",
    c.ENGINE_REQUEST_ID: "'\"chatcmpl-' || request_id || '-' || right(trace_id, 8) || '\"'",
}
SPANS: Final = (
    # name, parent, title, kind, scope, begins, ends, attributes
    ("client", "", c.CLIENT_REQUEST, "client", c.SCOPE_CLIENT, "0", "end_ms", REQUEST | {c.CLIENT_FIRST_CONTENT_MS: "first_ms"}),
    ("gateway", "client", "POST /v1/chat/completions", "server", c.SCOPE_GATEWAY, "2", "end_ms - 2", REPLY),
    ("auth", "gateway", c.SPAN_AUTH_ROUTING, "internal", c.SCOPE_GATEWAY, "2", "4", REQUEST),
    ("up", "gateway", c.SPAN_UPSTREAM, "client", c.SCOPE_GATEWAY, "4", "end_ms - 3", REQUEST | BYTES | {c.ATTEMPT: "'1'"}),
    ("stream", "gateway", c.SPAN_STREAMING, "internal", c.SCOPE_GATEWAY, "first_ms + 1", "end_ms - 4", REQUEST | {c.CHUNKS: "tokens"}),
    ("mid", "up", "POST /v1/chat/completions", "server", c.SCOPE_VLLM, "5", "end_ms - 4", REPLY | BYTES),
    ("engine", "mid", c.SPAN_VLLM_REQUEST, "server", "vllm", "6", "end_ms - 5", REPLY | LATENCY),
)


def json(named: Mapping[str, str]) -> str:
    """SQL of a JSON object, of SQL expressions that are its values' text."""
    return "concat('{', " + ", ',', ".join(f"'\"{name}\":', {value}" for name, value in named.items()) + ", '}')"


def span_id(name: str) -> str:
    """SQL of a span's id; the gateway's is the one that the request is keyed by."""
    return "span_id" if name == "gateway" else f"left(md5(i || '{name}'), 16)"


def spans() -> str:
    """SELECT of the chunk's spans, in the order in which they end: that in which they are sent."""
    each = " union all by name ".join(
        f"select trace_id, {span_id(name)} as span_id, {span_id(parent) if parent else 'null::varchar'} as parent_span_id,"
        f" '{title}' as name, '{kind}' as kind, '{scope}' as scope, '{'vllm' if name in ('mid', 'engine') else scope}' as service, engine,"
        f" request_id, began + to_microseconds((({a}) * 1000)::bigint) as started_at,"
        f" began + to_microseconds((({b}) * 1000)::bigint) as ended_at,"
        f" ({b}) - ({a}) as duration_ms, if(fails, 'error', 'ok') as status, {json(about)} as attributes, 'span:' || {span_id(name)} as src"
        " from calls"
        for name, parent, title, kind, scope, a, b, about in SPANS
    )
    return f"from ({each}) order by ended_at"


REQUESTS: Final = """
select request_key, revision, request_id, trace_id, span_id, 'chatcmpl-' || request_id as engine_request_id, session_id, model,
       model as served_model, engine, engine || ':8000' as upstream, key_id, '/v1/chat/completions' as route, true as streaming,
       began as started_at, if(revision > 0, began + to_microseconds((end_ms * 1000)::bigint), null) as ended_at, revision > 0 as settled,
       case when revision = 0 then 'open' when fails then 'failed' else 'ok' end as outcome, if(fails, 500, 200) as status,
       if(fails, 'engine', null) as said_by, 'allowed' as decision, 'stop' as finish_reason, prompt as prompt_tokens,
       prompt // 3 as cached_tokens, tokens as completion_tokens, 512 as max_tokens, 0 as preemptions, 1 as attempts, first_ms as ttft_ms,
       pace as tpot_ms, pace * 3 as max_gap_ms, tokens as chunks, tokens * 190 as bytes_sent, not fails as done_seen, end_ms as total_ms,
       0.0 as unattributed_ms, 1.0 as frontend_ms,
       'ok' as client_state, 2.0 as client_ms, 2.0 as client_exclusive_ms, 'client' as client_source,
       'ok' as auth_routing_state, 2.0 as auth_routing_ms, 2.0 as auth_routing_exclusive_ms, 'gateway' as auth_routing_source,
       if(queue_ms > 1000, 'slow', 'ok') as queue_state, queue_ms, queue_ms as queue_exclusive_ms, 'plugin' as queue_source,
       'ok' as prefill_state, prefill_ms, prefill_ms as prefill_exclusive_ms, 'plugin' as prefill_source,
       if(fails, 'failed', 'ok') as decode_state, decode_ms, decode_ms as decode_exclusive_ms, 'plugin' as decode_source,
       'ok' as streaming_state, end_ms - first_ms as streaming_ms, 5.0 as streaming_exclusive_ms, 'gateway' as streaming_source,
       if(revision = 2, label, null) as label, if(revision = 2, 'likely', null) as confidence, 'span:' || span_id as src
from calls cross join (values (0), (1), (2)) as r(revision) where revision > 0 or i % 2 = 0
order by i // 200, revision
"""
RECORD: Final = {
    c.QUEUE_MS: "queue_ms",
    c.PREFILL_MS: "prefill_ms",
    c.DECODE_MS: "decode_ms",
    c.E2E_MS: "last_ms - 6",
    c.INPUT_TOKENS: "prompt",
    c.OUTPUT_TOKENS: "tokens",
    c.CACHED_TOKENS: "prompt // 3",
    c.PREEMPTIONS: "0",
    c.FINISH_REASONS: "'[\"stop\"]'",
    c.REQUEST_MODEL: "'\"' || model || '\"'",
}
EVENTS: Final = f"""
select began + to_microseconds(((end_ms - 5) * 1000)::bigint) as seen_at, 'gpu-host-' || engine as host, engine,
       'chatcmpl-' || request_id || '-' || right(trace_id, 8) as request_id, '{c.EVENT_ENGINE_REQUEST}' as name, 'info' as severity,
       {json(RECORD)} as fields, 'log:gpu-host-' || engine || '/vllm@' || i as src
from calls
"""
FINDINGS: Final = """
select began + to_microseconds((end_ms * 1000)::bigint) as seen_at, label, request_key, request_id, engine, model, key_id, 'queue' as stage,
       'warning' as severity, 'likely' as confidence, '[]' as evidence, 'runbook:' || label as src
from calls where label <> 'no-incident'
"""
TABLES: Final[Mapping[str, str]] = {"spans": spans(), "requests": REQUESTS, "events": EVENTS, "findings": FINDINGS}
