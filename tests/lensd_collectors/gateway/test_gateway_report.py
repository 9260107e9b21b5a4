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
from lensd_collectors.gateway.decisions import ANSWERS, Refused, error_body, error_frames
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
        "streaming": True, "client_timeout_ms": 60_000.0,
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
    assert [(s["name"], (s["start_ns"] - WALL) / S, (s["end_ns"] - WALL) / S, s["kind"]) for s in kept.spans] == [
        ("lensd.auth_routing", 0, 0.2, "internal"),
        ("lensd.upstream", 0.2, 8, "client"),
        ("lensd.streaming", 2.1, 8.5, "internal"),
        ("POST /v1/completions", 0, 9, "server"),
    ]
    assert kept.spans[1]["attributes"]["lensd.upstream.first_byte_ms"] == 1800
    assert kept.spans[1]["attributes"]["lensd.upstream.last_byte_ms"] == 7800
    for span in kept.spans:
        assert set(span["attributes"]) <= set(ATTRIBUTES)


def test_a_timed_out_wait_belongs_to_the_engine_to_its_end(reporter, kept):
    late = record(ended=at(9), status=504, outcome=Outcome.TIMED_OUT, connecting=at(0.1), sent=at(0.2))
    reporter.finished(late)
    list(reporter.drain())
    upstream, server = kept.spans[1:]
    assert ((upstream["end_ns"] - WALL) / S, upstream["ok"], server["ok"]) == (9, False, False)


def test_the_oldest_records_give_way_and_are_counted(reporter, kept):
    for number in range(5):
        reporter.finished(ended(request_id=f"req-{number}"))
    list(reporter.drain())
    assert [s["attributes"]["lensd.request.id"] for s in kept.spans if s["kind"] == "server"] == ["req-2", "req-3", "req-4"]
    reporter.tell_dropped(WALL)
    reporter.tell_dropped(WALL)
    assert kept.acts() == ["records_dropped"]
    assert kept.events[0]["body"].startswith("2 records")


@pytest.mark.parametrize(
    ("stamps", "seconds", "stop"),
    [
        ({}, 99, None),
        ({}, 101, Stop.TOTAL),
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


@pytest.mark.parametrize(
    ("decision", "status", "code"),
    [
        (Decision.KEY_MISSING, 401, "missing_api_key"),
        (Decision.KEY_MALFORMED, 401, "malformed_api_key"),
        (Decision.KEY_UNKNOWN, 401, "invalid_api_key"),
        (Decision.MODEL_NOT_ALLOWED, 403, "model_not_allowed"),
        (Decision.MODEL_UNKNOWN, 404, "model_not_found"),
        (Decision.PATH_UNKNOWN, 404, "route_not_found"),
        (Decision.METHOD_NOT_ALLOWED, 405, "method_not_allowed"),
        (Decision.BODY_TOO_LARGE, 413, "request_too_large"),
        (Decision.BODY_MALFORMED, 400, "invalid_body"),
        (Decision.CONTEXT_TOO_LONG, 400, "context_length_exceeded"),
        (Decision.RATE_LIMITED, 429, "rate_limited"),
        (Decision.ENGINE_BUSY, 503, "engine_busy"),
        (Decision.ENGINE_DEAD, 502, "engine_dead"),
        (Decision.ENGINE_ERROR, 502, "engine_error"),
        (Decision.UPSTREAM_CREDENTIAL_REFUSED, 502, "upstream_credential_refused"),
        (Decision.NO_UPSTREAM, 502, "no_upstream"),
        (Decision.UPSTREAM_TIMEOUT, 504, "upstream_timeout"),
        (Decision.CALLER_GONE, 499, "caller_gone"),
    ],
)
def test_the_answer_to_a_decision(decision, status, code):
    refusal = Refused(decision)
    assert (refusal.status, refusal.code) == (status, code)
    assert refusal.answer.kind == ("rate_limit_error" if status == 429 else "invalid_request_error" if status < 500 else "server_error")


def test_an_error_as_clients_read_it():
    refusal = Refused(Decision.MODEL_UNKNOWN, 'the model `a"b` is not served here', param="model")
    told = {"message": 'the model `a"b` is not served here', "type": "invalid_request_error", "code": "model_not_found", "param": "model"}
    body = json.dumps({"error": told}, separators=(",", ":")).encode()
    assert error_body(refusal) == body
    assert error_frames(refusal, at_boundary=True) == b"data: " + body + b"\n\ndata: [DONE]\n\n"
    assert error_frames(refusal, at_boundary=False).startswith(b"\n\ndata: {")


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
