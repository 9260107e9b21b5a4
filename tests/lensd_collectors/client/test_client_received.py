"""From a library's request to a request in the store: what the instrumentation sends is what the timeline looks for."""

import json
import time
from collections.abc import Callable
from typing import Any

import pytest
from lensd_collectors.rows import SpanRow
from llm_callers import CALLERS
from llm_server import LlmServer, Seen

from lensd.receive.decode import Decoder
from lensd.receive.parse import parse_json
from lensd.store.arrow import batch_of
from lensd.store.memory import MemoryStore
from lensd.store.segments import Signal
from lensd.timeline.assembler import assemble_all

Spans = Callable[[], list[dict[str, Any]]]


def rows(server: LlmServer) -> list[SpanRow]:
    decoder, now = Decoder(), time.time_ns() // 1000
    found: list[SpanRow] = []
    for body in server.bodies:
        found += decoder.decode(Signal.TRACES, parse_json(Signal.TRACES, body).SerializeToString(), now)["spans"]  # type: ignore[arg-type]
    return found


def of_the_server(seen: Seen, client: SpanRow) -> SpanRow:
    """The span of an engine's middleware, below the caller's and inside it."""
    assert client.started_at is not None and client.ended_at is not None  # noqa: PT018
    said = {"lensd.request.id": seen.request_id, "lensd.outcome": "ok", "http.response.status_code": 200}
    return SpanRow(
        trace_id=seen.trace_id, span_id="5" * 16, parent_span_id=seen.parent_span_id, name="POST /v1/chat/completions", kind="server",
        scope="lensd.vllm", started_at=client.started_at + 1000, ended_at=client.ended_at - 1000, duration_ms=1, status="ok",
        attributes=json.dumps(said), src="span:5",
    )  # fmt: skip


def assembled(spans: list[SpanRow]) -> list[Any]:
    store = MemoryStore()
    store.append(batch_of({"spans": spans}))
    with store.cursor() as cursor:
        found = assemble_all(cursor, None, time.time_ns() // 1000 + 60_000_000)
    store.close()
    return [each.row for each in found]


@pytest.mark.parametrize("caller", CALLERS)
def test_the_callers_span_is_above_its_servers_and_gives_the_client_stage(server: LlmServer, spans: Spans, caller: str) -> None:
    CALLERS[caller](server.url, "gap", True)
    spans()
    [client], [seen] = rows(server), server.seen
    [request] = assembled([client, of_the_server(seen, client)])
    assert (request.request_id, request.trace_id, request.model) == (seen.request_id, seen.trace_id, "gap")
    assert (request.client_source, request.client_timeout_ms) == ("client", 5000)
    assert request.client_ms == pytest.approx(2, abs=0.1)
    assert request.total_ms == pytest.approx(client.duration_ms, abs=0.1)


def test_alone_it_is_a_request_that_timed_out_at_the_caller(server: LlmServer, spans: Spans) -> None:
    with pytest.raises(Exception, match="request "):
        CALLERS["openai"](server.url, "slow", True, 0.2)
    spans()
    [request] = assembled(rows(server))
    assert (request.request_id, request.outcome, request.said_by) == (server.seen[0].request_id, "caller_gone", "client")
    assert (request.error_code, request.client_timeout_ms) == ("read_timeout", 200)
