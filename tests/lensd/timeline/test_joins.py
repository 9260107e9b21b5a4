"""Which spans of a trace are one request, and which are several."""

import msgspec
import pytest
from lensd_collectors import conventions as c
from parts import CALLER, adds_up, caller, llm_request, middleware, span, told

# --- rung 3: the engine's span and the middleware's side by side under the caller's


def test_what_stands_side_by_side_under_the_callers_span_is_one_request():
    (request,) = told(
        caller(0, 120),
        middleware("m1".rjust(16, "0"), CALLER, "r1", 2, 118, first=40),
        llm_request("e1".rjust(16, "0"), CALLER, "chatcmpl-r1", 4),
    )
    row = request.row
    assert (row.span_id, row.client_source, row.queue_source, row.queue_ms) == ("m1".rjust(16, "0"), "client", "llm_request", 10.0)
    adds_up(request)


def test_side_by_side_several_calls_of_one_span_find_their_own():
    calls = [
        part
        for n in range(5)
        for part in (
            middleware(f"{n:016x}", "aa" * 8, f"r{n}", n * 50, n * 50 + 118, first=n * 50 + 40),
            llm_request(f"{100 + n:016x}", "aa" * 8, f"chatcmpl-r{n}", n * 50 + 2, queue=n),
        )
    ]
    found = told(*calls)
    assert [(r.row.request_id, r.row.queue_ms) for r in found] == [(f"r{n}", float(n)) for n in range(5)]


def test_side_by_side_an_id_that_repeats_is_told_apart_by_time():
    first = [middleware("01" * 8, "aa" * 8, "same", 0, 118, first=40), llm_request("0e" * 8, "aa" * 8, "chatcmpl-same", 2, queue=1.0)]
    again = [
        middleware("02" * 8, "aa" * 8, "same", 9000, 9118, first=9040),
        llm_request("0f" * 8, "aa" * 8, "chatcmpl-same", 9002, queue=2.0),
    ]
    assert [r.row.queue_ms for r in told(*again, *first)] == [1.0, 2.0]


def test_the_span_of_another_call_is_not_taken_in():
    found = told(middleware("01" * 8, "aa" * 8, "mine", 0, 118, first=40), llm_request("0e" * 8, "aa" * 8, "chatcmpl-other", 2))
    assert [r.row.span_id for r in found] == ["01" * 8, "0e" * 8]
    assert [r.row.queue_source == "llm_request" for r in found] == [False, True]


# --- rung 2: the engine's spans alone


def test_ten_calls_of_one_run_are_ten_requests_also_where_each_has_a_parent_of_its_own():
    found = told(*(llm_request(f"{n:016x}", f"{1000 + n:016x}", f"chatcmpl-r{n}", n * 500, queue=n + 1.0) for n in range(10)))
    assert [(r.row.request_id, r.row.queue_ms) for r in found] == [(f"chatcmpl-r{n}", n + 1.0) for n in range(10)]


def test_ten_calls_under_one_span_are_ten_requests():
    found = told(*(llm_request(f"{n:016x}", "aa" * 8, f"chatcmpl-r{n}", n * 5) for n in range(10)))
    assert len(found) == 10


def test_an_id_used_again_under_the_same_span_is_another_request():
    assert len(told(llm_request("01" * 8, "aa" * 8, "chatcmpl-r", 0), llm_request("02" * 8, "aa" * 8, "chatcmpl-r", 5000))) == 2


def test_two_answers_to_one_request_are_one():
    (request,) = told(*(llm_request(f"{n:016x}", "aa" * 8, "chatcmpl-r", 0, decode=50.0 + n, tokens=20) for n in (1, 2)))
    assert (request.row.decode_ms, request.row.completion_tokens, request.row.prompt_tokens) == (52.0, 40, 7)


def test_a_list_of_prompts_is_one_request():
    (request,) = told(*(llm_request(f"{n:016x}", "aa" * 8, f"cmpl-r-{n}", n / 10, tokens=3) for n in range(4)))
    assert (request.row.completion_tokens, request.row.prompt_tokens) == (12, 28)


# --- twice


@pytest.mark.parametrize("times", [2, 5])
def test_what_is_stored_twice_counts_once(times):
    rows = [caller(0, 120), middleware("01" * 8, CALLER, "r1", 2, 118, first=40), llm_request("0e" * 8, "01" * 8, "chatcmpl-r1", 4)]
    (once,) = told(*rows)
    (repeated,) = told(*(rows * times))
    assert msgspec.structs.astuple(repeated.row) == msgspec.structs.astuple(once.row)
    assert repeated.timeline == once.timeline


def test_tokens_of_a_span_that_came_twice_are_counted_once():
    answer = llm_request("0e" * 8, None, "chatcmpl-r1", 4, tokens=11)
    (request,) = told(answer, answer)
    assert request.row.completion_tokens == 11


# --- callers


def test_a_callers_span_above_several_calls_belongs_to_none_and_those_below_it_to_their_own():
    run = span("dd" * 8, None, "chat", "client", "openllmetry", 0, 900, {c.REQUEST_MODEL: "tiny"}, engine=None)
    tries = [caller(n * 300, n * 300 + 200, span_id=f"c{n}" * 8, parent="dd" * 8) for n in range(2)]
    served = [middleware(f"0{n}" * 8, f"c{n}" * 8, "same", n * 300 + 2, n * 300 + 190, first=n * 300 + 40) for n in range(2)]
    found = told(run, *tries, *served)
    assert [(r.row.span_id, r.row.client_source, r.row.total_ms) for r in found] == [(f"0{n}" * 8, "client", 200.0) for n in range(2)]


def test_behind_a_gateway_the_engines_span_is_joined_by_its_id_where_the_middlewares_never_came(story):
    story.gateway(0, 200, **{c.RESPONSE_ID: "chatcmpl-req-1"}).auth(0, 2).upstream(2, 199, first=100, last=190)
    story.engine(5, 192, queue=10, prefill=20, decode=60, parent="7f" * 8, **{c.ENGINE_REQUEST_ID: "chatcmpl-req-1"})
    request = story.one()
    assert (request.row.queue_source, request.row.queue_ms, request.row.frontend_ms) == ("llm_request", 10.0, None)


def test_an_engines_span_of_another_id_is_not_the_gateways_for_being_in_its_trace(story):
    story.gateway(0, 200, **{c.RESPONSE_ID: "chatcmpl-req-1"}).auth(0, 2).upstream(2, 199, first=100, last=190)
    story.engine(5, 192, queue=10, prefill=20, decode=60, parent="7f" * 8, **{c.ENGINE_REQUEST_ID: "chatcmpl-req-2"})
    assert sorted(str(each.row.request_id) for each in story.told()) == ["chatcmpl-req-2", "req-1"]
