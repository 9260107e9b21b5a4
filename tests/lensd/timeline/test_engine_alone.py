"""Requests that only an engine's plugin or its log tells of, and who takes them in."""

import pytest
from assembler_run import Run
from lensd_collectors import conventions as c
from parts import adds_up, llm_request, logged, middleware, record, told

from lensd.timeline import assembler as module


@pytest.fixture
def run():
    made = Run()
    yield made
    made.store.close()


def test_a_plugins_record_alone_is_a_request():
    (request,) = told(record("chatcmpl-r1", 100, queue=10.0, prefill=20.0, decode=60.0))
    adds_up(request)
    row = request.row
    assert (row.trace_id, row.request_id, row.engine, row.model, row.outcome) == (
        "engine:e0/chatcmpl-r1",
        "chatcmpl-r1",
        "e0",
        "tiny",
        "ok",
    )
    assert (row.queue_ms, row.prefill_ms, row.decode_ms, row.queue_source) == (10.0, 20.0, 60.0, "plugin")
    assert (row.completion_tokens, row.finish_reason, row.frontend_ms) == (11, "stop", None)


def test_an_id_used_twice_is_two_requests_and_two_answers_are_one():
    assert len(told(record("chatcmpl-r1", 100), record("chatcmpl-r1", 9000))) == 2
    (request,) = told(record("chatcmpl-r1", 100), record("chatcmpl-r1", 140, decode=100.0))
    assert request.row.completion_tokens == 22


def test_a_log_that_tells_of_an_end_makes_a_request():
    (request,) = told(logged("request.received", "cmpl-r1-0", 0), logged("request.aborted", "cmpl-r1-0-8f79cc71", 3000))
    row = request.row
    assert (row.request_id, row.outcome, row.total_ms, row.queue_state) == ("cmpl-r1-0", "caller_gone", 3000.0, "not_observed")
    (request,) = told(logged("request.failed", "cmpl-r1-0", 10, reason="engine dead"))
    assert request.row.outcome == "failed"


def test_what_was_only_received_is_no_request():
    assert told(logged("request.received", "cmpl-r1-0", 0)) == []


@pytest.mark.parametrize("end", [record("chatcmpl-r1", 100), logged("request.aborted", "chatcmpl-r1", 100)])
def test_one_that_was_shown_is_taken_back_by_who_takes_it_in(run, end):
    run.receive(end, record("chatcmpl-r2", 100))
    run.step(1)
    run.step(30)
    assert len(run.rows()) == 2
    run.receive(middleware("01" * 8, None, "r1", 0, 110, first=40))
    run.step(31)
    run.step(60)
    assert sorted(row["request_id"] for row in run.rows()) == ["chatcmpl-r2", "r1"]


def test_it_waits_for_somebody_to_take_it_in(run):
    run.receive(record("chatcmpl-r1", 100))
    run.step(1)
    assert run.rows() == []
    run.receive(middleware("01" * 8, None, "r1", 0, 110, first=40))
    run.step(2)
    assert (run.one()["span_id"], run.one()["queue_source"], run.one()["settled"]) == ("01" * 8, "plugin", True)
    run.step(60)
    assert len(run.rows()) == 1
    assert run.assembler.waiting == 0


def test_it_is_a_request_of_its_own_once_nobody_did(run):
    run.receive(record("chatcmpl-r1", 100))
    run.step(1)
    run.step(11)
    assert (run.one()["trace_id"], run.one()["settled"]) == ("engine:e0/chatcmpl-r1", True)
    assert run.assembler.waiting == 0


def test_a_record_that_comes_after_its_request_was_settled_still_tells_its_stages(run):
    run.receive(middleware("01" * 8, None, "r1", 0, 110, first=40), llm_request("0e" * 8, "01" * 8, "chatcmpl-r1", 1, queue=1.0))
    run.step(1)
    assert run.one()["settled"]
    run.receive(record("chatcmpl-r1", 100, queue=2.0))
    run.step(2)
    run.step(13)
    assert (run.one()["queue_source"], run.one()["queue_ms"]) == ("plugin", 2.0)


def test_the_engines_own_span_takes_it_in_too(run):
    run.receive(record("cmpl-r1-0", 92), llm_request("0e" * 8, None, "cmpl-r1-0", 0))
    run.step(1)
    run.step(60)
    assert (run.one()["span_id"], run.one()["queue_source"], run.one()["ttft_ms"]) == ("0e" * 8, "plugin", 31.0)


def test_a_callers_leaving_that_the_log_tells_of_is_the_middlewares_request(run):
    gone = {c.OUTCOME: "caller_gone", c.HTTP_STATUS: 499}
    run.receive(middleware("01" * 8, None, "r1", 0, 500, **gone), logged("request.aborted", "chatcmpl-r1", 501))
    run.step(1)
    run.step(60)
    assert len(run.rows()) == 1


def test_another_process_looks_at_what_the_last_one_left(run):
    run.receive(record("chatcmpl-r1", 100))
    run.assembler = module.Assembler()
    run.step(1)
    run.step(12)
    assert len(run.rows()) == 1


def test_waiting_has_a_limit(run, monkeypatch):
    monkeypatch.setattr(module, "MOST_WAITING", 5)
    monkeypatch.setattr(module, "MOST_TOUCHED", 5)
    run.step(0.1)
    run.receive(
        [record(f"chatcmpl-r{n}", 100) for n in range(20)],
        [middleware(f"{n:016x}", None, f"m{n}", 0, 9, trace=f"{n:032x}") for n in range(20)],
    )
    assert run.assembler.waiting <= 10
    assert run.assembler.shed == 30
