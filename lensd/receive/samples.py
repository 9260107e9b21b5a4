"""Data points of OTLP metrics of every kind as samples: a value or a histogram, with what it is about.

A summary becomes what it is in Prometheus: a series for each quantile, one for the sum and one for the count.
"""

import math
from collections import Counter
from collections.abc import Iterator
from typing import Any, Final

from lensd_collectors import conventions
from lensd_collectors.rows import Instant

from lensd.receive import values
from lensd.receive.histograms import explicit
from lensd.receive.values import Plain

DELTA: Final = "delta"
NO_VALUE: Final = "no-value"
BUCKETS: Final = "buckets"
_OUR_PLUGIN: Final = "lensd-vllm"
_OF_TIME: Final = frozenset({"sum", "histogram", "exponential_histogram"})  # kinds with a temporality
_DELTA: Final = 1
_NO_RECORDED_VALUE: Final = 1
_MOST_BUCKETS: Final = 10_000

Labels = dict[str, Plain]


class Sample:
    """One value or histogram of a body, with everything that says what it is about."""

    __slots__ = ("at", "buckets", "counts", "engine", "is_nameless", "kind", "labels", "name", "source", "target", "value")

    def __init__(self, name: str, labels: Labels, at: Instant, value: float | None, resource: Labels) -> None:
        self.name, self.labels, self.at = name, labels, at
        self.value = value if value is not None and math.isfinite(value) else None
        self.buckets: list[float] | None = None
        self.counts: list[float] | None = None
        named = labels.get(conventions.ENGINE) or resource.get(conventions.ENGINE)
        self.kind = values.text(labels.get(conventions.ENGINE_KIND) or resource.get(conventions.ENGINE_KIND))
        self.engine = values.text(named) or values.text(resource.get(conventions.SERVICE_INSTANCE_ID))
        self.target = values.text(labels.get(conventions.SCRAPE_TARGET))
        service = values.text(resource.get(conventions.SERVICE_NAME))
        self.source = self.target or service or "-"
        self.is_nameless = not named and service == _OUR_PLUGIN  # its instance is new at each start: no name for an engine

    @property
    def is_named(self) -> bool:
        """Whether the sender says that this is an engine's, in our words."""
        return conventions.ENGINE in self.labels or self.kind is not None


def samples(metric: Any, resource: Labels, received_at: int, dropped: Counter[str]) -> Iterator[Sample]:
    """A metric's data points; those left out are counted in `dropped` by the reason.

    `delta`: our columns and buckets are totals. `no-value`: the sender says that it has none. `buckets`: a histogram with more than
    10,000, with other counts than its bounds ask for, or with a scale that none has.
    """
    which = metric.WhichOneof("data")
    if which is None:
        return
    data = getattr(metric, which)
    if which in _OF_TIME and data.aggregation_temporality == _DELTA:
        dropped[DELTA] += len(data.data_points)
        return
    for point in data.data_points:
        if point.flags & _NO_RECORDED_VALUE:
            dropped[NO_VALUE] += 1
            continue
        labels = values.attributes(point.attributes)
        at = values.instant(point.time_unix_nano, received_at)
        if which in ("gauge", "sum"):
            number = point.as_int if point.WhichOneof("value") == "as_int" else point.as_double
            yield Sample(metric.name, labels, at, float(number), resource)
        elif which == "summary":
            yield from _summary(metric.name, point, labels, at, resource)
        elif (found := _buckets(which, point)) is not None:
            sample = Sample(metric.name, labels, at, point.sum if point.HasField("sum") else None, resource)
            sample.buckets, sample.counts = found
            yield sample
        else:
            dropped[BUCKETS] += 1


def _buckets(which: str, point: Any) -> tuple[list[float], list[float]] | None:
    if which == "exponential_histogram":
        if max(len(point.positive.bucket_counts), len(point.negative.bucket_counts)) > _MOST_BUCKETS:
            return None
        return explicit(point)
    bounds, counts = point.explicit_bounds, point.bucket_counts
    if not counts and not bounds:  # the sender keeps sum and count alone
        return [], [float(point.count)]
    if len(counts) > _MOST_BUCKETS or len(counts) != len(bounds) + 1:
        return None
    return list(bounds), [float(count) for count in counts]


def _summary(name: str, point: Any, labels: Labels, at: Instant, resource: Labels) -> Iterator[Sample]:
    for quantile in point.quantile_values:
        yield Sample(name, {**labels, "quantile": f"{quantile.quantile:g}"}, at, quantile.value, resource)
    yield Sample(f"{name}_sum", labels, at, point.sum, resource)
    yield Sample(f"{name}_count", labels, at, float(point.count), resource)
