"""One slotted record a request: what was seen and when, and the limits that hold for it."""

import asyncio
from enum import StrEnum
from typing import Any

import msgspec

from lensd_collectors.conventions import Decision, Outcome, SaidBy, TimeoutKind
from lensd_collectors.gateway.config import GatewayConfig
from lensd_collectors.gateway.sse import Facts, Scanner


class Progress(StrEnum):
    """Where the gateway sees a request stand."""

    AUTH_ROUTING = "auth_routing"
    UPSTREAM = "upstream"  # handed over, no byte yet
    STREAMING = "streaming"


class Stop(StrEnum):
    """Why a request is ended from outside its own course."""

    CALLER_GONE = "caller_gone"
    CALLER_STUCK = "caller_not_reading"
    CONNECT = "connect"
    FIRST_BYTE = "first_byte"
    IDLE = "idle"
    TOTAL = "total"
    SHUTDOWN = "gateway_stopping"


class Attempt(msgspec.Struct, frozen=True):
    """An attempt that did not become the answer; stamps as in Record."""

    engine: str
    upstream: str
    span_id: str
    connecting: int
    sent: int
    first_byte: int
    ended: int
    status: int
    error: str  # code of what went wrong


class Record(msgspec.Struct, eq=False, kw_only=True):
    """Stamps are monotonic nanoseconds, 0 where it never happened; `wall_ns` is the one wall clock, at `received`."""

    wall_ns: int
    received: int
    method: str
    route: str
    trace_id: str
    span_id: str
    parent_span_id: str | None
    request_id: str
    session_id: str = ""
    client_timeout_ms: float | None = None

    key_id: str = ""
    model: str = ""  # as the caller wrote it
    dispatched_model: str = ""  # as the engine was asked for it
    streaming: bool | None = None
    max_tokens: int | None = None
    structured: bool | None = None
    rewritten: tuple[str, ...] = ()
    degraded: str = ""
    engine: str = ""
    upstream: str = ""
    upstream_span_id: str = ""
    attempts: int = 0
    waited: bool = False  # between attempts: the client's own would multiply ours
    earlier: tuple[Attempt, ...] = ()
    reused: bool = False  # the attempt went over a connection that an earlier request had used

    body_read: int = 0
    connecting: int = 0
    sent: int = 0
    first_byte: int = 0  # of the engine's body
    first_content: int = 0
    last_byte: int = 0
    first_out: int = 0  # the engine's bytes, to the caller
    last_out: int = 0
    ended: int = 0
    waits_since: int = 0  # for the engine's next byte; for the caller's, while its body is read
    max_gap: int = 0
    beat: int = 0  # last heartbeat
    is_sending: bool = False  # a write to the caller has not returned
    started_out: bool = False  # the reply's status has gone out
    is_sse: bool = False  # and with it that a stream of events follows

    bytes_out: int = 0
    scanner: Scanner | None = None
    facts: Facts = msgspec.field(default_factory=Facts)

    status: int = 0
    outcome: Outcome = Outcome.OPEN
    said_by: SaidBy = SaidBy.UNKNOWN
    decision: Decision = Decision.ALLOWED
    error_type: str = ""
    error_message: str = ""
    timeout_kind: TimeoutKind | None = None
    timeout_ms: float | None = None

    send: Any = None  # ASGI's, for heartbeats
    flow: Any = None  # the connection's: `write_paused` while the caller does not read
    is_last: bool = False  # on its connection: the gateway is draining
    task: asyncio.Task[None] | None = None
    stop: Stop | None = None
    reported_stage: Progress | None = None  # of the last event sent
    report_due: int = 0

    def stage(self) -> tuple[Progress, int]:
        """Where it stands and since when."""
        if self.first_out:
            return Progress.STREAMING, self.first_out
        if self.sent:
            return Progress.UPSTREAM, self.sent
        return Progress.AUTH_ROUTING, self.received

    def halt(self, why: Stop) -> None:
        """Interrupts the request wherever it waits; its own course sees the cancellation and says what became of it."""
        if self.task is None:
            return
        if self.stop is None:
            self.stop = why
            self.task.cancel()
        elif why is Stop.CALLER_GONE:
            self.stop = why  # whatever it was stopped for: nobody is there any more to be told

    def go_on(self) -> None:
        """Takes the interruption back, once it has arrived."""
        if self.task is not None:
            self.stop = None
            self.task.uncancel()

    def give_up_attempt(self, now: int, status: int, error: str) -> None:
        """Puts the attempt aside, so that another can be made; does nothing where none was begun."""
        if not self.connecting:
            return
        made = Attempt(self.engine, self.upstream, self.upstream_span_id, self.connecting, self.sent, self.first_byte, now, status, error)
        self.earlier += (made,)
        self.connecting = self.sent = self.first_byte = self.first_content = self.last_byte = self.waits_since = self.max_gap = 0
        self.scanner, self.facts = None, Facts()

    def wall(self, stamp: int) -> int:
        """Wall clock of a monotonic stamp, nanoseconds since the epoch."""
        return self.wall_ns + stamp - self.received


class Limits(msgspec.Struct, frozen=True):
    """The gateway's time limits in nanoseconds."""

    connect: int
    first_byte: int
    idle: int
    total: int
    heartbeat: int  # 0: never
    beats_before_first_byte: bool

    @classmethod
    def of(cls, config: GatewayConfig) -> "Limits":
        connect, first_byte, idle, total, heartbeat = (
            int(each * 1e9)
            for each in (
                config.connect_timeout_s, config.first_byte_timeout_s, config.idle_timeout_s, config.total_timeout_s, config.heartbeat_s,
            )
        )  # fmt: skip
        return cls(connect, first_byte, idle, total, heartbeat, config.heartbeat_before_first_byte)

    def broken(self, record: Record, now: int) -> Stop | None:
        """The limit that the request is over, the most specific one first."""
        if record.is_sending:
            if now - record.last_byte > self.idle:
                return Stop.CALLER_STUCK
        elif record.first_byte:
            if now - record.waits_since > self.idle:
                return Stop.IDLE
        elif record.sent:
            if now - record.sent > self.first_byte:
                return Stop.FIRST_BYTE
        elif record.connecting:
            if now - record.connecting > self.connect:
                return Stop.CONNECT
        elif not record.body_read and now - max(record.received, record.waits_since) > self.idle:
            return Stop.IDLE
        return Stop.TOTAL if now - record.received > self.total else None

    def wants_heartbeat(self, record: Record, now: int) -> bool:
        """A stream has been silent for long enough, and a comment can be written without falling into an event."""
        if not self.heartbeat or record.is_sending or not record.streaming:
            return False
        if record.scanner is None or not record.started_out:
            # Before the engine's first byte: only by option, since it commits the status.
            if not self.beats_before_first_byte or not record.body_read or record.first_byte or (record.started_out and not record.is_sse):
                return False
            return now - max(record.beat, record.received) > self.heartbeat
        if not record.is_sse or record.scanner.done_seen or record.scanner.has_ids or not record.scanner.at_boundary:
            return False
        return now - max(record.beat, record.last_out) > self.heartbeat

    @property
    def shortest(self) -> int:
        limits = (self.connect, self.first_byte, self.idle, self.total)
        return min(*limits, self.heartbeat) if self.heartbeat else min(limits)

    def ms(self, stop: Stop) -> float:
        limit = {Stop.CONNECT: self.connect, Stop.FIRST_BYTE: self.first_byte, Stop.TOTAL: self.total}.get(stop, self.idle)
        return limit / 1e6
