"""Other people's client spans in the store: the client stage is that of the attempt, whichever library told of it."""

import json
from typing import Any

import pytest
from lensd_collectors.rows import SpanRow

from lensd.store.arrow import batch_of
from lensd.store.memory import MemoryStore
from lensd.timeline.assembler import assemble_all

T0, TRACE = 1_790_000_000_000_000, "ab" * 16
GENAI = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m", "gen_ai.request.max_tokens": 9}
HTTP = {"http.request.method": "POST", "url.full": "http://llm:8000/v1/chat/completions", "http.response.status_code": 200}
OPENINFERENCE = {"openinference.span.kind": "LLM", "llm.model_name": "m", "llm.token_count.prompt": 7}
OPENLLMETRY = {"llm.request.type": "chat", "gen_ai.request.model": "m", "gen_ai.usage.prompt_tokens": 7}


def span(span_id: str, parent: str | None, start_ms: int, end_ms: int, kind: str, about: dict[str, Any], scope: str = "other") -> SpanRow:
    return SpanRow(
        trace_id=TRACE, span_id=span_id * 16, parent_span_id=parent * 16 if parent else None, name="x", kind=kind, scope=scope,
        started_at=T0 + start_ms * 1000, ended_at=T0 + end_ms * 1000, duration_ms=end_ms - start_ms, status="ok",
        attributes=json.dumps(about), src=f"span:{span_id}",
    )  # fmt: skip


def server(parent: str, start_ms: int, end_ms: int, span_id: str = "5") -> SpanRow:
    about = {"lensd.request.id": f"r{span_id}", "lensd.outcome": "ok", "http.response.status_code": 200}
    return span(span_id, parent, start_ms, end_ms, "server", about, "lensd.vllm")


def requests_of(*spans: SpanRow) -> list[Any]:
    store = MemoryStore()
    store.append(batch_of({"spans": list(spans)}))
    with store.cursor() as cursor:
        found = assemble_all(cursor, None, T0 + 60_000_000)
    store.close()
    return sorted((each.row for each in found), key=lambda row: row.started_at)


@pytest.mark.parametrize(
    ("kind", "about"),
    [("client", GENAI), ("client", HTTP), ("internal", OPENINFERENCE), ("client", OPENLLMETRY)],
    ids=["genai", "http", "openinference", "openllmetry"],
)
def test_one_span_above_its_servers(kind: str, about: dict[str, Any]) -> None:
    [request] = requests_of(span("c", None, 0, 100, kind, about), server("c", 30, 80))
    assert (request.client_source, request.client_ms, request.total_ms) == ("client", 50, 100)
    assert request.model == (None if about is HTTP else "m")
    if about in (OPENINFERENCE, OPENLLMETRY):
        assert request.prompt_tokens == 7


def test_a_call_with_its_attempt_is_one_request_and_the_attempts_time_is_the_clients() -> None:
    [request] = requests_of(span("c", None, 0, 100, "client", GENAI), span("d", "c", 20, 95, "client", HTTP), server("d", 30, 80))
    assert (request.client_ms, request.model, request.max_tokens) == (25, "m", 9)


def test_a_call_whose_server_is_unseen_is_one_request_too() -> None:
    [request] = requests_of(span("c", None, 0, 100, "client", GENAI), span("d", "c", 20, 95, "client", HTTP))
    assert (request.model, request.status, request.total_ms) == ("m", 200, 75)


def test_each_attempt_of_a_call_is_a_request_with_the_client_of_its_own() -> None:
    first = [span("d", "c", 10, 40, "client", HTTP), server("d", 20, 30, "5")]
    second = [span("e", "c", 50, 95, "client", HTTP), server("e", 60, 80, "6")]
    found = requests_of(span("c", None, 0, 100, "client", GENAI), *second, *first)
    assert [(request.request_id, request.client_ms, request.model) for request in found] == [("r5", 20, "m"), ("r6", 25, "m")]


def test_an_attempt_that_reached_no_server_is_not_taken_for_the_next_ones() -> None:
    ours = [span("d", None, 0, 10, "client", {"error.type": "connection_refused"}, "lensd.client")]
    ours += [span("e", None, 50, 95, "client", {}, "lensd.client"), server("e", 60, 80)]
    assert [request.client_ms for request in requests_of(*ours)] == [10, 25]
