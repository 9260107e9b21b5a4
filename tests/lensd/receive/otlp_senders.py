"""Ways of sending one OTLP body to an intake: HTTP with protobuf, HTTP with JSON, gRPC; each over a real socket, each answered alike."""

import asyncio
import base64
import gzip
import json
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import grpc
import uvicorn
from google.protobuf import json_format

from lensd.receive.answers import GRPC_CODES
from lensd.receive.grpc import SERVICES, GrpcDoor
from lensd.receive.http import JSON, PATHS, PROTOBUF, OtlpDoor
from lensd.receive.intake import Intake
from lensd.store.segments import Signal

LIMIT_S = 30
_PATH_OF = {signal: path for path, signal in PATHS.items()}
_IDS = ("traceId", "spanId", "parentSpanId")


class Answer(NamedTuple):
    """`code`: gRPC's, 0 where the body was taken. `left_out`: how many records the answer says were not kept."""

    code: int
    message: str
    left_out: int
    retry_after_s: int | None


Send = Callable[..., Answer]
"""send(signal, message, token=..., packed=..., raw=...): `raw` is sent as it is, in the place of the message."""


@contextmanager
def over_http(intake: Intake, kind: str) -> Iterator[Send]:
    """Behind uvicorn on a free port."""
    server = uvicorn.Server(uvicorn.Config(OtlpDoor(intake), log_level="warning", lifespan="off", access_log=False))
    listening = socket.create_server(("127.0.0.1", 0))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()

    def send(signal: Signal, message: Any = None, *, token: str = "t", packed: bool = False, raw: bytes | None = None) -> Answer:
        body = raw if raw is not None else _written(message, kind)
        headers = {"content-type": kind, "authorization": f"Bearer {token}"}
        if packed:
            headers, body = {**headers, "content-encoding": "gzip"}, body if raw is not None else gzip.compress(body)
        return _posted(f"http://127.0.0.1:{listening.getsockname()[1]}{_PATH_OF[signal]}", body, headers)

    try:
        yield send
    finally:
        server.should_exit = True
        thread.join(LIMIT_S)
        listening.close()


def _written(message: Any, kind: str) -> bytes:
    if kind == PROTOBUF:
        return bytes(message.SerializeToString())
    return json.dumps(_with_hex(json_format.MessageToDict(message))).encode()


def _with_hex(node: Any) -> Any:
    """OTLP's ids are hexadecimal in JSON, where protobuf writes base64."""
    if isinstance(node, dict):
        return {key: base64.b64decode(value).hex() if key in _IDS else _with_hex(value) for key, value in node.items()}
    return [_with_hex(item) for item in node] if isinstance(node, list) else node


def _posted(url: str, body: bytes, headers: dict[str, str]) -> Answer:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, body, headers), timeout=LIMIT_S) as found:
            return _taken(found.read(), headers["content-type"], url)
    except urllib.error.HTTPError as error:
        refused, text = error, error.read()
    if headers["content-type"] == JSON:
        told = json.loads(text)
        code, said = told["code"], told["message"]
    else:
        code, said, _ = status_of(text)
    assert GRPC_CODES[refused.code] == code
    after = refused.headers.get("retry-after")
    return Answer(code, said, 0, None if after is None else int(after))


def _taken(raw: bytes, kind: str, url: str) -> Answer:
    if kind == JSON:
        told = json.loads(raw).get("partialSuccess", {})
        rejected = next((int(value) for key, value in told.items() if key.startswith("rejected")), 0)
        return Answer(0, told.get("errorMessage", ""), rejected, None)
    return partial(PATHS[url[url.index("/v1/") :]], raw)


def partial(signal: Signal, raw: bytes) -> Answer:
    """The answer that a response message in protobuf gives."""
    from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceResponse
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceResponse
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

    kinds: dict[Signal, tuple[Any, str]] = {
        Signal.TRACES: (ExportTraceServiceResponse, "rejected_spans"),
        Signal.METRICS: (ExportMetricsServiceResponse, "rejected_data_points"),
        Signal.LOGS: (ExportLogsServiceResponse, "rejected_log_records"),
    }
    kind, field = kinds[signal]
    told = kind.FromString(raw).partial_success
    return Answer(0, told.error_message, getattr(told, field), None)


def status_of(raw: bytes) -> tuple[int, str, int | None]:
    """Code, message and the seconds of RetryInfo of a google.rpc.Status, read by a descriptor of its own."""
    from google.protobuf import any_pb2, descriptor_pb2, descriptor_pool, duration_pb2, message_factory

    file = descriptor_pb2.FileDescriptorProto(name="status.proto", package="told", syntax="proto3")
    file.dependency.extend(["google/protobuf/any.proto", "google/protobuf/duration.proto"])
    field = descriptor_pb2.FieldDescriptorProto
    status = file.message_type.add(name="Status")
    status.field.add(name="code", number=1, type=field.TYPE_INT32, label=field.LABEL_OPTIONAL)
    status.field.add(name="message", number=2, type=field.TYPE_STRING, label=field.LABEL_OPTIONAL)
    status.field.add(name="details", number=3, type=field.TYPE_MESSAGE, label=field.LABEL_REPEATED, type_name=".google.protobuf.Any")
    retry = file.message_type.add(name="RetryInfo")
    retry.field.add(
        name="retry_delay", number=1, type=field.TYPE_MESSAGE, label=field.LABEL_OPTIONAL, type_name=".google.protobuf.Duration"
    )
    pool = descriptor_pool.DescriptorPool()
    for module in (any_pb2, duration_pb2):
        pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
    pool.Add(file)
    made: Any = message_factory.GetMessageClass(pool.FindMessageTypeByName("told.Status")).FromString(raw)
    after = None
    for detail in made.details:
        assert detail.type_url == "type.googleapis.com/google.rpc.RetryInfo"
        told: Any = message_factory.GetMessageClass(pool.FindMessageTypeByName("told.RetryInfo")).FromString(detail.value)
        after = told.retry_delay.seconds
    return made.code, made.message, after


@contextmanager
def over_grpc(intake: Intake) -> Iterator[Send]:
    """A server in a loop of its own thread, asked by grpcio's plain client."""
    service_of = {signal: service for service, signal in SERVICES.items()}
    up, ended, ports = threading.Event(), threading.Event(), list[int]()

    async def serve() -> None:
        door = GrpcDoor(intake)
        ports.append(await door.start("127.0.0.1:0"))
        up.set()
        await asyncio.get_running_loop().run_in_executor(None, ended.wait)
        await door.stop(0)

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert up.wait(LIMIT_S)
    channel = grpc.insecure_channel(f"127.0.0.1:{ports[0]}", options=(("grpc.max_send_message_length", -1),))

    def send(signal: Signal, message: Any = None, *, token: str = "t", packed: bool = False, raw: bytes | None = None) -> Answer:
        call = channel.unary_unary(f"/{service_of[signal]}/Export")
        body = raw if raw is not None else message.SerializeToString()
        # what is packed already is sent as it is; the door knows it by its first bytes, as it does what gRPC has packed
        packing = grpc.Compression.Gzip if packed and raw is None else grpc.Compression.NoCompression
        try:
            found = call(body, timeout=LIMIT_S, metadata=(("authorization", f"Bearer {token}"),), compression=packing)
            return partial(signal, found)
        except grpc.RpcError as error:
            refused: Any = error
        code, said = refused.code().value[0], refused.details()
        after, trailing = None, dict(refused.trailing_metadata() or ())
        if details := trailing.get("grpc-status-details-bin"):
            *told, after = status_of(details)
            assert told == [code, said]
        assert ("google.rpc.retryinfo-bin" in trailing) == (after is not None)
        return Answer(code, said, 0, after)

    try:
        yield send
    finally:
        channel.close()
        ended.set()
        thread.join(LIMIT_S)


SENDERS: dict[str, Callable[[Intake], Any]] = {
    "http-protobuf": lambda intake: over_http(intake, PROTOBUF),
    "http-json": lambda intake: over_http(intake, JSON),
    "grpc": over_grpc,
}
