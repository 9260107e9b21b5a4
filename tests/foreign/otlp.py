"""What a sender says, as plain structures, and the OTLP bodies made of it: protobuf, or JSON as OTLP writes it."""

import base64
import json
from dataclasses import dataclass, field
from typing import Any, Final

from google.protobuf import json_format
from google.protobuf.message import Message
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue

Attributes = dict[str, Any]
MS: Final = 1_000_000
_IDS: Final = {"traceId", "spanId", "parentSpanId"}


@dataclass
class Span:
    """`keeps`: attributes that a reader needs and must get as they came; `planted`: those with marks in them."""

    name: str
    keeps: Attributes = field(default_factory=dict)
    planted: Attributes = field(default_factory=dict)
    events: list[tuple[str, Attributes]] = field(default_factory=list)
    links: list[Attributes] = field(default_factory=list)
    kind: int = 3  # client
    error: str | None = None  # the status message of a failed span
    state: str = ""  # trace state
    duration_ms: int = 1500
    kept_name: str | None = None  # where a part of the name is planted


@dataclass
class Log:
    body: Any = None
    name: str = ""
    attributes: Attributes = field(default_factory=dict)
    severity: int = 9
    severity_text: str = ""


@dataclass
class Metric:
    name: str
    kind: str = "gauge"  # gauge, sum, histogram, exponential_histogram, summary
    attributes: Attributes = field(default_factory=dict)
    exemplar: Attributes = field(default_factory=dict)
    description: str = ""
    metadata: Attributes = field(default_factory=dict)
    value: float = 3.0


@dataclass
class Said:
    """All that one sender says: its spans are one trace, the first one the root."""

    sender: str
    scope: str
    resource: Attributes = field(default_factory=dict)
    scope_attributes: Attributes = field(default_factory=dict)
    spans: list[Span] = field(default_factory=list)
    logs: list[Log] = field(default_factory=list)
    metrics: list[Metric] = field(default_factory=list)
    trace_id: str = ""

    def span_id(self, number: int) -> str:
        return f"{self.trace_id[:12]}{number + 1:04x}"


def any_value(value: Any) -> AnyValue:
    made = AnyValue()
    if isinstance(value, bool):
        made.bool_value = value
    elif isinstance(value, int):
        made.int_value = value
    elif isinstance(value, float):
        made.double_value = value
    elif isinstance(value, bytes):
        made.bytes_value = value
    elif isinstance(value, list):
        made.array_value.values.extend(map(any_value, value))
    elif isinstance(value, dict):
        made.kvlist_value.values.extend(pairs(value))
    elif value is not None:
        made.string_value = value
    return made


def pairs(attributes: Attributes) -> list[KeyValue]:
    return [KeyValue(key=key, value=any_value(value)) for key, value in attributes.items()]


def messages(said: Said, at_ns: int) -> dict[str, Message]:
    """The requests of a sender by the path they go to; the root span begins at `at_ns`."""
    made: dict[str, Message] = {}
    if said.spans:
        made["/v1/traces"] = _traces(said, at_ns)
    if said.logs:
        made["/v1/logs"] = _logs(said, at_ns)
    if said.metrics:
        made["/v1/metrics"] = _metrics(said, at_ns)
    return made


def as_json(message: Message) -> bytes:
    """The message as OTLP's JSON: ids in hexadecimal, enumerations as numbers."""
    return json.dumps(_hex_ids(json_format.MessageToDict(message, use_integers_for_enums=True))).encode()


def _hex_ids(node: Any) -> Any:
    if isinstance(node, dict):
        return {key: base64.b64decode(value).hex() if key in _IDS else _hex_ids(value) for key, value in node.items()}
    return [_hex_ids(item) for item in node] if isinstance(node, list) else node


def _traces(said: Said, at_ns: int) -> ExportTraceServiceRequest:
    message = ExportTraceServiceRequest()
    scope = message.resource_spans.add()
    scope.resource.attributes.extend(pairs(said.resource))
    inside = scope.scope_spans.add()
    inside.scope.name = said.scope
    inside.scope.attributes.extend(pairs(said.scope_attributes))
    for number, span in enumerate(said.spans):
        begin = at_ns + number * MS
        made = inside.spans.add(
            name=span.name,
            trace_id=bytes.fromhex(said.trace_id),
            span_id=bytes.fromhex(said.span_id(number)),
            parent_span_id=bytes.fromhex(said.span_id(0)) if number else b"",
            kind=span.kind,  # type: ignore[arg-type]
            start_time_unix_nano=begin,
            end_time_unix_nano=begin + span.duration_ms * MS,
            trace_state=span.state,
        )
        made.attributes.extend(pairs(span.keeps | span.planted))
        for name, attributes in span.events:
            made.events.add(name=name, time_unix_nano=begin + MS).attributes.extend(pairs(attributes))
        for attributes in span.links:
            made.links.add(trace_id=b"\1" * 16, span_id=b"\2" * 8, trace_state=span.state).attributes.extend(pairs(attributes))
        made.status.code = 1 if span.error is None else 2  # type: ignore[assignment]
        made.status.message = span.error or ""
    return message


def _logs(said: Said, at_ns: int) -> ExportLogsServiceRequest:
    message = ExportLogsServiceRequest()
    resource = message.resource_logs.add()
    resource.resource.attributes.extend(pairs(said.resource))
    inside = resource.scope_logs.add()
    inside.scope.name = said.scope
    inside.scope.attributes.extend(pairs(said.scope_attributes))
    for number, log in enumerate(said.logs):
        made = inside.log_records.add(
            time_unix_nano=at_ns + number * MS,
            event_name=log.name,
            severity_number=log.severity,  # type: ignore[arg-type]
            severity_text=log.severity_text,
            trace_id=bytes.fromhex(said.trace_id),
            span_id=bytes.fromhex(said.span_id(0)),
        )
        if log.body is not None:
            made.body.CopyFrom(any_value(log.body))
        made.attributes.extend(pairs(log.attributes))
    return message


def _metrics(said: Said, at_ns: int) -> ExportMetricsServiceRequest:
    message = ExportMetricsServiceRequest()
    resource = message.resource_metrics.add()
    resource.resource.attributes.extend(pairs(said.resource))
    inside = resource.scope_metrics.add()
    inside.scope.name = said.scope
    inside.scope.attributes.extend(pairs(said.scope_attributes))
    for metric in said.metrics:
        made = inside.metrics.add(name=metric.name, description=metric.description)
        made.metadata.extend(pairs(metric.metadata))
        data = getattr(made, metric.kind)
        if metric.kind in ("sum", "histogram", "exponential_histogram"):
            data.aggregation_temporality = 2
        point = data.data_points.add(time_unix_nano=at_ns)
        point.attributes.extend(pairs(metric.attributes))
        _fill(point, metric)
        if metric.exemplar and metric.kind != "summary":
            exemplar = point.exemplars.add(time_unix_nano=at_ns, as_double=1.0)
            exemplar.filtered_attributes.extend(pairs(metric.exemplar))
    return message


def _fill(point: Any, metric: Metric) -> None:
    if metric.kind in ("gauge", "sum"):
        point.as_double = metric.value
        return
    point.count, point.sum = 3, metric.value
    if metric.kind == "histogram":
        point.explicit_bounds.extend([1.0, 2.0])
        point.bucket_counts.extend([1, 1, 1])
    elif metric.kind == "exponential_histogram":
        point.scale, point.positive.offset = 0, 0
        point.positive.bucket_counts.extend([1, 2])


def engine_span(said: Said, at_ns: int) -> ExportTraceServiceRequest:
    """What the engine says of the call that a sender's last client span made: vLLM's own span, in the sender's trace."""
    parent = max(number for number, span in enumerate(said.spans) if span.kind == 3 or number == 0)
    about = {
        "gen_ai.request.id": f"chatcmpl-{said.trace_id[:12]}", "gen_ai.usage.prompt_tokens": 12, "gen_ai.usage.completion_tokens": 34,
        "gen_ai.latency.time_in_queue": 0.01, "gen_ai.latency.time_to_first_token": 0.1, "gen_ai.latency.e2e": 1.2,
        "gen_ai.latency.time_in_model_prefill": 0.09, "gen_ai.latency.time_in_model_decode": 1.0,
    }  # fmt: skip
    engine = Said(
        "vllm", "vllm.llm_engine", {"service.name": "vllm-server", "lensd.engine": "e0"}, spans=[Span("llm_request", about, kind=2)]
    )
    engine.trace_id = said.trace_id
    message = _traces(engine, at_ns)
    span = message.resource_spans[0].scope_spans[0].spans[0]
    span.span_id, span.parent_span_id = bytes.fromhex(f"{said.trace_id[:12]}ffff"), bytes.fromhex(said.span_id(parent))
    return message
