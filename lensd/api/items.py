"""What the API's lists hold: the rows of the store with their instants as RFC 3339 text, and the daemon's state."""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Generic, TypeVar

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
    seen_at: str
    engine: str | None = None
    value: float | None = None


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
    counts: dict[str, int] = {}
    engines: tuple[EngineState, ...] = ()


class Link(Item, frozen=True, kw_only=True):
    """A kind of source that was heard of in the last day of the store, and when last."""

    engine: str | None = None  # None: it does not say
    kind: str  # scrape, log, llm_request, plugin, middleware, gateway, client
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
