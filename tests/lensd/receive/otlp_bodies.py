"""OTLP messages for door and decoder tests."""

from pathlib import Path
from typing import Any

from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

from lensd.store.segments import Signal

CAPTURES = Path(__file__).parents[2] / "captures" / "vllm-0.32.0"
AT_NS = 1_795_963_126_000_000_000  # 2026-11-29T14:38:46Z
AT_US = AT_NS // 1000


def any_value(value: Any) -> AnyValue:
    if isinstance(value, bool):
        return AnyValue(bool_value=value)
    if isinstance(value, int):
        return AnyValue(int_value=value)
    if isinstance(value, float):
        return AnyValue(double_value=value)
    made = AnyValue()
    if isinstance(value, list):
        made.array_value.values.extend(map(any_value, value))
    elif isinstance(value, dict):
        made.kvlist_value.values.extend(pairs(value))
    else:
        made.string_value = value
    return made


def pairs(attributes: dict[str, Any]) -> list[KeyValue]:
    return [KeyValue(key=key, value=any_value(value)) for key, value in attributes.items()]


def traces(*spans: dict[str, Any], resource: dict[str, Any] | None = None) -> ExportTraceServiceRequest:
    """Each span: name, attributes, and any other field of the message."""
    message = ExportTraceServiceRequest()
    whole = message.resource_spans.add()
    whole.resource.attributes.extend(pairs(resource or {}))
    for fields in spans:
        made = whole.scope_spans.add().spans.add(
            name=fields.get("name", "s"),
            trace_id=bytes(range(16)),
            span_id=bytes(range(8)),
            start_time_unix_nano=AT_NS,
            end_time_unix_nano=AT_NS + 1_500_000,
        )
        made.attributes.extend(pairs(fields.get("attributes", {})))
        for name, attributes in fields.get("events", []):
            made.events.add(name=name).attributes.extend(pairs(attributes))
        made.status.message = fields.get("message", "")
    return message


def logs(*records: dict[str, Any], resource: dict[str, Any] | None = None) -> ExportLogsServiceRequest:
    """Each record: name, body, attributes, severity."""
    message = ExportLogsServiceRequest()
    whole = message.resource_logs.add()
    whole.resource.attributes.extend(pairs(resource or {}))
    scope = whole.scope_logs.add()
    for fields in records:
        made = scope.log_records.add(time_unix_nano=AT_NS, event_name=fields.get("name", ""), severity_number=fields.get("severity", 9))
        if "body" in fields:
            made.body.CopyFrom(any_value(fields["body"]))
        made.attributes.extend(pairs(fields.get("attributes", {})))
    return message


def metrics(
    *points: tuple[str, float, dict[str, Any]], resource: dict[str, Any] | None = None, at_ns: int = AT_NS
) -> ExportMetricsServiceRequest:
    """Each point: metric name, value, attributes; a name that ends with _total is a sum."""
    message = ExportMetricsServiceRequest()
    whole = message.resource_metrics.add()
    whole.resource.attributes.extend(pairs(resource or {}))
    scope = whole.scope_metrics.add()
    for name, value, attributes in points:
        metric = scope.metrics.add(name=name)
        data = metric.sum if name.endswith("_total") else metric.gauge
        if name.endswith("_total"):
            metric.sum.aggregation_temporality = 2
        data.data_points.add(time_unix_nano=at_ns, as_double=value).attributes.extend(pairs(attributes))
    return message


KINDS = {ExportTraceServiceRequest: Signal.TRACES, ExportMetricsServiceRequest: Signal.METRICS, ExportLogsServiceRequest: Signal.LOGS}
