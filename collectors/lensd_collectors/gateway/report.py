"""Finished requests go out as spans, open ones are told of as events, off the request's own path."""

import functools
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

from lensd_collectors import conventions as c
from lensd_collectors.conventions import Outcome
from lensd_collectors.gateway.config import GatewayConfig
from lensd_collectors.gateway.ids import IdSource
from lensd_collectors.gateway.record import Record
from lensd_collectors.gateway.spans import request_spans, span_count
from lensd_collectors.otlp import Attributes

SLICE = 50  # records turned into spans before the loop may serve again


class Spans(Protocol):
    """Takes spans that go out together."""

    def spans(self, make: Callable[[], list[str]], count: int) -> None: ...


class Exporter(Protocol):
    """What the gateway needs of `lensd_collectors.export.Exporter`."""

    def batch(self) -> AbstractContextManager[Spans]: ...

    dropped: int
    failed: int

    def event(
        self, name: str, *, at_ns: int, attributes: Attributes, trace_id: str | None = None, span_id: str | None = None,
        severity: str = "info", body: str | None = None,
    ) -> None: ...  # fmt: skip


class Reporter:
    """Holds finished records, at most so many, and says what open ones wait for."""

    def __init__(self, config: GatewayConfig, exporter: Exporter, ids: IdSource, observe: Callable[[Record], None] | None = None) -> None:
        self.exporter, self._ids, self._observe = exporter, ids, observe
        self._finished: deque[Record] = deque(maxlen=config.max_records)
        self._open_after = int(config.open_event_after_s * 1e9)
        self._every = int(config.progress_every_s * 1e9)
        self.dropped = 0  # requests of which no record goes out: the queue here, or the exporter's, was full
        self._dropped_told = 0

    def finished(self, record: Record) -> None:
        if len(self._finished) == self._finished.maxlen:
            self.dropped += 1
        self._finished.append(record)

    def act(self, act: str, message: str, *, at_ns: int, engine: str = "", severity: str = "info") -> None:
        """What the gateway did to itself."""
        self.exporter.event(
            c.EVENT_GATEWAY_ACT, at_ns=at_ns, attributes={c.ACT: act, c.ENGINE: engine or None}, severity=severity, body=message
        )

    def started(self, listen: str, at_ns: int) -> None:
        """That a gateway serves this address from now on: whatever an earlier one had open there is lost."""
        attributes: Attributes = {c.ACT: "started", c.LISTEN: listen}
        self.exporter.event(c.EVENT_GATEWAY_ACT, at_ns=at_ns, attributes=attributes, body=f"the gateway serves {listen}")

    def drain(self) -> Iterator[None]:
        """Sends all that is finished; yields after each slice."""
        while self._finished:
            self._send([self._finished.popleft() for _ in range(min(SLICE, len(self._finished)))])
            yield

    def tell_dropped(self, at_ns: int) -> None:
        if new := self.dropped - self._dropped_told:
            before = self.exporter.dropped
            self.act("records_dropped", f"{new} records of finished requests dropped: a queue was full", at_ns=at_ns, severity="warning")
            if self.exporter.dropped == before:  # else it has no room for this either: later
                self._dropped_told = self.dropped

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
            self.exporter.event(
                name, at_ns=record.wall(now), attributes=progress_attributes(record, now), trace_id=record.trace_id, span_id=record.span_id
            )

    def _send(self, records: Sequence[Record]) -> None:
        """As one item of the exporter's queue: it has room for all of them, or drops all."""
        before = self.exporter.dropped
        with self.exporter.batch() as batch:
            for record in records:
                batch.spans(functools.partial(request_spans, record, self._ids), span_count(record))
        if self.exporter.dropped != before:
            self.dropped += len(records)
        if self._observe is not None:
            for record in records:
                self._observe(record)


def progress_attributes(record: Record, now: int) -> Attributes:
    """What is known of a request that is still open."""
    stage, since = record.stage()
    return {
        c.REQUEST_ID: record.request_id,
        c.HTTP_METHOD: record.method,
        c.HTTP_ROUTE: record.route,
        c.REQUEST_MODEL: record.model or None,
        c.KEY_ID: record.key_id or None,
        c.ENGINE: record.engine or None,
        c.UPSTREAM: record.upstream or None,
        c.IS_STREAMING: record.streaming,
        c.SESSION_ID: record.session_id or None,
        c.MAX_TOKENS: record.max_tokens,
        c.IS_STRUCTURED: record.structured or None,
        c.CLIENT_TIMEOUT_MS: record.client_timeout_ms,
        c.RESPONSE_ID: record.facts.response_id,
        c.BYTES_SENT: record.bytes_out,
        c.CHUNKS: record.scanner.chunks if record.scanner is not None else None,
        c.PARENT_SPAN_ID: record.parent_span_id,
        c.OUTCOME: Outcome.OPEN.value,
        c.PROGRESS_STAGE: stage.value,
        c.PROGRESS_AGE_MS: (now - record.received) / 1e6,
        c.PROGRESS_STAGE_AGE_MS: (now - since) / 1e6,
        c.PROGRESS_SILENT_MS: (now - record.last_byte) / 1e6 if record.last_byte else None,
    }
