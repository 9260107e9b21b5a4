"""One slotted record a request: what was seen and when, and the limits that hold for it."""

import asyncio
from enum import StrEnum

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
    model: str = ""
    streaming: bool | None = None
    max_tokens: int | None = None
    engine: str = ""
    upstream: str = ""
    upstream_span_id: str = ""
    attempts: int = 0
    reused: bool = False  # the attempt went over a connection that an earlier request had used

    connecting: int = 0
    sent: int = 0
    first_byte: int = 0  # of the engine's body
    first_content: int = 0
    last_byte: int = 0
    first_out: int = 0  # the engine's bytes, to the caller
    last_out: int = 0
    ended: int = 0
    waits_since: int = 0  # for the engine's next byte
    max_gap: int = 0
    is_sending: bool = False  # a write to the caller has not returned
    started_out: bool = False  # the reply's status has gone out

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
        if self.stop is None and self.task is not None:
            self.stop = why
            self.task.cancel()

    def wall(self, stamp: int) -> int:
        """Wall clock of a monotonic stamp, nanoseconds since the epoch."""
        return self.wall_ns + stamp - self.received


class Limits(msgspec.Struct, frozen=True):
    """The gateway's time limits in nanoseconds."""

    connect: int
    first_byte: int
    idle: int
    total: int

    @classmethod
    def of(cls, config: GatewayConfig) -> "Limits":
        seconds = (config.connect_timeout_s, config.first_byte_timeout_s, config.idle_timeout_s, config.total_timeout_s)
        return cls(*(int(each * 1e9) for each in seconds))

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
        elif record.connecting and now - record.connecting > self.connect:
            return Stop.CONNECT
        return Stop.TOTAL if now - record.received > self.total else None

    @property
    def shortest(self) -> int:
        return min(self.connect, self.first_byte, self.idle, self.total)

    def ms(self, stop: Stop) -> float:
        limit = {Stop.CONNECT: self.connect, Stop.FIRST_BYTE: self.first_byte, Stop.TOTAL: self.total}.get(stop, self.idle)
        return limit / 1e6
