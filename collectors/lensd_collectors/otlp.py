"""OTLP's JSON encoding of spans, metrics and log records: what goes over the wire to `/v1/{traces,metrics,logs}`.

The encoding is the one of the OTLP specification: lowerCamelCase names, trace and span ids as hex, 64-bit integers as
strings, enums as numbers, and proto3's "NaN", "Infinity", "-Infinity" for what JSON has no number for.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

Value = str | bool | int | float | Sequence[str]
Attributes = Mapping[str, Value | None]

SPAN_KIND: Final = {"internal": 1, "server": 2, "client": 3, "producer": 4, "consumer": 5}
SEVERITY: Final = {"debug": 5, "info": 9, "warning": 13, "error": 17, "critical": 21}
CUMULATIVE: Final = 2

INT64: Final = range(-(2**63), 2**63)
"""Ask with an int itself: of a class made from it, such as HTTPStatus, a range looks at one number after another, for ever."""


class Wire(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True, kw_only=True):
    """Base of the wire structs; a field at its default is left out."""


class ArrayValue(Wire, frozen=True, kw_only=True):
    values: list["AnyValue"]


class AnyValue(Wire, frozen=True, kw_only=True):
    string_value: str | None = None
    bool_value: bool | None = None
    int_value: str | None = None
    double_value: float | str | None = None
    array_value: ArrayValue | None = None


class KeyValue(Wire, frozen=True, kw_only=True):
    key: str
    value: AnyValue


class Resource(Wire, frozen=True, kw_only=True):
    attributes: list[KeyValue] = []


class Scope(Wire, frozen=True, kw_only=True):
    name: str


class NumberPoint(Wire, frozen=True, kw_only=True):
    time_unix_nano: str
    as_double: float | str
    attributes: list[KeyValue] = []


class HistogramPoint(Wire, frozen=True, kw_only=True):
    time_unix_nano: str
    count: str
    sum: float | str
    bucket_counts: list[str]
    explicit_bounds: list[float]
    attributes: list[KeyValue] = []


class Gauge(Wire, frozen=True, kw_only=True):
    data_points: list[NumberPoint]


class Sum(Wire, frozen=True, kw_only=True):
    data_points: list[NumberPoint]
    aggregation_temporality: int
    is_monotonic: bool


class Histogram(Wire, frozen=True, kw_only=True):
    data_points: list[HistogramPoint]
    aggregation_temporality: int


class Metric(Wire, frozen=True, kw_only=True):
    name: str
    unit: str = ""
    gauge: Gauge | None = None
    sum: Sum | None = None
    histogram: Histogram | None = None


class ScopeSpans(Wire, frozen=True, kw_only=True):
    scope: Scope
    spans: msgspec.Raw  # a list, as span_json writes its items


class ScopeMetrics(Wire, frozen=True, kw_only=True):
    scope: Scope
    metrics: list[Metric]


class ScopeLogs(Wire, frozen=True, kw_only=True):
    scope: Scope
    log_records: msgspec.Raw  # a list, as log_json writes its items


class ResourceSpans(Wire, frozen=True, kw_only=True):
    resource: Resource
    scope_spans: list[ScopeSpans]


class ResourceMetrics(Wire, frozen=True, kw_only=True):
    resource: Resource
    scope_metrics: list[ScopeMetrics]


class ResourceLogs(Wire, frozen=True, kw_only=True):
    resource: Resource
    scope_logs: list[ScopeLogs]


class TracesBody(Wire, frozen=True, kw_only=True):
    resource_spans: list[ResourceSpans]


class MetricsBody(Wire, frozen=True, kw_only=True):
    resource_metrics: list[ResourceMetrics]


class LogsBody(Wire, frozen=True, kw_only=True):
    resource_logs: list[ResourceLogs]


class PartialSuccess(Wire, frozen=True, kw_only=True):
    rejected_spans: str | int = 0
    rejected_data_points: str | int = 0
    rejected_log_records: str | int = 0


class Answer(Wire, frozen=True, kw_only=True):
    """Body of a 200: how many of the records the receiver did not take."""

    partial_success: PartialSuccess = PartialSuccess()

    def rejected(self) -> int:
        refused = self.partial_success
        return int(refused.rejected_spans) + int(refused.rejected_data_points) + int(refused.rejected_log_records)


def text(value: str) -> str:
    """The string with what UTF-8 can't carry (lone surrogates) replaced, so that one bad value never spoils a body."""
    return value if value.isascii() else value.encode("utf-8", "replace").decode()


def number(value: float) -> float | str:
    value = float(value)
    if math.isfinite(value):
        return value
    if math.isnan(value):
        return "NaN"
    return "Infinity" if value > 0 else "-Infinity"


def any_value(value: Value) -> AnyValue:
    if isinstance(value, str):
        return AnyValue(string_value=text(value))
    if isinstance(value, bool):
        return AnyValue(bool_value=value)
    if isinstance(value, int):
        return AnyValue(int_value=str(int(value))) if int(value) in INT64 else AnyValue(double_value=number(value))
    if isinstance(value, float):
        return AnyValue(double_value=number(value))
    return AnyValue(array_value=ArrayValue(values=[AnyValue(string_value=text(str(each))) for each in value]))


def key_values(attributes: Attributes) -> list[KeyValue]:
    """The attributes in OTLP's form; those that are None are left out."""
    return [KeyValue(key=text(str(key)), value=any_value(value)) for key, value in attributes.items() if value is not None]


def hex_id(value: str | None, length: int) -> str:
    """The id in lower case if it is `length` hex digits and not all zero, else the empty string.

    A receiver refuses a whole body for one malformed id.
    """
    if value is None or len(value) != length or not set(value) <= set("0123456789abcdefABCDEF") or not value.strip("0"):
        return ""
    return value.lower()


def metrics(points: Iterable[tuple[str, str, Metric]]) -> list[Metric]:
    """Metrics with one data point each joined into one metric per name, unit and type (the key's second part)."""
    joined: dict[tuple[str, str, str], Metric] = {}
    for name, kind, metric in points:
        known = joined.setdefault((name, metric.unit, kind), metric)
        if known is metric:
            continue
        for into, extra in ((known.gauge, metric.gauge), (known.sum, metric.sum)):
            if into is not None and extra is not None:
                into.data_points.extend(extra.data_points)
        if known.histogram is not None and metric.histogram is not None:
            known.histogram.data_points.extend(metric.histogram.data_points)
    return list(joined.values())


encode = msgspec.json.Encoder().encode
