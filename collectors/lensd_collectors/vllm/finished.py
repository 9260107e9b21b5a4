"""vLLM's own record of a finished request, a FinishedRequestStats, as the log record that goes over the wire."""

import functools
from typing import Any, Final

from lensd_collectors import conventions as c
from lensd_collectors import log_json, span_json
from lensd_collectors.span_json import GAP
from lensd_collectors.vllm.fields import count, field, label, milliseconds

_STAGES: Final = (("queued_time", c.QUEUE_MS), ("prefill_time", c.PREFILL_MS), ("decode_time", c.DECODE_MS))
_COUNTS: Final = (
    ("num_preemptions", c.PREEMPTIONS), ("num_prompt_tokens", c.INPUT_TOKENS), ("num_generation_tokens", c.OUTPUT_TOKENS),
    ("num_cached_tokens", c.CACHED_TOKENS), ("max_tokens_param", c.MAX_TOKENS),
)  # fmt: skip
_NUMBERS: Final = tuple(span_json.number(name) for name in (*(name for _, name in _STAGES), c.E2E_MS))
_INTEGERS: Final = tuple(span_json.integer(name) for _, name in _COUNTS)


def finished_record(finished: Any, request_id: str, at_ns: int, also: str) -> str:
    """As `log_json.write` gives it. What was not reached or is not there is left out; `also` is what all records carry, as pairs."""
    said = (*stages(finished), _e2e(finished), *[count(finished, name) for name, _ in _COUNTS])
    form = _form(tuple([each is not None for each in said]), label(field(finished, "finish_reason")), also)
    return span_json.fill(form, [str(at_ns), span_json.quoted(request_id), *[str(each) for each in said if each is not None]])


def stages(finished: Any) -> tuple[float | None, float | None, float | None]:
    """Milliseconds of queue, prefill and decode.

    A stage that was not reached shows as a negative time, since its end is still 0, and the stages after it as 0.
    """
    queue, prefill, decode = (milliseconds(finished, name) for name, _ in _STAGES)
    if queue is not None and queue < 0:
        return None, None, None
    if prefill is not None and (prefill < 0 or (prefill == 0 and queue is None)):
        return queue, None, None
    return queue, prefill, None if decode is not None and decode < 0 else decode


def _e2e(finished: Any) -> float | None:
    found = milliseconds(finished, "e2e_latency")
    return found if found is not None and found >= 0 else None


@functools.lru_cache(256)
def _form(there: tuple[bool, ...], reason: str | None, also: str) -> tuple[str, ...]:
    """The record but for its instant and figures, split at its gaps: hardly anything else differs from request to request."""
    seen = [pair for pair, is_there in zip((*_NUMBERS, *_INTEGERS), there, strict=True) if is_there]
    said = span_json.pairs({c.EVENT_NAME: c.EVENT_ENGINE_REQUEST}), also, span_json.string(c.RESPONSE_ID), *seen
    pairs = ",".join([*filter(None, said), *([span_json.pairs({c.FINISH_REASONS: [reason]})] if reason is not None else ())])
    return tuple(log_json.write(c.EVENT_ENGINE_REQUEST, pairs, at_ns=GAP).split(GAP))
