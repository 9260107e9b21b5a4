"""What is known of one request, sorted by who said it."""

from dataclasses import dataclass, field
from typing import Any

from lensd_collectors import conventions as c


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


@dataclass(slots=True)
class Signal:
    """A request event (started, progress, the engine's record); `at` in microseconds since the epoch."""

    name: str
    at: int
    fields: dict[str, Any]
    src: str | None


@dataclass(slots=True)
class EngineTimes:
    """Stage times as the engine measured them, monotonic, in milliseconds; None: not reached or not said."""

    queue_ms: float | None
    prefill_ms: float | None
    decode_ms: float | None
    source: str  # plugin or llm_request
    arrival: int | None = None  # wall clock, microseconds since the epoch
    ttft_ms: float | None = None
    e2e_ms: float | None = None


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

    @property
    def entry(self) -> Span | None:
        """The span that saw the request whole on the server side."""
        return self.gateway or self.middleware

    @property
    def upstream(self) -> Span | None:
        return self.upstreams[-1] if self.upstreams else None

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
        """The engine's own measure: the plugin's record before vLLM's span."""
        if self.engine_record is not None:
            fields = self.engine_record.fields
            return EngineTimes(
                _reached(fields.get(c.QUEUE_MS)),
                _reached(fields.get(c.PREFILL_MS)),
                _reached(fields.get(c.DECODE_MS)),
                "plugin",
                e2e_ms=_reached(fields.get(c.E2E_MS)),
            )
        if not self.engine_spans:
            return None
        span = max(self.engine_spans, key=lambda s: s.end)  # n > 1 gives a span each: the last one ends the request
        ms = {name: _reached(span.number(f"gen_ai.latency.{name}"), 1000.0) for name in _LATENCIES}
        return EngineTimes(
            ms["time_in_queue"],
            ms["time_in_model_prefill"],
            ms["time_in_model_decode"],
            "llm_request",
            arrival=span.start,
            ttft_ms=ms["time_to_first_token"],
            e2e_ms=ms["e2e"],
        )


_LATENCIES = ("time_in_queue", "time_in_model_prefill", "time_in_model_decode", "time_to_first_token", "e2e")


def _reached(value: Any, scale: float = 1.0) -> float | None:
    """Milliseconds, or None where the engine never got there: vLLM then gives a negative number."""
    return float(value) * scale if isinstance(value, int | float) and value >= 0 else None
