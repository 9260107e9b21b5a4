"""Six stages from what the gateway, the engine, the client and the scrapes say."""

import pytest
from lensd_collectors import conventions as c
from lensd_collectors.conventions import Stage, StageState
from lensd_collectors.rows import Event
from story import encode


def stages(request):
    return {s.stage: s for s in request.timeline.stages}


def adds_up(request):
    timeline = request.timeline
    exclusive = sum(round((s.exclusive_ms or 0) * 1000) for s in timeline.stages)
    assert exclusive + round(timeline.unattributed_ms * 1000) == round(timeline.total_ms * 1000)


def healthy(story):
    story.client(0, 120).gateway(2, 118, **{c.RESPONSE_ID: "chatcmpl-req-1", c.HTTP_STATUS: 200, c.DONE_SEEN: True})
    return story.auth(2, 4).upstream(4, 117, first=40, last=110).streaming(41, 111).engine(6, 112, queue=10, prefill=20, decode=68)


def test_a_streamed_answer_has_all_six_stages_and_they_add_up(story):
    request = healthy(story).one()
    adds_up(request)
    seen = stages(request)
    assert [seen[s].state for s in Stage] == [StageState.OK] * 6
    # The engine's durations end at the first byte that the gateway saw (40): prefill 20..40, queue 10..20.
    assert seen[Stage.QUEUE].segments == ((10.0, 10.0),)
    assert seen[Stage.PREFILL].segments == ((20.0, 20.0),)
    assert seen[Stage.DECODE].segments == ((40.0, 68.0),)
    assert seen[Stage.CLIENT].exclusive_ms == 4
    assert seen[Stage.STREAMING].exclusive_ms == 3  # what decode does not cover
    assert [g.between for g in request.timeline.gaps] == [("auth_routing", "queue"), ("streaming", "client")]
    row = request.row
    assert (row.outcome, row.settled, row.ttft_ms, row.request_id, row.queue_source) == ("ok", True, 38.0, "req-1", "llm_request")
    assert row.total_ms == 120
    assert row.tpot_ms == pytest.approx(6.8)


def test_an_answer_in_one_piece_is_laid_out_backwards_from_its_end(story):
    story.gateway(0, 100, **{c.IS_STREAMING: False}).auth(0, 2).upstream(2, 99, first=98).engine(4, 98, queue=10, prefill=20, decode=60)
    seen = stages(story.one())
    assert seen[Stage.DECODE].segments == ((38.0, 60.0),)
    assert seen[Stage.PREFILL].segments == ((18.0, 20.0),)
    assert seen[Stage.QUEUE].segments == ((8.0, 10.0),)


def test_a_refused_request_reached_nothing_after_auth(story):
    request = story.gateway(0, 1, **{c.OUTCOME: "refused", c.DECISION: "key_unknown", c.HTTP_STATUS: 401}).auth(0, 1).one(now_ms=2)
    seen = stages(request)
    assert seen[Stage.AUTH_ROUTING].state is StageState.FAILED
    assert {seen[s].state for s in (Stage.QUEUE, Stage.PREFILL, Stage.DECODE, Stage.STREAMING)} == {StageState.NOT_REACHED}
    assert seen[Stage.CLIENT].state is StageState.NOT_OBSERVED
    assert request.row.settled  # no engine record will come


def gave_up(story):
    gone = {c.OUTCOME: "caller_gone", c.DECISION: "caller_gone", c.HTTP_STATUS: 499, c.IS_STREAMING: False}
    return story.client(0, 5000, status="error").gateway(1, 5001, **gone).auth(1, 3).upstream(3, 5001)


def test_a_wait_the_engine_says_nothing_of_is_estimated_as_queue_while_others_wait(story):
    gave_up(story)
    for second in range(5):
        story.scrape(second * 1000 + 500, running=1, waiting=7)
    request = story.one()
    adds_up(request)
    queue = stages(request)[Stage.QUEUE]
    assert (queue.state, queue.estimated, queue.source) == (StageState.FAILED, True, "scrape")
    assert queue.exclusive_ms == pytest.approx(4998)
    assert stages(request)[Stage.PREFILL].state is StageState.NOT_REACHED
    assert not story.one(now_ms=5500).row.settled
    assert request.row.settled


def test_when_the_line_is_gone_the_rest_of_the_wait_is_prefill(story):
    gave_up(story).scrape(500, 1, 3).scrape(1500, 1, 1).scrape(2500, 1, 0).scrape(3500, 1, 0)
    seen = stages(story.one())
    assert seen[Stage.QUEUE].duration_ms == pytest.approx(1997)  # to half way between 1,500 and 2,500
    assert seen[Stage.PREFILL].state is StageState.FAILED


def test_with_nobody_waiting_the_queue_took_no_time(story):
    seen = stages(gave_up(story).scrape(500, 1, 0).scrape(1500, 1, 0).one())
    assert (seen[Stage.QUEUE].state, seen[Stage.QUEUE].duration_ms) == (StageState.OK, 0)
    assert seen[Stage.PREFILL].duration_ms == pytest.approx(4998)


def test_a_short_wait_between_two_scrapes_is_prefill_where_tokens_were_made(story):
    gone = {c.OUTCOME: "caller_gone", c.HTTP_STATUS: 499}
    story.gateway(0, 400, **gone).auth(0, 1).upstream(1, 400)
    story.scrape(-300, 0, 0, made=48).scrape(5, 0, 0, made=48).scrape(500, 0, 0, made=263)
    seen = stages(story.one())
    assert (seen[Stage.QUEUE].duration_ms, seen[Stage.PREFILL].duration_ms) == (0, 399)


def test_a_very_short_wait_is_judged_by_the_scrapes_on_either_side(story):
    gone = {c.OUTCOME: "caller_gone", c.HTTP_STATUS: 499}
    story.gateway(0, 20, **gone).auth(0, 1).upstream(1, 20).scrape(-450, 1, 0, made=6320).scrape(70, 1, 0, made=6339)
    assert stages(story.one())[Stage.PREFILL].duration_ms == 19


def test_a_short_wait_between_two_scrapes_is_queue_where_nothing_moved(story):
    gone = {c.OUTCOME: "caller_gone", c.HTTP_STATUS: 499}
    story.gateway(0, 400, **gone).auth(0, 1).upstream(1, 400).scrape(-300, 0, 0, made=48).scrape(500, 0, 0, made=48)
    seen = stages(story.one())
    assert (seen[Stage.QUEUE].duration_ms, seen[Stage.QUEUE].source) == (399, "estimate")


def test_without_scrapes_prefill_cannot_be_told_from_queue(story):
    seen = stages(gave_up(story).one())
    assert (seen[Stage.QUEUE].source, seen[Stage.QUEUE].estimated) == ("estimate", True)


def test_another_engines_scrapes_say_nothing(story):
    seen = stages(gave_up(story).scrape(500, 1, 0, engine="e1").scrape(1500, 1, 0, engine="e1").one())
    assert seen[Stage.QUEUE].source == "estimate"


def test_a_stream_the_engine_died_in_failed_in_decode(story):
    story.gateway(0, 900, **{c.OUTCOME: "failed", c.DECISION: "engine_dead"}).auth(0, 2).upstream(2, 899, first=50, last=800).streaming(
        51, 890
    )
    request = story.one(now_ms=1000)
    seen = stages(request)
    assert seen[Stage.DECODE].state is StageState.FAILED
    assert seen[Stage.DECODE].estimated
    assert seen[Stage.PREFILL].state is StageState.NOT_OBSERVED  # a byte came, so it was passed
    assert request.row.settled
    adds_up(request)


def test_an_open_request_is_where_its_last_event_says(story):
    base = {c.REQUEST_MODEL: "tiny", c.ENGINE: "e0", c.REQUEST_ID: "req-1"}
    upstream = {c.PROGRESS_STAGE: "upstream", c.PROGRESS_STAGE_AGE_MS: 990.0, c.PROGRESS_AGE_MS: 1000.0}
    story.event(c.EVENT_STARTED, 1000, **base, **upstream)
    story.event(c.EVENT_PROGRESS, 5000, **base, **(upstream | {c.PROGRESS_AGE_MS: 5000.0, c.PROGRESS_STAGE_AGE_MS: 4990.0}))
    request = story.one(now_ms=6000)
    seen = stages(request)
    assert (request.row.outcome, request.row.settled, request.row.ended_at) == ("open", False, None)
    assert request.timeline.total_ms == 6000
    assert seen[Stage.AUTH_ROUTING].duration_ms == 10
    assert (seen[Stage.QUEUE].duration_ms, seen[Stage.QUEUE].estimated) == (5990, True)
    assert seen[Stage.DECODE].state is StageState.NOT_REACHED
    assert request.look_again is not None


def test_a_request_whose_sender_fell_silent_is_lost(story):
    story.event(c.EVENT_STARTED, 1000, **{c.PROGRESS_STAGE: "upstream", c.PROGRESS_STAGE_AGE_MS: 990.0, c.PROGRESS_AGE_MS: 1000.0})
    assert story.one(now_ms=30_999).row.outcome == "open"
    lost = story.one(now_ms=31_000).row
    assert (lost.outcome, lost.settled) == ("lost", True)


def test_a_span_of_vllm_alone_is_a_request_once_nobody_else_can_come(story):
    story.engine(0, 200, queue=50, prefill=30, decode=100, parent=None)
    request = story.one(now_ms=300)
    seen = stages(request)
    assert seen[Stage.QUEUE].segments == ((1.0, 50.0),)
    assert seen[Stage.AUTH_ROUTING].state is StageState.NOT_OBSERVED
    assert request.row.prompt_tokens is None
    adds_up(request)


def test_a_span_whose_parent_is_still_to_come_waits(story):
    story.engine(0, 200, queue=50, prefill=30, decode=100)
    assert story.told(now_ms=300) == []
    assert len(story.told(now_ms=10_300)) == 1


def test_a_clients_span_waits_for_the_gateways_and_is_a_request_where_none_comes(story):
    story.client(0, 200)
    assert story.told(now_ms=300) == []
    assert story.one(now_ms=10_300).row.outcome == "ok"


def test_negative_durations_are_stages_not_reached(story):
    story.engine(0, 200, queue=50, prefill=-1.7e9, decode=-1.7e9, parent=None, finish_reason="abort")
    seen = stages(story.one())
    assert seen[Stage.QUEUE].state is StageState.FAILED
    assert {seen[Stage.PREFILL].state, seen[Stage.DECODE].state} == {StageState.NOT_REACHED}


def test_a_client_with_another_clock_is_drawn_corrected_and_the_skew_is_shown(story):
    story.clock_ahead_ms = 3_600_000
    request = healthy(story).one(now_ms=4_000_000)
    assert request.timeline.clock_skew_ms == pytest.approx(3_600_000, abs=2)
    assert request.timeline.total_ms == pytest.approx(120, abs=2)
    adds_up(request)


def test_the_plugins_record_is_better_than_vllms_span(story):
    healthy(story)
    record = {c.QUEUE_MS: 4.0, c.PREFILL_MS: 20.0, c.DECODE_MS: 60.0, c.PREEMPTIONS: 2}
    story.events.append(
        Event(seen_at=story.spans[-1].ended_at, name=c.EVENT_ENGINE_REQUEST, request_id="chatcmpl-req-1", fields=encode(record))
    )
    request = story.one()
    assert (request.row.queue_source, request.row.queue_ms, request.row.preemptions) == ("plugin", 4.0, 2)
