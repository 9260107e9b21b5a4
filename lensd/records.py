"""What is decided: verdicts, findings, timelines, incidents. Frozen, typed; the JSON documents of the API and the CLI are these structs."""

from enum import StrEnum
from typing import Literal

import msgspec
from lensd_collectors.conventions import Stage as Stage
from lensd_collectors.conventions import StageState as StageState

SCHEMA_VERSION = 1

Where = Literal["client", "auth_routing", "queue", "prefill", "decode", "streaming", "engine", "gpu", "none"]


class Severity(StrEnum):
    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"


class Confidence(StrEnum):
    CERTAIN = "certain"
    LIKELY = "likely"
    POSSIBLE = "possible"


SEVERITY_RANK = {Severity.INFO: 0, Severity.WARNING: 1, Severity.CRITICAL: 2}
CONFIDENCE_RANK = {Confidence.POSSIBLE: 0, Confidence.LIKELY: 1, Confidence.CERTAIN: 2}


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all decided things."""


class StageTime(Record, frozen=True, kw_only=True):
    """One stage of one request; times in milliseconds from the request's first instant."""

    stage: Stage
    state: StageState
    start_ms: float | None = None
    duration_ms: float | None = None  # may overlap with other stages
    exclusive_ms: float | None = None  # the part of the whole that belongs to this stage alone
    segments: tuple[tuple[float, float], ...] = ()  # (start_ms, duration_ms)
    source: str | None = None  # gateway, middleware, plugin, llm_request, client, scrape ...
    estimated: bool = False


class Gap(Record, frozen=True, kw_only=True):
    start_ms: float
    duration_ms: float
    between: tuple[str, str]  # stages (or "start", "end") it lies between


class Timeline(Record, frozen=True, kw_only=True):
    """Six stages in order; exclusive times and `unattributed_ms` add up to `total_ms` exactly (to the microsecond)."""

    stages: tuple[StageTime, ...]
    unattributed_ms: float
    gaps: tuple[Gap, ...]
    total_ms: float
    clock_skew_ms: float | None = None
    frontend_ms: float | None = None  # of prefill: parse, chat template and tokenising before the engine's queue


class Evidence(Record, frozen=True, kw_only=True):
    """One line of evidence: what it says, the exact text behind it and where that stands."""

    text: str
    quote: str | None = None
    source: str | None = None
    beside: bool | msgspec.UnsetType = msgspec.UNSET  # true where the rule was not decided by it, though it bears on the verdict


class Finding(Record, frozen=True, kw_only=True):
    """A rule that fired on a request, or on an engine, model, gpu or key."""

    label: str
    runbook: str  # id of the file; differs from the label for `<id>@window`
    title: str
    kind: Literal["cause", "symptom", "negative"]
    stage: Where
    severity: Severity
    confidence: Confidence
    cause: str
    fix: str
    evidence: tuple[Evidence, ...] = ()
    explains: tuple[str, ...] = ()
    explained_by: str | None = None
    request_id: str | None = None
    engine: str | None = None
    model: str | None = None
    gpu: str | None = None
    key_id: str | None = None
    since_at: int | None = None  # microseconds since the epoch
    rank: float = 0.0
    request_key: int | None = None  # which of the requests of that id, where many are judged: callers choose ids, and ids repeat


class RuledOut(Record, frozen=True, kw_only=True):
    label: str
    because: str


class NotEvaluated(Record, frozen=True, kw_only=True):
    label: str
    missing: tuple[str, ...]


class Verdict(Record, frozen=True, kw_only=True):
    label: str
    stage: Where
    severity: Severity
    confidence: Confidence
    cause: str
    fix: str


class Subject(Record, frozen=True, kw_only=True):
    kind: Literal["request", "files"]
    request_id: str | None = None
    trace_id: str | None = None
    aliases: tuple[str, ...] = ()
    model: str | None = None
    engine: str | None = None
    key_id: str | None = None
    started_at: str | None = None  # RFC 3339, UTC
    status: int | None = None
    outcome: str | None = None
    settled: bool = True
    revision: int = 0


Phase = Literal["load", "profiling", "capture", "spike", "fragmentation", "host_ram", "other_process", "kv_cache", "unknown"]
"""Where memory ran out: three of a start, two of serving, and three that are not the engine's own allocation."""


class MemoryReading(Record, frozen=True, kw_only=True):
    """Bytes of a card, of the engine's processes on it, and of its processes on the host; None: not told. An interval's worst."""

    at: int  # microseconds since the epoch, the interval's begin
    used_bytes: int | None = None
    free_bytes: int | None = None
    pid_used_bytes: int | None = None
    rss_bytes: int | None = None


class InFlight(Record, frozen=True, kw_only=True):
    """A request that was there when memory ran out; `is_sure` False: it had been received, and nothing says that it had ended."""

    request_id: str
    age_ms: float | None = None
    prompt_tokens: int | None = None
    stage: str | None = None
    is_sure: bool = True


class Trigger(Record, frozen=True, kw_only=True):
    """The request that most likely asked for the memory, and why it is thought so."""

    request_id: str
    because: str


class SettingChange(Record, frozen=True, kw_only=True):
    name: str
    was: str | None = None  # None: not given
    value: str | None = None


class PostMortem(Record, frozen=True, kw_only=True):
    """What is known of one out-of-memory: numbers of its own line, the memory before it, who was there, how the engine was set up.

    `in_flight` and `trigger` None: nothing records requests. `curve` holds at most 120 readings of the ten minutes before, and none for
    an interval without a sample. `fits`: the largest max_model_len that the KV cache of this start holds.
    """

    engine: str | None = None
    gpu: str | None = None
    at: int  # microseconds since the epoch
    started_at: int | None = None
    phase: Phase
    said: Evidence
    numbers: dict[str, int] = {}  # bytes, by name
    curve: tuple[MemoryReading, ...] = ()
    in_flight: tuple[InFlight, ...] | None = None
    trigger: Trigger | None = None
    settings: dict[str, str] = {}
    changes: tuple[SettingChange, ...] = ()
    fits: int | None = None


class FileRead(Record, frozen=True, kw_only=True):
    path: str
    kind: str
    records: int
    unread_lines: int


class Course(Record, frozen=True, kw_only=True):
    """How it went, in the order in which people look: into the engine, to the first token, from token to token, to somebody's limit.

    Of the request that the verdict is of, else of all that was sampled of the engine. None: not told.
    """

    request_id: str | None = None
    outcome: str | None = None
    status: int | None = None
    entered_ms: float | None = None  # until the engine had it
    queue_ms: float | None = None
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    completion_tokens: int | None = None
    max_gap_ms: float | None = None
    total_ms: float | None = None
    client_timeout_ms: float | None = None
    most_waiting: float | None = None
    most_running: float | None = None
    tokens_per_s: float | None = None  # of the whole engine, the median of its samples with requests running


class Window(Record, frozen=True, kw_only=True):
    """The part of what was read that a finding is of: one start of an engine where its log tells several, else what it cites."""

    from_at: str | None = None  # RFC 3339, UTC; None: not dated
    to_at: str | None = None
    source: str | None = None  # file:first-last, in lines
    start: int | None = None  # counted from 1
    starts: int | None = None


class Other(Record, frozen=True, kw_only=True):
    """What was found besides the verdict and does not follow from it."""

    label: str
    cause: str
    window: Window | None = None


class Diagnosis(Record, frozen=True, kw_only=True):
    """The verdict document, `schema_version` 1: what `diagnose --json`, `triage --json` and the API give."""

    schema_version: int = SCHEMA_VERSION
    subject: Subject
    verdict: Verdict
    timeline: tuple[StageTime, ...] = ()
    unattributed_ms: float | None = None
    gaps: tuple[Gap, ...] = ()
    total_ms: float | None = None
    clock_skew_ms: float | None = None
    frontend_ms: float | None = None  # the first part of prefill, see Timeline
    findings: tuple[Finding, ...] = ()
    ruled_out: tuple[RuledOut, ...] = ()
    not_evaluated: tuple[NotEvaluated, ...] = ()
    files: tuple[FileRead, ...] = ()
    post_mortem: PostMortem | msgspec.UnsetType = msgspec.UNSET  # where memory ran out
    course: Course | msgspec.UnsetType = msgspec.UNSET  # of files; of a request its timeline says it
    window: Window | msgspec.UnsetType = msgspec.UNSET  # of the verdict, where files tell of several starts or problems
    others: tuple[Other, ...] | msgspec.UnsetType = msgspec.UNSET
    matches: int | msgspec.UnsetType = msgspec.UNSET  # requests of the name that was asked for, where there are several; this is the newest


class Incident(Record, frozen=True, kw_only=True):
    """A cause (or symptom) that stands on an engine, model, gpu or key for as long as it lasts."""

    incident_id: str
    revision: int
    label: str
    state: Literal["open", "acknowledged", "resolved"]
    severity: Severity
    stage: Where
    engine: str | None = None
    model: str | None = None
    gpu: str | None = None
    key_id: str | None = None
    confidence: Confidence
    cause: str
    fix: str
    opened_at: int  # microseconds since the epoch
    last_seen_at: int
    resolved_at: int | None = None
    requests_hit: int = 0
    typical_requests: tuple[str, ...] = ()
    evidence: tuple[Evidence, ...] = ()
