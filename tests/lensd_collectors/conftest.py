"""A stand-in for the exporter that keeps what it is given, in OTLP's own form."""

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
from lensd_collectors import otlp
from lensd_collectors.signals import Batch, Pending, Records


class Recorder(Records):
    """What was exported, in order; `batches` are the sizes of what travelled together."""

    def __init__(self) -> None:
        self.events: list[otlp.LogRecord] = []
        self.spans: list[otlp.Span] = []
        self.metrics: list[tuple[str, str, otlp.Metric]] = []
        self.batches: list[int] = []

    def _put(self, record: Pending) -> None:
        made = record()
        if isinstance(made, otlp.Span):
            self.spans.append(made)
        elif isinstance(made, otlp.LogRecord):
            self.events.append(made)
        else:
            self.metrics.append(made)

    @contextlib.contextmanager
    def batch(self) -> Iterator[Batch]:
        collected = Batch()
        yield collected
        self.batches.append(len(collected.records))
        for record in collected.records:
            self._put(record)

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
