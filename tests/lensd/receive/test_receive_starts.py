"""One start of an engine is one `engine.started`, whichever of its signs come and in what order."""

import itertools
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lensd_collectors.rows import Event, Row
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from otlp_bodies import AT_NS, AT_US, CAPTURES, KINDS, logs, metrics, traces

from lensd.receive.decode import Decoder
from lensd.receive.starts import SAME_US, Starts
from lensd.store.arrow import batch_of

S = 10**9
ENGINE = {"lensd.engine": "one", "lensd.engine.kind": "vllm", "lensd.scrape.target": "http://h:8000/metrics"}
LABELS = {**ENGINE, "model_name": "tiny", "engine": "0"}
BANNER = "(APIServer pid=1) INFO 11-17 18:03:00 [utils.py:1] vLLM server version 0.33.0, serving model tiny"


def events(decoder: Decoder, message: Any, received_at: int = AT_US) -> list[Event]:
    made: dict[str, list[Row]] = decoder.decode(KINDS[type(message)], message.SerializeToString(), received_at)
    batch_of(made)
    return [row for row in made.get("events", []) if isinstance(row, Event) and row.name == "engine.started"]


def total(value: float, at_s: float, name: str = "vllm:generation_tokens_total", **labels: Any) -> Any:
    return metrics((name, value, {**LABELS, **labels}), at_ns=AT_NS + int(at_s * S))


def loading(at_s: float, took_s: float = 97.0, engine: str | None = "one", trace: int = 1, name: str = "Overall Loading") -> Any:
    message = traces({"name": name}, resource={"lensd.engine": engine} if engine else {})
    [scope] = message.resource_spans[0].scope_spans
    scope.scope.name = "vllm.v1.engine.core_client"
    [span] = scope.spans
    span.trace_id = trace.to_bytes(16, "big")
    span.start_time_unix_nano = AT_NS + int(at_s * S)
    span.end_time_unix_nano = AT_NS + int((at_s + took_s) * S)
    return message


def banner(at_s: float, engine: str = "one") -> Any:
    message = logs({"name": "lensd.engine.log", "body": BANNER, "attributes": {"lensd.engine": engine, "lensd.engine.kind": "vllm"}})
    message.resource_logs[0].scope_logs[0].log_records[0].time_unix_nano = AT_NS + int(at_s * S)
    return message


START = [path.read_bytes() for path in sorted((CAPTURES / "otlp" / "start").glob("*.pb"))]
"""All bodies of one start, of three processes, in the order they came."""


def spans_of(body: bytes) -> list[Any]:
    return [
        span for whole in ExportTraceServiceRequest.FromString(body).resource_spans for scope in whole.scope_spans for span in scope.spans
    ]


def test_the_spans_of_a_real_start_are_one_start() -> None:
    [root] = [span for body in START for span in spans_of(body) if span.name == "Overall Loading"]
    decoder = Decoder()
    [started] = [event for body in START for event in events(decoder, ExportTraceServiceRequest.FromString(body))]
    assert (started.seen_at, started.src) == (root.start_time_unix_nano // 1000, f"span:{root.span_id.hex()}")
    assert json.loads(started.fields or "")["sign"] == "spans"
    assert [event for body in START for event in events(decoder, ExportTraceServiceRequest.FromString(body))] == []  # sent twice


def test_all_spans_of_a_start_are_kept() -> None:
    made = [row for body in START for row in Decoder().decode(KINDS[ExportTraceServiceRequest], body, 1)["spans"]]
    assert len(made) == sum(len(spans_of(body)) for body in START) > 10


@pytest.mark.parametrize(
    ("change", "starts"),
    [
        ({}, 1),
        ({"name": "EngineCoreProc init"}, 1),  # of an engine without a front end of its own
        ({"name": "Load weights"}, 0),
        ({"name": "llm_request"}, 0),
        ({"parent": b"12345678"}, 0),
        ({"scope": "myapp.loading"}, 0),
        ({"scope": "vllm"}, 0),
    ],
)
def test_which_span_is_a_start(change: dict[str, Any], starts: int) -> None:
    message = loading(0.0, name=change.get("name", "Overall Loading"))
    [scope] = message.resource_spans[0].scope_spans
    scope.scope.name = change.get("scope", scope.scope.name)
    scope.spans[0].parent_span_id = change.get("parent", b"")
    assert len(events(Decoder(), message)) == starts


def test_several_servers_of_one_start_are_one() -> None:
    decoder = Decoder()
    told = [events(decoder, loading(at_s, trace=n)) for n, at_s in enumerate((0.0, 0.4, 1.0), 1)]
    assert [len(each) for each in told] == [1, 0, 0]


def test_a_later_start_is_another() -> None:
    decoder = Decoder()
    assert len(events(decoder, loading(0.0))) == len(events(decoder, loading(97.0 + 61.0, trace=2))) == 1
    assert len(events(decoder, loading(0.0, engine="two", trace=3))) == 1


def test_counters_that_fall_are_a_start() -> None:
    decoder = Decoder()
    assert [len(events(decoder, total(value, at))) for value, at in ((5.0, 0), (9.0, 1), (9.0, 2))] == [0, 0, 0]
    [started] = events(decoder, total(2.0, 30))
    assert (started.engine, started.seen_at, started.src) == (
        "one",
        AT_US + 30_000_000,
        "scrape:http://h:8000/metrics@2026-11-29T14:39:16.000Z",
    )
    assert json.loads(started.fields or "") == {"sign": "counters", "total": "generation_tokens_total"}
    assert events(decoder, total(3.0, 31)) == []
    assert len(events(decoder, total(0.0, 200))) == 1


def test_an_engine_that_says_when_it_began_needs_no_counters() -> None:
    decoder = Decoder()
    for at, value in ((0, 9.0), (1, 3.0)):
        series = [("vllm:generation_tokens_total", value, LABELS), ("process_start_time_seconds", 1.795e9 + at, ENGINE)]
        message = metrics(*series, at_ns=AT_NS + at * S)
        assert events(decoder, message) == []


def test_late_and_repeated_scrapes_are_no_restart() -> None:
    decoder = Decoder()
    bodies = [total(value, at) for at, value in ((0, 1.0), (1, 5.0), (1, 5.0), (0, 1.0), (2, 6.0), (1, 5.0))]
    assert [events(decoder, body) for body in bodies] == [[]] * 6


def test_a_total_that_comes_back_later_than_the_others_is_the_same_restart() -> None:
    decoder = Decoder()
    both = metrics(("vllm:generation_tokens_total", 50.0, LABELS), ("vllm:num_preemptions_total", 7.0, LABELS))
    assert events(decoder, both) == []
    assert len(events(decoder, total(1.0, 30))) == 1
    assert events(decoder, total(2.0, 500, name="vllm:num_preemptions_total")) == []


def test_models_and_ranks_that_fall_together_are_one_restart() -> None:
    decoder = Decoder()

    def both(value: float, at_s: int) -> Any:
        series = [("vllm:generation_tokens_total", value - rank, {**LABELS, "engine": str(rank)}) for rank in (0, 1)]
        return metrics(*series, at_ns=AT_NS + at_s * S)

    assert [events(decoder, both(50.0, at_s)) for at_s in (0, 1)] == [[], []]
    [started] = events(decoder, both(2.0, 60))
    assert started.engine == "one"
    [again] = events(decoder, metrics(("vllm:generation_tokens_total", 0.0, {**LABELS, "engine": "1"}), at_ns=AT_NS + 300 * S))
    assert again.engine == "one"


def test_two_senders_of_one_engine_may_differ() -> None:
    decoder = Decoder()
    scraped = {key: value for key, value in LABELS.items() if key != "lensd.scrape.target"}
    for at, value, labels in ((0, 100.0, LABELS), (20, 99.0, scraped), (40, 102.0, LABELS), (60, 101.0, scraped)):
        assert events(decoder, metrics(("vllm:generation_tokens_total", value, labels), at_ns=AT_NS + at * S)) == []


def test_two_falls_close_together_are_two_restarts() -> None:
    decoder = Decoder()
    told = [len(events(decoder, total(value, at_s))) for at_s, value in ((0, 50.0), (20, 3.0), (21, 9.0), (40, 2.0))]
    assert told == [0, 1, 0, 1]


def test_a_restart_that_two_senders_show_is_one() -> None:
    decoder = Decoder()
    foreign = {key: value for key, value in LABELS.items() if key != "lensd.scrape.target"}
    before = [metrics(("vllm:generation_tokens_total", 50.0, labels), at_ns=AT_NS + at * S) for at, labels in ((0, foreign), (20, LABELS))]
    after = [metrics(("vllm:generation_tokens_total", 3.0, labels), at_ns=AT_NS + at * S) for at, labels in ((45, foreign), (46, LABELS))]
    assert [len(events(decoder, body)) for body in (*before, *after)] == [0, 0, 1, 0]


RESTART = {
    "log": [banner(100.0)],
    "spans": [loading(108.0, took_s=200.0)],
    "counters": [total(900.0, 95.0), total(3.0, 310.0)],
}


@pytest.mark.parametrize("order", list(itertools.permutations(RESTART)))
@pytest.mark.parametrize("signs", [set(some) for count in (1, 2, 3) for some in itertools.combinations(RESTART, count)])
def test_the_signs_of_one_restart_are_one_start_in_any_order(order: tuple[str, ...], signs: set[str]) -> None:
    decoder = Decoder()
    told = [event for sign in order if sign in signs for body in RESTART[sign] for event in events(decoder, body)]
    assert len(told) == 1


def test_a_log_tells_each_start_of_a_crash_loop() -> None:
    decoder = Decoder()
    assert [len(events(decoder, banner(at))) for at in (0.0, 30.0, 45.0)] == [1, 1, 1]
    assert events(decoder, loading(46.0, took_s=5.0)) == []


SIGNS = st.tuples(st.integers(0, 2000), st.integers(0, 300), st.sampled_from(["log", "counters", None]))


@settings(deadline=None)
@given(st.lists(SIGNS, max_size=16))
def test_a_sign_near_a_start_that_is_told_is_left_out_unless_its_teller_has_shown_that_start(
    signs: list[tuple[int, int, str | None]],
) -> None:
    starts = Starts()
    told: list[tuple[int, int]] = []
    for first_s, length_s, teller in signs:
        first, last = first_s * 1_000_000, (first_s + length_s) * 1_000_000
        near = [start for start in told if start[0] - SAME_US <= last and first <= start[1] + SAME_US]
        is_new = starts.is_new("one", first, last, teller)
        assert is_new or near
        assert not (is_new and near and teller is None)
        told += [(first, last)] if is_new else []
    assert bool(told) == bool(signs)
