"""What is said of open and finished requests, with a clock that the test holds."""

import gzip
import http.server
import json
import random
import threading

import pytest
from gateway_stage import Kept
from lensd_collectors.conventions import ATTRIBUTES, Decision, Outcome, SaidBy
from lensd_collectors.export import Exporter
from lensd_collectors.gateway.config import GatewayConfig
from lensd_collectors.gateway.decisions import ANSWERS, Refused, error_body
from lensd_collectors.gateway.ids import IdSource
from lensd_collectors.gateway.record import Limits, Record, Stop
from lensd_collectors.gateway.report import Reporter
from lensd_collectors.gateway.sse import Scanner

S = 1_000_000_000
MS = 1_000_000
WALL = 1_700_000_000 * S
CONFIG = GatewayConfig(connect_timeout_s=5, first_byte_timeout_s=30, idle_timeout_s=10, total_timeout_s=100, max_records=3)


def record(**more):
    given = {
        "wall_ns": WALL, "received": 1000 * S, "method": "POST", "route": "/v1/completions", "trace_id": "a" * 32, "span_id": "b" * 16,
        "parent_span_id": "c" * 16, "request_id": "req-1", "key_id": "team-a", "model": "m", "engine": "e", "upstream": "h:1",
        "streaming": True, "client_timeout_ms": 60_000.0, "upstream_span_id": "d" * 16,
    }  # fmt: skip
    return Record(**{**given, **more})


def at(seconds):
    return int((1000 + seconds) * S)


@pytest.fixture
def kept():
    return Kept()


@pytest.fixture
def reporter(kept):
    return Reporter(CONFIG, kept, IdSource(random.Random(1)))


def test_an_open_request_is_told_once_after_a_second_then_at_each_stage_and_every_five(reporter, kept):
    open_one = record()
    told = []
    for tenth in range(170):
        now = at(tenth / 10)
        if tenth == 25:
            open_one.sent = now
        if tenth == 90:
            open_one.first_byte = open_one.first_out = open_one.last_byte = now
        before = len(kept.events)
        reporter.progress([open_one], now)
        told += [(tenth / 10, e["name"], e["attributes"]["lensd.progress.stage"]) for e in kept.events[before:]]
    assert told == [
        (1.0, "lensd.request.started", "auth_routing"),
        (2.5, "lensd.request.progress", "upstream"),
        (7.5, "lensd.request.progress", "upstream"),
        (9.0, "lensd.request.progress", "streaming"),
        (14.0, "lensd.request.progress", "streaming"),
    ]


def test_what_an_event_of_an_open_request_says(reporter, kept):
    scanner = Scanner()
    scanner.feed(b'data: {"id":"cmpl-1"}\n\n')
    open_one = record(sent=at(0.5), first_out=at(2), last_byte=at(3), scanner=scanner, facts=scanner.facts, bytes_out=20)
    reporter.progress([open_one], at(6))
    (event,) = kept.events
    assert (event["trace_id"], event["span_id"], event["at_ns"]) == ("a" * 32, "b" * 16, WALL + 6 * S)
    assert {k: v for k, v in event["attributes"].items() if v is not None} == {
        "lensd.request.id": "req-1", "http.request.method": "POST", "http.route": "/v1/completions", "gen_ai.request.model": "m",
        "lensd.key.id": "team-a", "lensd.engine": "e", "lensd.upstream": "h:1", "lensd.request.streaming": True,
        "lensd.client.timeout_ms": 60_000.0, "gen_ai.response.id": "cmpl-1", "lensd.bytes_sent": 20, "lensd.stream.chunks": 1,
        "lensd.parent_span.id": "c" * 16, "lensd.outcome": "open", "lensd.progress.stage": "streaming", "lensd.progress.age_ms": 6000,
        "lensd.progress.stage_age_ms": 4000, "lensd.progress.silent_ms": 3000,
    }  # fmt: skip
    assert set(event["attributes"]) <= set(ATTRIBUTES)


def test_a_short_request_has_no_events(reporter, kept):
    reporter.progress([record()], at(0.9))
    assert kept.events == []


def ended(**more):
    return record(ended=at(9), status=200, outcome=Outcome.OK, said_by=SaidBy.ENGINE, **more)


def test_the_spans_of_a_stream(reporter, kept):
    stream = ended(
        connecting=at(0.1), sent=at(0.2), first_byte=at(2), last_byte=at(8), first_out=at(2.1), last_out=at(8.5), scanner=Scanner()
    )
    reporter.finished(stream)
    assert len(list(reporter.drain())) == 1
    assert [(s["name"], (s["start_ns"] - WALL) / S, (s["end_ns"] - WALL) / S, s["kind"]) for s in kept.kept_spans] == [
        ("lensd.auth_routing", 0, 0.2, "internal"),
        ("lensd.upstream", 0.2, 8, "client"),
        ("lensd.streaming", 2.1, 8.5, "internal"),
        ("POST /v1/completions", 0, 9, "server"),
    ]
    assert kept.kept_spans[1]["attributes"]["lensd.upstream.first_byte_ms"] == 1800
    assert kept.kept_spans[1]["attributes"]["lensd.upstream.last_byte_ms"] == 7800
    for span in kept.kept_spans:
        assert set(span["attributes"]) <= set(ATTRIBUTES)


def test_a_timed_out_wait_belongs_to_the_engine_to_its_end(reporter, kept):
    late = record(ended=at(9), status=504, outcome=Outcome.TIMED_OUT, connecting=at(0.1), sent=at(0.2))
    reporter.finished(late)
    list(reporter.drain())
    upstream, server = kept.kept_spans[1:]
    assert ((upstream["end_ns"] - WALL) / S, upstream["ok"], server["ok"]) == (9, False, False)


def test_the_oldest_records_give_way_and_are_counted(reporter, kept):
    for number in range(5):
        reporter.finished(ended(request_id=f"req-{number}"))
    list(reporter.drain())
    assert [s["attributes"]["lensd.request.id"] for s in kept.kept_spans if s["kind"] == "server"] == ["req-2", "req-3", "req-4"]
    reporter.tell_dropped(WALL)
    reporter.tell_dropped(WALL)
    assert kept.acts() == ["records_dropped"]
    assert kept.events[0]["body"].startswith("2 records")


class Full(Kept):
    """An exporter whose queue has room for so many more."""

    def __init__(self, room):
        super().__init__()
        self.room = room

    def spans(self, make, count):
        if self._takes(count):
            super().spans(make, count)

    def event(self, name, **given):
        if self._takes(1):
            super().event(name, **given)

    def _takes(self, count):
        taken = count <= self.room
        self.room -= count * taken
        self.dropped += count * (not taken)
        return taken


def test_a_request_whose_spans_the_exporter_has_no_room_for_is_a_lost_record():
    full = Full(room=5)  # a request that got no engine comes to two spans
    reporter = Reporter(CONFIG, full, IdSource(random.Random(1)))
    for number in range(6):
        reporter.finished(ended(request_id=f"req-{number}", sent=0, first_out=0))
        list(reporter.drain())
    assert [s["attributes"]["lensd.request.id"] for s in full.kept_spans if s["kind"] == "server"] == ["req-0", "req-1"]
    assert (reporter.dropped, full.dropped) == (4, 8)
    full.room = 0
    reporter.tell_dropped(WALL)
    assert full.acts() == []
    full.room = 9
    reporter.tell_dropped(WALL)
    reporter.tell_dropped(WALL)
    assert [event["body"] for event in full.events] == ["4 records of finished requests dropped: a queue was full"]


@pytest.mark.parametrize(
    ("stamps", "seconds", "stop"),
    [
        ({}, 9, None),
        ({}, 10.1, Stop.IDLE),
        ({"waits_since": at(5)}, 14, None),
        ({"waits_since": at(5)}, 15.1, Stop.IDLE),
        ({"body_read": at(1)}, 99, None),
        ({"body_read": at(1)}, 101, Stop.TOTAL),
        ({"connecting": at(1)}, 5, None),
        ({"connecting": at(1)}, 6.1, Stop.CONNECT),
        ({"connecting": at(1), "sent": at(2)}, 31, None),
        ({"connecting": at(1), "sent": at(2)}, 32.1, Stop.FIRST_BYTE),
        ({"sent": at(2), "first_byte": at(3), "waits_since": at(20)}, 30, None),
        ({"sent": at(2), "first_byte": at(3), "waits_since": at(20)}, 30.1, Stop.IDLE),
        ({"sent": at(2), "first_byte": at(3), "waits_since": at(95)}, 101, Stop.TOTAL),
        ({"sent": at(2), "first_byte": at(3), "last_byte": at(20), "waits_since": at(4), "is_sending": True}, 29, None),
        ({"sent": at(2), "first_byte": at(3), "last_byte": at(20), "waits_since": at(4), "is_sending": True}, 30.1, Stop.CALLER_STUCK),
    ],
)
def test_which_limit_is_broken(stamps, seconds, stop):
    assert Limits.of(CONFIG).broken(record(**stamps), at(seconds)) is stop


def test_every_decision_has_an_answer():
    assert set(ANSWERS) == set(Decision) - {Decision.ALLOWED}


KINDS = {401: "authentication_error", 403: "permission_error", 429: "rate_limit_error"}


@pytest.mark.parametrize("decision", sorted(ANSWERS))
def test_an_answer_is_of_the_kind_that_its_status_says(decision):
    answer = ANSWERS[decision]
    assert answer.kind == KINDS.get(answer.status, "invalid_request_error" if answer.status < 500 else "server_error")
    assert (answer.retry_after_s is not None) is (answer.status in (429, 503))
    assert answer.reason == answer.reason[:1].lower() + answer.reason[1:] or answer.reason[:2].isupper()


def test_an_error_as_clients_read_it():
    refusal = Refused(Decision.MODEL_UNKNOWN, 'the model `a"b` is not served here', param="model")
    told = {"message": 'the model `a"b` is not served here', "type": "invalid_request_error", "code": "model_not_found", "param": "model"}
    body = json.dumps({"error": told}, separators=(",", ":")).encode()
    assert error_body(refusal) == body


def test_the_real_exporter_takes_what_is_sent():
    bodies = {}

    class Door(http.server.BaseHTTPRequestHandler):
        def do_POST(self):
            data = self.rfile.read(int(self.headers["content-length"]))
            bodies[self.path] = json.loads(gzip.decompress(data) if self.headers.get("content-encoding") == "gzip" else data)
            self.send_response(200)
            self.send_header("content-length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Door) as door:
        threading.Thread(target=door.serve_forever, daemon=True).start()
        exporter = Exporter(f"http://127.0.0.1:{door.server_port}", token="t", service="lensd-gateway", scope="lensd.gateway")
        reporter = Reporter(CONFIG, exporter, IdSource(random.Random(1)))
        reporter.progress([record()], at(6))
        reporter.finished(ended(sent=at(0.2), first_byte=at(2), last_byte=at(8), first_out=at(2), last_out=at(8)))
        list(reporter.drain())
        exporter.close()
        door.shutdown()
    assert (exporter.failed, exporter.dropped, exporter.sent) == (0, 0, 5)
    spans = bodies["/v1/traces"]["resourceSpans"][0]["scopeSpans"][0]["spans"]
    server = next(span for span in spans if span["kind"] == 2)
    named = {each["key"]: each["value"] for each in server["attributes"]}
    assert named["lensd.outcome"] == {"stringValue": "ok"}
    assert named["http.response.status_code"] == {"intValue": "200"}
    (event,) = bodies["/v1/logs"]["resourceLogs"][0]["scopeLogs"][0]["logRecords"]
    assert (event["eventName"], event["traceId"], event["spanId"]) == ("lensd.request.started", "a" * 32, "b" * 16)


@pytest.mark.parametrize("name", ["100%s", "a%d%%", "nul\0nul", 'quote"', "\\0"])
def test_whatever_a_model_is_called_its_spans_are_whole(reporter, kept, name):
    ended = record(
        model=name, dispatched_model=name, engine=name, sent=at(1), first_byte=at(2), last_byte=at(3), first_out=at(2), last_out=at(3),
        ended=at(3), status=200, outcome=Outcome.OK, said_by=SaidBy.ENGINE,
    )  # fmt: skip
    reporter.finished(ended)
    assert list(reporter.drain()) == [None]
    spans = {each["name"]: each["attributes"] for each in kept.kept_spans}
    assert len(spans) == 4
    assert spans["POST /v1/completions"]["gen_ai.request.model"] == name
    assert spans["lensd.upstream"]["lensd.engine"] == name
