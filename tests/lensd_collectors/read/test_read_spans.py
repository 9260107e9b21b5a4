"""OTLP JSON of a real vLLM and plain span lists → span rows with their line."""

import json
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from lensd_collectors.read.lines import Clock, rfc3339
from lensd_collectors.read.spans import read_spans
from lensd_collectors.rows import SpanRow

OTLP = Path(__file__).parents[2] / "captures" / "vllm-0.32.0" / "otlp" / "0005.http.json"


def rows(text: str) -> list[SpanRow]:
    return [row for row in read_spans(text, name="t.json").rows if isinstance(row, SpanRow)]


def test_real_otlp() -> None:
    text = OTLP.read_text()
    found = rows(text)
    requests = [row for row in found if row.name == "llm_request"]
    assert len(requests) == 11
    for row in found:
        line = text.split("\n")[int(str(row.src).rsplit(":", 1)[1]) - 1]
        assert f'"{row.span_id}"' in line
        assert '"spanId"' in line
    first = requests[0]
    assert (first.kind, first.scope, first.status) == ("server", "vllm.tracing.otel", None)
    assert first.started_at is not None
    assert first.ended_at is not None
    assert first.duration_ms is not None
    assert abs((first.ended_at - first.started_at) / 1000 - first.duration_ms) < 0.01
    attributes = json.loads(first.attributes or "{}")
    assert isinstance(attributes["gen_ai.usage.prompt_tokens"], int)
    assert first.request_id == attributes["gen_ai.request.id"]


def test_json_lines_of_otlp() -> None:
    document = json.dumps(json.loads(OTLP.read_text())["body"])
    found = read_spans(document + "\n" + document + "\nnot json\n", name="t.jsonl")
    assert len(found.rows) == 22
    assert found.unread_lines == 1


def test_plain_lists_keep_what_they_say() -> None:
    client = {
        "trace_id": "a", "span_id": "1", "name": "chat", "service.name": "client-app", "duration_s": 60.0,
        "status": "ERROR", "status_message": "httpx.ReadTimeout", "attributes": {"timeout_s": 60},
    }  # fmt: skip
    engine = {"trace_id": "a", "span_id": "2", "status": "OK", "attributes": {"gen_ai.request.id": "chatcmpl-1", "duration_s": 1.5}}
    text = f"[\n{json.dumps(client)},\n{json.dumps(engine)}\n]"
    sent, served = rows(text)
    assert (sent.service, sent.duration_ms, sent.status, sent.status_message, sent.src) == (
        "client-app",
        60_000.0,
        "error",
        "httpx.ReadTimeout",
        "t.json:2",
    )
    assert json.loads(sent.attributes or "{}") == {"duration_s": 60.0, "timeout_s": 60}
    assert (served.request_id, served.duration_ms, served.status, served.src) == ("chatcmpl-1", 1500.0, "ok", "t.json:3")


def test_a_start_without_a_day_and_an_end_that_is_worked_out() -> None:
    span = {"trace_id": "a", "span_id": "1", "name": "llm_request", "start": "09:30:05Z", "attributes": {"gen_ai.latency.e2e": 2.5}}
    near = rfc3339("2026-03-02T12:00:00Z")
    [row] = read_spans(json.dumps([span]), name="t.json", clock=Clock(near, dated=True)).rows
    assert isinstance(row, SpanRow)
    assert (row.started_at, row.ended_at, row.duration_ms) == (rfc3339("2026-03-02T09:30:05Z"), rfc3339("2026-03-02T09:30:07.5Z"), 2500.0)
    [unknown] = rows(json.dumps([span]))
    assert (unknown.started_at, unknown.ended_at, unknown.duration_ms) == (None, None, 2500.0)


def test_an_end_alone_and_how_long_it_took_say_when_it_began() -> None:
    span = {
        "trace_id": "a",
        "span_id": "1",
        "name": "llm_request",
        "end": "2026-03-02T09:30:07.5Z",
        "attributes": {"gen_ai.latency.e2e": 2.5},
    }
    [row] = rows(json.dumps([span]))
    assert (row.started_at, row.ended_at, row.duration_ms) == (rfc3339("2026-03-02T09:30:05Z"), rfc3339("2026-03-02T09:30:07.5Z"), 2500.0)


def test_base64_ids_become_hex() -> None:
    span = {"traceId": "AAAAAAAAAAAAAAAAAAAAAQ==", "spanId": "AAAAAAAAAAE=", "kind": 2, "status": {"code": 2}}
    [row] = rows(json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}))
    assert (row.trace_id, row.span_id, row.kind, row.status) == ("0" * 31 + "1", "0" * 15 + "1", "server", "error")


def test_content_attributes_are_dropped() -> None:
    keys = ["gen_ai.input.messages", "gen_ai.prompt.0.content", "llm.prompts", "input.value", "traceloop.entity.input", "gen_ai.completion"]
    attributes = [{"key": key, "value": {"stringValue": "my diagnosis"}} for key in keys]
    span = {
        "traceId": "0" * 32,
        "spanId": "0" * 16,
        "attributes": [*attributes, {"key": "gen_ai.usage.prompt_tokens", "value": {"intValue": "5"}}],
    }
    [row] = rows(json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}))
    assert json.loads(row.attributes or "{}") == {"gen_ai.usage.prompt_tokens": 5}


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                [
                    "resourceSpans",
                    "scopeSpans",
                    "spans",
                    "attributes",
                    "key",
                    "value",
                    "traceId",
                    "spanId",
                    "trace_id",
                    "span_id",
                    "status",
                    "body",
                ]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=12,
)


@settings(max_examples=200, deadline=None)
@given(JSON)
def test_no_document_makes_it_raise(document: object) -> None:
    read_spans(json.dumps(document), name="t.json")


JAEGER = """{"data": [{"traceID": "4bf92f3577b34da6a3ce929d0e0e4736", "processes": {"p1": {"serviceName": "vllm"}}, "spans": [
 {"traceID": "4bf92f3577b34da6a3ce929d0e0e4736", "spanID": "00f067aa0ba902b7", "operationName": "llm_request", "processID": "p1",
  "references": [{"refType": "CHILD_OF", "spanID": "11f067aa0ba902b7"}],
  "startTime": 1794481264000000, "duration": 1500000,
  "tags": [{"key": "span.kind", "value": "server"}, {"key": "gen_ai.usage.prompt_tokens", "value": 7},
   {"key": "llm.prompts", "value": "tell me"}]}
]}]}"""
ZIPKIN = """[{"traceId": "4bf92f3577b34da6a3ce929d0e0e4736", "id": "00f067aa0ba902b7", "parentId": "11f067aa0ba902b7",
  "name": "llm_request",
  "kind": "SERVER", "timestamp": 1794481264000000, "duration": 1500000,
  "localEndpoint": {"serviceName": "vllm"},
  "tags": {"gen_ai.usage.prompt_tokens": "7", "llm.prompts": "tell me"}}]"""
PLAIN = """[{"traceId": "4bf92f3577b34da6a3ce929d0e0e4736", "spanId": "00f067aa0ba902b7", "parentSpanId": "11f067aa0ba902b7",
  "name": "llm_request", "kind": "SERVER", "service": "vllm",
  "start": "2026-11-12T11:01:04Z", "end": "2026-11-12T11:01:05.5Z",
  "attributes": {"gen_ai.usage.prompt_tokens": 7, "llm.prompts": "tell me"}}]"""


def test_every_exporter_tells_the_same() -> None:
    for text in (JAEGER, ZIPKIN, PLAIN):
        [row] = rows(text)
        assert (row.trace_id, row.span_id) == ("4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7")
        assert (row.parent_span_id, row.name, row.kind, row.service) == ("11f067aa0ba902b7", "llm_request", "server", "vllm")
        assert (row.duration_ms, row.started_at) == (1500.0, 1794481264000000)
        assert "7" in str(json.loads(row.attributes or "{}")["gen_ai.usage.prompt_tokens"])
        assert "tell me" not in str(row)
        assert '"00f067aa0ba902b7"' in text.split("\n")[int(str(row.src).rsplit(":", 1)[1]) - 1]
