"""Records become spans, and open requests become events, off the request's own path."""

import functools
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Protocol

from lensd_collectors import conventions as c
from lensd_collectors import span_json
from lensd_collectors.conventions import Decision, Outcome, SaidBy
from lensd_collectors.gateway.config import GatewayConfig
from lensd_collectors.gateway.ids import IdSource
from lensd_collectors.gateway.record import Attempt, Record
from lensd_collectors.otlp import Attributes

_AUTH_ROUTING, _UPSTREAM, _STREAMING = (
    span_json.opening(c.SPAN_AUTH_ROUTING, "internal"), span_json.opening(c.SPAN_UPSTREAM, "client"),
    span_json.opening(c.SPAN_STREAMING, "internal"),
)  # fmt: skip
_REQUEST_ID, _RESPONSE_ID = span_json.string(c.REQUEST_ID), span_json.string(c.RESPONSE_ID)
_BYTES_SENT, _MAX_TOKENS, _CHUNKS, _ATTEMPT = (span_json.integer(each) for each in (c.BYTES_SENT, c.MAX_TOKENS, c.CHUNKS, c.ATTEMPT))
_INPUT_TOKENS, _OUTPUT_TOKENS, _CACHED_TOKENS = (span_json.integer(each) for each in (c.INPUT_TOKENS, c.OUTPUT_TOKENS, c.CACHED_TOKENS))
_FIRST_BYTE, _FIRST_CONTENT, _LAST_BYTE = (span_json.number(each) for each in (c.FIRST_BYTE_MS, c.FIRST_CONTENT_MS, c.LAST_BYTE_MS))

SLICE = 50  # records turned into spans before the loop may serve again


class Exporter(Protocol):
    """What the gateway needs of `lensd_collectors.export.Exporter`."""

    def spans(self, make: Callable[[], list[str]], count: int) -> None: ...

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
            for _ in range(min(SLICE, len(self._finished))):
                self._send(self._finished.popleft())
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

    def _send(self, record: Record) -> None:
        if self._observe is not None:
            self._observe(record)
        count = 2 + bool(record.sent) + bool(record.first_out) + len(record.earlier)
        before = self.exporter.dropped
        self.exporter.spans(functools.partial(request_spans, record, self._ids), count)
        self.dropped += self.exporter.dropped != before


def request_spans(record: Record, ids: IdSource) -> list[str]:
    """The spans of a request that has ended, the server's last."""
    text, trace_id, above = span_json.text, record.trace_id, span_json.above(record.span_id)
    clock = record.wall_ns - record.received  # what makes a stamp wall time
    request_id = _REQUEST_ID % span_json.quoted(record.request_id)
    ok = _is_ok(record)
    status, fine = span_json.status(ok, record.error_message), span_json.status(True, "")
    first_sent = next((each.sent for each in record.earlier if each.sent), 0) or record.sent
    spans = [
        text(
            _AUTH_ROUTING, trace_id, ids.span_id(), above, record.wall_ns, clock + (first_sent or record.ended),
            f"{request_id},{_decision_pair(record.decision)}", status,
        )
    ]  # fmt: skip
    for number, attempt in enumerate(record.earlier, 1):
        if attempt.sent:
            pairs = f"{request_id},{span_json.pairs(_earlier_attributes(attempt, number))}"
            failed = span_json.status(False, attempt.error)
            spans.append(text(_UPSTREAM, trace_id, attempt.span_id, above, clock + attempt.sent, clock + attempt.ended, pairs, failed))
    if record.sent:
        until = record.ended if record.outcome in _WAITED_TO_THE_END or not record.last_byte else record.last_byte
        pairs = f"{request_id},{upstream_pairs(record)}"
        spans.append(text(_UPSTREAM, trace_id, record.upstream_span_id, above, clock + record.sent, clock + until, pairs, status))
    if record.first_out:
        until = record.last_out or record.ended
        spans.append(text(_STREAMING, trace_id, ids.span_id(), above, clock + record.first_out, clock + until, request_id, fine))
    opening = span_json.opening(f"{record.method} {record.route}", "server")
    over, pairs = span_json.above(record.parent_span_id), f"{request_id},{request_pairs(record)}"
    spans.append(text(opening, trace_id, record.span_id, over, record.wall_ns, clock + record.ended, pairs, status))
    return spans


@functools.cache
def _decision_pair(decision: Decision) -> str:
    return span_json.pairs({c.DECISION: decision.value})


_WAITED_TO_THE_END = frozenset((Outcome.TIMED_OUT, Outcome.CALLER_GONE))
_BAD = frozenset((Outcome.FAILED, Outcome.TIMED_OUT, Outcome.CUT))


def _is_ok(record: Record) -> bool:
    return record.outcome not in _BAD and record.status < 500


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


def request_pairs(record: Record) -> str:
    """All that is known of a request that has ended, but its id. What it has in common with others is written once for all of them."""
    facts, scanner = record.facts, record.scanner
    parts = [
        _common_pairs(
            record.method, record.route, record.model, record.key_id, record.engine, record.upstream, record.streaming, record.status,
            record.outcome, record.said_by, record.decision, record.error_type, facts.model, facts.finish_reasons, record.attempts,
            record.dispatched_model, record.rewritten, record.degraded,
        ),
        _BYTES_SENT % record.bytes_out,
    ]  # fmt: skip
    for template, count in (
        (_MAX_TOKENS, record.max_tokens), (_INPUT_TOKENS, facts.prompt_tokens), (_OUTPUT_TOKENS, facts.completion_tokens),
        (_CACHED_TOKENS, facts.cached_tokens),
    ):  # fmt: skip
        if count is not None:
            parts.append(template % count)
    if facts.response_id is not None:
        parts.append(_RESPONSE_ID % span_json.quoted(facts.response_id))
    if scanner is not None:
        parts.append(_CHUNKS % scanner.chunks)
        parts.append(span_json.pairs({c.DONE_SEEN: scanner.done_seen, c.MAX_GAP_MS: record.max_gap / 1e6}))
    if record.session_id or record.client_timeout_ms is not None or record.error_message or record.timeout_kind is not None:
        parts.append(span_json.pairs(_rare_attributes(record)))
    return ",".join(parts)


@functools.lru_cache(1024)
def _common_pairs(
    method: str, route: str, model: str, key_id: str, engine: str, upstream: str, streaming: bool | None, status: int, outcome: Outcome,
    said_by: SaidBy, decision: Decision, error_type: str, response_model: str | None, finish_reasons: tuple[str, ...], attempts: int,
    dispatched_model: str, rewritten: tuple[str, ...], degraded: str,
) -> str:  # fmt: skip
    return span_json.pairs(
        {
            c.HTTP_METHOD: method,
            c.HTTP_ROUTE: route,
            c.REQUEST_MODEL: model or None,
            c.KEY_ID: key_id or None,
            c.ENGINE: engine or None,
            c.UPSTREAM: upstream or None,
            c.IS_STREAMING: streaming,
            c.HTTP_STATUS: status,
            c.OUTCOME: outcome.value,
            c.SAID_BY: said_by.value,
            c.DECISION: decision.value,
            c.ERROR_TYPE: error_type or None,
            c.RESPONSE_MODEL: response_model,
            c.FINISH_REASONS: list(finish_reasons) or None,
            c.ATTEMPTS: attempts or None,
            c.DISPATCHED_MODEL: dispatched_model if dispatched_model != model else None,
            c.REWRITTEN: list(rewritten) or None,
            c.DEGRADED: degraded or None,
        }
    )


def _rare_attributes(record: Record) -> Attributes:
    return {
        c.SESSION_ID: record.session_id or None,
        c.CLIENT_TIMEOUT_MS: record.client_timeout_ms,
        c.ERROR_MESSAGE: record.error_message or None,
        c.TIMEOUT_KIND: record.timeout_kind.value if record.timeout_kind is not None else None,
        c.TIMEOUT_MS: record.timeout_ms,
    }


def upstream_pairs(record: Record) -> str:
    parts = [_engine_pairs(record.engine, record.upstream)]
    for template, stamp in ((_FIRST_BYTE, record.first_byte), (_FIRST_CONTENT, record.first_content), (_LAST_BYTE, record.last_byte)):
        if stamp:
            parts.append(template % ((stamp - record.sent) / 1e6))
    if record.earlier:
        parts.append(_ATTEMPT % (len(record.earlier) + 1))
    return ",".join(parts)


@functools.lru_cache(256)
def _engine_pairs(engine: str, upstream: str) -> str:
    return span_json.pairs({c.ENGINE: engine, c.UPSTREAM: upstream})


def _earlier_attributes(attempt: Attempt, number: int) -> Attributes:
    return {
        c.ENGINE: attempt.engine,
        c.UPSTREAM: attempt.upstream,
        c.FIRST_BYTE_MS: (attempt.first_byte - attempt.sent) / 1e6 if attempt.first_byte else None,
        c.ATTEMPT: number,
        c.HTTP_STATUS: attempt.status or None,
        c.ERROR_TYPE: attempt.error,
    }
