"""OTLP traces with each attribute of a span left as the bytes it came in: most are known by sight, and need no look inside."""

from typing import Any, Final

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError, Message
from opentelemetry.proto.collector.trace.v1 import trace_service_pb2
from opentelemetry.proto.common.v1 import common_pb2
from opentelemetry.proto.resource.v1 import resource_pb2
from opentelemetry.proto.trace.v1 import trace_pb2

from lensd.errors import BadBodyError
from lensd.receive.parse import parse_protobuf
from lensd.store.segments import Signal

DOUBLE: Final = 0x21
INT: Final = 0x18
BOOL: Final = 0x10
TEXT: Final = 0x0A
"""First byte of an AnyValue: the field it sets, and how that is written."""
BEFORE_DOUBLE: Final = b"\x12\x09\x21"
"""What stands between an attribute's name and the eight bytes of a double: the commonest value that is seldom the same again."""


def _raw_traces() -> Any:
    """ExportTraceServiceRequest of the same wire format, whose Span.attributes are bytes instead of KeyValues."""
    pool = descriptor_pool.DescriptorPool()
    for module in (common_pb2, resource_pb2, trace_pb2, trace_service_pb2):
        file = descriptor_pb2.FileDescriptorProto()
        module.DESCRIPTOR.CopyToProto(file)
        for message in file.message_type:
            for field in message.field:
                if (message.name, field.name) == ("Span", "attributes"):
                    field.type = field.TYPE_BYTES
                    field.ClearField("type_name")
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(trace_service_pb2.ExportTraceServiceRequest.DESCRIPTOR.full_name))


RawTraces: Final[Any] = _raw_traces()


def parse_raw(kind: Signal, body: bytes) -> Message:
    """A body's message; of traces a RawTraces, whose attributes nobody has checked yet. Raises BadBodyError."""
    if kind is not Signal.TRACES:
        return parse_protobuf(kind, body)
    try:
        message: Message = RawTraces.FromString(body)
    except DecodeError as error:
        raise BadBodyError(f"body is not an OTLP traces request in protobuf: {error}") from None
    return message


def attribute(raw: bytes) -> Any:
    """The KeyValue that these bytes are, without fields that nobody knows. Raises BadBodyError."""
    try:
        pair = common_pb2.KeyValue.FromString(raw)
    except DecodeError as error:
        raise BadBodyError(f"body is not an OTLP traces request in protobuf: {error}") from None
    pair.DiscardUnknownFields()
    return pair


def value_at(raw: bytes) -> int:
    """Where the value of an attribute begins, at one of the first bytes above; 0 where a KeyValue has to be made to know it.

    Not 0: key and value are short, stand once and alone, and the value is one whole scalar; `raw[2 : at - 2]` is the key.
    """
    size = len(raw)
    at = raw[1] + 4 if size > 5 else size
    left = size - at
    if not 1 < left < 128 or raw[0] != TEXT or raw[1] > 127 or raw[at - 2] != 0x12 or raw[at - 1] != left:
        return 0
    kind = raw[at]
    if kind == TEXT:
        return at if raw[at + 1] == left - 2 else 0
    if kind == DOUBLE:
        return at if left == 9 else 0
    if kind == INT:
        return at if raw[-1] < 128 and (left == 2 or (left == 3 and raw[-2] > 127)) else 0
    return at if kind == BOOL and left == 2 and raw[-1] < 2 else 0
