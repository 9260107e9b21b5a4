"""A stand-in for the exporter that keeps what it is given, in OTLP's own form."""

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from lensd_collectors import otlp
from lensd_collectors.signals import Batch, Pending, Records


class SpanRead(otlp.Wire, frozen=True, kw_only=True):
    """A span as it goes over the wire."""

    trace_id: str
    span_id: str
    parent_span_id: str = ""
    name: str
    kind: int
    start_time_unix_nano: str
    end_time_unix_nano: str
    attributes: tuple[otlp.KeyValue, ...] = ()
    status: "StatusRead"


class LogRead(otlp.Wire, frozen=True, kw_only=True):
    """A log record as it goes over the wire."""

    time_unix_nano: str
    severity_number: int
    severity_text: str
    event_name: str
    body: otlp.AnyValue | None = None
    attributes: tuple[otlp.KeyValue, ...] = ()
    trace_id: str = ""
    span_id: str = ""


class StatusRead(otlp.Wire, frozen=True, kw_only=True):
    code: int = 0
    message: str = ""


class Recorder(Records):
    """What was exported, in order; `batches` are the sizes of what travelled together."""

    def __init__(self) -> None:
        self.events: list[LogRead] = []
        self.spans: list[SpanRead] = []
        self.metrics: list[tuple[str, str, otlp.Metric]] = []
        self.batches: list[int] = []
        self.calls: list[Callable[[], None]] = []

    def before_posting(self, call: Callable[[], None]) -> None:
        self.calls.append(call)

    def post(self) -> None:
        """As the exporter's thread does now and then."""
        for call in self.calls:
            call()

    def _put(self, record: Pending, count: int = 1) -> None:
        made = record()
        if isinstance(made, list):
            self.spans += [msgspec.json.decode(span, type=SpanRead) for span in made]
        elif isinstance(made, str):
            self.events += msgspec.json.decode(f"[{made}]", type=list[LogRead])
        else:
            self.metrics.append(made)

    @contextlib.contextmanager
    def batch(self) -> Iterator[Batch]:
        collected = Batch()
        yield collected
        self.batches.append(len(collected.records))
        for record, count in collected.records:
            self._put(record, count)

    def close(self, timeout_s: float = 5.0) -> None: ...

    @staticmethod
    def attributes(record: Any) -> dict[str, Any]:
        """Attributes as plain values; integers are the strings of the wire."""
        return {pair.key: _plain(pair.value) for pair in record.attributes}

    def values(self) -> dict[tuple[str, tuple[tuple[str, Any], ...]], Any]:
        """(name, labels that are not ours) to value, of gauges and counters."""
        found = {}
        for name, _, metric in self.metrics:
            holder = metric.gauge or metric.sum
            if holder is not None:
                labels = self.attributes(holder.data_points[0])
                found[name, tuple(sorted((k, v) for k, v in labels.items() if not k.startswith("lensd.")))] = holder.data_points[
                    0
                ].as_double
        return found

    def facts(self) -> dict[str, str]:
        return {
            self.attributes(event)["lensd.config.name"]: self.attributes(event)["lensd.config.value"]
            for event in self.events
            if event.event_name == "lensd.config"
        }


def _plain(value: otlp.AnyValue) -> Any:
    if value.array_value is not None:
        return [each.string_value for each in value.array_value.values]
    return next(v for v in (value.string_value, value.bool_value, value.int_value, value.double_value) if v is not None)


@pytest.fixture
def recorder() -> Any:
    return Recorder()
