"""What an engine's reply says of itself: ids, tokens, finish reasons, errors, whichever of the APIs it belongs to.

Chat and text completions and embeddings, /v1/responses, and /v1/messages; whole replies and the events of streams have one
form here. Texts are decoded in passing and never kept.
"""

import math
from typing import Any, Final

import msgspec

MAX_TEXT: Final = 256
MAX_FINISH_REASONS: Final = 16

_LAST: Final = frozenset(("response.completed", "response.incomplete", "response.failed", "message_stop"))
_INCOMPLETE: Final = {"max_output_tokens": "length"}
_STOP_REASONS: Final = {"end_turn": "stop", "stop_sequence": "stop", "max_tokens": "length", "tool_use": "tool_calls"}


class Facts(msgspec.Struct, eq=False):
    """Known of the reply so far. Finish reasons are those of chat completions; of /v1/responses and /v1/messages what they come to."""

    response_id: str | None = None
    model: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    queue_ms: float | None = None  # with vLLM's --enable-per-request-metrics: queued to first scheduled
    prefill_ms: float | None = None  # first scheduled to first token
    decode_ms: float | None = None  # first to last token
    finish_reasons: tuple[str, ...] = ()
    choices: int = 0  # answers to the one prompt; each has a finish reason of its own
    has_content: bool = False  # an event of the stream carried generated text, reasoning or a tool call
    error: bytes | None = None  # the first error, as {"error": ...}

    def take(self, event: "Event") -> bool:
        """Adds what an event or a whole reply says; True where it is an event that carries generated text."""
        if self.error is None and (event.error or event.object == "error" or event.type == "error"):
            self.error = msgspec.json.encode({"error": event.failure()})
        if event.choices is not None:
            has_content = self._take_choices(event.choices)
        else:
            has_content = event.type is not None and self._take_typed(event)
        if self.response_id is None and event.id is not None:
            self.response_id, self.model = _text(event.id), _text(event.model)
        if event.usage is not None:
            self._take_usage(event.usage)
        if isinstance(event.metrics, dict):
            self._take_metrics(event.metrics)
        if event.status is not None and event.object == "response":
            self._take_status(event)
        if has_content:
            self.has_content = True
        return has_content

    def _take_choices(self, choices: "list[_Choice]") -> bool:
        has_content = False
        for choice in choices:
            if type(choice.index) is int and choice.index >= self.choices:
                self.choices = choice.index + 1
            if choice.finish_reason is not None:
                self._finish(choice.finish_reason)
            delta = choice.delta
            if choice.text or (delta is not None and (delta.content or delta.is_more_than_content())):
                has_content = True
        return has_content

    def _take_typed(self, event: "Event") -> bool:
        """An event that names what it is, and may hold the reply itself."""
        if event.response is not None:
            self.take(event.response)
        elif event.type == "message_start":
            self.take(msgspec.convert(event.message, Event))
        if event.type == "response.failed" and self.error is None:
            self.error = b'{"error":null}'
        self._finish(_STOP_REASONS.get(event.stop_reason, event.stop_reason) if isinstance(event.stop_reason, str) else None)
        delta = event.delta
        if isinstance(delta, dict):
            reason = delta.get("stop_reason")
            self._finish(_STOP_REASONS.get(reason, reason) if isinstance(reason, str) else None)
            return bool(delta.get("text") or delta.get("thinking") or delta.get("partial_json"))
        return bool(delta)

    def _take_status(self, event: "Event") -> None:
        """A response of /v1/responses says only whether it came to its end."""
        if event.status == "completed":
            self._finish("stop")
        elif event.status == "incomplete":
            reason = event.incomplete_details.reason if event.incomplete_details is not None else None
            self._finish(_INCOMPLETE.get(reason, reason) if isinstance(reason, str) else "length")

    def _take_usage(self, usage: "_Usage") -> None:
        self.prompt_tokens = _count(usage.prompt_tokens, usage.input_tokens, self.prompt_tokens)
        self.completion_tokens = _count(usage.completion_tokens, usage.output_tokens, self.completion_tokens)
        details = usage.prompt_tokens_details or usage.input_tokens_details
        cached = details.cached_tokens if details is not None else usage.cache_read_input_tokens
        if cached is not None:
            self.cached_tokens = _count(cached, None, self.cached_tokens)

    def _take_metrics(self, metrics: dict[str, Any]) -> None:
        """vLLM's own times of the request, all by the engine's monotonic clock; null where a stage was not reached.

        Its `time_to_first_token_ms` counts from the first scheduling, not from the request's arrival: it is the prefill.
        """
        self.queue_ms = _duration(metrics.get("queue_time_ms"), self.queue_ms)
        self.prefill_ms = _duration(metrics.get("time_to_first_token_ms"), self.prefill_ms)
        self.decode_ms = _duration(metrics.get("generation_time_ms"), self.decode_ms)

    def _finish(self, reason: object) -> None:
        if isinstance(reason, str) and reason and len(self.finish_reasons) < MAX_FINISH_REASONS:
            self.finish_reasons += (reason[:MAX_TEXT],)


class _TokenDetails(msgspec.Struct):
    cached_tokens: Any = None


class _Usage(msgspec.Struct):
    prompt_tokens: Any = None
    completion_tokens: Any = None
    prompt_tokens_details: _TokenDetails | None = None
    input_tokens: Any = None
    output_tokens: Any = None
    input_tokens_details: _TokenDetails | None = None
    cache_read_input_tokens: Any = None


class _Delta(msgspec.Struct):
    content: Any = None
    reasoning: Any = None
    reasoning_content: Any = None
    tool_calls: Any = None

    def is_more_than_content(self) -> bool:
        return bool(self.reasoning or self.reasoning_content or self.tool_calls)


class _Choice(msgspec.Struct):
    index: Any = None
    finish_reason: Any = None
    text: Any = None
    delta: _Delta | None = None


class _Incomplete(msgspec.Struct):
    reason: Any = None


class Event(msgspec.Struct):
    """The members that are read, of a stream's event or a whole reply; those of all APIs, since their names do not collide."""

    id: Any = None
    model: Any = None
    object: Any = None
    choices: list[_Choice] | None = None
    usage: _Usage | None = None
    metrics: Any = None
    error: Any = None
    type: Any = None
    delta: Any = None
    response: "Event | None" = None
    message: Any = None
    code: Any = None
    param: Any = None
    status: Any = None
    incomplete_details: _Incomplete | None = None
    stop_reason: Any = None

    def failure(self) -> object:
        """What an error says, in the one form."""
        if self.error:
            said: object = self.error
            return said
        kind = self.type if self.type != "error" else None
        return {"message": self.message, "type": kind, "code": self.code, "param": self.param}

    def only_text(self) -> str | None:
        """Generated text of an event that would add nothing else to what is known if it came again."""
        if not self.choices or len(self.choices) > 1 or self.object == "response":
            return None
        [choice] = self.choices
        delta = choice.delta
        if choice.finish_reason is not None or (delta is not None and (choice.text or delta.is_more_than_content())):
            return None
        text = choice.text if delta is None else delta.content
        return text if isinstance(text, str) else None

    @property
    def is_last(self) -> bool:
        """It closes its stream, where that has no [DONE]."""
        return isinstance(self.type, str) and self.type in _LAST


decode_event: Final = msgspec.json.Decoder(Event).decode
NOT_AN_EVENT: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


def read_reply(body: bytes) -> Facts:
    """Facts of a reply that is one JSON object; nothing known where it is not."""
    facts = Facts()
    try:
        facts.take(decode_event(body))
    except NOT_AN_EVENT:
        return facts  # as far as it could be read
    return facts


def _text(value: object) -> str | None:
    return value[:MAX_TEXT] if isinstance(value, str) else None


def _count(value: object, other: object, known: int | None) -> int | None:
    """The first that is a number of tokens, of a value, another name's and what is known already."""
    if type(value) is int and 0 <= value < 2**63:
        return value
    return known if other is None else _count(other, None, known)


def _duration(value: object, known: float | None) -> float | None:
    if isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value < math.inf:
        return float(value)
    return known
