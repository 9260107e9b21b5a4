"""Several attempts, several answers, several spans of one call: still one request, timed by the attempt that answered."""

import gc
import time

import pytest
import story as told_in_ms
from assembler_run import Run
from judged_house import T0
from lensd_collectors import conventions as c
from lensd_collectors.conventions import Stage, StageState
from parts import CALLER, TRACE, adds_up, caller, llm_request, middleware, record, span, stages, told

from lensd.timeline import gather
from lensd.timeline.instants import engine_skew
from lensd.timeline.join import requests_of_trace

FIRST, SECOND = "31" * 8, "32" * 8
GONE = {c.OUTCOME: "caller_gone", c.DECISION: "caller_gone"}
NO_TOKEN = {c.OUTPUT_TOKENS: 0, c.FINISH_REASONS: ["error"]}


def attempt(story, span_id, start, end, **about):
    story.span(span_id, told_in_ms.GATEWAY, c.SPAN_UPSTREAM, start, end, c.SCOPE_GATEWAY, "client", **about)


def recorded(story, *args, **about):
    row = record("chatcmpl-req-1", *args, **about)
    row.seen_at += told_in_ms.T0 - T0
    story.events.append(row)


def test_an_attempt_that_made_no_token_is_not_the_half_of_a_request_split_over_two_engines(story):
    story.gateway(0, 2000).auth(0, 2)
    attempt(story, FIRST, 2, 1000)
    attempt(story, SECOND, 1010, 1999, **{c.FIRST_BYTE_MS: 200.0, c.LAST_BYTE_MS: 980.0})
    recorded(story, 1000, queue=990.0, prefill=None, decode=None, engine="a", **NO_TOKEN)
    recorded(story, 1990, queue=10.0, prefill=150.0, decode=700.0, engine="b")
    request = story.one()
    assert (request.row.queue_ms, request.row.prefill_ms, request.row.decode_ms) == (10.0, 150.0, 700.0)
    adds_up(request)


def test_an_attempt_on_an_engine_with_a_plugin_does_not_time_the_answer_of_one_without(story):
    story.gateway(0, 2000).auth(0, 2)
    attempt(story, FIRST, 2, 1000)
    attempt(story, SECOND, 1010, 1999, **{c.FIRST_BYTE_MS: 200.0, c.LAST_BYTE_MS: 980.0})
    recorded(story, 1000, queue=990.0, prefill=None, decode=None, engine="a", **NO_TOKEN)
    story.engine(1012, 1990, queue=10, prefill=150, decode=700, parent=SECOND)
    request = story.one()
    assert (request.row.queue_ms, request.row.queue_source, request.row.completion_tokens) == (10.0, "llm_request", 11)


def test_what_the_engine_never_scheduled_is_estimated_like_what_it_says_nothing_of(story):
    story.gateway(0, 2000, **GONE).auth(0, 2).upstream(2, 1999)
    for ms in range(-1000, 3000, 250):
        story.scrape(ms, 4, 3, made=1000 + ms)
    recorded(story, 1990, queue=None, prefill=None, decode=None, **NO_TOKEN)
    queue = stages(story.one())[Stage.QUEUE]
    assert (queue.state, queue.estimated, queue.source) == (StageState.FAILED, True, "scrape")


def test_what_was_scheduled_and_made_no_token_ended_in_prefill(story):
    story.gateway(0, 2000, **GONE).auth(0, 2).upstream(2, 1999)
    recorded(story, 1990, queue=900.0, prefill=None, decode=None, **NO_TOKEN, **{c.E2E_MS: 1980.0})
    request = story.one()
    queue, prefill = stages(request)[Stage.QUEUE], stages(request)[Stage.PREFILL]
    assert (queue.state is StageState.FAILED, queue.segments) == (False, ((10.0, 900.0),))
    assert (prefill.state, prefill.segments, prefill.estimated) == (StageState.FAILED, ((910.0, 1080.0),), True)
    adds_up(request)


def test_an_attempt_that_reached_no_engine_tells_nothing_of_the_engines_clock(story):
    story.gateway(0, 700, **{c.OUTCOME: "failed"}).auth(0, 2)
    attempt(story, FIRST, 2, 20)
    attempt(story, SECOND, 690, 692)
    story.span("33" * 8, FIRST, "POST", 3, 19, c.SCOPE_VLLM, "server", **{c.REQUEST_ID: "req-1"})
    assert engine_skew(story.one().evidence) == 0


def test_the_middleware_of_the_last_attempt_counts_however_its_hosts_clock_stands(story):
    story.gateway(0, 2000).auth(0, 2)
    attempt(story, FIRST, 2, 100)
    attempt(story, SECOND, 110, 1999, **{c.FIRST_BYTE_MS: 200.0, c.LAST_BYTE_MS: 980.0})
    story.span("33" * 8, FIRST, "POST", 503, 599, c.SCOPE_VLLM, "server", **{c.REQUEST_ID: "req-1"})
    story.span("34" * 8, SECOND, "POST", 112, 1998, c.SCOPE_VLLM, "server", **{c.REQUEST_ID: "req-1"})
    assert story.one().evidence.middleware.span_id == "34" * 8


def test_the_time_it_took_to_write_down_an_answer_in_one_piece_is_no_front_end_where_a_plugin_says_when_it_was_done():
    call = middleware("01" * 8, None, "r1", 0, 200, **{c.FIRST_BYTE_MS: 199.0, c.LAST_BYTE_MS: 199.0, c.IS_STREAMING: False})
    (request,) = told(call, record("chatcmpl-r1", 130, queue=10.0, prefill=20.0, decode=60.0))
    assert (request.row.frontend_ms, stages(request)[Stage.QUEUE].segments) == (40.0, ((40.0, 10.0),))
    adds_up(request)


@pytest.mark.parametrize("kind", ["chatcmpl-r1", "cmpl-r1-0"])
def test_answers_that_an_older_vllm_numbers_in_front_are_one_request(kind):
    (request,) = told(
        llm_request("0a" * 8, CALLER, f"0_{kind}", 0), llm_request("0b" * 8, CALLER, f"1_{kind}", 0, decode=80.0), caller(-5, 200)
    )
    assert (request.row.prompt_tokens, request.row.completion_tokens, request.row.decode_ms) == (7, 22, 80.0)


def test_a_scrape_that_came_twice_counts_once(story):
    story.gateway(0, 2000, **GONE).auth(0, 2).upstream(2, 1999)
    for ms in (-500, 500, 1500, 2500):
        story.scrape(ms, 4, 0, made=1000)
    once = stages(story.one())
    story.scrape(500, 4, 0, made=1000)
    assert stages(story.one()) == once


def test_a_record_that_comes_late_finds_the_callers_request_by_the_id_of_its_reply():
    run = Run()
    call = caller(0, 200, **{c.RESPONSE_ID: "chatcmpl-x1"})
    call.request_id = "chatcmpl-x1"  # as the receiver has it
    run.receive(call)
    for at_s in (1, 12, 20):
        run.step(at_s)
    run.receive(record("chatcmpl-x1", 190))
    for at_s in (21, 32, 45):
        run.step(at_s)
    assert run.one()["queue_ms"] == 10.0


def test_a_run_of_a_thousand_calls_takes_time_in_proportion():
    def took(calls):
        rows = []
        for n in range(calls):
            mid, eng, begun = f"{n:08x}" + "01" * 4, f"{n:08x}" + "02" * 4, n * 10
            rows += [
                middleware(mid, CALLER, f"r{n}", begun, begun + 200, first=begun + 50),
                llm_request(eng, CALLER, f"chatcmpl-r{n}", begun + 1),
            ]
        gc.disable()  # what other tests have left alive takes its own time to look through
        try:
            begun = time.process_time()
            assert len(told(*rows)) == calls
            return time.process_time() - begun
        finally:
            gc.enable()

    took(10)
    assert took(1000) < 6 * max(took(250), 0.05)


def test_a_trace_that_cannot_be_read_costs_itself_alone(monkeypatch):
    def broken(trace_id, spans, signals):
        if trace_id == TRACE:
            raise TypeError("no order between None and a name")
        return requests_of_trace(trace_id, spans, signals)

    monkeypatch.setattr(gather, "requests_of_trace", broken)
    (request,) = told(caller(0, 200), llm_request("0a" * 8, None, "chatcmpl-r2", 0, trace="cd" * 16))
    assert request.row.trace_id == "cd" * 16


CALL = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "tiny"}


def call(span_id, parent, start, end):
    return span(span_id, parent, "chat tiny", "client", "other.people", start, end, CALL, engine=None)


def test_a_call_inside_a_call_without_attempts_is_one_request():
    (request,) = told(call("0a" * 8, None, 0, 300), call("0b" * 8, "0a" * 8, 1, 299))
    assert (request.row.span_id, request.row.model) == ("0b" * 8, "tiny")


def test_a_token_that_is_fetched_on_the_way_is_no_request():
    def http(span_id, start, end, url):
        about = {"http.request.method": "POST", "url.full": url}
        return span(span_id, "0a" * 8, "POST", "client", "other.people.http", start, end, about, engine=None)

    sign_in = http("0b" * 8, 1, 20, "https://login.example/oauth2/token")
    (request,) = told(call("0a" * 8, None, 0, 300), sign_in, http("0c" * 8, 21, 299, "http://e:8000/v1/chat/completions"))
    assert (request.row.span_id, request.row.model) == ("0c" * 8, "tiny")
