"""What an OTLP door answers: the response message of a body it took, a google.rpc.Status for one it refused."""

from typing import Any, Final

from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.duration_pb2 import Duration
from google.protobuf.message import Message
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

from lensd.errors import ReceiveError
from lensd.store.segments import Signal

GRPC_CODES: Final = {400: 3, 401: 16, 413: 8, 415: 3, 429: 8, 503: 14}
"""HTTP status of a refusal to gRPC's code: INVALID_ARGUMENT, UNAUTHENTICATED, RESOURCE_EXHAUSTED, UNAVAILABLE."""
UNKNOWN: Final = 2
_TEMPORARY: Final = frozenset({429, 503})
_RETRY_INFO: Final = "type.googleapis.com/google.rpc.RetryInfo"
_RESPONSES: Final[dict[Signal, tuple[type[Message], str]]] = {
    Signal.TRACES: (ExportTraceServiceResponse, "rejected_spans"),
    Signal.METRICS: (ExportMetricsServiceResponse, "rejected_data_points"),
    Signal.LOGS: (ExportLogsServiceResponse, "rejected_log_records"),
}


def response(signal: Signal, left_out: int, why: str) -> Message:
    """The response to a body: empty, or a partial success that says how many of its records were left out and why."""
    made, rejected = _RESPONSES[signal]
    message: Any = made()
    if left_out:
        setattr(message.partial_success, rejected, left_out)
        message.partial_success.error_message = why
    return message


def is_temporary(error: ReceiveError) -> bool:
    """Whether the sender is to send the same body again later."""
    return error.status in _TEMPORARY


def status(error: ReceiveError, retry_after_s: int) -> bytes:
    """A refusal as google.rpc.Status: code (field 1), message (2) and, where another attempt makes sense, RetryInfo in details (3)."""
    made = bytes([8, GRPC_CODES.get(error.status, UNKNOWN)]) + _field(2, str(error).encode()[:16_000])
    if is_temporary(error):
        info = AnyMessage(type_url=_RETRY_INFO, value=retry_info(retry_after_s))
        made += _field(3, info.SerializeToString())
    return made


def retry_info(after_s: int) -> bytes:
    """A google.rpc.RetryInfo."""
    return _field(1, Duration(seconds=after_s).SerializeToString())


def _field(number: int, raw: bytes) -> bytes:
    """A length-delimited protobuf field."""
    length, size = [], len(raw)
    while size > 127:
        length.append(size & 127 | 128)
        size >>= 7
    return bytes([number << 3 | 2, *length, size]) + raw
