"""Each stage from the best that tells of it, the front end as the first part of prefill, and whole timelines that add up."""

import pytest
from lensd_collectors import conventions as c
from lensd_collectors.conventions import Stage, StageState
from parts import CALLER, adds_up, caller, llm_request, middleware, record, stages, told

MID, ENG = "01" * 8, "0e" * 8


def sources(request):
    return tuple(stages(request)[s].source for s in (Stage.QUEUE, Stage.PREFILL, Stage.DECODE))


def test_the_front_end_is_the_first_segment_of_prefill():
    (request,) = told(
        middleware(MID, None, "r1", 0, 200, first=100, last=160), llm_request(ENG, MID, "chatcmpl-r1", 2, queue=10, prefill=20)
    )
    adds_up(request)
    seen = stages(request)
    assert seen[Stage.PREFILL].segments == ((0.0, 70.0), (80.0, 20.0))
    assert seen[Stage.QUEUE].segments == ((70.0, 10.0),)
    assert (request.timeline.frontend_ms, request.row.frontend_ms, request.row.prefill_ms) == (70.0, 70.0, 90.0)
    assert (request.row.queue_ms, request.row.ttft_ms) == (10.0, 100.0)


def test_an_engines_span_alone_tells_its_front_end():
    (request,) = told(llm_request(ENG, None, "chatcmpl-r1", 0, front=30, queue=10, prefill=20, decode=60))
    assert stages(request)[Stage.PREFILL].segments == ((0.0, 30.0), (40.0, 20.0))
    assert (request.row.frontend_ms, request.row.ttft_ms) == (30.0, 60.0)
    adds_up(request)


def test_where_only_a_gateway_stands_before_the_engine_the_time_between_is_nobodys(story):
    story.gateway(0, 200).auth(0, 2).upstream(2, 199, first=100, last=160).engine(30, 170, queue=10, prefill=20, decode=60)
    request = story.one()
    assert (request.timeline.frontend_ms, request.timeline.gaps[0].between) == (None, ("auth_routing", "queue"))


def test_a_front_end_is_never_negative_and_not_said_where_no_token_was_seen():
    (request,) = told(
        middleware(MID, None, "r1", 0, 60, first=20), llm_request(ENG, MID, "chatcmpl-r1", 1, queue=10, prefill=20, decode=30)
    )
    assert request.row.frontend_ms == 0.0
    gone = {c.OUTCOME: "caller_gone", c.HTTP_STATUS: 499}
    (request,) = told(middleware(MID, None, "r2", 0, 60, **gone))
    assert request.row.frontend_ms is None


def test_each_stage_has_the_best_source_that_tells_of_it():
    replied = middleware(MID, None, "r1", 0, 200, first=100, **{c.QUEUE_MS: 7.0, c.PREFILL_MS: 8.0, c.DECODE_MS: 9.0})
    (request,) = told(replied)
    assert (sources(request), request.row.queue_ms) == (("response",) * 3, 7.0)
    (request,) = told(replied, llm_request(ENG, MID, "chatcmpl-r1", 2, queue=10))
    assert (sources(request), request.row.queue_ms) == (("llm_request",) * 3, 10.0)
    (request,) = told(replied, llm_request(ENG, MID, "chatcmpl-r1", 2), record("chatcmpl-r1", 190, queue=11.0, prefill=None, decode=62.0))
    assert sources(request) == ("plugin", "llm_request", "plugin")
    assert request.row.queue_ms == 11.0
    adds_up(request)


def test_a_record_without_its_own_times_leaves_the_span_its_own():
    (request,) = told(llm_request(ENG, None, "cmpl-r-0", 0), record("cmpl-r-0", 92, queue=None, prefill=None, decode=None))
    assert sources(request) == ("llm_request",) * 3


def test_several_answers_and_prompts_have_a_record_each():
    call = middleware(MID, None, "r1", 0, 200, first=50)
    both = [record("chatcmpl-r1", 150, decode=60.0, **{c.PREEMPTIONS: 1}), record("chatcmpl-r1", 190, decode=99.0, **{c.PREEMPTIONS: 2})]
    (request,) = told(call, *both)
    assert (request.row.decode_ms, request.row.completion_tokens, request.row.prompt_tokens, request.row.preemptions) == (99.0, 22, 7, 3)
    prompts = [record(f"cmpl-r1-{n}", 150 + n) for n in range(3)]
    (request,) = told(call, *prompts)
    assert (request.row.completion_tokens, request.row.prompt_tokens) == (33, 21)


def test_what_was_refused_inside_the_engine_took_its_time_there():
    (request,) = told(middleware(MID, None, "r1", 0, 3, **{c.OUTCOME: "refused", c.DECISION: "key_unknown", c.HTTP_STATUS: 401}))
    auth = stages(request)[Stage.AUTH_ROUTING]
    assert (auth.state, auth.duration_ms, auth.source) == (StageState.FAILED, 3.0, "middleware")
    assert request.timeline.unattributed_ms == 0


def test_the_time_of_failed_attempts_is_named(story):
    story.gateway(0, 3000).auth(0, 2)
    story.span("7" * 16, "1" * 16, c.SPAN_UPSTREAM, 2, 1000, c.SCOPE_GATEWAY, "client", status="error")
    story.upstream(1500, 2999, first=2000, last=2990).streaming(2000, 2995)
    story.engine(1501, 2990, queue=10, prefill=20, decode=900)
    request = story.one()
    adds_up(request)
    assert [g.between for g in request.timeline.gaps][:2] == [("attempt 1", "attempt 2"), ("attempt 2", "queue")]
    assert [g.duration_ms for g in request.timeline.gaps][:2] == [1498.0, 470.0]


# --- prefill on one engine, decode on another


def split(*, parents=("aa" * 8, "aa" * 8), clock=0.0):
    early = llm_request("0a" * 8, parents[0], "chatcmpl-r1", 2, queue=5, prefill=100, decode=0, tokens=1, engine="p0")
    late = llm_request("0b" * 8, parents[1], "chatcmpl-r1", 130 + clock, queue=3, prefill=10, decode=400, tokens=40, engine="d0")
    return [early, late]


@pytest.mark.parametrize("parents", [("aa" * 8, "aa" * 8), ("aa" * 8, "bb" * 8)])
def test_prefill_and_decode_on_two_engines_are_one_request_with_its_hand_over(parents):
    (request,) = told(*split(parents=parents))
    adds_up(request)
    row, seen = request.row, stages(request)
    assert (row.queue_ms, row.decode_ms, row.completion_tokens, row.engine) == (5.0, 400.0, 40, "d0")
    assert seen[Stage.PREFILL].segments[-1][1] == 100.0
    assert ("prefill", "decode") in [g.between for g in request.timeline.gaps]


def test_a_single_token_that_span_and_record_tell_of_was_made_on_one_engine():
    (request,) = told(llm_request(ENG, None, "cmpl-r-0", 0, decode=0, tokens=1, engine="a"), record("cmpl-r-0", 32, decode=0.0, engine="b"))
    assert not request.evidence.engine_times().split


# --- clocks


@pytest.mark.parametrize("ahead", [-3_600_000, 3_600_000])
def test_a_caller_with_another_clock_is_set_right_against_the_engines_span(ahead):
    client = caller(ahead, ahead + 120)
    (request,) = told(client, llm_request(ENG, CALLER, "chatcmpl-r1", 5), now_s=8000)
    adds_up(request)
    assert request.timeline.total_ms == pytest.approx(120, abs=2)
    assert request.timeline.clock_skew_ms == pytest.approx(ahead, abs=20)


@pytest.mark.parametrize("ahead", [-3_600_000, 3_600_000])
def test_an_engines_host_with_another_clock_does_not_move_the_front_end(story, ahead):
    story.gateway(0, 200).auth(0, 2).upstream(2, 199, first=101, last=160).streaming(101, 165)
    story.spans.append(middleware(MID, "3" * 16, "req-1", 5 + ahead, 196 + ahead, first=100 + ahead, last=159 + ahead))
    story.spans.append(llm_request(ENG, MID, "chatcmpl-req-1", 6 + ahead, queue=10, prefill=20))
    request = story.one(now_ms=8_000_000)
    adds_up(request)
    assert request.timeline.total_ms == pytest.approx(200, abs=1)
    assert request.row.frontend_ms == pytest.approx(65, abs=1)


def test_a_caller_that_gave_up_has_no_other_clock():
    (request,) = told(caller(0, 1000, status="error"), middleware(MID, CALLER, "r1", 600, 1400, **{c.OUTCOME: "caller_gone"}))
    assert request.timeline.clock_skew_ms is None


def test_the_first_token_is_the_first_text_not_the_first_byte():
    bytes_at = {c.FIRST_BYTE_MS: 10.0, c.FIRST_CONTENT_MS: 300.0, c.LAST_BYTE_MS: 390.0}
    kept_alive = middleware(MID, None, "r1", 0, 400, **{c.IS_STREAMING: True}, **bytes_at)
    (request,) = told(kept_alive)
    assert (request.row.ttft_ms, stages(request)[Stage.DECODE].segments[0][0]) == (300.0, 300.0)


def test_where_text_comes_some_tokens_late_decode_still_ends_with_the_last_byte():
    late = {c.FIRST_BYTE_MS: 41.0, c.FIRST_CONTENT_MS: 100.0, c.LAST_BYTE_MS: 130.0}
    (request,) = told(
        middleware(MID, None, "r1", 0, 131, **{c.IS_STREAMING: True}, **late),
        llm_request(ENG, MID, "chatcmpl-r1", 2, queue=10, prefill=20, decode=90),
    )
    adds_up(request)
    assert stages(request)[Stage.DECODE].segments == ((40.0, 90.0),)
    assert (request.timeline.frontend_ms, request.timeline.total_ms, request.row.ttft_ms) == (10.0, 131.0, 100.0)
