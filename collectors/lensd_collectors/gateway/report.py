"""Records become spans, and open requests become events, off the request's own path."""

from collections import deque
from collections.abc import Iterable, Iterator
from typing import Protocol

from lensd_collectors import conventions as c
from lensd_collectors.conventions import Outcome
from lensd_collectors.gateway.config import GatewayConfig
from lensd_collectors.gateway.ids import IdSource
from lensd_collectors.gateway.record import Record
from lensd_collectors.otlp import Attributes, Value

SLICE = 50  # records turned into spans before the loop may serve again


class Exporter(Protocol):
    """What the gateway needs of `lensd_collectors.export.Exporter`."""

    def span(
        self, name: str, *, trace_id: str, span_id: str, parent_span_id: str | None, kind: str, start_ns: int, end_ns: int,
        attributes: Attributes, ok: bool = True, message: str = "",
    ) -> None: ...  # fmt: skip

    def event(
        self, name: str, *, at_ns: int, attributes: Attributes, trace_id: str | None = None, span_id: str | None = None,
        severity: str = "info", body: str | None = None,
    ) -> None: ...  # fmt: skip


class Reporter:
    """Holds finished records, at most so many, and says what open ones wait for."""

    def __init__(self, config: GatewayConfig, exporter: Exporter, ids: IdSource) -> None:
        self._exporter, self._ids = exporter, ids
        self._finished: deque[Record] = deque(maxlen=config.max_records)
        self._open_after = int(config.open_event_after_s * 1e9)
        self._every = int(config.progress_every_s * 1e9)
        self.dropped = 0
        self._dropped_told = 0

    def finished(self, record: Record) -> None:
        if len(self._finished) == self._finished.maxlen:
            self.dropped += 1
        self._finished.append(record)

    def act(self, act: str, message: str, *, at_ns: int, engine: str = "", severity: str = "info") -> None:
        """What the gateway did to itself."""
        self._exporter.event(
            c.EVENT_GATEWAY_ACT, at_ns=at_ns, attributes={c.ACT: act, c.ENGINE: engine or None}, severity=severity, body=message
        )

    def drain(self) -> Iterator[None]:
        """Sends all that is finished; yields after each slice."""
        while self._finished:
            for _ in range(min(SLICE, len(self._finished))):
                self._send(self._finished.popleft())
            yield

    def tell_dropped(self, at_ns: int) -> None:
        if new := self.dropped - self._dropped_told:
            self._dropped_told = self.dropped
            self.act("records_dropped", f"{new} records of finished requests dropped, the oldest first", at_ns=at_ns, severity="warning")

    def progress(self, live: Iterable[Record], now: int) -> None:
        """Events of the requests that have been open long enough: once at first, at each change of stage, then regularly."""
        for record in live:
            if now - record.received < self._open_after:
                continue
            stage, _ = record.stage()
            if record.reported_stage is stage and now < record.report_due:
                continue
            name = c.EVENT_STARTED if record.reported_stage is None else c.EVENT_PROGRESS
            record.reported_stage, record.report_due = stage, now + self._every
            self._exporter.event(
                name, at_ns=record.wall(now), attributes=progress_attributes(record, now), trace_id=record.trace_id, span_id=record.span_id
            )

    def _send(self, record: Record) -> None:
        start, end = record.wall_ns, record.wall(record.ended)
        self._child(
            c.SPAN_AUTH_ROUTING, record, "internal", record.received, record.sent or record.ended, {c.DECISION: record.decision.value}
        )
        if record.sent:
            until = record.ended if record.outcome in _WAITED_TO_THE_END or not record.last_byte else record.last_byte
            self._child(c.SPAN_UPSTREAM, record, "client", record.sent, until, _upstream_attributes(record), record.upstream_span_id)
        if record.first_out:
            self._child(c.SPAN_STREAMING, record, "internal", record.first_out, record.last_out or record.ended, {})
        self._exporter.span(
            f"{record.method} {record.route}", trace_id=record.trace_id, span_id=record.span_id, parent_span_id=record.parent_span_id,
            kind="server", start_ns=start, end_ns=end, attributes=request_attributes(record), ok=_is_ok(record),
            message=record.error_message,
        )  # fmt: skip

    def _child(self, name: str, record: Record, kind: str, start: int, end: int, attributes: Attributes, span_id: str = "") -> None:
        self._exporter.span(
            name, trace_id=record.trace_id, span_id=span_id or self._ids.span_id(), parent_span_id=record.span_id, kind=kind,
            start_ns=record.wall(start), end_ns=record.wall(max(start, end)), attributes={c.REQUEST_ID: record.request_id, **attributes},
            ok=_is_ok(record) or name == c.SPAN_STREAMING,
        )  # fmt: skip


_WAITED_TO_THE_END = frozenset((Outcome.TIMED_OUT, Outcome.CALLER_GONE))
_BAD = frozenset((Outcome.FAILED, Outcome.TIMED_OUT, Outcome.CUT))


def _is_ok(record: Record) -> bool:
    return record.outcome not in _BAD and record.status < 500


def _identity(record: Record) -> dict[str, Value | None]:
    return {
        c.REQUEST_ID: record.request_id,
        c.SESSION_ID: record.session_id or None,
        c.HTTP_METHOD: record.method,
        c.HTTP_ROUTE: record.route,
        c.REQUEST_MODEL: record.model or None,
        c.KEY_ID: record.key_id or None,
        c.ENGINE: record.engine or None,
        c.UPSTREAM: record.upstream or None,
        c.IS_STREAMING: record.streaming,
        c.MAX_TOKENS: record.max_tokens,
        c.CLIENT_TIMEOUT_MS: record.client_timeout_ms,
        c.RESPONSE_ID: record.facts.response_id,
        c.BYTES_SENT: record.bytes_out,
        c.CHUNKS: record.scanner.chunks if record.scanner is not None else None,
    }


def progress_attributes(record: Record, now: int) -> Attributes:
    """What is known of a request that is still open."""
    stage, since = record.stage()
    return {
        **_identity(record),
        c.PARENT_SPAN_ID: record.parent_span_id,
        c.OUTCOME: Outcome.OPEN.value,
        c.PROGRESS_STAGE: stage.value,
        c.PROGRESS_AGE_MS: (now - record.received) / 1e6,
        c.PROGRESS_STAGE_AGE_MS: (now - since) / 1e6,
        c.PROGRESS_SILENT_MS: (now - record.last_byte) / 1e6 if record.last_byte else None,
    }


def request_attributes(record: Record) -> Attributes:
    """All that is known of a request that has ended."""
    facts, scanner = record.facts, record.scanner
    return {
        **_identity(record),
        c.HTTP_STATUS: record.status,
        c.OUTCOME: record.outcome.value,
        c.SAID_BY: record.said_by.value,
        c.DECISION: record.decision.value,
        c.ERROR_TYPE: record.error_type or None,
        c.ERROR_MESSAGE: record.error_message or None,
        c.RESPONSE_MODEL: facts.model,
        c.FINISH_REASONS: list(facts.finish_reasons) or None,
        c.INPUT_TOKENS: facts.prompt_tokens,
        c.OUTPUT_TOKENS: facts.completion_tokens,
        c.CACHED_TOKENS: facts.cached_tokens,
        c.DONE_SEEN: scanner.done_seen if scanner is not None else None,
        c.MAX_GAP_MS: record.max_gap / 1e6 if scanner is not None else None,
        c.TIMEOUT_KIND: record.timeout_kind.value if record.timeout_kind is not None else None,
        c.TIMEOUT_MS: record.timeout_ms,
        c.ATTEMPTS: record.attempts or None,
    }


def _upstream_attributes(record: Record) -> Attributes:
    return {
        c.ENGINE: record.engine,
        c.UPSTREAM: record.upstream,
        c.FIRST_BYTE_MS: _since(record.sent, record.first_byte),
        c.FIRST_CONTENT_MS: _since(record.sent, record.first_content),
        c.LAST_BYTE_MS: _since(record.sent, record.last_byte),
    }


def _since(start: int, stamp: int) -> float | None:
    return (stamp - start) / 1e6 if stamp else None
