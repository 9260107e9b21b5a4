"""Traces without instants are dated by the ids that an engine's log tells, and by nothing else."""

import pytest
from lensd_collectors.rows import Event, RequestRow, SpanRow

from lensd.timeline.hours import Hours, date_spans, names_of, widen

HOURS = Hours(1_000_000, 90_000_000)


def span(request_id, seconds, trace="t"):
    return SpanRow(trace_id=trace, span_id="s", request_id=request_id, duration_ms=seconds * 1000)


def event(name, request_id, at):
    return Event(name=name, request_id=request_id, seen_at=at)


@pytest.mark.parametrize(
    ("logged", "names"),
    [
        ("chatcmpl-7d0c-1a2b3c4d", ("chatcmpl-7d0c-1a2b3c4d", "chatcmpl-7d0c")),
        ("cmpl-lens-1-0-8f79cc71", ("cmpl-lens-1-0-8f79cc71", "cmpl-lens-1-0", "cmpl-lens-1")),
        ("chatcmpl-order-12", ("chatcmpl-order-12",)),
        ("chatcmpl-032a4ed4d015d003a07a04124ce2b351", ("chatcmpl-032a4ed4d015d003a07a04124ce2b351",)),
    ],
)
def test_what_a_logged_id_may_stand_for(logged, names):
    assert names_of(logged) == names


def test_a_trace_ends_when_the_engine_aborted_its_request():
    client, engine = span(None, 60), span("chatcmpl-7d0c", 59)
    assert date_spans([client, engine], [event("request.aborted", "chatcmpl-7d0c-1a2b3c4d", 70_000_000)], HOURS) == frozenset()
    assert (client.started_at, client.ended_at) == (10_000_000, 70_000_000)
    assert (engine.started_at, engine.ended_at) == (10_000_000, 69_000_000)


def test_it_begins_when_the_engine_received_it():
    one = span("cmpl-9", 3)
    told = [event("request.received", "cmpl-9-0", 5_000_000), event("request.aborted", "cmpl-9-0", 9_000_000)]
    assert date_spans([one], told, HOURS) == frozenset()
    assert one.started_at == 5_000_000


def test_another_requests_lines_say_nothing_of_it():
    one = span("chatcmpl-order-12", 3)
    assert date_spans([one], [event("request.aborted", "chatcmpl-order-1", 70_000_000)], HOURS) == {"t"}
    assert one.started_at == HOURS.first


def test_dated_spans_stay_as_they_are():
    one = SpanRow(trace_id="t", span_id="s", started_at=7, ended_at=8)
    assert date_spans([one], [], HOURS) == frozenset()
    assert (one.started_at, one.ended_at) == (7, 8)


def test_a_request_of_unknown_hour_may_have_been_at_any_and_lasted_what_it_lasted():
    wide = widen(RequestRow(request_key=1, revision=0, started_at=1_000_000, ended_at=2_000_000, total_ms=1000.0), HOURS)
    assert (wide.started_at, wide.ended_at, wide.total_ms) == (1_000_000, 90_000_000, 1000.0)
