"""Numbered records through a failing receiver: none lost unless counted, none doubled unless counted as ambiguous."""

import json
import socket
import struct
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lensd_collectors import log_json, span_json
from lensd_collectors.export import Backoff, Exporter

QUICK = Backoff(first_s=0.002, most_s=0.01, most_attempts=3)
TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"

Behaviour = str | int


class Receiver:
    """An OTLP/HTTP receiver that follows a script, then takes everything; remembers what it took."""

    def __init__(self) -> None:
        self.script: list[Behaviour] = []
        self.bodies: list[tuple[str, dict[str, Any]]] = []
        self.headers: list[dict[str, str]] = []
        self.attempts: list[float] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                receiver.serve(self)

            def log_message(self, *args: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True)
        self.thread.start()

    def serve(self, handler: BaseHTTPRequestHandler) -> None:
        step = self.script.pop(0) if self.script else "take"
        self.attempts.append(time.monotonic())
        if step == "reset-unread":
            _reset(handler)
            return
        data = handler.rfile.read(int(handler.headers["Content-Length"]))
        if step in ("take", "take-then-reset", "take-too-late"):
            self.bodies.append((handler.path, json.loads(data)))
            self.headers.append(dict(handler.headers))
        if step == "take-then-reset":
            _reset(handler)
            return
        if step == "take-too-late":
            time.sleep(0.4)
        handler.send_response(step if isinstance(step, int) else 200)
        if step == 429:
            handler.send_header("Retry-After", "0.05")
        handler.send_header("Content-Length", "2")
        handler.end_headers()
        handler.wfile.write(b"{}")

    def numbers(self) -> Counter[int]:
        return Counter(int(_attribute(record, "n")) for path, body in self.bodies for record in _records(path, body))

    def stop(self) -> None:
        self.server.shutdown()
        self.server.server_close()


def _reset(handler: BaseHTTPRequestHandler) -> None:
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    handler.close_connection = True
    handler.connection.close()


def _records(path: str, body: dict[str, Any]) -> list[dict[str, Any]]:
    if path == "/v1/traces":
        return list(body["resourceSpans"][0]["scopeSpans"][0]["spans"])
    if path == "/v1/logs":
        return list(body["resourceLogs"][0]["scopeLogs"][0]["logRecords"])
    metrics = body["resourceMetrics"][0]["scopeMetrics"][0]["metrics"]
    return [point for metric in metrics for kind in ("gauge", "sum", "histogram") for point in metric.get(kind, {}).get("dataPoints", ())]


def _attribute(record: dict[str, Any], key: str) -> str:
    return next(str(next(iter(pair["value"].values()))) for pair in record["attributes"] if pair["key"] == key)


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.stop()


def _exporter(url: str, **settings: Any) -> Exporter:
    given: dict[str, Any] = {
        "token": "secret-token",
        "service": "test",
        "scope": "lensd.test",
        "backoff": QUICK,
        "flush_every_s": 0.01,
        "timeout_s": 2.0,
    }
    return Exporter(url, **(given | settings))


def _emit(exporter: Exporter, n: int) -> None:
    kind = n % 3
    if kind == 0:
        exporter.span("s", trace_id=TRACE, span_id=SPAN, parent_span_id=None, kind="server", start_ns=1, end_ns=2, attributes={"n": n})
    elif kind == 1:
        exporter.event("e", at_ns=1, attributes={"n": n})
    else:
        exporter.gauge("g", n, at_ns=1, attributes={"n": n})


def _settle(condition: Callable[[], bool], within_s: float = 5.0) -> None:
    limit = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < limit, "did not settle"
        time.sleep(0.005)


TEMPORARY = st.sampled_from([429, 503, 502, 504, "reset-unread", "take-then-reset", "take"])
PERMANENT = st.sampled_from([500, 400, 401, 413])


@settings(max_examples=25, deadline=None)
@given(script=st.lists(st.one_of(TEMPORARY, PERMANENT), max_size=8), capacity=st.sampled_from([10, 30, 1000]))
def test_every_record_is_sent_dropped_or_failed(script: list[Behaviour], capacity: int) -> None:
    receiver = Receiver()
    receiver.script = list(script)
    exporter = _exporter(receiver.url, capacity=capacity)
    try:
        for n in range(60):
            _emit(exporter, n)
        assert exporter.flush(20)
        seen = receiver.numbers()
        doubled = sum(count - 1 for count in seen.values())
        assert exporter.sent + exporter.dropped + exporter.failed == 60
        assert len(seen) >= exporter.sent, "counted as sent but not there"
        assert 60 - len(seen) <= exporter.dropped + exporter.failed, "lost and not counted"
        assert doubled <= exporter.ambiguous
        if not set(script) & {"reset-unread", "take-then-reset"}:
            assert doubled == 0
            assert len(seen) == exporter.sent
        if not set(script) & {500, 400, 401, 413}:
            assert exporter.failed == 0
    finally:
        exporter.close(1)
        receiver.stop()


def test_timeout_is_ambiguous_and_counted(receiver: Receiver) -> None:
    receiver.script = ["take-too-late"]
    exporter = _exporter(receiver.url, timeout_s=0.1)
    exporter.event("e", at_ns=1, attributes={"n": 1})
    assert exporter.flush(5)
    assert (exporter.sent, exporter.ambiguous, exporter.failed) == (1, 1, 0)
    assert receiver.numbers()[1] == 2
    exporter.close(1)


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413])
def test_refused_body_is_not_tried_again(receiver: Receiver, status: int) -> None:
    receiver.script = [status]
    exporter = _exporter(receiver.url)
    exporter.event("e", at_ns=1, attributes={"n": 1})
    assert exporter.flush(5)
    assert (exporter.sent, exporter.failed, len(receiver.attempts)) == (0, 1, 1)
    exporter.close(1)


def test_retry_after_is_kept(receiver: Receiver) -> None:
    receiver.script = [429]
    exporter = _exporter(receiver.url)
    exporter.event("e", at_ns=1, attributes={"n": 1})
    assert exporter.flush(5)
    assert exporter.sent == 1
    assert receiver.attempts[1] - receiver.attempts[0] >= 0.05
    exporter.close(1)


def test_server_error_is_tried_a_few_times_only(receiver: Receiver) -> None:
    receiver.script = [500] * 10
    exporter = _exporter(receiver.url)
    exporter.event("e", at_ns=1, attributes={"n": 1})
    assert exporter.flush(5)
    assert (exporter.failed, len(receiver.attempts)) == (1, QUICK.most_attempts)
    exporter.close(1)


def test_full_queue_drops_the_newest_and_keeps_the_oldest(receiver: Receiver) -> None:
    receiver.script = [503] * 200
    exporter = _exporter(receiver.url, capacity=5)
    for n in range(8):
        exporter.event("e", at_ns=1, attributes={"n": n})
    assert exporter.dropped == 3
    receiver.script.clear()
    assert exporter.flush(5)
    assert sorted(receiver.numbers()) == [0, 1, 2, 3, 4]
    exporter.close(1)


def test_a_batch_arrives_in_one_body_and_is_dropped_whole(receiver: Receiver) -> None:
    exporter = _exporter(receiver.url, capacity=10)
    with exporter.batch() as batch:
        for n in range(10):
            batch.gauge(f"g{n % 2}", n, at_ns=7, attributes={"n": n})
    with exporter.batch() as batch:
        for n in range(10, 20):
            batch.gauge("g", n, at_ns=8, attributes={"n": n})
    assert exporter.flush(5)
    assert [path for path, _ in receiver.bodies] == ["/v1/metrics"]
    assert sorted(receiver.numbers()) == list(range(10))
    assert exporter.dropped == 10
    exporter.close(1)


def test_a_batch_whose_block_fails_is_not_queued(receiver: Receiver) -> None:
    exporter = _exporter(receiver.url)

    def scrape() -> None:
        with exporter.batch() as batch:
            batch.gauge("g", 1, at_ns=7, attributes={})
            raise KeyError

    with pytest.raises(KeyError):
        scrape()
    assert exporter.flush(1)
    assert receiver.bodies == []
    exporter.close(1)


def test_a_dead_receiver_costs_the_caller_nothing() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    exporter = _exporter(f"http://127.0.0.1:{port}", capacity=100)
    before = time.monotonic()
    for n in range(1000):
        _emit(exporter, n)
    assert time.monotonic() - before < 0.5
    assert not exporter.flush(0.05)
    exporter.close(0.1)
    _settle(lambda: exporter.dropped == 1000)
    exporter.event("e", at_ns=1, attributes={})
    assert exporter.dropped == 1001


def test_close_sends_what_is_queued(receiver: Receiver) -> None:
    exporter = _exporter(receiver.url, flush_every_s=60.0)
    for n in range(20):
        _emit(exporter, n)
    exporter.close(5)
    assert sorted(receiver.numbers()) == list(range(20))


def test_log_records_written_by_their_sender_count_each(receiver: Receiver) -> None:
    exporter = _exporter(receiver.url)
    exporter.logs(lambda: ",".join(log_json.write("e", span_json.pairs({"n": n}), at_ns=1) for n in range(3)), 3)
    exporter.close()
    assert (exporter.sent, receiver.numbers()) == (3, Counter(range(3)))


def test_calls_before_posting_hand_in_what_they_have(receiver: Receiver) -> None:
    exporter = _exporter(receiver.url)
    numbers = [3, 2, 1]
    exporter.before_posting(lambda: [][0])
    exporter.before_posting(lambda: exporter.event("e", at_ns=1, attributes={"n": numbers.pop()}))
    _settle(lambda: len(receiver.numbers()) == 3)  # though nothing else was queued, and calls fail
    exporter.close(1)


def test_flush_and_close_take_along_what_calls_hand_in(receiver: Receiver) -> None:
    exporter = _exporter(receiver.url, flush_every_s=60.0)
    waiting = [1]
    exporter.before_posting(lambda: exporter.event("e", at_ns=1, attributes={"n": waiting.pop()}))
    assert exporter.flush(5)
    assert sorted(receiver.numbers()) == [1]
    waiting.append(2)
    exporter.close(5)
    assert sorted(receiver.numbers()) == [1, 2]


def test_odd_values_cost_only_their_record(receiver: Receiver) -> None:
    exporter = _exporter(receiver.url)
    span = {"parent_span_id": None, "kind": "server", "start_ns": 1, "end_ns": 2}
    exporter.span("no id", trace_id="0" * 32, span_id=SPAN, attributes={}, **span)  # type: ignore[arg-type]
    exporter.span("no such kind", trace_id=TRACE, span_id=SPAN, attributes={}, **(span | {"kind": "odd"}))  # type: ignore[arg-type]
    exporter.gauge("g", "many", at_ns=1, attributes={})  # type: ignore[arg-type]
    exporter.gauge("g", 1, at_ns=1, attributes=3)  # type: ignore[arg-type]
    exporter.histogram("h", bounds=[1], counts=[1], sum=1, count=1, at_ns=1, attributes={})
    exporter.event("lone surrogate \ud800", at_ns=1, attributes={"n": 7, "x": "\udfff", "none": None}, trace_id="not hex", body="\ud800")
    assert exporter.flush(5)
    assert (exporter.failed, exporter.sent) == (5, 1)
    [record] = _records(*receiver.bodies[0])
    assert "traceId" not in record
    assert [pair["key"] for pair in record["attributes"]] == ["event.name", "n", "x"]
    exporter.close(1)


def test_token_goes_into_the_header_and_nowhere_else(receiver: Receiver, caplog: pytest.LogCaptureFixture) -> None:
    receiver.script = [401, "reset-unread"]
    exporter = _exporter(receiver.url, token="planted-token\n")
    exporter.event("e", at_ns=1, attributes={"n": 0})
    exporter.flush(5)
    exporter.event("e", at_ns=1, attributes={"n": 1})
    exporter.flush(5)
    exporter.close(1)
    assert receiver.headers[0]["Authorization"] == "Bearer planted-token"
    assert "planted-token" not in caplog.text
    assert "check the token" in caplog.text
    assert "planted-token" not in json.dumps(receiver.bodies)


def test_resource_names_the_sender(receiver: Receiver) -> None:
    first, second = _exporter(receiver.url, resource={"lensd.engine": "e0"}), _exporter(receiver.url)
    for exporter in (first, second):
        exporter.event("e", at_ns=1, attributes={"n": 0})
        exporter.close(5)
    resources = [
        {pair["key"]: pair["value"]["stringValue"] for pair in body["resourceLogs"][0]["resource"]["attributes"]}
        for _, body in receiver.bodies
    ]
    assert resources[0]["service.name"] == "test"
    assert resources[0]["host.name"] == socket.gethostname()
    assert resources[0]["lensd.engine"] == "e0"
    assert resources[0]["service.instance.id"] != resources[1]["service.instance.id"]
