"""A real `lensd serve`: a gzip bomb costs it little memory, and a body sent again after a kill counts once, at either door."""

import asyncio
import json
import signal
import sys
import time
import urllib.error
import urllib.request
import zlib

import grpc
import pytest
from daemon_process import LIMIT_S, Daemon, until

from lensd.daemon import _grpc_door

GIB = 1 << 30
GROWS_BY_AT_MOST = 160 << 20  # of a bomb, 64 MiB are unpacked before it is refused
METHOD = "/opentelemetry.proto.collector.trace.v1.TraceService/Export"


@pytest.fixture
def daemon(tmp_path):
    made = Daemon(tmp_path)
    yield made
    made.clean_up()


@pytest.fixture(params=["http", "grpc"])
def door(request, daemon):
    """Sends packed bytes: HTTP status or gRPC code."""
    send = {"http": posted, "grpc": called}[request.param]
    return lambda body: send(daemon, body)


def token(daemon):
    return f"Bearer {(daemon.store / 'token').read_text().strip()}"


def posted(daemon, body):
    headers = {"content-type": "application/x-protobuf", "content-encoding": "gzip", "authorization": token(daemon)}
    try:
        return urllib.request.urlopen(
            urllib.request.Request(f"http://127.0.0.1:{daemon.otlp}/v1/traces", body, headers), timeout=LIMIT_S
        ).status
    except urllib.error.HTTPError as refused:
        return refused.code


def called(daemon, body):
    with grpc.insecure_channel(f"127.0.0.1:{daemon.otlp_grpc}") as channel:
        try:
            channel.unary_unary(METHOD)(body, timeout=LIMIT_S, metadata=(("authorization", token(daemon)),))
            return "OK"
        except grpc.RpcError as refused:
            return refused.code().name


def packed(chunk, times):
    """`chunk` that many times as one gzip stream, without ever holding it."""
    packer = zlib.compressobj(1, wbits=31)
    parts = [packer.compress(chunk) for _ in range(times)]
    return b"".join([*parts, packer.flush()])


def peak(daemon):
    """The most memory that the daemon has held so far, in bytes."""
    with open(f"/proc/{daemon.process.pid}/status") as file:
        return next(int(line.split()[1]) << 10 for line in file if line.startswith("VmHWM"))


def counts(daemon):
    request = urllib.request.Request(f"http://127.0.0.1:{daemon.api}/api/v1/status", headers={"authorization": token(daemon)})
    with urllib.request.urlopen(request, timeout=LIMIT_S) as answer:
        return json.loads(answer.read())["counts"]


def body():
    """One span of now."""
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    message = ExportTraceServiceRequest()
    now = time.time_ns()
    message.resource_spans.add().scope_spans.add().spans.add(
        name="again", trace_id=bytes(16), span_id=bytes(8), start_time_unix_nano=now, end_time_unix_nano=now + 1
    )
    return packed(message.SerializeToString(), 1)


def test_without_grpcio_the_daemon_says_so_and_goes_on(monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "grpc", None)
    monkeypatch.delitem(sys.modules, "lensd.receive.grpc", raising=False)
    assert asyncio.run(_grpc_door(None, "127.0.0.1:4317")) is None
    (said,) = caplog.messages
    assert said == (
        "no OTLP over gRPC on 127.0.0.1:4317: module grpc is missing; pip install 'lensd[serve]', or set serve.otlp_grpc to nothing"
    )
    assert asyncio.run(_grpc_door(None, "")) is None
    assert len(caplog.messages) == 1


@pytest.fixture(scope="module")
def bomb():
    made = packed(b"\0" * (64 << 20), GIB // (64 << 20))
    assert len(made) < 8 << 20
    return made


@pytest.mark.slow
def test_a_gzip_bomb_of_a_gibibyte_is_refused_in_bounded_memory(daemon, door, bomb, record_property):
    daemon.start()
    assert door(body()) in (200, "OK")
    before = peak(daemon)
    for _ in range(2):
        assert door(bomb) in (413, "RESOURCE_EXHAUSTED")
    grown = peak(daemon) - before
    record_property("figures", f"a gzip bomb of 1 GiB: memory grew by {grown / (1 << 20):.0f} MiB")
    assert grown < GROWS_BY_AT_MOST
    assert counts(daemon)["refused_bodies"] == 2


@pytest.mark.slow
def test_a_body_sent_again_after_a_kill_counts_once(daemon):
    daemon.start()
    sent = body()
    assert posted(daemon, sent) == 200
    assert daemon.end(signal.SIGKILL) == -signal.SIGKILL
    for life in range(2):  # first it may lie in the journal alone, then it is in the store for sure
        daemon.start()
        assert posted(daemon, sent) == 200
        assert (counts(daemon)["bodies"], counts(daemon)["repeated_bodies"]) == (0, 1), life
        assert posted(daemon, body()) == 200
        until(lambda life=life: counts(daemon)["rows"] == 2 - life)
        assert daemon.end(signal.SIGTERM) == 0
