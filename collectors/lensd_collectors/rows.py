"""One slotted struct a public table. Column names, order and types are the store's schema; a test compares the two.

`*_at` are microseconds since the epoch (UTC), `*_ms` milliseconds, `*_bytes` bytes, `*_total` counters. None is "not known".
"""

from typing import Final, NewType

import msgspec

Instant = NewType("Instant", int)  # microseconds since the epoch, UTC


class Row(msgspec.Struct, kw_only=True):
    """Base of all rows; every row says where it came from in `src`."""


class RequestRow(Row, kw_only=True):
    """One request as far as it is known; a later revision replaces an earlier one."""

    request_key: int  # unsigned 64 bit hash of trace id and gateway span id
    revision: int
    request_id: str | None = None
    trace_id: str | None = None
    span_id: str | None = None  # the span the request is keyed by: the gateway's, else the engine's or the client's
    engine_request_id: str | None = None
    session_id: str | None = None
    model: str | None = None
    served_model: str | None = None
    engine: str | None = None
    upstream: str | None = None
    key_id: str | None = None
    route: str | None = None
    streaming: bool | None = None
    started_at: Instant
    ended_at: Instant | None = None
    settled: bool = False
    outcome: str = "open"
    status: int | None = None
    error_code: str | None = None
    error_message: str | None = None
    said_by: str | None = None
    decision: str | None = None
    finish_reason: str | None = None
    timeout_ms: float | None = None
    timeout_kind: str | None = None
    client_timeout_ms: float | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    max_tokens: int | None = None
    preemptions: int | None = None
    attempts: int | None = None
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    max_gap_ms: float | None = None
    chunks: int | None = None
    bytes_sent: int | None = None
    done_seen: bool | None = None
    total_ms: float | None = None
    unattributed_ms: float | None = None
    frontend_ms: float | None = None
    client_state: str | None = None
    client_ms: float | None = None
    client_exclusive_ms: float | None = None
    client_source: str | None = None
    auth_routing_state: str | None = None
    auth_routing_ms: float | None = None
    auth_routing_exclusive_ms: float | None = None
    auth_routing_source: str | None = None
    queue_state: str | None = None
    queue_ms: float | None = None
    queue_exclusive_ms: float | None = None
    queue_source: str | None = None
    prefill_state: str | None = None
    prefill_ms: float | None = None
    prefill_exclusive_ms: float | None = None
    prefill_source: str | None = None
    decode_state: str | None = None
    decode_ms: float | None = None
    decode_exclusive_ms: float | None = None
    decode_source: str | None = None
    streaming_state: str | None = None
    streaming_ms: float | None = None
    streaming_exclusive_ms: float | None = None
    streaming_source: str | None = None
    label: str | None = None
    confidence: str | None = None
    src: str | None = None
    withdrawn: bool | None = None  # it turned out to be a part of another request; the view leaves it out
    peer: str | None = None  # address of the caller, as the hop that saw the connection writes it
    context_limit: int | None = None  # tokens; the limit that an answer named
    reasoning_tokens: int | None = None
    structured: bool | None = None  # the answer was bound to a grammar or schema


class EngineSample(Row, kw_only=True):
    """What an engine said of itself at one instant; one row a scrape, engine and model."""

    seen_at: Instant | None = None
    seq: int | None = None
    engine: str | None = None
    model: str | None = None
    running: float | None = None
    waiting: float | None = None
    waiting_capacity: float | None = None
    waiting_deferred: float | None = None
    kv_usage: float | None = None  # 0..1
    kv_tokens: float | None = None
    preemptions_total: float | None = None
    prompt_tokens_total: float | None = None
    generation_tokens_total: float | None = None
    prefix_queries_total: float | None = None
    prefix_hits_total: float | None = None
    finished_total: float | None = None
    up: bool | None = None
    start_at: Instant | None = None
    src: str | None = None
    prompt_tps: float | None = None  # tokens a second, as the engine's own line says
    generation_tps: float | None = None
    aborted_total: float | None = None
    retracted_total: float | None = None  # SGLang's preemptions
    rejected_total: float | None = None  # refused because its own queue is full
    spec_drafted_total: float | None = None
    spec_accepted_total: float | None = None
    slots: float | None = None  # how many can run at once, where the engine says so


class GpuSample(Row, kw_only=True):
    """A device (`pid` None), one process on it (`pid` and `pid_used_bytes`), or a process of the host (`gpu` None, `rss_bytes`)."""

    seen_at: Instant | None = None
    seq: int | None = None
    host: str | None = None
    gpu: str | None = None
    used_bytes: int | None = None
    free_bytes: int | None = None
    total_bytes: int | None = None
    reserved_bytes: int | None = None
    util: float | None = None  # 0..1
    sm_mhz: float | None = None
    throttle: str | None = None
    temp_c: float | None = None
    power_w: float | None = None
    ecc: int | None = None
    xid: int | None = None
    pid: int | None = None
    pid_used_bytes: int | None = None
    rss_bytes: int | None = None
    src: str | None = None
    pid_engine: str | None = None  # the engine whose process it is
    process: str | None = None
    ecc_corrected: int | None = None
    retired_pages: int | None = None
    remapped_rows: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    pcie_gen: int | None = None
    pcie_width: int | None = None
    pcie_replays: int | None = None
    mem_util: float | None = None  # 0..1
    sm_max_mhz: float | None = None
    power_limit_w: float | None = None
    temp_slowdown_c: float | None = None
    mig: str | None = None
    unified: bool | None = None  # the host's memory is the device's
    cpu_share: float | None = None  # of a process; 1.0: one core busy
    power_default_w: float | None = None


class SpanRow(Row, kw_only=True):
    """A span as it came. What queries use is a column; the rest is JSON text in `attributes`."""

    trace_id: str | None = None
    span_id: str | None = None
    parent_span_id: str | None = None
    name: str | None = None
    kind: str | None = None  # internal, server, client, producer, consumer
    scope: str | None = None
    service: str | None = None
    instance: str | None = None
    engine: str | None = None
    request_id: str | None = None  # ours, or the engine's own
    started_at: Instant | None = None
    ended_at: Instant | None = None
    duration_ms: float | None = None
    status: str | None = None  # ok, error
    status_message: str | None = None
    attributes: str | None = None
    src: str | None = None


class Point(Row, kw_only=True):
    """One metric value; a histogram is one row with its buckets (upper bounds) and counts."""

    seen_at: Instant | None = None
    name: str | None = None
    labels: str | None = None  # JSON object
    value: float | None = None
    buckets: list[float] | None = None
    counts: list[float] | None = None
    src: str | None = None
    engine: str | None = None
    model: str | None = None


class Event(Row, kw_only=True):
    """Something that happened: a request event, a log line with a known meaning, a process that ended."""

    seen_at: Instant | None = None
    seq: int | None = None
    host: str | None = None
    engine: str | None = None
    request_id: str | None = None
    trace_id: str | None = None
    span_id: str | None = None
    name: str | None = None
    severity: str | None = None  # debug, info, warning, error, critical
    fields: str | None = None  # JSON object
    line: str | None = None  # scrubbed text of the line it was read from
    src: str | None = None


class ConfigFact(Row, kw_only=True):
    seen_at: Instant | None = None
    subject: str | None = None
    name: str | None = None
    value: str | None = None
    was: str | None = None
    src: str | None = None
    origin: str | None = None  # flag, effective, model, measured, derived or device; None: as flag


class HttpExchange(Row, kw_only=True):
    """One request and its answer as one hop saw it. Never holds a 200 body."""

    seen_at: Instant | None = None
    request_id: str | None = None
    engine: str | None = None
    model: str | None = None
    key_id: str | None = None
    hop: str | None = None  # client, gateway, proxy, engine
    method: str | None = None
    path: str | None = None
    status: int | None = None
    duration_ms: float | None = None
    bytes: int | None = None
    error_code: str | None = None
    error_message: str | None = None
    body_shape: str | None = None  # what the dialect says the body means: model-unknown, unauthorized ...
    limit_ms: float | None = None  # the time limit that this hop named
    src: str | None = None
    limit_kind: str | None = None  # connect, first_byte, read, idle, total
    peer: str | None = None  # address of who asked this hop
    upstream: str | None = None  # host:port that was asked
    upstream_status: int | None = None
    upstream_ms: float | None = None
    ttfb_ms: float | None = None  # to the first byte of the answer
    received_bytes: int | None = None  # of the request's body
    streaming: bool | None = None
    done_seen: bool | None = None  # [DONE] was among it
    chunks: int | None = None
    max_gap_ms: float | None = None  # longest silence between two chunks
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    cached_tokens: int | None = None
    completion_tokens: int | None = None
    reasoning_tokens: int | None = None
    max_tokens: int | None = None
    context_limit: int | None = None  # tokens; the limit that the answer named
    content_chars: int | None = None  # of a 200 body only its shape is kept
    tool_calls: int | None = None
    json_broken: bool | None = None  # content that begins as JSON and does not parse
    structured: bool | None = None  # the answer was bound to a grammar or schema
    retry_after_ms: float | None = None


class FindingRow(Row, kw_only=True):
    seen_at: Instant | None = None
    label: str | None = None
    request_key: int | None = None
    request_id: str | None = None
    engine: str | None = None
    model: str | None = None
    gpu: str | None = None
    key_id: str | None = None
    stage: str | None = None
    severity: str | None = None
    confidence: str | None = None
    since_at: Instant | None = None
    explained_by: str | None = None
    evidence: str | None = None  # JSON list of {text, quote, source}
    src: str | None = None


class IncidentRow(Row, kw_only=True):
    """One state of an incident; a later revision replaces an earlier one."""

    incident_id: str
    revision: int
    label: str
    state: str  # open, acknowledged, resolved
    severity: str
    stage: str
    engine: str | None = None
    model: str | None = None
    gpu: str | None = None
    key_id: str | None = None
    confidence: str | None = None
    cause: str | None = None
    fix: str | None = None
    opened_at: Instant
    last_seen_at: Instant
    resolved_at: Instant | None = None
    requests_hit: int | None = None
    typical_requests: str | None = None  # JSON list of request ids
    evidence: str | None = None  # JSON list of {text, quote, source}
    src: str | None = None


class DeliveryRow(Row, kw_only=True):
    """One attempt to tell a destination of an incident."""

    delivery_id: str
    incident_id: str
    destination: str
    reason: str  # opened, resolved, test
    attempt: int
    attempted_at: Instant
    status: str  # sent, failed, gave_up
    http_status: int | None = None
    error: str | None = None
    src: str | None = None


TABLES: Final[dict[str, type[Row]]] = {
    "requests": RequestRow,
    "engine_samples": EngineSample,
    "gpu_samples": GpuSample,
    "spans": SpanRow,
    "points": Point,
    "events": Event,
    "config_facts": ConfigFact,
    "http_exchanges": HttpExchange,
    "findings": FindingRow,
    "incidents": IncidentRow,
    "deliveries": DeliveryRow,
}
