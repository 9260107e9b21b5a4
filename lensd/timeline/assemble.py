"""One row of `requests` from a request's evidence."""

import hashlib
from collections.abc import Callable, Sequence
from typing import Any

from lensd_collectors import conventions as c
from lensd_collectors.conventions import Decision, Outcome, SaidBy, Stage
from lensd_collectors.rows import Instant, RequestRow

from lensd.records import StageTime, Timeline
from lensd.timeline.engine_times import Answer, completion_tokens, prompt_tokens
from lensd.timeline.evidence import RequestEvidence
from lensd.timeline.instants import clock_skew, entry_content_at, request_start
from lensd.timeline.layout import answer_tokens
from lensd.timeline.life import Life
from lensd.timeline.told import is_number

_ENGINE_SAYS = {
    "prompt_tokens": (c.INPUT_TOKENS, "gen_ai.usage.prompt_tokens"),
    "completion_tokens": (c.OUTPUT_TOKENS, "gen_ai.usage.completion_tokens"),
    "finish_reason": (c.FINISH_REASONS, "finish_reason"),
}
"""Columns for which the engine's own span is asked last, and the attribute it has them in."""
_STAGE_COLUMNS = {stage: tuple(f"{stage}_{column}" for column in ("state", "ms", "exclusive_ms", "source")) for stage in Stage}


def request_key(trace_id: str, span_id: str) -> int:
    """64 bit hash that identifies a request; ids that callers choose repeat, trace and span id do not."""
    return int.from_bytes(hashlib.blake2b(f"{trace_id}/{span_id}".encode(), digest_size=8).digest(), "big")


def inner_keys(request: RequestEvidence) -> set[int]:
    """What this request's parts were keyed by where they were seen before what lies around them."""
    spans = (request.middleware, request.client, *request.engine_spans)
    inner = [(request.trace_id, span.span_id) for span in spans if span is not None and span.span_id != request.span_id]
    return {request_key(*each) for each in (*inner, *request.taken_in)}


def assemble(request: RequestEvidence, timeline: Timeline, life: Life, revision: int = 0) -> RequestRow:
    """The row as far as the request is known. Counts and ids come from the best witness, times from the timeline."""
    stages = {s.stage: s for s in timeline.stages}
    timed_by = request.entry or request.client or (request.engine_spans[0] if request.engine_spans else None)
    return RequestRow(
        request_key=request_key(request.trace_id, request.span_id),
        revision=revision,
        trace_id=request.trace_id,
        span_id=request.span_id,
        started_at=Instant(_first_instant(request)),
        ended_at=Instant(life.ended_at) if life.ended_at is not None else None,
        settled=life.settled,
        outcome=life.outcome,
        total_ms=timeline.total_ms,
        unattributed_ms=timeline.unattributed_ms,
        frontend_ms=timeline.frontend_ms,
        ttft_ms=_ttft_ms(request, stages),
        tpot_ms=_tpot_ms(request, stages[Stage.DECODE]),
        src=timed_by.src if timed_by is not None else [*request.logged, *request.engine_records, *request.signals][-1].src,
        **_identity(request),
        **_ending(request, life),
        **_amounts(request),
        **{name: value for s in timeline.stages for name, value in zip(_STAGE_COLUMNS[s.stage], _of_stage(s), strict=True)},
    )


def witness_of(request: RequestEvidence, column: str) -> str | None:
    """`src` of the span that a column of the row comes from; None: the row's own."""
    stage = column.removesuffix("_ms").removesuffix("_source").removesuffix("_state")
    if stage in (Stage.QUEUE, Stage.PREFILL, Stage.DECODE) and request.engine_spans:
        return request.engine_spans[0].src
    said = _ENGINE_SAYS.get(column)
    if said is not None and request.value(said[0]) is None and _record(request, said[0]) is None:
        return next((span.src for span in request.engine_spans if span.attributes.get(said[1]) is not None), None)
    if column == "client_timeout_ms" and request.client is not None:
        return request.client.src
    return None


def _first_instant(request: RequestEvidence) -> int:
    if request.entry is None and not request.signals and request.client is not None:
        return request.client.start - clock_skew(request)
    return request_start(request)


def _identity(request: RequestEvidence) -> dict[str, Any]:
    spans, records = request.engine_spans, [signal.fields for signal in (*request.engine_records, *request.logged)]
    times = request.engine_times()
    by_id = sorted(spans, key=lambda s: s.request_id or "")  # the first of several prompts
    engine_span = (spans[-1] if times is not None and times.split else by_id[0]) if spans else None
    record = records[0] if records else {}
    streaming = request.value(c.IS_STREAMING)
    engines_id = (engine_span.text(c.ENGINE_REQUEST_ID) if engine_span is not None else None) or _text(record.get(c.RESPONSE_ID))
    return {
        "request_id": _text(request.value(c.REQUEST_ID)) or (engine_span.request_id if engine_span is not None else None) or engines_id,
        "engine_request_id": _text(request.value(c.RESPONSE_ID)) or engines_id,
        "session_id": _text(request.value(c.SESSION_ID)),
        "model": _text(request.value(c.REQUEST_MODEL))
        or (engine_span.text(c.RESPONSE_MODEL) if engine_span is not None else None)
        or _text(record.get(c.RESPONSE_MODEL)),
        "served_model": _text(request.value(c.RESPONSE_MODEL)),
        "engine": _text(request.value(c.ENGINE))
        or (engine_span.engine if engine_span is not None else None)
        or _text(record.get(c.ENGINE)),
        "upstream": _text(request.value(c.UPSTREAM)),
        "key_id": _text(request.value(c.KEY_ID)),
        "route": _text(request.value(c.HTTP_ROUTE)),
        "streaming": streaming if isinstance(streaming, bool) else None,
    }


def _ending(request: RequestEvidence, life: Life) -> dict[str, Any]:
    if life.outcome == Outcome.LOST:  # an engine that saw it end saw its gateway leave, not its caller
        return {"said_by": SaidBy.UNKNOWN, "client_timeout_ms": _client_timeout_ms(request)}
    said_by = _text(request.value(c.SAID_BY))
    if said_by is None and life.outcome == Outcome.CALLER_GONE:
        said_by = SaidBy.CLIENT
    return {
        "status": _int(request.value(c.HTTP_STATUS)),
        "error_code": _text(request.value(c.ERROR_TYPE)),
        "error_message": _text(request.value(c.ERROR_MESSAGE)),
        "said_by": said_by or (SaidBy.UNKNOWN if life.ended_at is not None else None),
        "decision": _text(request.value(c.DECISION)) or (Decision.CALLER_GONE if life.outcome == Outcome.CALLER_GONE else None),
        "finish_reason": _first(request.value(c.FINISH_REASONS))
        or _first(_record(request, c.FINISH_REASONS))
        or _engine_text(request, "finish_reason"),
        "timeout_ms": _float(request.value(c.TIMEOUT_MS)),
        "timeout_kind": _text(request.value(c.TIMEOUT_KIND)),
        "client_timeout_ms": _client_timeout_ms(request),
    }


def _amounts(request: RequestEvidence) -> dict[str, Any]:
    done_seen, structured = request.value(c.DONE_SEEN), request.value(c.IS_STRUCTURED)
    return {
        "prompt_tokens": _int(_told(request, c.INPUT_TOKENS, prompt_tokens)),
        "completion_tokens": _int(_told(request, c.OUTPUT_TOKENS, completion_tokens)),
        "cached_tokens": _int(_told(request, c.CACHED_TOKENS)),
        "max_tokens": _int(_told(request, c.MAX_TOKENS)),
        "structured": structured if isinstance(structured, bool) else None,
        "preemptions": _preemptions(request),
        "attempts": _int(request.value(c.ATTEMPTS)),
        "max_gap_ms": _float(request.value(c.MAX_GAP_MS)),
        "chunks": _int(request.value(c.CHUNKS)),
        "bytes_sent": _int(request.value(c.BYTES_SENT)),
        "done_seen": done_seen if isinstance(done_seen, bool) else None,
    }


def _of_stage(stage: StageTime) -> tuple[Any, ...]:
    return stage.state, stage.duration_ms, stage.exclusive_ms, stage.source


def _ttft_ms(request: RequestEvidence, stages: dict[Stage, StageTime]) -> float | None:
    """Milliseconds to the first token: generated text at the caller's side of a stream, else in the engine."""
    entry, streaming = request.entry, stages[Stage.STREAMING]
    if entry is not None and request.value(c.IS_STREAMING) and streaming.segments and (first := entry_content_at(request)) is not None:
        return max(0.0, (first - entry.start) / 1000)
    if entry is None and request.client is not None and (told := request.client.number(c.CLIENT_FIRST_CONTENT_MS)) is not None:
        return max(0.0, told)
    times = request.engine_times()
    if times is None or times.prefill is None:
        return None
    if times.ttft_ms is not None and not times.split:
        return times.ttft_ms
    return (times.queue.ms if times.queue is not None else 0.0) + times.prefill.ms


def _tpot_ms(request: RequestEvidence, decode: StageTime) -> float | None:
    tokens = answer_tokens(request)
    return decode.duration_ms / (tokens - 1) if decode.duration_ms is not None and tokens is not None and tokens > 1 else None


def _client_timeout_ms(request: RequestEvidence) -> float | None:
    said = _float(request.value(c.CLIENT_TIMEOUT_MS))
    if said is None and request.client is not None:
        seconds = request.client.number("timeout_s")
        return None if seconds is None else seconds * 1000
    return said


def _told(request: RequestEvidence, name: str, counted: Callable[[Sequence[Answer]], int | None] | None = None) -> Any:
    """What the reply said, as the gateway or the middleware read it, else what the engine counted in all answers, or said once."""
    said = request.value(name)
    if said is None and counted is not None:
        return counted(request.answers())
    if said is None:
        said = _record(request, name)
    return _engine_count(request, name) if said is None else said


def _preemptions(request: RequestEvidence) -> int | None:
    """Of all answers together."""
    counted = [n for record in request.engine_records if (n := _int(record.fields.get(c.PREEMPTIONS))) is not None]
    return sum(counted) if counted else None


def _engine_count(request: RequestEvidence, name: str) -> int | None:
    return next((n for span in request.engine_spans if (n := span.count(name)) is not None), None)


def _record(request: RequestEvidence, name: str) -> Any:
    return request.engine_record.fields.get(name) if request.engine_record is not None else None


def _engine_text(request: RequestEvidence, name: str) -> str | None:
    return next((s.text(name) for s in request.engine_spans if s.text(name)), None)


def _first(value: Any) -> str | None:
    if isinstance(value, list | tuple):
        return str(value[0]) if value else None
    return None if value is None else str(value)


def _text(value: Any) -> str | None:
    """Anybody may send anything under a known name: what is no text becomes one, so that its row fits its column."""
    return value if value is None or isinstance(value, str) else str(value)


def _int(value: Any) -> int | None:
    return int(value) if is_number(value) and abs(value) < 2**63 else None


def _float(value: Any) -> float | None:
    return float(value) if is_number(value) else None
