"""Requests by the names people have for them, sessions in order, and whether anything here tells ids at all."""

import pytest
from lensd_collectors.rows import EngineSample, Event, GpuSample, HttpExchange, RequestRow, SpanRow

from lensd.store import queries, sources
from lensd.store.arrow import batch_of
from lensd.store.memory import MemoryStore
from lensd.store.names import find_requests

T0 = 1_795_953_600_000_000
DAY_US = 86_400_000_000
NOW = T0 + 60_000_000


@pytest.fixture
def store():
    made = MemoryStore()
    yield made
    made.close()


def put(store, **rows):
    store.append(batch_of(rows))


def request(key, request_id, **more):
    return RequestRow(request_key=key, revision=0, request_id=request_id, started_at=T0 + key, settled=True, outcome="ok", **more)


@pytest.mark.parametrize(
    "asked",
    ["order-7", "chatcmpl-order-7", "chatcmpl-order-7-0a1b2c3d", "chatcmpl-order"],
)
def test_where_only_vllm_saw_a_chat_the_callers_own_id_finds_it(store, asked):
    put(store, requests=[request(1, "chatcmpl-order-7"), request(2, "chatcmpl-other")])
    with store.cursor() as cursor:
        assert [row["request_key"] for row in find_requests(cursor, asked)] == [1]


@pytest.mark.parametrize("asked", ["order-7", "cmpl-order-7", "cmpl-order-7-0", "cmpl-order-7-0-0a1b2c3d"])
def test_where_only_vllm_saw_a_completion_the_callers_own_id_finds_it(store, asked):
    put(store, requests=[request(1, "cmpl-order-7-0")])
    with store.cursor() as cursor:
        assert [row["request_key"] for row in find_requests(cursor, asked)] == [1]


def test_a_request_of_exactly_that_id_goes_before_what_vllm_makes_of_it(store):
    put(store, requests=[request(1, "r"), request(2, "chatcmpl-r")])
    with store.cursor() as cursor:
        assert [row["request_key"] for row in find_requests(cursor, "r")] == [1]
        assert find_requests(cursor, "r-not-there") == []


def test_a_session_is_told_in_order_with_what_each_turn_added(store):
    tokens = [(3, 40), (1, 10), (2, None), (4, 35)]
    put(store, requests=[request(key, f"r{key}", session_id="s", prompt_tokens=count) for key, count in tokens] + [request(9, "r9")])
    with store.cursor() as cursor:
        calls = queries.session_calls(cursor, "s")
        page = queries.list_requests(cursor, queries.RequestFilter(session="s"))
        assert queries.session_calls(cursor, "nobody's") == []
    assert [(call["request_id"], call["turn"], call["grew_by"]) for call in calls] == [
        ("r1", 1, None), ("r2", 2, None), ("r3", 3, 30), ("r4", 4, -5),
    ]  # fmt: skip
    assert [item["request_id"] for item in page.items] == ["r4", "r3", "r2", "r1"]


def test_of_a_session_longer_than_a_page_the_last_calls_are_told(store):
    put(store, requests=[request(key, f"r{key}", session_id="s", prompt_tokens=key) for key in range(queries.MAX_PAGE + 3)])
    with store.cursor() as cursor:
        calls = queries.session_calls(cursor, "s")
    assert (len(calls), calls[0]["turn"], calls[-1]["turn"], calls[0]["grew_by"]) == (queries.MAX_PAGE, 4, queries.MAX_PAGE + 3, 1)


SAMPLE = EngineSample(seen_at=T0, engine="e0", up=True, running=1.0)
START_UP = SpanRow(trace_id="t", span_id="a", name="Overall Loading", kind="internal", scope="vllm.x", started_at=T0)
STARTED = Event(seen_at=T0, engine="e0", name="engine.started", line="version 0.32.0")


@pytest.mark.parametrize(
    ("rows", "recorded"),
    [
        ({}, False),
        ({"engine_samples": [SAMPLE], "spans": [START_UP], "events": [STARTED]}, False),
        ({"spans": [SpanRow(trace_id="t", span_id="a", name="llm_request", kind="server", started_at=T0)]}, True),
        ({"spans": [SpanRow(trace_id="t", span_id="a", name="POST", kind="client", started_at=T0)]}, True),
        ({"events": [Event(seen_at=T0, name="request.received", request_id="r", line="Received request r")]}, True),
        ({"events": [Event(seen_at=T0, name="lensd.engine.request", request_id="r")]}, True),
        ({"http_exchanges": [HttpExchange(seen_at=T0, request_id="r", hop="proxy")]}, True),
        ({"requests": [RequestRow(request_key=1, revision=0, started_at=T0)]}, True),
    ],
)
def test_ids_are_recorded_where_anything_tells_of_a_request_by_one(store, rows, recorded):
    put(store, **rows)
    with store.cursor() as cursor:
        assert sources.ids_recorded(cursor, NOW) is recorded


def test_a_source_that_fell_silent_while_others_go_on_records_no_more(store):
    put(store, requests=[request(1, "r")], engine_samples=[SAMPLE])
    with store.cursor() as cursor:
        assert sources.ids_recorded(cursor, NOW + 9 * DAY_US)  # nobody writes any more: judged as it was
    put(store, engine_samples=[EngineSample(seen_at=T0 + 2 * DAY_US, engine="e0", up=True)])
    with store.cursor() as cursor:
        assert not sources.ids_recorded(cursor, NOW + 9 * DAY_US)


@pytest.mark.parametrize("asked", ["r", "chatcmpl-r", "chatcmpl-r-0a1b2c3d"])
def test_an_id_that_a_log_line_names_is_told_apart(store, asked):
    put(store, events=[Event(seen_at=T0, name="request.received", request_id="chatcmpl-r", line="Received request chatcmpl-r")])
    with store.cursor() as cursor:
        assert sources.named_in_log(cursor, asked)
        assert not sources.named_in_log(cursor, "q")


def test_links_say_which_sources_spoke_and_when_last(store):
    put(
        store,
        engine_samples=[SAMPLE, EngineSample(seen_at=T0 + 5, engine="e0", up=True), EngineSample(seen_at=T0 + 9, engine="e0", up=False)],
        events=[STARTED, Event(seen_at=T0 + 2, engine="e0", name="lensd.engine.request", request_id="r")],
        spans=[
            START_UP,
            SpanRow(trace_id="t", span_id="b", name="llm_request", kind="server", engine=None, started_at=T0 + 3),
            SpanRow(trace_id="t", span_id="c", name="POST /v1", kind="server", scope="lensd.vllm", engine="e0", started_at=T0 + 4),
            SpanRow(trace_id="t", span_id="d", name="POST /v1", kind="server", scope="lensd.gateway", engine="e0", started_at=T0 + 6),
        ],
        gpu_samples=[
            GpuSample(seen_at=T0 + 7, host="h", gpu="0", used_bytes=1),  # a card says of no engine that it is on it
            GpuSample(seen_at=T0 + 8, host="h", gpu="0", pid=11, pid_engine="e0", pid_used_bytes=1),
        ],
    )
    with store.cursor() as cursor:
        found = {(row["engine"], row["kind"]): row["last_at"].microsecond for row in sources.links(cursor, NOW)}
    assert found == {
        ("e0", "scrape"): 5, ("e0", "log"): 0, ("e0", "plugin"): 2, (None, "llm_request"): 3, ("e0", "middleware"): 4, ("e0", "gateway"): 6,
        ("e0", "gpu"): 8,
    }  # fmt: skip


def test_of_what_an_agent_cannot_read_the_last_word_counts(store):
    def told(at, name, state, reason=None):
        fields = f'{{"lensd.source.name": "{name}", "lensd.source.state": "{state}", "lensd.source.reason": "{reason or ""}"}}'
        return Event(seen_at=T0 + at, host="h", name="lensd.agent.source", fields=fields)

    put(store, events=[told(1, "kmsg", "denied", "needs root"), told(2, "log", "missing"), told(3, "log", "followed")])
    with store.cursor() as cursor:
        assert [(row["source"], row["state"], row["reason"]) for row in sources.not_read(cursor, NOW)] == [("kmsg", "denied", "needs root")]
