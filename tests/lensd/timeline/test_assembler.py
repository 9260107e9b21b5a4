"""Step after step: what time and late data make of a request, one row a request, under a clock that the test sets."""

import json

import pytest
from assembler_run import Run
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from judged_house import T0, Call, S
from lensd_collectors import conventions as c

from lensd.store.arrow import batch_of
from lensd.timeline import assembler as module
from lensd.timeline.assembler import Assembler, assemble_all


@pytest.fixture
def run():
    made = Run()
    yield made
    made.store.close()


# --- late and in whatever order


@pytest.mark.parametrize("order", [(0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)])
def test_parts_come_in_any_order_and_make_one_request(run, order):
    call = Call(1, at=0)
    parts = [call.client(), call.gateway(), call.middleware() + call.llm_request(parent="middleware")]
    for number, part in enumerate(order):
        run.receive(parts[part])
        run.step(1 + 3 * number)
        assert len(run.rows()) <= 1
    run.step(60)
    row = run.one()
    assert (row["span_id"], row["settled"], row["client_source"], row["queue_source"]) == (
        call.id("gateway"),
        True,
        "client",
        "llm_request",
    )
    assert row["frontend_ms"] is not None


@pytest.mark.parametrize("remembers", [True, False])
@pytest.mark.parametrize(
    "order", [("middleware", "gateway"), ("llm_request", "middleware", "gateway"), ("client", "gateway"), ("client", "middleware")]
)
def test_what_was_shown_before_what_lies_around_it_is_taken_back(run, order, remembers):
    call = Call(1, at=0)
    for number, part in enumerate(order):
        parent = {"parent": "middleware"} if part == "llm_request" and "middleware" in order else {}
        run.receive(getattr(call, part)(**parent))
        for at in (1, 30):  # long enough to be shown, whatever else may still come
            run.step(40 * number + at)
        assert len(run.rows()) == 1
        if not remembers:
            run.assembler = Assembler()
    row = run.one()
    assert (row["span_id"], row["withdrawn"]) == (call.id(order[-1]), None)
    run.receive(getattr(call, order[0])())  # its sender tells of it once more
    run.step(200)
    assert [r["span_id"] for r in run.rows()] == [call.id(order[-1])]


def test_revisions_count_up_and_what_did_not_change_is_not_told(run):
    call = Call(1, at=0)
    run.receive(call.gateway())
    run.step(0.5)
    run.receive(call.llm_request())
    assert [(r.row.revision, r.settled_first) for r in run.step(6)] == [(1, True)]
    run.receive(call.client())
    (last,) = run.step(7)
    assert (last.row.revision, last.settled_first) == (2, False)
    assert run.assembler.judged(last.row, "no-incident", "certain").revision == 3
    run.assembler.touch({call.trace: T0})
    assert run.step(8) == run.step(100) == []
    assert run.assembler.waiting == 0


def test_two_gateway_requests_of_one_trace_have_each_their_own_engine_spans(run):
    umbrella = Call(9, at=0, total=5000)
    first = Call(1, at=0.1, trace=umbrella.trace, request_id="same", queue=5, about={c.OUTCOME: "failed", c.HTTP_STATUS: 500})
    second = Call(2, at=2, trace=umbrella.trace, request_id="same", queue=7)
    top = umbrella.id("client")
    run.receive(first.gateway(parent=top), second.llm_request(), first.llm_request())
    run.step(3)
    run.receive(second.gateway(parent=top), umbrella.client())
    run.step(20)
    found = [(row["span_id"], row["outcome"], row["queue_ms"]) for row in run.rows()]
    assert found == [(first.id("gateway"), "failed", 5.0), (second.id("gateway"), "ok", 7.0)]


def test_a_retry_has_the_client_span_of_its_own(run):
    first, second = Call(1, at=0), Call(2, at=2, trace=f"{1:032x}")
    run.receive(first.client(), second.client(), first.gateway(), second.gateway())
    run.step(20)
    assert [(row["span_id"], row["client_source"]) for row in run.rows()] == [(c.id("gateway"), "client") for c in (first, second)]


def test_a_part_that_waits_in_a_trace_with_another_request_is_looked_at_again(run):
    known, alone = Call(1, at=0), Call(2, at=0, trace=f"{1:032x}")
    run.receive(known.gateway() + known.llm_request(), alone.llm_request())
    run.step(1)
    assert len(run.rows()) == 1
    run.step(11)
    assert [row["span_id"] for row in run.rows()] == [known.id("gateway"), alone.id("engine")]


# --- open


def test_what_gateway_and_middleware_both_say_is_open_is_one_request(run):
    call = Call(1, at=0, total=3000)
    run.receive(call.open(1100, part="middleware"))
    run.step(1.2)
    assert run.rows() == []  # the gateway in front of it may tell more
    run.receive(call.open(1000), call.open(2500, part="middleware"))
    run.step(2.6)
    assert (run.one()["span_id"], run.one()["outcome"]) == (call.id("gateway"), "open")
    run.receive(call.middleware(), call.llm_request(parent="middleware"))
    run.step(3.1)
    assert run.one()["outcome"] == "open"  # ended in the engine; what its caller got only the gateway knows
    run.receive(call.gateway())
    run.step(3.5)
    run.step(60)
    assert (run.one()["outcome"], run.one()["settled"], run.one()["queue_source"]) == ("ok", True, "llm_request")


def test_a_middleware_alone_is_enough_for_an_open_request(run):
    call = Call(1, at=0)
    run.receive(call.open(1000, part="middleware", **{c.PARENT_SPAN_ID: None}))
    run.step(1.5)
    assert (run.one()["outcome"], run.one()["auth_routing_state"]) == ("open", "not_observed")


def test_requests_open_side_by_side_in_one_trace_stay_apart(run):
    one, other = Call(1, at=0), Call(2, at=0.5, trace=f"{1:032x}", request_id="r1")
    run.receive(one.open(1000), other.open(1000), one.open(1200, part="middleware"), other.open(1300, part="middleware"))
    run.step(2)
    assert [row["span_id"] for row in run.rows()] == [one.id("gateway"), other.id("gateway")]


# --- clocks


@pytest.mark.parametrize("ahead_s", [-3600, -40, 40, 3600])
def test_a_callers_clock_neither_doubles_a_request_nor_holds_it_open(run, ahead_s):
    call = Call(1, at=0, client_ahead=ahead_s * 1000)
    run.receive(call.client())
    run.step(0.5)
    assert run.rows() == []
    run.receive(call.gateway())
    run.step(1)
    run.step(12)
    row = run.one()
    assert row["settled"]
    assert row["total_ms"] == pytest.approx(120, abs=2)
    assert (row["ended_at"] - row["started_at"]).total_seconds() == pytest.approx(0.118, abs=0.003)


@pytest.mark.parametrize("behind_s", [-3600, 40, 3600])
def test_a_gateways_clock_does_not_make_a_live_request_lost(run, behind_s):
    call = Call(1, at=-behind_s)
    for ms in (1000, 6000, 11_000):
        run.receive(call.open(ms))
        run.step(ms / 1000 + 0.5)
        assert run.one()["outcome"] == "open"
    run.step(39)
    assert run.one()["outcome"] == "open"
    run.step(42)
    assert run.one()["outcome"] == "lost"


def test_a_caller_of_the_far_future_is_not_waited_for_for_ever(run):
    call = Call(1, at=50 * 365 * 86_400)
    run.receive(call.client())
    run.step(1)
    run.step(12)
    assert run.one()["settled"]
    assert run.assembler.waiting == 0


def test_a_clock_set_back_holds_nothing_up(run):
    call = Call(1, at=0)
    run.receive(call.gateway())
    run.step(86_400)
    assert not run.one()["settled"]
    run.step(1)
    run.step(12)
    assert run.one()["settled"]
    assert run.assembler.waiting == 0


def test_a_clock_set_back_during_a_span_makes_no_negative_times(run):
    call = Call(1, at=0)
    spans = call.all()
    for span in spans:
        if span.name in (c.SPAN_AUTH_ROUTING, c.SPAN_STREAMING, c.SPAN_UPSTREAM):
            span.ended_at = span.started_at - 5_000_000
    run.receive(spans)
    run.step(2)
    row = run.one()
    assert min(value for name, value in row.items() if name.endswith("_ms") and value is not None) >= 0


# --- the plugin


def test_a_plugins_record_settles_its_request_at_once(run):
    call = Call(1, at=0)
    run.receive(call.gateway())
    run.step(0.5)
    assert not run.one()["settled"]
    run.receive(call.record(0.2))
    run.step(1)
    assert (run.one()["settled"], run.one()["queue_source"]) == (True, "plugin")


def test_requests_of_one_id_have_each_their_own_record(run):
    hour = Call(1, at=-3600, request_id="test")
    now, other = Call(2, at=0, request_id="test"), Call(3, at=2, request_id="test")
    run.receive(hour.record(-3599.9, queue=1), now.record(0.1, queue=2), other.record(2.1, queue=3))
    run.receive(now.gateway(), other.gateway())
    run.step(3)
    assert [(row["queue_ms"], row["queue_source"]) for row in run.rows()] == [(2, "plugin"), (3, "plugin")]


# --- several answers, many spans, whatever values


def test_two_answers_are_one_request_timed_by_the_one_that_ended_last(run):
    call = Call(1, at=0, total=2000, decode=1000)
    late, early = Call(1, at=0, total=2000, decode=1900), Call(1, at=0, total=1000, decode=900)
    tokens = "gen_ai.usage.completion_tokens"
    run.receive(call.gateway(**{c.OUTPUT_TOKENS: 40}), late.llm_request("a", **{tokens: 20}), early.llm_request("b", **{tokens: 20}))
    run.step(3)
    row = run.one()
    assert (row["decode_ms"], row["completion_tokens"], row["tpot_ms"]) == (1900, 40, 100)


def test_tokens_that_the_engine_counts_answer_by_answer_are_added(run):
    call = Call(1, at=0)
    tokens = "gen_ai.usage.completion_tokens"
    run.receive(call.gateway(**{c.OUTPUT_TOKENS: None}), call.llm_request("a", **{tokens: 20}), call.llm_request("b", **{tokens: 5}))
    run.step(3)
    assert run.one()["completion_tokens"] == 25


def test_a_trace_of_thousands_of_spans_is_assembled_like_any_other(run):
    trace = f"{1:032x}"
    calls = [Call(n, at=n / 100, trace=trace, request_id=f"q{n}") for n in range(300)]
    steps = [calls[0].span(f"step{n}", None, "tool", "internal", "app", n, n + 1) for n in range(2000)]
    run.receive([span for call in calls for span in call.all()], steps)
    run.step(10)
    rows = run.rows()
    assert len(rows) == 300
    assert {(row["settled"], row["queue_source"], row["client_source"]) for row in rows} == {(True, "llm_request", "client")}


def test_more_than_one_step_takes_is_left_for_the_next_oldest_first(run, monkeypatch):
    monkeypatch.setattr(module, "MOST", 3)
    for n in range(7):
        run.receive(Call(n, at=0).all())
    sizes = [len(run.step(1))]
    while run.assembler.behind:
        sizes.append(len(run.step(1)))
    assert sizes == [3, 3, 1]


def test_a_span_from_long_ago_does_not_take_the_others_along(run, monkeypatch):
    read = []
    gather = module.gather
    monkeypatch.setattr(
        module, "gather", lambda cursor, traces, since, until: read.append((len(traces), since)) or gather(cursor, traces, since, until)
    )
    run.receive(Call(1, at=-86_400 * 300).all(), Call(2, at=0).all())
    run.step(1)
    assert len(run.rows()) == 2
    assert sorted(since > T0 - 7200 * S for _, since in read) == [False, True]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=3,
)
NAMES = st.sampled_from([*c.ATTRIBUTES, "gen_ai.latency.e2e", "gen_ai.latency.time_in_queue", "finish_reason", "timeout_s"])


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(st.dictionaries(NAMES, JSON, max_size=6), min_size=6, max_size=6))
def test_whatever_senders_put_under_known_names_the_rows_fit_their_columns(odd):
    run = Run()
    call = Call(1, at=0)
    spans = call.all()
    for span, more in zip([s for s in spans if s.name != c.SPAN_AUTH_ROUTING], odd, strict=False):
        span.attributes = json.dumps(json.loads(span.attributes) | more)
    events = [call.open(1000), Call(2, at=0).open(1000)]
    for event in events:
        event.fields = json.dumps(json.loads(event.fields) | odd[5])
    run.receive(spans, events, Call(3, at=0).all())
    run.step(60)
    assert Call(3, at=0).id("gateway") in {row["span_id"] for row in run.rows()}
    run.store.close()


# --- what did not reach the store


def test_rows_that_were_not_stored_are_made_again_with_the_revision_the_store_is_at(run):
    call = Call(1, at=0)
    run.receive(call.gateway())
    run.step(0.5)
    run.receive(call.llm_request())
    with run.store.cursor() as cursor:
        assert len(run.assembler.step(cursor, T0 + S)) == 1
    run.assembler.undo()
    assert [r.row.revision for r in run.step(2)] == [1]
    assert run.one()["settled"]


def test_another_process_goes_on_where_one_ended_and_repeats_nothing(run):
    call = Call(1, at=0)
    run.receive(call.gateway(), call.llm_request())
    (first,) = run.step(1)
    run.store.append(batch_of({"requests": [run.assembler.judged(first.row, "no-incident", "certain")]}))
    run.assembler = Assembler()
    run.assembler.touch({call.trace: T0})
    assert run.step(2) == []
    run.receive(call.client())
    assert [(r.row.revision, r.row.label, r.settled_first) for r in run.step(3)] == [(2, "no-incident", False)]


def test_without_a_daemon_nothing_is_waited_for(run):
    run.assembler = Assembler(live=False)
    run.receive(Call(1, at=0).client(), Call(2, at=0).gateway(), Call(3, at=-60).open(1000), Call(4, at=0).open(900))
    run.step(1)
    found = {row["request_id"]: (row["outcome"], row["settled"]) for row in run.rows()}
    assert found == {"r1": ("ok", True), "r2": ("ok", True), "r3": ("lost", True), "r4": ("open", False)}


def test_one_trace_can_be_read_of_a_store_of_many(run):
    run.receive(Call(1, at=0).all(), Call(2, at=0).all())
    with run.store.cursor() as cursor:
        (found,) = assemble_all(cursor, [Call(2, at=0).trace], T0 + S, since=T0 - S)
        assert found.row.request_id == "r2"
        assert assemble_all(cursor, [Call(2, at=0).trace], T0 + S, since=T0 + S) == []


def test_two_requests_of_a_trace_settle_though_one_of_them_was_heard_of_later(run):
    """What one of them still waits for does not begin anew when the other is settled."""
    call = Call(1, at=0)
    run.receive(call.gateway()[0], call.llm_request("second", parent="middleware"))
    run.step(0.8)
    run.receive(call.client())
    for at in (100, 160):
        run.step(at)
    assert [row["settled"] for row in run.rows()] == [True, True]
    assert run.assembler.waiting == 0
    assert run.step(1000) == []
