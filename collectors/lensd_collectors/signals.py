"""The calls that take a span, an event or a metric: the same on an exporter and on a batch.

What a call is given is kept as it is; putting it into OTLP's form is left to the exporter's own thread.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence

from lensd_collectors import conventions, log_json, otlp, span_json
from lensd_collectors.otlp import Attributes

Record = list[str] | str | tuple[str, str, otlp.Metric]  # spans, and log records as one text, are written already
Pending = Callable[[], Record]
"""A record still to be put into OTLP's form; raises for values that OTLP has no form for."""


class Records(ABC):
    """The calls that take a record: shared by the exporter and by a batch. None of them blocks or raises."""

    @abstractmethod
    def _put(self, record: Pending, count: int = 1) -> None: ...

    def span(
        self,
        name: str,
        *,
        trace_id: str,
        span_id: str,
        parent_span_id: str | None,
        kind: str,
        start_ns: int,
        end_ns: int,
        attributes: Attributes,
        ok: bool = True,
        message: str = "",
    ) -> None:
        """A finished span; `kind` is internal, server or client; attributes that are None are left out."""
        kept = _copy(attributes)
        self._put(
            lambda: [
                span_json.write(
                    name, span_json.pairs(kept), trace_id=trace_id, span_id=span_id, parent_span_id=parent_span_id, kind=kind,
                    start_ns=int(start_ns), end_ns=int(end_ns), ok=ok, message=message,
                )
            ]
        )  # fmt: skip

    def spans(self, make: Callable[[], list[str]], count: int) -> None:
        """Finished spans that belong together, `count` of them, as `span_json.write` gives them; `make` runs later.

        One text may hold several, with commas between them.
        """
        self._put(make, count)

    def event(
        self,
        name: str,
        *,
        at_ns: int,
        attributes: Attributes,
        trace_id: str | None = None,
        span_id: str | None = None,
        severity: str = "info",
        body: str | None = None,
    ) -> None:
        """A log record that is an event: its name is sent as eventName and, for older receivers, as `event.name`."""
        kept = _copy(attributes)

        self._put(
            lambda: log_json.write(
                name, span_json.fresh_pairs({conventions.EVENT_NAME: name, **kept}),
                at_ns=int(at_ns), severity=severity, body=body, trace_id=trace_id, span_id=span_id,
            )
        )  # fmt: skip

    def logs(self, make: Callable[[], str], count: int) -> None:
        """Events that belong together, `count` of them with commas between, as `log_json.write` gives them; `make` runs later."""
        self._put(make, count)

    def gauge(self, name: str, value: float, *, at_ns: int, attributes: Attributes, unit: str = "") -> None:
        """One value of a gauge."""
        kept = _copy(attributes)

        def made() -> tuple[str, str, otlp.Metric]:
            point = _point(value, at_ns, kept)
            return name, "gauge", otlp.Metric(name=otlp.text(name), unit=unit, gauge=otlp.Gauge(data_points=[point]))

        self._put(made)

    def counter(self, name: str, value: float, *, at_ns: int, attributes: Attributes, unit: str = "") -> None:
        """One value of a cumulative, monotonic sum."""
        kept = _copy(attributes)

        def made() -> tuple[str, str, otlp.Metric]:
            total = otlp.Sum(data_points=[_point(value, at_ns, kept)], aggregation_temporality=otlp.CUMULATIVE, is_monotonic=True)
            return name, "counter", otlp.Metric(name=otlp.text(name), unit=unit, sum=total)

        self._put(made)

    def histogram(
        self,
        name: str,
        *,
        bounds: Sequence[float],
        counts: Sequence[float],
        sum: float,
        count: float,
        at_ns: int,
        attributes: Attributes,
        unit: str = "",
    ) -> None:
        """One cumulative histogram; `counts` are per bucket (one more than `bounds`), not running totals. Both are handed over."""
        kept = _copy(attributes)

        def made() -> tuple[str, str, otlp.Metric]:
            if len(counts) != len(bounds) + 1:
                raise ValueError("histogram needs one count more than bounds")
            point = otlp.HistogramPoint(
                time_unix_nano=str(int(at_ns)),
                count=str(int(count)),
                sum=otlp.number(sum),
                bucket_counts=[str(int(each)) for each in counts],
                explicit_bounds=[float(each) for each in bounds],
                attributes=otlp.key_values(kept),
            )
            whole = otlp.Histogram(data_points=[point], aggregation_temporality=otlp.CUMULATIVE)
            return name, "histogram", otlp.Metric(name=otlp.text(name), unit=unit, histogram=whole)

        self._put(made)


class Batch(Records):
    """Records that reach the receiver in one body each of traces, metrics and logs; made by `Exporter.batch`."""

    def __init__(self) -> None:
        self.records: list[tuple[Pending, int]] = []  # each with how many it stands for
        self.count = 0

    def _put(self, record: Pending, count: int = 1) -> None:
        self.records.append((record, count))
        self.count += count


def _copy(attributes: Attributes) -> Attributes:
    """The attributes as they are now; what is no mapping is found out, and counted, when the record is encoded."""
    try:
        return dict(attributes)
    except Exception:
        return attributes


def _point(value: float, at_ns: int, attributes: Attributes) -> otlp.NumberPoint:
    return otlp.NumberPoint(time_unix_nano=str(int(at_ns)), as_double=otlp.number(value), attributes=otlp.key_values(attributes))
