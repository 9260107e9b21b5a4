"""What the API's lists hold: the rows of the store with their instants as RFC 3339 text, and the daemon's state."""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Generic, TypeVar

import msgspec

from lensd.records import Incident

T = TypeVar("T")


class Item(msgspec.Struct, frozen=True, kw_only=True):
    """Base of all items. Fields a newer daemon adds are passed over."""


class Page(Item, Generic[T], frozen=True, kw_only=True):
    """One page of a list; `next` is the cursor of the one after it."""

    items: tuple[T, ...]
    next: str | None = None


class RequestItem(Item, frozen=True, kw_only=True):
    """`lensd_collectors.rows.RequestRow` as JSON; a test compares the two."""

    request_key: int
    revision: int
    request_id: str | None = None
    trace_id: str | None = None
    span_id: str | None = None
    engine_request_id: str | None = None
    session_id: str | None = None
    model: str | None = None
    served_model: str | None = None
    engine: str | None = None
    upstream: str | None = None
    key_id: str | None = None
    route: str | None = None
    streaming: bool | None = None
    started_at: str
    ended_at: str | None = None
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
    withdrawn: bool | None = None
    peer: str | None = None
    context_limit: int | None = None
    reasoning_tokens: int | None = None
    structured: bool | None = None


class SessionCall(RequestItem, frozen=True, kw_only=True):
    """A call of a session, in its place."""

    turn: int  # from 1
    grew_by: int | None = None  # prompt tokens more than the last turn that told its own


class DeliveryItem(Item, frozen=True, kw_only=True):
    """`lensd_collectors.rows.DeliveryRow` as JSON; a test compares the two."""

    delivery_id: str
    incident_id: str
    destination: str
    reason: str
    attempt: int
    attempted_at: str
    status: str
    http_status: int | None = None
    error: str | None = None
    src: str | None = None


class RunbookItem(Item, frozen=True, kw_only=True):
    id: str
    label: str
    title: str
    kind: str
    severity: str
    stage: str
    scope: str
    status: str
    fix: str
    sections: dict[str, str] = {}  # heading (Meaning, Impact ...) to Markdown


class SeriesPoint(Item, frozen=True, kw_only=True):
    """A step of a series: of an engine, or of a GPU of a host, one value; of requests, percentiles over those that began in it."""

    seen_at: str
    engine: str | None = None
    host: str | None = None
    gpu: str | None = None
    value: float | None = None
    requests: int | None = None
    p50: float | None = None
    p95: float | None = None
    p99: float | None = None
    sampled: float | None = None  # the part of the requests that was looked at


class StageItem(Item, frozen=True, kw_only=True):
    """How long requests were in a stage, or in all of them (`total`)."""

    stage: str
    requests: int
    p50_ms: float | None = None
    p95_ms: float | None = None
    p99_ms: float | None = None
    share: float | None = None  # of all these requests' time
    sampled: float = 1.0  # the part of the requests that was looked at


class RefusalItem(Item, frozen=True, kw_only=True):
    """Requests that were refused alike; `request_id` is the last one's."""

    decision: str | None = None
    status: int | None = None
    error_code: str | None = None
    said_by: str | None = None
    key_id: str | None = None
    model: str | None = None
    requests: int
    first_at: str
    last_at: str
    request_id: str | None = None


class UsageItem(Item, frozen=True, kw_only=True):
    """What one key, model or session used; `name` None: not told."""

    name: str | None = None
    requests: int
    errors: int  # failed, timed out, cut, lost
    refused: int
    prompt_tokens: int
    cached_tokens: int
    completion_tokens: int
    ttft_p50_ms: float | None = None
    ttft_p95_ms: float | None = None
    tpot_p50_ms: float | None = None
    tpot_p95_ms: float | None = None


class SqlColumn(Item, frozen=True, kw_only=True):
    name: str
    type: str  # as DuckDB calls it


class SqlAnswer(Item, frozen=True, kw_only=True):
    """Rows in the order of `columns`; `more`: there are others beyond the limit."""

    columns: tuple[SqlColumn, ...]
    items: tuple[tuple[Any, ...], ...]
    more: bool = False


class MemoryPart(Item, frozen=True, kw_only=True, omit_defaults=True):
    """One part of a card's memory (`lensd.memory.composition.Part`); `bytes` None: not known."""

    band: str
    bytes: int | None
    engine: str | None = None


class MemoryPoint(Item, frozen=True, kw_only=True, omit_defaults=True):
    """A card in one step. `over_bytes`: how much more its parts hold than the device says is used."""

    seen_at: str
    parts: tuple[MemoryPart, ...]
    used_bytes: int | None = None
    total_bytes: int | None = None
    limit_bytes: int | None = None  # what the engines on it may use together
    over_bytes: int = 0


class MemoryCard(Item, frozen=True, kw_only=True):
    """A card over time, with the engines on it; `gpu` None: an engine on a card that nobody watches.

    `assumed`: no process of theirs was seen on it; there is no other engine, and as many cards as it has ranks.
    """

    host: str | None = None
    gpu: str | None = None
    engines: tuple[str, ...] = ()
    assumed: bool = False
    points: tuple[MemoryPoint, ...] = ()  # a step without a sample has none


class MemoryMark(Item, frozen=True, kw_only=True):
    """Something that happened to an engine: `kind` is config, start or oom."""

    at: str
    kind: str
    text: str
    engine: str | None = None
    host: str | None = None
    over_budget: bool | None = None  # of a changed configuration: it can't fit; None: not told


class Memory(Item, frozen=True, kw_only=True):
    """Where the memory of the cards went, in steps of `step_s` seconds."""

    items: tuple[MemoryCard, ...]
    marks: tuple[MemoryMark, ...] = ()
    step_s: float
    next: str | None = None


class GpuProcess(Item, frozen=True, kw_only=True):
    pid: int
    process: str | None = None
    engine: str | None = None
    used_bytes: int | None = None


class GpuItem(Item, frozen=True, kw_only=True):
    """The last that is known of a card; None: not told in the minute before its last sample."""

    host: str | None = None
    gpu: str
    last_sample_at: str | None = None
    state: str | None = None  # ok, lost, reset_required, failing, denied, unsupported, absent
    state_reason: str | None = None
    state_at: str | None = None
    mig: str | None = None
    unified: bool | None = None
    used_bytes: int | None = None
    free_bytes: int | None = None
    total_bytes: int | None = None
    reserved_bytes: int | None = None
    util: float | None = None
    mem_util: float | None = None
    sm_mhz: float | None = None
    sm_max_mhz: float | None = None
    throttle: str | None = None
    temp_c: float | None = None
    temp_slowdown_c: float | None = None
    power_w: float | None = None
    power_limit_w: float | None = None
    ecc: int | None = None
    ecc_corrected: int | None = None
    xid: int | None = None
    retired_pages: int | None = None
    remapped_rows: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    pcie_gen: int | None = None
    pcie_width: int | None = None
    pcie_replays: int | None = None
    processes: tuple[GpuProcess, ...] = ()


class EngineState(Item, frozen=True, kw_only=True):
    """The last sample of an engine; `up` None: nobody scrapes it."""

    engine: str | None = None
    up: bool | None = None
    last_sample_at: str | None = None
    running: float | None = None
    waiting: float | None = None
    kv_usage: float | None = None


class ServerStatus(Item, frozen=True, kw_only=True):
    """How the daemon is; None where it does not say."""

    version: str | None = None
    pid: int | None = None
    started_at: str | None = None
    store: str | None = None
    lag_s: float | None = None
    journal_bytes: int | None = None
    left_out: dict[str, str] = {}  # damaged files that are not served, and what is wrong with each
    counts: dict[str, int] = {}
    engines: tuple[EngineState, ...] = ()


class Link(Item, frozen=True, kw_only=True):
    """A kind of source that was heard of in the last day of the store, and when last."""

    engine: str | None = None  # None: it does not say
    kind: str  # scrape, log, llm_request, plugin, middleware, gateway, client, gpu
    last_at: str


class NotRead(Item, frozen=True, kw_only=True):
    """A source that an agent would like to read and can't."""

    host: str | None = None
    engine: str | None = None
    source: str | None = None
    state: str | None = None  # missing, denied, ended
    reason: str | None = None


class Coverage(Item, frozen=True, kw_only=True):
    """What tells the daemon something; `ids_recorded`: whether any of it tells of requests by their ids."""

    items: tuple[Link, ...]
    not_read: tuple[NotRead, ...] = ()
    ids_recorded: bool = True


class Changes(Item, frozen=True, kw_only=True):
    seq: int


def in_order(incidents: Iterable[Incident]) -> list[Incident]:
    """Those that still stand first, then newest first."""
    return sorted(incidents, key=lambda i: (i.state == "resolved", -i.opened_at, i.incident_id))


def text_of(at: datetime) -> str:
    """RFC 3339 of a naive UTC instant, to the microsecond."""
    return at.replace(tzinfo=UTC).isoformat().replace("+00:00", "Z")
