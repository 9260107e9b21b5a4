-- The public tables: one CREATE TABLE a struct of lensd_collectors.rows, in the same order; a test compares the two.
-- Instants are UTC in microseconds. Null means: not known. No table has an index or a constraint: rows are only ever appended.

-- One row a revision of a request; the view `requests` shows the last one.
CREATE TABLE requests (
    request_key UBIGINT,  -- hash of trace id and gateway span id, unsigned
    revision BIGINT,  -- counts up; late data may change a verdict
    request_id VARCHAR,  -- X-Request-Id that the caller saw
    trace_id VARCHAR,
    span_id VARCHAR,  -- the span the request is keyed by
    engine_request_id VARCHAR,  -- chatcmpl-..., cmpl-...
    session_id VARCHAR,
    model VARCHAR,  -- asked for
    served_model VARCHAR,  -- that answered
    engine VARCHAR,  -- engine instance, as configured
    upstream VARCHAR,  -- host:port
    key_id VARCHAR,  -- id of the API key, never the key
    route VARCHAR,  -- path template
    streaming BOOLEAN,
    started_at TIMESTAMP,  -- UTC, microseconds
    ended_at TIMESTAMP,  -- UTC, microseconds
    settled BOOLEAN,  -- the end and the engine's record are in, or 10 s have passed
    outcome VARCHAR,  -- ok, refused, failed, timed_out, caller_gone, cut, open, lost
    status BIGINT,  -- HTTP status the caller got
    error_code VARCHAR,
    error_message VARCHAR,
    said_by VARCHAR,  -- client, gateway, proxy, engine, unknown
    decision VARCHAR,  -- what was decided about the request before or instead of serving it
    finish_reason VARCHAR,
    timeout_ms DOUBLE,  -- ms, the limit that fired
    timeout_kind VARCHAR,  -- connect, first_byte, idle, total
    client_timeout_ms DOUBLE,  -- ms, the limit the caller announced
    prompt_tokens BIGINT,  -- tokens
    cached_tokens BIGINT,  -- tokens from the prefix cache
    completion_tokens BIGINT,  -- tokens
    max_tokens BIGINT,  -- tokens, the caller's limit
    preemptions BIGINT,  -- times evicted and recomputed
    attempts BIGINT,  -- upstream attempts
    ttft_ms DOUBLE,  -- ms to the first token
    tpot_ms DOUBLE,  -- ms a token after the first
    max_gap_ms DOUBLE,  -- ms, longest silence between two chunks
    chunks BIGINT,  -- SSE data events, without [DONE]
    bytes_sent BIGINT,  -- bytes of body passed to the caller
    done_seen BOOLEAN,  -- [DONE] was passed on
    total_ms DOUBLE,  -- ms
    unattributed_ms DOUBLE,  -- ms that no stage covers
    frontend_ms DOUBLE,  -- ms of templates, tokenising, images
    client_state VARCHAR,  -- ok, slow, failed, not_reached, not_observed
    client_ms DOUBLE,  -- ms
    client_exclusive_ms DOUBLE,  -- ms
    client_source VARCHAR,  -- which record it was read from
    auth_routing_state VARCHAR,  -- ok, slow, failed, not_reached, not_observed
    auth_routing_ms DOUBLE,  -- ms
    auth_routing_exclusive_ms DOUBLE,  -- ms
    auth_routing_source VARCHAR,  -- which record it was read from
    queue_state VARCHAR,  -- ok, slow, failed, not_reached, not_observed
    queue_ms DOUBLE,  -- ms
    queue_exclusive_ms DOUBLE,  -- ms
    queue_source VARCHAR,  -- which record it was read from
    prefill_state VARCHAR,  -- ok, slow, failed, not_reached, not_observed
    prefill_ms DOUBLE,  -- ms
    prefill_exclusive_ms DOUBLE,  -- ms
    prefill_source VARCHAR,  -- which record it was read from
    decode_state VARCHAR,  -- ok, slow, failed, not_reached, not_observed
    decode_ms DOUBLE,  -- ms
    decode_exclusive_ms DOUBLE,  -- ms
    decode_source VARCHAR,  -- which record it was read from
    streaming_state VARCHAR,  -- ok, slow, failed, not_reached, not_observed
    streaming_ms DOUBLE,  -- ms
    streaming_exclusive_ms DOUBLE,  -- ms
    streaming_source VARCHAR,  -- which record it was read from
    label VARCHAR,  -- the verdict
    confidence VARCHAR,  -- certain, likely, possible
    src VARCHAR,  -- where the row came from
    withdrawn BOOLEAN,  -- it turned out to be a part of another request; the view leaves it out
    peer VARCHAR,  -- address of the caller
    context_limit BIGINT,  -- tokens, the limit that an answer named
    reasoning_tokens BIGINT,  -- tokens
    structured BOOLEAN  -- the answer was bound to a grammar or schema
);

-- What an engine said of itself at one instant: one row a scrape, engine and model.
CREATE TABLE engine_samples (
    seen_at TIMESTAMP,  -- UTC, microseconds
    seq BIGINT,  -- order within the source
    engine VARCHAR,
    model VARCHAR,
    running DOUBLE,  -- requests
    waiting DOUBLE,  -- requests
    waiting_capacity DOUBLE,  -- requests waiting for room
    waiting_deferred DOUBLE,  -- requests put back
    kv_usage DOUBLE,  -- 0..1
    kv_tokens DOUBLE,  -- tokens the KV cache holds
    preemptions_total DOUBLE,  -- counter
    prompt_tokens_total DOUBLE,  -- counter
    generation_tokens_total DOUBLE,  -- counter
    prefix_queries_total DOUBLE,  -- counter
    prefix_hits_total DOUBLE,  -- counter
    finished_total DOUBLE,  -- counter
    up BOOLEAN,  -- the scrape was answered
    start_at TIMESTAMP,  -- start of the engine's process
    src VARCHAR,  -- where the row came from
    prompt_tps DOUBLE,  -- tokens a second, as the engine's own line says
    generation_tps DOUBLE,  -- tokens a second, as the engine's own line says
    aborted_total DOUBLE,  -- counter
    retracted_total DOUBLE,  -- counter, SGLang's preemptions
    rejected_total DOUBLE,  -- counter, refused because its own queue is full
    spec_drafted_total DOUBLE,  -- counter, tokens
    spec_accepted_total DOUBLE,  -- counter, tokens
    slots DOUBLE  -- requests that can run at once, where the engine says so
);

-- One GPU at one instant.
CREATE TABLE gpu_samples (
    seen_at TIMESTAMP,  -- UTC, microseconds
    seq BIGINT,  -- order within the source
    host VARCHAR,
    gpu VARCHAR,
    used_bytes BIGINT,  -- bytes
    free_bytes BIGINT,  -- bytes
    total_bytes BIGINT,  -- bytes
    reserved_bytes BIGINT,  -- bytes
    util DOUBLE,  -- 0..1
    sm_mhz DOUBLE,  -- MHz
    throttle VARCHAR,  -- reasons, comma separated; empty: none; NULL: not told
    temp_c DOUBLE,  -- degrees Celsius
    power_w DOUBLE,  -- watts
    ecc BIGINT,  -- uncorrected errors
    xid BIGINT,  -- last Xid
    pid BIGINT,
    pid_used_bytes BIGINT,  -- bytes
    rss_bytes BIGINT,  -- bytes
    src VARCHAR,  -- where the row came from
    pid_engine VARCHAR,  -- engine whose process it is
    process VARCHAR,  -- its name, without arguments
    ecc_corrected BIGINT,  -- corrected errors
    retired_pages BIGINT,
    remapped_rows BIGINT,  -- after uncorrectable errors
    remap_pending BOOLEAN,
    remap_failed BOOLEAN,
    pcie_gen BIGINT,
    pcie_width BIGINT,  -- lanes
    pcie_replays BIGINT,
    mem_util DOUBLE,  -- 0..1, of the memory's bandwidth
    sm_max_mhz DOUBLE,  -- MHz
    power_limit_w DOUBLE,  -- watts
    temp_slowdown_c DOUBLE,  -- degrees Celsius at which clocks are lowered
    mig VARCHAR,  -- MIG instance
    unified BOOLEAN,  -- the host's memory is the device's
    cpu_share DOUBLE,  -- of a process; 1.0: one core busy
    power_default_w DOUBLE  -- watts, the limit that the card has by itself
);

-- Spans as they came.
CREATE TABLE spans (
    trace_id VARCHAR,
    span_id VARCHAR,
    parent_span_id VARCHAR,
    name VARCHAR,
    kind VARCHAR,  -- internal, server, client, producer, consumer
    scope VARCHAR,
    service VARCHAR,
    instance VARCHAR,
    engine VARCHAR,
    request_id VARCHAR,  -- ours, or the engine's own
    started_at TIMESTAMP,  -- UTC, microseconds
    ended_at TIMESTAMP,  -- UTC, microseconds
    duration_ms DOUBLE,  -- ms
    status VARCHAR,  -- ok, error
    status_message VARCHAR,
    attributes VARCHAR,  -- JSON object; read with attr()
    src VARCHAR  -- where the row came from
);

-- Metric values as they came; a histogram is one row (an exponential one with its buckets' bounds), a summary one a quantile and
-- `_sum`, `_count`, as in Prometheus. Only names that a dialect knows, unless keep_all_points.
CREATE TABLE points (
    seen_at TIMESTAMP,  -- UTC, microseconds
    name VARCHAR,
    labels VARCHAR,  -- JSON object
    value DOUBLE,  -- of a histogram: its sum
    buckets DOUBLE[],  -- upper bounds; the last count has none
    counts DOUBLE[],  -- observations a bucket, not cumulative
    src VARCHAR,  -- where the row came from
    engine VARCHAR,
    model VARCHAR
);

-- Things that happened: request events, log lines with a known meaning, processes that ended.
CREATE TABLE events (
    seen_at TIMESTAMP,  -- UTC, microseconds
    seq BIGINT,  -- order within the source
    host VARCHAR,
    engine VARCHAR,
    request_id VARCHAR,
    trace_id VARCHAR,
    span_id VARCHAR,
    name VARCHAR,
    severity VARCHAR,  -- debug, info, warning, error, critical
    fields VARCHAR,  -- JSON object
    line VARCHAR,  -- scrubbed text it was read from
    src VARCHAR  -- where the row came from
);

-- Settings of an engine, gateway or host, as read at one instant.
CREATE TABLE config_facts (
    seen_at TIMESTAMP,  -- UTC, microseconds
    subject VARCHAR,
    name VARCHAR,
    value VARCHAR,
    was VARCHAR,
    src VARCHAR,  -- where the row came from
    origin VARCHAR  -- flag, effective, model, measured, derived or device; NULL: as flag
);

-- One request and its answer as one hop saw it; never a 200 body.
CREATE TABLE http_exchanges (
    seen_at TIMESTAMP,  -- UTC, microseconds
    request_id VARCHAR,
    engine VARCHAR,
    model VARCHAR,
    key_id VARCHAR,
    hop VARCHAR,  -- client, gateway, proxy, engine
    method VARCHAR,
    path VARCHAR,
    status BIGINT,
    duration_ms DOUBLE,  -- ms
    bytes BIGINT,
    error_code VARCHAR,
    error_message VARCHAR,
    body_shape VARCHAR,  -- what the dialect says the body means
    limit_ms DOUBLE,  -- ms, the limit that this hop named
    src VARCHAR,  -- where the row came from
    limit_kind VARCHAR,  -- connect, first_byte, read, idle, total
    peer VARCHAR,  -- address of who asked this hop
    upstream VARCHAR,  -- host:port that was asked
    upstream_status BIGINT,
    upstream_ms DOUBLE,  -- ms
    ttfb_ms DOUBLE,  -- ms to the first byte of the answer
    received_bytes BIGINT,  -- bytes of the request's body
    streaming BOOLEAN,
    done_seen BOOLEAN,  -- [DONE] was among it
    chunks BIGINT,  -- SSE data events, without [DONE]
    max_gap_ms DOUBLE,  -- ms, longest silence between two chunks
    finish_reason VARCHAR,
    prompt_tokens BIGINT,  -- tokens
    cached_tokens BIGINT,  -- tokens
    completion_tokens BIGINT,  -- tokens
    reasoning_tokens BIGINT,  -- tokens
    max_tokens BIGINT,  -- tokens, the caller's limit
    context_limit BIGINT,  -- tokens, the limit that the answer named
    content_chars BIGINT,  -- characters; of a 200 body only its shape is kept
    tool_calls BIGINT,  -- how many
    json_broken BOOLEAN,  -- content that begins as JSON and does not parse
    structured BOOLEAN,  -- the answer was bound to a grammar or schema
    retry_after_ms DOUBLE  -- ms
);

-- Rules that fired.
CREATE TABLE findings (
    seen_at TIMESTAMP,  -- UTC, microseconds
    label VARCHAR,
    request_key UBIGINT,
    request_id VARCHAR,
    engine VARCHAR,
    model VARCHAR,
    gpu VARCHAR,
    key_id VARCHAR,
    stage VARCHAR,
    severity VARCHAR,
    confidence VARCHAR,
    since_at TIMESTAMP,  -- UTC, microseconds
    explained_by VARCHAR,
    evidence VARCHAR,  -- JSON list of {text, quote, source}
    src VARCHAR  -- where the row came from
);

-- One row a revision of an incident; the view `incidents` shows the last one.
CREATE TABLE incidents (
    incident_id VARCHAR,
    revision BIGINT,
    label VARCHAR,
    state VARCHAR,  -- open, acknowledged, resolved
    severity VARCHAR,
    stage VARCHAR,
    engine VARCHAR,
    model VARCHAR,
    gpu VARCHAR,
    key_id VARCHAR,
    confidence VARCHAR,
    cause VARCHAR,
    fix VARCHAR,
    opened_at TIMESTAMP,  -- UTC, microseconds
    last_seen_at TIMESTAMP,  -- UTC, microseconds
    resolved_at TIMESTAMP,  -- UTC, microseconds
    requests_hit BIGINT,
    typical_requests VARCHAR,  -- JSON list of request ids
    evidence VARCHAR,  -- JSON list of {text, quote, source}
    src VARCHAR  -- where the row came from
);

-- One row an attempt to tell a destination of an incident.
CREATE TABLE deliveries (
    delivery_id VARCHAR,
    incident_id VARCHAR,
    destination VARCHAR,
    reason VARCHAR,  -- opened, resolved, test
    attempt BIGINT,
    attempted_at TIMESTAMP,  -- UTC, microseconds
    status VARCHAR,  -- sent, failed, gave_up
    http_status BIGINT,
    error VARCHAR,
    src VARCHAR  -- where the row came from
);
