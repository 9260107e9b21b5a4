"""The OTLP door answers as OTLP says, refuses in one line, and says 200 only for what the journal has on disk."""

import asyncio
import errno
import gzip
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTracePartialSuccess, ExportTraceServiceRequest
from otlp_bodies import AT_US, CAPTURES, traces

from lensd.receive.http import OtlpDoor
from lensd.receive.intake import Intake
from lensd.receive.limits import DoorLimits
from lensd.store.disk import RealDisk
from lensd.store.journal import Journal, Scan, Signal

TOKEN = "the-token-of-this-store"
PROTOBUF, JSON = "application/x-protobuf", "application/json"
BODY = traces({"name": "s"}).SerializeToString()


def body(number: int) -> bytes:
    """One that no other number gives: bodies that are the same are not kept twice."""
    return bytes(traces({"name": f"s{number}"}).SerializeToString())


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes


@pytest.fixture
def journal(tmp_path: Path) -> Iterator[Journal]:
    made = Journal(tmp_path)
    yield made
    made.close()


@pytest.fixture
def intake(journal: Journal) -> Intake:
    return Intake(journal, TOKEN, DoorLimits(max_body_bytes=20_000, max_decoded_bytes=50_000), clock=lambda: AT_US / 1e6)


@pytest.fixture
def door(intake: Intake) -> OtlpDoor:
    return OtlpDoor(intake)


async def asked(
    door: OtlpDoor,
    body: bytes = b"",
    *,
    path: str = "/v1/traces",
    method: str = "POST",
    kind: str = PROTOBUF,
    token: str | None = TOKEN,
    **more: str,
) -> Answer:
    headers = {"content-type": kind, **{name.replace("_", "-"): value for name, value in more.items()}}
    if token is not None:
        headers["authorization"] = f"Bearer {token}"
    scope = {
        "type": "http",
        "path": path,
        "method": method,
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
    }
    parts = [
        {"type": "http.request", "body": body[at : at + 1000], "more_body": at + 1000 < len(body)}
        for at in range(0, max(len(body), 1), 1000)
    ]
    sent: list[Any] = []

    async def receive() -> Any:
        return parts.pop(0) if parts else {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        sent.append(message)

    await door(scope, receive, send)
    return Answer(sent[0]["status"], {name.decode(): value.decode() for name, value in sent[0]["headers"]}, sent[1]["body"])


def ask(door: OtlpDoor, body: bytes = b"", **how: Any) -> Answer:
    return asyncio.run(asked(door, body, **how))


def held(journal: Journal) -> list[tuple[Signal, int, bytes]]:
    return [(record.kind, record.received_at_us, record.payload) for record in Scan(journal.folder)]


def test_a_captured_body_is_kept_byte_for_byte(door: OtlpDoor, journal: Journal) -> None:
    raw = (CAPTURES / "otlp" / "requests.pb").read_bytes()
    assert ask(door, raw, kind=f"{PROTOBUF}; charset=utf-8").status == 200
    assert held(journal) == [(Signal.TRACES, AT_US, raw)]


@pytest.mark.parametrize(
    ("body", "how", "status", "says"),
    [
        (BODY, {"token": None}, 401, "bearer token"),
        (BODY, {"token": TOKEN[:-1]}, 401, "bearer token"),
        (BODY, {"token": TOKEN + "x"}, 401, "bearer token"),
        (b"\xff\xff\xff", {}, 400, "not an OTLP traces request in protobuf"),
        (BODY[:-3], {}, 400, "not an OTLP traces request in protobuf"),
        (b"{", {"kind": JSON}, 400, "not JSON"),
        (b"[]", {"kind": JSON}, 400, "JSON list"),
        (b"[" * 15_000, {"kind": JSON}, 400, "not JSON"),
        (b'{"resourceSpans": 3}', {"kind": JSON}, 400, "not an OTLP traces request in JSON"),
        (b'{"resourceSpans":[{"scopeSpans":[{"spans":[{"traceId":"zz"}]}]}]}', {"kind": JSON}, 400, "not an OTLP traces request in JSON"),
        (b'{"resourceSpans":[{"scopeSpans":[{"spans":[{"traceId":"abcd"}]}]}]}', {"kind": JSON}, 400, "not an OTLP traces request in JSON"),
        (b'{"resourceSpans":[{"scopeSpans":[{"spans":[{"name":"\\ud800"}]}]}]}', {"kind": JSON}, 400, "not an OTLP traces request in JSON"),
        (BODY, {"content_encoding": "gzip"}, 400, "not gzip"),
        (gzip.compress(BODY, mtime=0)[:-4], {"content_encoding": "gzip"}, 400, "cut short"),
        (gzip.compress(BODY, mtime=0) + b"x", {"content_encoding": "gzip"}, 400, "after its end"),
        (gzip.compress(b"\0" * 50_001, mtime=0), {"content_encoding": "gzip"}, 413, "once unpacked"),
        (b"x" * 20_001, {}, 413, "over 20000"),
        (b"x" * 20_001, {"content_length": "20001"}, 413, "20001"),
        (BODY, {"kind": "text/plain"}, 415, "text/plain"),
        (BODY, {"content_encoding": "zstd"}, 415, "zstd"),
        (BODY, {"path": "/v1/profiles"}, 404, "/v1/profiles"),
        (BODY, {"method": "GET"}, 405, "use POST"),
    ],
)
def test_what_is_refused_is_refused_in_one_line_and_not_kept(
    door: OtlpDoor, intake: Intake, journal: Journal, body: bytes, how: dict[str, str], status: int, says: str
) -> None:
    answer = ask(door, body, **how)
    assert answer.status == status
    assert says.encode() in answer.body
    assert b"\n" not in answer.body[5:]  # before it, a protobuf answer has a code and a length
    assert TOKEN.encode() not in answer.body
    assert held(journal) == []
    if status not in (404, 405):
        assert intake.counts.refused.total() == 1
    if how.get("kind") == JSON:
        assert json.loads(answer.body)["code"] == 3


def test_a_refusal_in_protobuf_is_a_status(door: OtlpDoor) -> None:
    answer = ask(door, b"\xff\xff\xff")
    assert answer.headers["content-type"] == PROTOBUF
    status = ExportTracePartialSuccess.FromString(answer.body)  # has the same fields as a google.rpc.Status
    assert status.rejected_spans == 3
    assert status.error_message.startswith("body is not an OTLP traces request")


def test_without_a_token_the_door_is_open(journal: Journal) -> None:
    assert ask(OtlpDoor(Intake(journal, "")), BODY, token=None).status == 200


def test_healthz_needs_no_token(door: OtlpDoor) -> None:
    assert ask(door, path="/healthz", method="GET", token=None).status == 200


def test_a_full_journal_says_when_to_come_back(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "small", max_bytes=500)
    door = OtlpDoor(Intake(journal, TOKEN))
    statuses = [ask(door, body(number)) for number in range(20)]
    assert statuses[0].status == 200
    assert statuses[-1].status == 429
    assert statuses[-1].headers["retry-after"] == "1"
    assert len(held(journal)) == sum(answer.status == 200 for answer in statuses)
    journal.close()


class BrokenDisk(RealDisk):
    def sync(self, handle: int) -> None:
        raise OSError(errno.EIO, "input/output error")


def test_a_broken_disk_is_503_and_nothing_acknowledged(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "broken", disk=BrokenDisk())
    answer = ask(OtlpDoor(Intake(journal, TOKEN)), BODY)
    assert (answer.status, answer.headers["retry-after"]) == (503, "1")
    journal.close()
    assert held(journal) == []


class SlowDisk(RealDisk):
    def __init__(self) -> None:
        self.go = threading.Event()

    def sync(self, handle: int) -> None:
        self.go.wait(10)
        super().sync(handle)


def test_200_waits_for_the_sync_and_bodies_at_work_are_limited(tmp_path: Path) -> None:
    disk = SlowDisk()
    journal = Journal(tmp_path / "slow", disk=disk)
    door = OtlpDoor(Intake(journal, TOKEN, DoorLimits(max_in_flight=2)))

    async def run() -> None:
        waiting = [asyncio.create_task(asked(door, body(number))) for number in range(2)]
        await asyncio.sleep(0)
        assert (await asked(door, body(2))).status == 429
        assert not any(task.done() for task in waiting)
        disk.go.set()
        assert [(await task).status for task in waiting] == [200, 200]
        assert (await asked(door, body(2))).status == 200

    asyncio.run(run())
    journal.close()
    assert len(held(journal)) == 3


def test_a_sender_that_leaves_in_the_middle_is_no_body(door: OtlpDoor, intake: Intake, journal: Journal) -> None:
    async def receive() -> Any:
        return parts.pop(0)

    async def send(message: Any) -> None:
        pass

    parts: list[Any] = [{"type": "http.request", "body": BODY, "more_body": True}, {"type": "http.disconnect"}]
    headers = [(b"content-type", PROTOBUF.encode()), (b"authorization", f"Bearer {TOKEN}".encode())]
    asyncio.run(door({"type": "http", "path": "/v1/traces", "method": "POST", "headers": headers}, receive, send))
    assert held(journal) == []
    assert intake.counts.refused == {"bad-body": 1}


def test_fields_that_the_parser_does_not_know_are_not_kept(door: OtlpDoor, journal: Journal) -> None:
    unknown = bytes([0x92, 0x7D, 7]) + b"planted"  # field 2002, seven bytes
    assert ask(door, BODY + unknown).status == 200
    ((_, _, kept),) = held(journal)
    assert b"planted" not in kept
    assert ExportTraceServiceRequest.FromString(kept) == ExportTraceServiceRequest.FromString(BODY)
