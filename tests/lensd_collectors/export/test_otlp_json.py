"""What the exporter writes is OTLP: the official protobuf definitions read it and see what was given."""

import base64
import gzip
import json
import math
from datetime import UTC, datetime
from typing import Any

import pytest
from google.protobuf import json_format
from hypothesis import given
from hypothesis import strategies as st
from lensd_collectors import otlp, span_json
from lensd_collectors.export import Backoff, Exporter
from lensd_collectors.post import Post, Reply, Result, judge, parse_retry_after
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

TRACE, SPAN, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", "00f067aa0ba902b7"
NOW = datetime(2026, 11, 29, 12, 0, 0, tzinfo=UTC)
MESSAGES = {"/v1/traces": ExportTraceServiceRequest, "/v1/logs": ExportLogsServiceRequest, "/v1/metrics": ExportMetricsServiceRequest}


@pytest.fixture
def sent(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Path to the body posted there, read by the official definitions (which want ids as base64)."""
    bodies: dict[str, Any] = {}

    def take(self: Post, path: str, data: bytes) -> Reply:
        document = _ids_to_base64(json.loads(data))
        bodies[path] = json_format.ParseDict(document, MESSAGES[path]())
        return Reply(Result.TAKEN)

    monkeypatch.setattr(Post, "send", take)
    return bodies


def _ids_to_base64(document: Any) -> Any:
    if isinstance(document, list):
        return [_ids_to_base64(each) for each in document]
    if not isinstance(document, dict):
        return document
    ids = {"traceId", "spanId", "parentSpanId"}
    return {
        key: base64.b64encode(bytes.fromhex(value)).decode() if key in ids else _ids_to_base64(value) for key, value in document.items()
    }


def _exporter() -> Exporter:
    return Exporter("http://127.0.0.1:1", token=None, service="test", scope="lensd.test")


def _plain(value: Any) -> Any:
    kind = value.WhichOneof("value")
    return [each.string_value for each in value.array_value.values] if kind == "array_value" else getattr(value, kind)


def _attributes(record: Any) -> dict[str, Any]:
    return {pair.key: _plain(pair.value) for pair in record.attributes}


def test_span(sent: dict[str, Any]) -> None:
    exporter = _exporter()
    attributes = {"s": "ä", "b": False, "i": 2**40, "f": 1.5, "l": ("x", "y"), "none": None}
    times = {"start_ns": 1_795_963_412_000_000_001, "end_ns": 1_795_963_412_000_000_009}
    exporter.span(
        "POST /v1",
        trace_id=TRACE.upper(),
        span_id=SPAN,
        parent_span_id=PARENT,
        kind="client",
        attributes=attributes,
        ok=False,
        message="cut",
        **times,
    )
    exporter.close(2)
    scope_spans = sent["/v1/traces"].resource_spans[0].scope_spans[0]
    [span] = scope_spans.spans
    assert scope_spans.scope.name == "lensd.test"
    assert (span.trace_id.hex(), span.span_id.hex(), span.parent_span_id.hex(), span.kind) == (TRACE, SPAN, PARENT, 3)
    assert (span.start_time_unix_nano, span.end_time_unix_nano) == (times["start_ns"], times["end_ns"])
    assert (span.status.code, span.status.message) == (2, "cut")
    assert _attributes(span) == {"s": "ä", "b": False, "i": 2**40, "f": 1.5, "l": ["x", "y"]}


def test_event(sent: dict[str, Any]) -> None:
    exporter = _exporter()
    exporter.event(
        "lensd.engine.log", at_ns=5, attributes={"lensd.log.line": 3}, trace_id=TRACE, span_id=SPAN, severity="error", body="text"
    )
    exporter.close(2)
    [record] = sent["/v1/logs"].resource_logs[0].scope_logs[0].log_records
    assert (record.event_name, record.body.string_value, record.severity_number, record.time_unix_nano) == (
        "lensd.engine.log",
        "text",
        17,
        5,
    )
    assert (record.trace_id.hex(), record.span_id.hex()) == (TRACE, SPAN)
    assert _attributes(record) == {"event.name": "lensd.engine.log", "lensd.log.line": 3}


def test_metrics_of_one_name_are_one_metric(sent: dict[str, Any]) -> None:
    exporter = _exporter()
    for reason in ("capacity", "deferred"):
        exporter.gauge("w", 2.0, at_ns=9, attributes={"reason": reason})
    exporter.counter("t_total", math.inf, at_ns=9, attributes={}, unit="token")
    exporter.histogram("h", bounds=[0.1, 1.0], counts=[1, 2, 3], sum=4.5, count=6, at_ns=9, attributes={})
    exporter.close(2)
    gauge, counter, histogram = sent["/v1/metrics"].resource_metrics[0].scope_metrics[0].metrics
    assert [_attributes(point) for point in gauge.gauge.data_points] == [{"reason": "capacity"}, {"reason": "deferred"}]
    assert (counter.sum.is_monotonic, counter.sum.aggregation_temporality, counter.unit) == (True, 2, "token")
    assert counter.sum.data_points[0].as_double == math.inf
    [point] = histogram.histogram.data_points
    assert (list(point.explicit_bounds), list(point.bucket_counts), point.sum, point.count) == ([0.1, 1.0], [1, 2, 3], 4.5, 6)


@given(st.one_of(st.text(), st.booleans(), st.integers(), st.floats(), st.lists(st.text(), max_size=3)))
def test_any_value_reads_back(value: Any) -> None:
    read = json_format.Parse(otlp.encode(otlp.any_value(value)), _any_value())
    got = _plain(read)
    if isinstance(value, float) and math.isnan(value):
        assert math.isnan(got)
    elif isinstance(value, int) and not isinstance(value, bool) and value not in range(-(2**63), 2**63):
        assert got == pytest.approx(float(value))
    else:
        assert (type(got), got) == (type(value), value)


def _any_value() -> Any:
    from opentelemetry.proto.common.v1.common_pb2 import AnyValue

    return AnyValue()


@pytest.mark.parametrize(
    ("status", "retry_after", "body", "reply"),
    [
        (200, None, b"{}", Reply(Result.TAKEN)),
        (200, None, b"", Reply(Result.TAKEN)),
        (200, None, b"not json", Reply(Result.TAKEN)),
        (200, None, b'{"partialSuccess":{"rejectedSpans":"3","errorMessage":"x"}}', Reply(Result.TAKEN, rejected=3)),
        (429, "2", b"", Reply(Result.BUSY, "it answered 429", 2.0)),
        (503, "Sun, 29 Nov 2026 12:00:07 GMT", b"", Reply(Result.BUSY, "it answered 503", 7.0)),
        (503, "soon", b"", Reply(Result.BUSY, "it answered 503")),
        (500, None, b"", Reply(Result.ERROR, "it answered 500")),
        (401, None, b"", Reply(Result.REFUSED, "it answered 401, check the token")),
        (302, None, b"", Reply(Result.REFUSED, "it answered 302")),
    ],
)
def test_answers(status: int, retry_after: str | None, body: bytes, reply: Reply) -> None:
    assert judge(status, retry_after, body, NOW) == reply


def test_retry_after_in_the_past_is_no_wait() -> None:
    assert parse_retry_after("Sun, 29 Nov 2026 11:00:00 GMT", NOW) == 0.0
    assert parse_retry_after("-1", NOW) == 0.0


@given(attempt=st.integers(1, 1000), retry_after=st.one_of(st.none(), st.floats(0, 1e6)), jitter=st.floats(0, 1))
def test_backoff_is_bounded_and_keeps_retry_after(attempt: int, retry_after: float | None, jitter: float) -> None:
    policy = Backoff()
    wait = policy.wait_s(attempt, retry_after, jitter)
    assert policy.first_s / 2 <= wait <= 60.0
    assert wait >= min(retry_after or 0.0, 60.0)


@pytest.mark.parametrize(
    ("endpoint", "place"),
    [
        ("http://127.0.0.1:4318", "http://127.0.0.1:4318"),
        ("127.0.0.1:4318/", "http://127.0.0.1:4318"),
        ("https://lensd.example/otlp/", "https://lensd.example:443/otlp"),
        ("http://user:planted@host:1", "http://host:1"),
    ],
)
def test_endpoint(endpoint: str, place: str) -> None:
    assert Post(endpoint, None, 1).place == place


@pytest.mark.parametrize("endpoint", ["", "ftp://x", "http://"])
def test_endpoint_that_is_none(endpoint: str) -> None:
    with pytest.raises(ValueError, match="no http or https URL"):
        Post(endpoint, None, 1)


@pytest.mark.parametrize(
    ("endpoint", "coding"), [("http://127.0.0.1:4318", None), ("http://[::1]:4318", None), ("https://10.0.0.7:4318", "gzip")]
)
def test_only_what_leaves_the_machine_is_compressed(endpoint: str, coding: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[bytes, dict[str, str]]] = []

    class Line:
        def connect(self) -> None: ...
        def close(self) -> None: ...

        def request(self, method: str, path: str, data: bytes, headers: dict[str, str]) -> None:
            asked.append((data, headers))
            raise OSError("enough")

    post = Post(endpoint, None, 1.0)
    monkeypatch.setattr(post, "_connection", Line)
    post.send("/v1/traces", b"{}")
    ((data, headers),) = asked
    assert headers.get("Content-Encoding") == coding
    assert (gzip.decompress(data) if coding else data) == b"{}"


class Counted(int):
    """A whole number of a class of its own, as an HTTPStatus is, that nobody may compare with every number there is."""

    __hash__ = int.__hash__

    def __eq__(self, other: object) -> bool:
        raise AssertionError(f"compared with {other}")


def test_a_whole_number_of_another_class_is_written_at_once() -> None:
    assert otlp.any_value(Counted(400)).int_value == "400"
    assert json.loads(span_json.pairs({"status": Counted(401)})) == {"key": "status", "value": {"intValue": "401"}}
