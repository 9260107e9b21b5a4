"""A request that has ended as spans, written straight as text: most of it is the same from request to request."""

import functools
import itertools
from collections.abc import Iterator

from lensd_collectors import conventions as c
from lensd_collectors import span_json
from lensd_collectors.conventions import Decision, Outcome, SaidBy
from lensd_collectors.gateway.ids import IdSource
from lensd_collectors.gateway.record import Attempt, Record
from lensd_collectors.otlp import Attributes
from lensd_collectors.span_json import GAP

_REQUEST_ID, _RESPONSE_ID = span_json.string(c.REQUEST_ID), span_json.string(c.RESPONSE_ID)
_BYTES_SENT, _MAX_TOKENS, _CHUNKS, _ATTEMPT = (span_json.integer(each) for each in (c.BYTES_SENT, c.MAX_TOKENS, c.CHUNKS, c.ATTEMPT))
_INPUT_TOKENS, _OUTPUT_TOKENS, _CACHED_TOKENS = (span_json.integer(each) for each in (c.INPUT_TOKENS, c.OUTPUT_TOKENS, c.CACHED_TOKENS))
_FIRST_BYTE, _FIRST_CONTENT, _LAST_BYTE, _MAX_GAP = (
    span_json.number(each) for each in (c.FIRST_BYTE_MS, c.FIRST_CONTENT_MS, c.LAST_BYTE_MS, c.MAX_GAP_MS)
)  # fmt: skip
_COUNTS = (_MAX_TOKENS, _INPUT_TOKENS, _OUTPUT_TOKENS, _CACHED_TOKENS)
_STAMPS = (_FIRST_BYTE, _FIRST_CONTENT, _LAST_BYTE)
_FINE = span_json.status(True, "")


def request_spans(record: Record, ids: IdSource) -> list[str]:
    """The spans of a request that has ended: earlier attempts, then the rest as one text, with the server's last."""
    trace_id, span_id, clock = record.trace_id, record.span_id, record.wall_ns - record.received  # which makes a stamp wall time
    request_id = span_json.quoted(record.request_id)
    status = span_json.status(_is_ok(record), record.error_message)
    sent = record.sent
    first_sent = (next((each.sent for each in record.earlier if each.sent), 0) if record.earlier else 0) or sent
    start, end = str(record.wall_ns), str(clock + record.ended)
    values = [trace_id, ids.span_id(), span_id, start, str(clock + first_sent) if first_sent else end, request_id, status]
    stamps = (record.first_byte, record.first_content, record.last_byte) if sent else ()
    if sent:
        until = record.ended if record.outcome in _WAITED_TO_THE_END or not record.last_byte else record.last_byte
        values += (trace_id, record.upstream_span_id, span_id, str(clock + sent), str(clock + until), request_id)
        values += [repr((each - sent) / 1e6) for each in stamps if each]
        values += (str(len(record.earlier) + 1), status) if record.earlier else (status,)
    if record.first_out:
        until = record.last_out or record.ended
        values += (trace_id, ids.span_id(), span_id, str(clock + record.first_out), str(clock + until), request_id)
    pairs, figures = _request_form(record)
    values += (trace_id, span_id, span_json.above(record.parent_span_id), start, end, request_id, *figures, status)
    form = _spans_form(
        record.method, record.route, record.decision, record.engine, record.upstream, tuple([each > 0 for each in stamps]),
        bool(record.earlier), bool(record.first_out), pairs,
    )  # fmt: skip
    whole = span_json.fill(form, values)
    return [*_earlier_spans(record, request_id, clock), whole] if record.earlier else [whole]


def span_count(record: Record) -> int:
    """How many spans `request_spans` gives."""
    count = 2 + (record.sent > 0) + (record.first_out > 0)
    return count + sum([each.sent > 0 for each in record.earlier]) if record.earlier else count


@functools.lru_cache(1024)
def _spans_form(
    method: str, route: str, decision: Decision, engine: str, upstream: str, stamps: tuple[bool, ...], is_later: bool, is_out: bool,
    pairs: str,
) -> tuple[str, ...]:  # fmt: skip
    """A request's spans but for ids, instants and figures, split at their gaps. Without `stamps` no engine got it."""
    below = span_json.above(GAP)
    forms = [_form(c.SPAN_AUTH_ROUTING, "internal", below, f"{_REQUEST_ID},{_decision_pair(decision)}")]
    if stamps:
        seen = [template for template, is_seen in zip(_STAMPS, stamps, strict=True) if is_seen]
        there = span_json.pairs({c.ENGINE: engine, c.UPSTREAM: upstream})
        forms.append(_form(c.SPAN_UPSTREAM, "client", below, ",".join((_REQUEST_ID, there, *seen, *([_ATTEMPT] if is_later else [])))))
    if is_out:
        forms.append(_form(c.SPAN_STREAMING, "internal", below, _REQUEST_ID, _FINE))
    forms.append(_form(f"{method} {route}", "server", GAP, f"{_REQUEST_ID},{pairs}"))
    return tuple(",".join(forms).split(GAP))


def _form(name: str, kind: str, above: str, pairs: str, status: str = GAP) -> str:
    return span_json.form(span_json.opening(name, kind), above, pairs, status)


def _earlier_spans(record: Record, request_id: str, clock: int) -> Iterator[str]:
    opening, above = span_json.opening(c.SPAN_UPSTREAM, "client"), span_json.above(record.span_id)
    for number, attempt in enumerate(record.earlier, 1):
        if attempt.sent:
            pairs = f"{_REQUEST_ID.replace(GAP, request_id)},{span_json.pairs(_earlier_attributes(attempt, number))}"
            failed = span_json.status(False, attempt.error)
            start, end = clock + attempt.sent, clock + attempt.ended
            yield span_json.text(opening, record.trace_id, attempt.span_id, above, start, end, pairs, failed)


@functools.cache
def _decision_pair(decision: Decision) -> str:
    return span_json.pairs({c.DECISION: decision.value})


_WAITED_TO_THE_END = frozenset((Outcome.TIMED_OUT, Outcome.CALLER_GONE))
_BAD = frozenset((Outcome.FAILED, Outcome.TIMED_OUT, Outcome.CUT))


def _is_ok(record: Record) -> bool:
    return record.outcome not in _BAD and record.status < 500


def request_pairs(record: Record) -> str:
    """All that is known of a request that has ended, but its id."""
    form, figures = _request_form(record)
    return span_json.fill(form.split(GAP), figures)


def _request_form(record: Record) -> tuple[str, list[str]]:
    """The same with gaps, and what goes into them. What a request has in common with others is written once for all of them."""
    facts, scanner = record.facts, record.scanner
    counts = (record.max_tokens, facts.prompt_tokens, facts.completion_tokens, facts.cached_tokens)
    has_counts = tuple([each is not None for each in counts])
    figures = [str(record.bytes_out), *map(str, itertools.compress(counts, has_counts))]
    if facts.response_id is not None:
        figures.append(span_json.quoted(facts.response_id))
    if scanner is not None:
        figures += (str(scanner.chunks), repr(record.max_gap / 1e6))
    has_rare = bool(
        record.session_id or record.structured or record.client_timeout_ms is not None or record.error_message
        or record.timeout_kind is not None
        or facts.queue_ms is not None or facts.prefill_ms is not None or facts.decode_ms is not None
    )  # fmt: skip
    if has_rare:
        figures.append(span_json.pairs(_rare_attributes(record)))
    form = _pairs_form(
        record.method, record.route, record.model, record.key_id, record.engine, record.upstream, record.streaming, record.status,
        record.outcome, record.said_by, record.decision, record.error_type, facts.model, facts.finish_reasons, record.attempts,
        record.dispatched_model, record.rewritten, record.degraded, has_counts,
        facts.response_id is not None, scanner.done_seen if scanner is not None else None, has_rare,
    )  # fmt: skip
    return form, figures


@functools.lru_cache(1024)
def _pairs_form(
    method: str, route: str, model: str, key_id: str, engine: str, upstream: str, streaming: bool | None, status: int, outcome: Outcome,
    said_by: SaidBy, decision: Decision, error_type: str, response_model: str | None, finish_reasons: tuple[str, ...], attempts: int,
    dispatched_model: str, rewritten: tuple[str, ...], degraded: str, counts: tuple[bool, ...], has_response_id: bool,
    done_seen: bool | None, has_rare: bool,
) -> str:  # fmt: skip
    common = span_json.pairs(
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
    parts = [common, _BYTES_SENT, *[template for template, is_there in zip(_COUNTS, counts, strict=True) if is_there]]
    if has_response_id:
        parts.append(_RESPONSE_ID)
    if done_seen is not None:
        parts += (_CHUNKS, span_json.pairs({c.DONE_SEEN: done_seen}), _MAX_GAP)
    return ",".join([*parts, GAP] if has_rare else parts)


def _rare_attributes(record: Record) -> Attributes:
    return {
        c.IS_STRUCTURED: record.structured or None,
        c.SESSION_ID: record.session_id or None,
        c.CLIENT_TIMEOUT_MS: record.client_timeout_ms,
        c.ERROR_MESSAGE: record.error_message or None,
        c.TIMEOUT_KIND: record.timeout_kind.value if record.timeout_kind is not None else None,
        c.TIMEOUT_MS: record.timeout_ms,
        c.QUEUE_MS: record.facts.queue_ms,
        c.PREFILL_MS: record.facts.prefill_ms,
        c.DECODE_MS: record.facts.decode_ms,
    }


def _earlier_attributes(attempt: Attempt, number: int) -> Attributes:
    return {
        c.ENGINE: attempt.engine,
        c.UPSTREAM: attempt.upstream,
        c.FIRST_BYTE_MS: (attempt.first_byte - attempt.sent) / 1e6 if attempt.first_byte else None,
        c.ATTEMPT: number,
        c.HTTP_STATUS: attempt.status or None,
        c.ERROR_TYPE: attempt.error,
    }
