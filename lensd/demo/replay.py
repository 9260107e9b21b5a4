"""A recorded real run, for machines where no engine can be had: the same telemetry, its clock moved to now."""

import base64
import lzma
import sys
import threading
import time
import urllib.request
from contextlib import ExitStack, suppress
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec

from lensd.api.client import Client
from lensd.demo.hook import Hook
from lensd.demo.place import Place, Target, configure
from lensd.errors import LensdError
from lensd.supervise import Part, Supervisor, answers

SAID = "replayed, not run"
EXIT_STATUS = 5


class Body(msgspec.Struct, frozen=True):
    """One OTLP body as the door took it, scrubbed; `at` microseconds since the epoch."""

    signal: str  # traces, metrics, logs
    at: int
    protobuf: str  # base64


class Recording(msgspec.Struct, frozen=True):
    """A run: what came in, and which request showed which fault."""

    engine: str  # "vLLM 0.32.0 on the CPU"
    stops: tuple[tuple[str, str, str], ...]  # name, label, request id
    bodies: tuple[Body, ...]


def read() -> Recording:
    packed = resources.files("lensd.demo").joinpath("recording.json.xz").read_bytes()
    return msgspec.json.decode(lzma.decompress(packed), type=Recording)


def write(recording: Recording, path: Path) -> None:
    path.write_bytes(lzma.compress(msgspec.json.encode(recording), preset=9 | lzma.PRESET_EXTREME))


def run(place: Place, hook: Hook, *, once: bool) -> int:
    """Exit status: 5, since nothing was run."""
    recording = read()
    print(f"no engine can be had here: showing a recorded run of {recording.engine}; {SAID}", flush=True)
    configure(place, Target("http://127.0.0.1:9", "tiny-llama"), hook.url)
    with ExitStack() as stack:
        supervisor = Supervisor(stack.enter_context((place.folder / "up.log").open("w")))
        stack.callback(supervisor.stop)
        named = ("--config", str(place.config))
        supervisor.start(Part("serve", ("serve", *named), answers(f"{place.api_url}/healthz")))
        supervisor.start(Part("dashboard", ("dashboard", *named), answers(f"{place.dashboard_url}/_stcore/health")))
        _send(recording, place)
        client = Client(place.api_url, place.token)
        for name, label, request_id in recording.stops:
            print(f"\n{name}: {_verdict(client, request_id, label)} ({SAID})\n  {place.dashboard_url}/r/{request_id}", flush=True)
        print(f"\ndashboard  {place.dashboard_url}", flush=True)
        if not once:
            stay()
    return EXIT_STATUS


def stay() -> None:
    """Until Ctrl-C, which is how it is meant to end."""
    print("stays up until Ctrl-C", flush=True)
    with suppress(KeyboardInterrupt):
        threading.Event().wait()


def _verdict(client: Client, request_id: str, label: str) -> str:
    try:
        verdict = client.diagnosis(request_id, 5.0).verdict
    except LensdError as error:
        return str(error)
    wanted = "" if verdict.label == label else f" [recorded as {label}]"
    return f"{verdict.label}{wanted}: {verdict.cause}"


def _send(recording: Recording, place: Place) -> None:
    """Post every body, its instants moved so that the last one is now.

    Spans come last: all of them are old enough to be judged at once, and are to be judged with the scrapes of their time.
    """
    ahead = (time.time_ns() // 1000 - max(b.at for b in recording.bodies)) * 1000
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # it goes to ourselves
    for body in sorted(recording.bodies, key=lambda b: b.signal == "traces"):
        moved = _moved(body, ahead)
        request = urllib.request.Request(
            f"{place.otlp_url}/v1/{body.signal}",
            moved,
            {"content-type": "application/x-protobuf", "authorization": f"Bearer {place.token}"},
        )
        try:
            direct.open(request, timeout=10).close()
        except OSError as error:
            print(f"lensd: a recorded body was not taken: {error}", file=sys.stderr)
            return


def _moved(body: Body, ahead_ns: int) -> bytes:
    message = parsed(body)
    _move(message, ahead_ns)
    return bytes(message.SerializeToString())


def parsed(body: Body) -> Any:
    """The body as an OTLP message."""
    from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
    from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    kinds: dict[str, Any] = {
        "traces": ExportTraceServiceRequest,
        "metrics": ExportMetricsServiceRequest,
        "logs": ExportLogsServiceRequest,
    }
    message = kinds[body.signal]()
    message.ParseFromString(base64.b64decode(body.protobuf))
    return message


def _move(message: object, ahead_ns: int) -> None:
    """Every `*_unix_nano` field in the message and below it."""
    for field, value in message.ListFields():  # type: ignore[attr-defined]
        if field.name.endswith("_unix_nano"):
            setattr(message, field.name, value + ahead_ns)
        elif field.type == field.TYPE_MESSAGE:
            for part in value if field.is_repeated else [value]:
                _move(part, ahead_ns)
