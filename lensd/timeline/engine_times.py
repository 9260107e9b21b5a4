"""What an engine measured of one request, each stage from the best that tells of it: plugin, its own span, the reply's `metrics`."""

import re
from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

from lensd_collectors import conventions as c

from lensd.timeline.told import Signal, Span, is_number, reached

PLUGIN: Final = "plugin"
SPAN: Final = "llm_request"
RESPONSE: Final = "response"


_CHILD: Final = re.compile(r"^\d{1,3}_(?=(?:chat)?cmpl-)")


class Measure(NamedTuple):
    """A stage's duration by the engine's monotonic clock, and who told of it."""

    ms: float
    source: str


class Answer(NamedTuple):
    """One sequence as one source tells of it: several answers (n > 1) and lists of prompts give one each.

    Instants in microseconds since the epoch by the engine's clock, durations in milliseconds; None: not reached or not said.
    """

    source: str
    engine_id: str | None
    engine: str | None
    arrival: int | None
    end: int
    queue: float | None
    prefill: float | None
    decode: float | None
    ttft_ms: float | None
    prompt_tokens: int | None
    tokens: int | None


class EngineTimes(NamedTuple):
    """`arrival`, `ttft_ms` and `end` are those of the sequence that times the request; a plugin tells no `ttft_ms`.

    `split`: queue and prefill were on one engine and decode on another.
    """

    queue: Measure | None
    prefill: Measure | None
    decode: Measure | None
    arrival: int | None = None
    ttft_ms: float | None = None
    end: int | None = None
    split: bool = False


def prompt_id(engine_id: str) -> str:
    """The id of the prompt of which vLLM before 0.15.1 calls an answer `engine_id`: `1_chatcmpl-R` → `chatcmpl-R`."""
    return _CHILD.sub("", engine_id)


def of_span(span: Span) -> Answer:
    """What vLLM's `llm_request` says; its start is the arrival."""
    ms = {name: reached(span.number(f"gen_ai.latency.{name}"), 1000.0) for name in _LATENCIES}
    return Answer(
        source=SPAN,
        engine_id=prompt_id(engine_id) if (engine_id := span.text(c.ENGINE_REQUEST_ID) or span.request_id) else None,
        engine=span.engine or span.instance,
        arrival=span.start,
        end=span.end,
        queue=ms["time_in_queue"],
        prefill=ms["time_in_model_prefill"],
        decode=ms["time_in_model_decode"],
        ttft_ms=ms["time_to_first_token"],
        prompt_tokens=span.count("gen_ai.usage.prompt_tokens"),
        tokens=span.count("gen_ai.usage.completion_tokens"),
    )


_LATENCIES: Final = ("time_in_queue", "time_in_model_prefill", "time_in_model_decode", "time_to_first_token")


def of_record(record: Signal) -> Answer:
    """What the plugin says; written when the request ends."""
    fields = record.fields
    e2e = reached(fields.get(c.E2E_MS))
    return Answer(
        source=PLUGIN,
        engine_id=_text(fields.get(c.RESPONSE_ID)),
        engine=_text(fields.get(c.ENGINE)),
        arrival=None if e2e is None else record.at - int(e2e * 1000),
        end=record.at,
        queue=reached(fields.get(c.QUEUE_MS)),
        prefill=reached(fields.get(c.PREFILL_MS)),
        decode=reached(fields.get(c.DECODE_MS)),
        ttft_ms=None,
        prompt_tokens=_count(fields.get(c.INPUT_TOKENS)),
        tokens=_count(fields.get(c.OUTPUT_TOKENS)),
    )


def measured(answers: Sequence[Answer], replied: Iterable[Span]) -> EngineTimes | None:
    """Stage by stage the best source; `replied`: spans that may carry what stood in the reply. None: nobody measured anything."""
    reply = next((span for span in replied if any(name in span.attributes for name in _REPLY)), None)
    if not answers and reply is None:
        return None
    if len(answers) == 1 and reply is None:
        return _of_one(answers[0])
    pair = split_over(answers)
    before, after = (list(answers) if pair is None else [a for a in answers if a.engine == engine] for engine in pair or (None, None))
    told = reply.attributes if reply is not None else {}
    early = {} if pair is not None else told  # the reply is the decoding engine's
    begun = _last(before, SPAN) or _last(before, PLUGIN)  # the span alone tells of the first token
    ended = max((a.end for a in after), default=None)
    return EngineTimes(
        queue=_best([(a.queue, a.source) for a in _by_source(before)], early.get(c.QUEUE_MS)),
        prefill=_best([(a.prefill, a.source) for a in _by_source(before)], early.get(c.PREFILL_MS)),
        decode=_best([(a.decode, a.source) for a in _by_source(after)], told.get(c.DECODE_MS)),
        arrival=begun.arrival if begun is not None else None,
        ttft_ms=begun.ttft_ms if begun is not None else None,
        end=ended,
        split=pair is not None,
    )


def _of_one(answer: Answer) -> EngineTimes:
    queue, prefill, decode = (None if ms is None else Measure(ms, answer.source) for ms in (answer.queue, answer.prefill, answer.decode))
    return EngineTimes(queue, prefill, decode, answer.arrival, answer.ttft_ms, answer.end)


_REPLY: Final = (c.QUEUE_MS, c.PREFILL_MS, c.DECODE_MS)


def split_over(answers: Sequence[Answer]) -> tuple[str, str] | None:
    """The engine that only read the prompt (one token at most) and the one that went on with it; None: one engine did all.

    One that did not get through the prompt handed nothing on: the request was tried again elsewhere.
    """
    for source in (PLUGIN, SPAN) if len(answers) > 1 else ():
        by_engine: dict[str, list[Answer]] = {}
        for answer in answers:
            if answer.source == source and answer.engine is not None:
                by_engine.setdefault(answer.engine, []).append(answer)
        if len(by_engine) == 2:
            first, second = sorted(by_engine, key=lambda engine: (min(a.arrival or a.end for a in by_engine[engine]), engine))
            if all(a.tokens is not None and a.tokens <= 1 and a.prefill is not None for a in by_engine[first]):
                return first, second
    return None


def prompt_tokens(answers: Sequence[Answer]) -> int | None:
    """Tokens of all prompts; several answers to one prompt count it once."""
    by_prompt = {a.engine_id: a.prompt_tokens for a in reversed(answers) if a.prompt_tokens is not None}
    return sum(by_prompt.values()) if by_prompt else None


def completion_tokens(answers: Sequence[Answer]) -> int | None:
    """Tokens of all answers; that of an engine which only read the prompt is made again by the other."""
    pair = split_over(answers)
    best = next((told for source in (PLUGIN, SPAN) if (told := [a for a in answers if a.source == source and a.tokens is not None])), [])
    counted = [a.tokens for a in best if a.tokens is not None and (pair is None or a.engine == pair[1])]
    return sum(counted) if counted else None


def last_tokens(answers: Sequence[Answer]) -> int | None:
    """Tokens of the answer that ended last, as the best source that counts them tells."""
    return next((last.tokens for last in _by_source(answers) if last.tokens is not None), None)


def _by_source(answers: Sequence[Answer]) -> Sequence[Answer]:
    """The last of each source that tells of any, the best source first."""
    if len(answers) == 1:
        return answers
    return [found for source in (PLUGIN, SPAN) if (found := _last(answers, source)) is not None]


def _last(answers: Iterable[Answer], source: str) -> Answer | None:
    return max((a for a in answers if a.source == source), key=lambda a: (a.end, a.decode or 0.0, a.engine_id or ""), default=None)


def _best(told: Sequence[tuple[float | None, str]], replied: object) -> Measure | None:
    for ms, source in told:
        if ms is not None:
            return Measure(ms, source)
    ms = reached(replied)
    return None if ms is None else Measure(ms, RESPONSE)


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


def _count(value: object) -> int | None:
    return int(value) if is_number(value) and 0 <= value < 2**63 else None
