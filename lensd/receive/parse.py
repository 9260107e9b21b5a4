"""OTLP bodies as protobuf messages: binary, or JSON with hexadecimal ids."""

import base64
import binascii
import json
from typing import Any, Final

from google.protobuf import json_format
from google.protobuf.message import DecodeError, EncodeError, Message
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from lensd.errors import BadBodyError
from lensd.store.segments import Signal

MESSAGES: Final[dict[Signal, type[Message]]] = {
    Signal.TRACES: ExportTraceServiceRequest,
    Signal.METRICS: ExportMetricsServiceRequest,
    Signal.LOGS: ExportLogsServiceRequest,
}
_IDS: Final = {"traceId": 16, "spanId": 8, "parentSpanId": 8, "trace_id": 16, "span_id": 8, "parent_span_id": 8}


def parse_protobuf(kind: Signal, body: bytes) -> Message:
    """The body's message. Raises BadBodyError."""
    try:
        return MESSAGES[kind].FromString(body)
    except DecodeError as error:
        raise BadBodyError(f"body is not an OTLP {kind.name.lower()} request in protobuf: {error}") from None


def parse_json(kind: Signal, body: bytes) -> Message:
    """The message of a JSON body; unknown fields are left out, as OTLP asks. Raises BadBodyError, whose text quotes nothing of the body."""
    try:
        tree = json.loads(body)
    except (ValueError, RecursionError) as error:
        where = f" at byte {error.pos}" if isinstance(error, json.JSONDecodeError) else ""
        raise BadBodyError(f"body is not JSON{where}") from None
    if not isinstance(tree, dict):
        raise BadBodyError(f"body is a JSON {type(tree).__name__}, not an OTLP {kind.name.lower()} request")
    message = MESSAGES[kind]()
    try:
        json_format.ParseDict(_with_bytes(tree), message, ignore_unknown_fields=True)
        message.SerializeToString()  # refuses text that is no UTF-8
    except (json_format.ParseError, EncodeError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise BadBodyError(f"body is not an OTLP {kind.name.lower()} request in JSON ({type(error).__name__})") from None
    return message


def _with_bytes(node: Any) -> Any:
    """OTLP writes ids in hexadecimal where protobuf's JSON has base64. Attributes are lists of key and value, so no attribute is meant."""
    if isinstance(node, dict):
        return {key: _base64(key, value) if key in _IDS else _with_bytes(value) for key, value in node.items()}
    if isinstance(node, list):
        return [_with_bytes(item) for item in node]
    return node


def _base64(key: str, value: Any) -> str:
    if value in ("", None):
        return ""
    try:
        raw = bytes.fromhex(value)
    except (ValueError, TypeError, binascii.Error):
        raise ValueError(key) from None
    if len(raw) != _IDS[key]:
        raise ValueError(key)
    return base64.b64encode(raw).decode()
