"""Documents of one imagined afternoon: a queue timeout, a healthy stream, a request still open, an engine that was killed."""

from lensd.records import (
    Confidence,
    Diagnosis,
    Evidence,
    Finding,
    Gap,
    Incident,
    NotEvaluated,
    RuledOut,
    Severity,
    Stage,
    StageState,
    StageTime,
    Subject,
    Verdict,
)

QUEUED = "6f1c0b5e9a3d4c2f8e7b6a5d4c3b2a19"
HEALTHY = "0d9e8f7a6b5c4d3e2f1a0b9c8d7e6f50"
OPEN = "b7a6c5d4e3f2a1b0c9d8e7f6a5b4c3d2"
CRASHED = "c0ffee00c0ffee00c0ffee00c0ffee00"
INCIDENT = "01KXENGINECRASH0000000001"
RESOLVED = "01KXQUEUESATURATION000001"
MODEL = "tiny-chat"
ENGINE = "127.0.0.1:8000"
NOON = 1_796_040_000_000_000  # 2026-11-30 12:00:00 UTC in microseconds


def _unreached(*stages: Stage, state: StageState = StageState.NOT_REACHED) -> tuple[StageTime, ...]:
    return tuple(StageTime(stage=stage, state=state) for stage in stages)


def _span(stage: Stage, start: float, length: float, source: str, state: StageState = StageState.OK, estimated: bool = False) -> StageTime:
    return StageTime(
        stage=stage,
        state=state,
        start_ms=start,
        duration_ms=length,
        exclusive_ms=length,
        segments=((start, length),),
        source=source,
        estimated=estimated,
    )


QUEUE_EVIDENCE = (
    Evidence(
        text="11 requests were waiting for one slot over the whole wait; the slot was never free",
        quote='vllm:num_requests_waiting{engine="0",model_name="tiny-chat"} 11.0',
        source="scrape:127.0.0.1:8000@2026-11-30T12:00:21.402Z",
    ),
    Evidence(
        text="the gateway's limit for the first byte fired after 30 s",
        quote="lensd.timeout.kind=first_byte lensd.timeout.ms=30000",
        source="span:9f2b6c1d0a7e4f35",
    ),
)

QUEUE_FINDING = Finding(
    label="queue-saturation",
    runbook="queue-saturation",
    title="Requests wait for a slot because the engine is full",
    kind="cause",
    stage="queue",
    severity=Severity.WARNING,
    confidence=Confidence.CERTAIN,
    cause="The request waited 29.99 s for a slot in the engine and was given up before it was scheduled.",
    fix="lower the concurrency that callers may use, or raise max_num_seqs if the KV cache has room",
    evidence=QUEUE_EVIDENCE,
    explains=("gateway-timeout",),
    request_id=QUEUED,
    engine=ENGINE,
    model=MODEL,
)

TIMEOUT_FINDING = Finding(
    label="gateway-timeout",
    runbook="gateway-timeout",
    title="The gateway gave up before the engine answered",
    kind="symptom",
    stage="auth_routing",
    severity=Severity.WARNING,
    confidence=Confidence.CERTAIN,
    cause="The gateway's first-byte limit of 30 s fired.",
    fix="raise the limit only if a wait that long is wanted",
    evidence=(
        Evidence(text="504 from the gateway, no byte from upstream", quote="status=504 said_by=gateway", source="span:9f2b6c1d0a7e4f35"),
    ),
    explained_by="queue-saturation",
    request_id=QUEUED,
)

QUEUED_DOC = Diagnosis(
    subject=Subject(
        kind="request",
        request_id=QUEUED,
        trace_id=QUEUED,
        aliases=("chatcmpl-6f1c0b5e9a3d4c2f",),
        model=MODEL,
        engine=ENGINE,
        key_id="team-search",
        started_at="2026-11-30T12:00:03.118Z",
        status=504,
        outcome="timed_out",
        settled=True,
        revision=2,
    ),
    verdict=Verdict(
        label="queue-saturation",
        stage="queue",
        severity=Severity.WARNING,
        confidence=Confidence.CERTAIN,
        cause=QUEUE_FINDING.cause,
        fix=QUEUE_FINDING.fix,
    ),
    timeline=(
        *_unreached(Stage.CLIENT, state=StageState.NOT_OBSERVED),
        _span(Stage.AUTH_ROUTING, 0.0, 3.2, "gateway"),
        _span(Stage.QUEUE, 4.7, 29_986.1, "scrape", StageState.FAILED, estimated=True),
        *_unreached(Stage.PREFILL, Stage.DECODE, Stage.STREAMING),
    ),
    unattributed_ms=10.7,
    gaps=(
        Gap(start_ms=3.2, duration_ms=1.5, between=("auth_routing", "queue")),
        Gap(start_ms=29_990.8, duration_ms=9.2, between=("queue", "end")),
    ),
    total_ms=30_000.0,
    findings=(QUEUE_FINDING, TIMEOUT_FINDING),
    ruled_out=(
        RuledOut(label="auth-wrong-key", because="the key was accepted"),
        RuledOut(label="engine-crash", because="the engine answered every scrape of that minute"),
    ),
    not_evaluated=(NotEvaluated(label="kv-preemption-thrash", missing=("engine_samples.preemptions_total",)),),
)

HEALTHY_DOC = Diagnosis(
    subject=Subject(
        kind="request",
        request_id=HEALTHY,
        trace_id=HEALTHY,
        aliases=("chatcmpl-0d9e8f7a6b5c4d3e",),
        model=MODEL,
        engine=ENGINE,
        key_id="team-chat",
        started_at="2026-11-30T11:58:41.004Z",
        status=200,
        outcome="ok",
        settled=True,
        revision=1,
    ),
    verdict=Verdict(
        label="no-incident",
        stage="none",
        severity=Severity.INFO,
        confidence=Confidence.CERTAIN,
        cause="Every stage was seen and none was slow; the stream ended with its closing event.",
        fix="nothing to do",
    ),
    timeline=(
        StageTime(
            stage=Stage.CLIENT,
            state=StageState.OK,
            start_ms=0.0,
            duration_ms=2.6,
            exclusive_ms=2.6,
            segments=((0.0, 1.4), (1_643.1, 1.2)),
            source="client",
        ),
        _span(Stage.AUTH_ROUTING, 1.4, 2.9, "gateway"),
        _span(Stage.QUEUE, 6.1, 18.4, "llm_request"),
        _span(Stage.PREFILL, 24.5, 131.2, "llm_request"),
        _span(Stage.DECODE, 155.7, 1_480.6, "llm_request"),
        StageTime(
            stage=Stage.STREAMING,
            state=StageState.OK,
            start_ms=157.0,
            duration_ms=1_486.1,
            exclusive_ms=6.8,
            segments=((157.0, 1_486.1),),
            source="gateway",
        ),
    ),
    unattributed_ms=1.8,
    gaps=(Gap(start_ms=4.3, duration_ms=1.8, between=("auth_routing", "queue")),),
    total_ms=1_644.3,
    clock_skew_ms=0.4,
    findings=(),
    ruled_out=(RuledOut(label="queue-saturation", because="the queue took 1.1 % of the time to the first token"),),
)

OPEN_DOC = Diagnosis(
    subject=Subject(
        kind="request",
        request_id=OPEN,
        trace_id=OPEN,
        model=MODEL,
        engine=ENGINE,
        key_id="team-search",
        started_at="2026-11-30T12:04:00.000Z",
        outcome="open",
        settled=False,
    ),
    verdict=Verdict(
        label="inconclusive",
        stage="queue",
        severity=Severity.WARNING,
        confidence=Confidence.POSSIBLE,
        cause="Handed to the engine 8.4 s ago and no byte has come since; it waits for a slot or for its first token.",
        fix="attach the engine plugin to tell queue and prefill apart, or wait for the request to end",
    ),
    timeline=(
        *_unreached(Stage.CLIENT, state=StageState.NOT_OBSERVED),
        _span(Stage.AUTH_ROUTING, 0.0, 2.4, "gateway"),
        _span(Stage.QUEUE, 2.4, 8_421.0, "gateway", StageState.SLOW, estimated=True),
        *_unreached(Stage.PREFILL, state=StageState.NOT_OBSERVED),
        *_unreached(Stage.DECODE, Stage.STREAMING),
    ),
    unattributed_ms=0.0,
    total_ms=8_423.4,
    not_evaluated=(NotEvaluated(label="queue-saturation", missing=("engine_samples.waiting",)),),
)

CRASH_EVIDENCE = (
    Evidence(
        text="the engine's process ended by signal 9", quote="process.exit.code=-9", source="log:gpu-1/engine@2026-11-30T12:02:11.060Z"
    ),
    Evidence(
        text="the engine refused the connection from then on",
        quote='up{engine="127.0.0.1:8000"} 0',
        source="scrape:127.0.0.1:8000@2026-11-30T12:02:12.001Z",
    ),
)

CRASHED_DOC = Diagnosis(
    subject=Subject(
        kind="request",
        request_id=CRASHED,
        trace_id=CRASHED,
        model=MODEL,
        engine=ENGINE,
        key_id="team-chat",
        started_at="2026-11-30T12:02:09.870Z",
        status=200,
        outcome="cut",
        settled=True,
        revision=1,
    ),
    verdict=Verdict(
        label="engine-crash",
        stage="engine",
        severity=Severity.CRITICAL,
        confidence=Confidence.CERTAIN,
        cause="The engine's process was killed by signal 9 while this answer was streaming.",
        fix="find who sent the signal (out-of-memory killer, orchestrator, person), then start the engine again",
    ),
    timeline=(
        *_unreached(Stage.CLIENT, state=StageState.NOT_OBSERVED),
        _span(Stage.AUTH_ROUTING, 0.0, 2.2, "gateway"),
        _span(Stage.QUEUE, 2.2, 12.0, "scrape", estimated=True),
        _span(Stage.PREFILL, 14.2, 98.0, "scrape", estimated=True),
        _span(Stage.DECODE, 112.2, 1_077.8, "gateway", StageState.FAILED),
        StageTime(
            stage=Stage.STREAMING,
            state=StageState.FAILED,
            start_ms=112.9,
            duration_ms=1_077.6,
            exclusive_ms=0.5,
            segments=((112.9, 1_077.6),),
            source="gateway",
        ),
    ),
    unattributed_ms=0.0,
    total_ms=1_190.5,
    findings=(
        Finding(
            label="engine-crash",
            runbook="engine-crash",
            title="The engine's process died",
            kind="cause",
            stage="engine",
            severity=Severity.CRITICAL,
            confidence=Confidence.CERTAIN,
            cause="The engine's process was killed by signal 9 while this answer was streaming.",
            fix="find who sent the signal (out-of-memory killer, orchestrator, person), then start the engine again",
            evidence=CRASH_EVIDENCE,
            engine=ENGINE,
        ),
    ),
)

DIAGNOSES = {doc.subject.request_id: doc for doc in (QUEUED_DOC, HEALTHY_DOC, OPEN_DOC, CRASHED_DOC)}

INCIDENTS = (
    Incident(
        incident_id=RESOLVED,
        revision=4,
        label="queue-saturation",
        state="resolved",
        severity=Severity.WARNING,
        stage="queue",
        engine=ENGINE,
        model=MODEL,
        confidence=Confidence.CERTAIN,
        cause="Requests waited up to 29.99 s for a slot in the engine.",
        fix=QUEUE_FINDING.fix,
        opened_at=NOON - 600_000_000,
        last_seen_at=NOON - 240_000_000,
        resolved_at=NOON - 180_000_000,
        requests_hit=11,
        typical_requests=(QUEUED,),
        evidence=QUEUE_EVIDENCE,
    ),
    Incident(
        incident_id=INCIDENT,
        revision=1,
        label="engine-crash",
        state="open",
        severity=Severity.CRITICAL,
        stage="engine",
        engine=ENGINE,
        model=MODEL,
        confidence=Confidence.CERTAIN,
        cause="The engine's process was killed by signal 9.",
        fix="find who sent the signal (out-of-memory killer, orchestrator, person), then start the engine again",
        opened_at=NOON + 131_060_000,
        last_seen_at=NOON + 180_000_000,
        requests_hit=3,
        typical_requests=(CRASHED,),
        evidence=CRASH_EVIDENCE,
    ),
)

TTFT = {HEALTHY: 155.6, CRASHED: 112.9}

ENGINES = (
    {"engine": ENGINE, "last_sample_at": "2026-11-30T12:04:08.400Z", "up": True, "running": 1.0, "waiting": 11.0, "kv_usage": 0.412},
    {
        "engine": "127.0.0.1:8001",
        "last_sample_at": "2026-11-30T12:04:08.400Z",
        "up": False,
        "running": 0.0,
        "waiting": 0.0,
        "kv_usage": 0.0,
    },
)

RUNBOOKS = (
    {
        "id": "queue-saturation",
        "label": "queue-saturation",
        "title": "Requests wait for a slot because the engine is full",
        "kind": "cause",
        "severity": "warning",
        "stage": "queue",
        "scope": "request",
        "status": "stable",
        "fix": QUEUE_FINDING.fix,
        "sections": {
            "Meaning": "Every slot of the engine was taken for as long as the request waited.",
            "Impact": "Callers see a long silence, then an answer or a timeout.",
            "Query": "```sql\nselect request_id from subjects where queue_ms > 1000\n```",
            "Diagnosis": "1. `lensd requests ls --model tiny-chat`: who fills the slots?\n2. Compare with `max_num_seqs`.",
            "Mitigation": "Lower the concurrency of the busiest key, or raise `max_num_seqs` where the KV cache has room.",
            "Not this": "A long prefill is not a queue.",
        },
    },
    {
        "id": "queue-saturation@window",
        "label": "queue-saturation",
        "title": "Requests wait over a whole window",
        "kind": "cause",
        "severity": "warning",
        "stage": "queue",
        "scope": "window",
        "status": "stable",
        "fix": QUEUE_FINDING.fix,
        "sections": {},
    },
    {
        "id": "engine-crash",
        "label": "engine-crash",
        "title": "The engine's process died",
        "kind": "cause",
        "severity": "critical",
        "stage": "engine",
        "scope": "window",
        "status": "stable",
        "fix": "start the engine again",
        "sections": {
            "Meaning": "The process that served the model ended.",
            "Impact": "Open answers are cut; new requests are refused.",
            "Query": "```sql\nselect engine from events\n```",
            "Diagnosis": "1. `journalctl -k | grep -i oom`\n2. The engine's last log lines.",
            "Mitigation": "Start the engine again. If memory killed it, lower `--gpu-memory-utilization` or the context length.",
            "Not this": "An engine that answers its health check but no request.",
        },
    },
)


def row(document: Diagnosis) -> dict[str, object]:
    """A document as the row that the list of requests has of it."""
    subject = document.subject
    return {
        "request_id": subject.request_id,
        "trace_id": subject.trace_id,
        "engine_request_id": subject.aliases[0] if subject.aliases else None,
        "started_at": subject.started_at,
        "model": subject.model,
        "key_id": subject.key_id,
        "engine": subject.engine,
        "outcome": subject.outcome,
        "status": subject.status,
        "total_ms": document.total_ms if subject.settled else None,
        "ttft_ms": TTFT.get(subject.request_id or ""),
        "label": document.verdict.label if subject.settled else None,
        "settled": subject.settled,
        "request_key": int((subject.request_id or "0")[:15], 16),
        "revision": subject.revision,
    }
