"""What is known of one request, sorted by who said it."""

from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple, TypeGuard

from lensd_collectors import conventions as c

LONGEST_AGO_MS = 7 * 86_400_000.0
"""A time that a sender gives is believed up to here."""


@dataclass(slots=True)
class Span:
    """A stored span with its attributes decoded; times in microseconds since the epoch."""

    trace_id: str
    span_id: str
    parent_span_id: str | None
    name: str
    kind: str | None
    scope: str | None
    service: str | None
    instance: str | None
    engine: str | None
    request_id: str | None
    start: int
    end: int
    status: str | None
    status_message: str | None
    attributes: dict[str, Any]
    src: str | None

    def number(self, name: str) -> float | None:
        value = self.attributes.get(name)
        return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None

    def count(self, name: str) -> int | None:
        value = self.number(name)
        return None if value is None else int(value)

    def text(self, name: str) -> str | None:
        value = self.attributes.get(name)
        if isinstance(value, list):
            return str(value[0]) if value else None
        return None if value is None else str(value)

    def flag(self, name: str) -> bool | None:
        value = self.attributes.get(name)
        return value if isinstance(value, bool) else None


class Sender(NamedTuple):
    """The process that tells of a request. `listen` (HOST:PORT) and `engine` say where it stands, as far as its events do."""

    service: str
    instance: str
    host: str | None
    listen: str | None
    engine: str | None


@dataclass(slots=True)
class Signal:
    """An event (a request's start or progress, the engine's record, a sender's start); `at` in microseconds since the epoch."""

    name: str
    at: int
    fields: dict[str, Any]
    src: str | None

    def ago(self, name: str) -> int:
        """The instant that lies as many milliseconds before the signal as this field says."""
        ms = self.fields.get(name)
        return self.at - int(1000 * min(max(float(ms), 0.0), LONGEST_AGO_MS)) if _is_number(ms) else self.at

    @property
    def sender(self) -> Sender | None:
        """Who sent it; None where that is not told."""
        service, instance, *place = map(self._text, (c.SERVICE_NAME, c.SERVICE_INSTANCE_ID, c.HOST_NAME, c.LISTEN, c.ENGINE))
        return Sender(service, instance, *place) if service and instance else None

    def _text(self, name: str) -> str | None:
        value = self.fields.get(name)
        return value if isinstance(value, str) else None


@dataclass(slots=True)
class EngineTimes:
    """Stage times as the engine measured them, monotonic, in milliseconds; None: not reached or not said."""

    queue_ms: float | None
    prefill_ms: float | None
    decode_ms: float | None
    source: str  # plugin or llm_request
    arrival: int | None = None  # wall clock, microseconds since the epoch
    ttft_ms: float | None = None


@dataclass(slots=True)
class RequestEvidence:
    """All spans and events of one request. `trace_id` and `span_id` identify it."""

    trace_id: str
    span_id: str
    gateway: Span | None = None
    auth_routing: Span | None = None
    upstreams: list[Span] = field(default_factory=list)
    streaming: Span | None = None
    middleware: Span | None = None
    engine_spans: list[Span] = field(default_factory=list)
    client: Span | None = None
    signals: list[Signal] = field(default_factory=list)  # started and progress, oldest first
    engine_record: Signal | None = None  # the plugin's
    successor: Signal | None = None  # start of the process that took its sender's place, which can end no request of the old one
    _times: EngineTimes | Literal["not asked"] | None = "not asked"

    @property
    def entry(self) -> Span | None:
        """The span that saw the request whole on the server side: the middleware's only where no gateway stands before it."""
        inside = self.middleware is not None and self.middleware.span_id != self.span_id and self.signals
        return self.gateway or (None if inside else self.middleware)

    @property
    def is_inside_engine(self) -> bool:
        """Whether what is open was told of by an engine's middleware: a gateway knows the model, or has not read the body yet."""
        told = [signal.fields for signal in self.signals]
        return self.gateway is None and not any(f.get(c.REQUEST_MODEL) or f.get(c.PROGRESS_STAGE) == "auth_routing" for f in told)

    @property
    def parent_span_id(self) -> str | None:
        """The span above the outermost that is known."""
        top = self.entry or (self.engine_spans[0] if self.engine_spans and not self.signals else None)
        told = top.parent_span_id if top is not None else self.value(c.PARENT_SPAN_ID)
        return told if isinstance(told, str) else None

    @property
    def may_be_anothers(self) -> bool:
        """Whether a server in front of all that is known may still turn up, and take this in."""
        if self.gateway is not None or (self.signals and not self.is_inside_engine):
            return False
        if self.client is not None and self.client.span_id == self.parent_span_id:
            return False  # the caller asked the engine itself
        return self.parent_span_id is not None or not (self.signals or self.middleware or self.engine_spans)

    @property
    def upstream(self) -> Span | None:
        return self.upstreams[-1] if self.upstreams else None

    @property
    def last_engine_span(self) -> Span | None:
        """Several answers (n > 1) and several prompts give a span each: the last one ends the request."""
        return max(self.engine_spans, key=lambda s: s.end, default=None)

    @property
    def last_signal(self) -> Signal | None:
        return self.signals[-1] if self.signals else None

    def value(self, name: str) -> Any:
        """An attribute of the request as the best witness gives it: gateway, middleware, its events, then the client."""
        for span in (self.gateway, self.middleware):
            if span is not None and span.attributes.get(name) is not None:
                return span.attributes[name]
        for signal in reversed(self.signals):
            if signal.fields.get(name) is not None:
                return signal.fields[name]
        return self.client.attributes.get(name) if self.client is not None else None

    def engine_times(self) -> EngineTimes | None:
        """The engine's own measure: the plugin's record before vLLM's span. Asked when all evidence is in."""
        if self._times == "not asked":
            self._times = self._measured()
        return self._times

    def _measured(self) -> EngineTimes | None:
        if self.engine_record is not None:
            fields = self.engine_record.fields
            return EngineTimes(
                _reached(fields.get(c.QUEUE_MS)),
                _reached(fields.get(c.PREFILL_MS)),
                _reached(fields.get(c.DECODE_MS)),
                "plugin",
            )
        if not self.engine_spans:
            return None
        span = self.last_engine_span
        assert span is not None
        ms = {name: _reached(span.number(f"gen_ai.latency.{name}"), 1000.0) for name in _LATENCIES}
        return EngineTimes(
            ms["time_in_queue"],
            ms["time_in_model_prefill"],
            ms["time_in_model_decode"],
            "llm_request",
            arrival=span.start,
            ttft_ms=ms["time_to_first_token"],
        )


_LATENCIES = ("time_in_queue", "time_in_model_prefill", "time_in_model_decode", "time_to_first_token")


def _reached(value: Any, scale: float = 1.0) -> float | None:
    """Milliseconds, or None where the engine never got there: vLLM then gives a negative number."""
    return float(value) * scale if _is_number(value) and 0 <= value * scale <= LONGEST_AGO_MS else None


def _is_number(value: Any) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
