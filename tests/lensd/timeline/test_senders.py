"""A gateway that is started anew has lost what the old one held: at once, whatever comes in which order, and nobody else's."""

import pytest
from assembler_run import Run
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from judged_house import T0, Call, House, S, act, sent_by
from lensd_collectors import conventions as c

CALL = Call(1, at=0)
OPEN, LAST = sent_by(CALL.open(1000)), sent_by(CALL.open(6000))


@pytest.fixture
def run():
    made = Run()
    yield made
    made.store.close()


def state(run):
    row = run.one()
    return row["outcome"], row["settled"]


def test_a_restart_loses_at_once_what_the_old_process_held(run):
    run.receive(act(-60), OPEN, LAST)
    run.step(6.5)
    assert state(run) == ("open", False)
    run.receive(act(8, "new"))
    (changed,) = run.step(8.2)
    assert state(run) == ("lost", True)
    assert (changed.row.revision, changed.settled_first, changed.row.ended_at) == (1, True, T0 + 6 * S)
    assert run.assembler.waiting == 0
    assert run.step(60) == []


GOES_ON = {
    "itself": [act(8)],
    "a gateway at another address": [act(8, "new", listen="127.0.0.1:8081")],
    "a gateway on another host": [act(8, "new", host="g")],
    "another kind of process": [act(8, "new", service="lensd-other")],
    "one that started before its last sign": [act(5.9, "new")],
    "an act that is no start": [act(8, "new", "keys_reloaded")],
    "one that does not say where": [act(8, "new", listen=None)],
    "one in the engine it was handed to": [act(8, "new", listen=None, engine="e0")],
    "its successor while it drains": [act(7, "old", "draining"), act(8, "new")],
}


@pytest.mark.parametrize("acts", GOES_ON.values(), ids=GOES_ON)
def test_a_request_outlives(run, acts):
    run.receive(act(-60), OPEN, LAST, acts)
    for at in (8.2, 35):
        run.step(at)
        assert state(run) == ("open", False)
    run.step(36.5)
    assert state(run) == ("lost", True)


UNKNOWN = {
    "its own start was never told": ([], OPEN),
    "its own start names no address": ([act(-60, listen=None)], OPEN),
    "its host is not told": ([act(-60, host=None), act(8, "new", host=None)], sent_by(CALL.open(1000), host=None)),
    "its sender is not told": ([act(-60)], CALL.open(1000)),
    "its sender is no text": ([act(-60)], sent_by(CALL.open(1000), {"an": "object"})),
}


@pytest.mark.parametrize(("before", "event"), UNKNOWN.values(), ids=UNKNOWN)
def test_where_it_is_not_known_who_stood_where_silence_decides(run, before, event):
    run.receive(before, event, act(8, "new"))
    run.step(8.2)
    assert state(run) == ("open", False)
    run.step(37)
    assert state(run) == ("lost", True)


def test_an_address_that_the_event_itself_names_is_enough(run):
    run.receive(sent_by(CALL.open(1000), **{c.LISTEN: "127.0.0.1:8080"}), act(8, "new"))
    run.step(8.2)
    assert state(run) == ("lost", True)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.permutations([act(-60), OPEN, LAST, act(8, "new"), act(90, "third")]), st.booleans())
def test_in_whatever_order_it_comes(order, is_new_process):
    run = Run()
    for number, row in enumerate(order):
        run.receive(row)
        run.step(8.2 + number / 10)
    if is_new_process:  # all that an earlier run knew is in the store
        run.assembler = type(run.assembler)()
        run.assembler.touch({CALL.trace: T0})
        run.step(9)
    assert (*state(run), (run.one()["ended_at"] - run.one()["started_at"]).total_seconds()) == ("lost", True, 6.0)
    run.store.close()


def test_an_end_that_comes_late_stands(run):
    run.receive(act(-60), OPEN, act(8, "new"))
    run.step(8.2)
    assert state(run) == ("lost", True)
    run.receive(CALL.gateway(), CALL.llm_request())
    (changed,) = run.step(9)
    assert (state(run), changed.row.revision) == (("ok", True), 1)


def test_a_sign_from_after_the_start_shows_that_it_lives(run):
    run.receive(act(-60), OPEN, act(3, "new"))
    run.step(3.2)
    assert state(run) == ("lost", True)
    run.receive(LAST)
    run.step(6.2)
    assert state(run) == ("open", False)


def test_a_new_process_keeps_its_own_and_other_gateways_keep_theirs(run):
    mine = [Call(2, at=9), Call(3, at=0), Call(4, at=0)]
    run.receive(act(-60), act(-60, "b", listen="127.0.0.1:8081"), act(-60, "far", host="g"), OPEN)
    run.receive(sent_by(mine[1].open(1000), "b"), sent_by(mine[2].open(1000), "far", host="g"))
    run.receive(act(8, "new"))
    run.step(8.2)
    run.receive(sent_by(mine[0].open(1000), "new"))
    run.step(10.2)
    assert {row["request_id"]: row["outcome"] for row in run.rows()} == {"r1": "lost", "r2": "open", "r3": "open", "r4": "open"}


@pytest.mark.parametrize(("engine", "outcome"), [("e0", "lost"), ("e1", "open")])
def test_a_middleware_stands_in_its_engine(run, engine, outcome):
    vllm = {"service": "lensd-vllm"}
    run.receive(sent_by(CALL.open(1000, part="middleware", **{c.PARENT_SPAN_ID: None}), **vllm))
    run.receive(act(8, "new", listen=None, engine=engine, **vllm))
    run.step(8.2)
    assert state(run)[0] == outcome


def test_what_may_be_a_gateways_is_not_told_before_that_had_time_to_come(run):
    vllm = {"service": "lensd-vllm"}
    run.receive(sent_by(CALL.open(1000, part="middleware"), **vllm), act(2, "new", listen=None, engine="e0", **vllm))
    run.step(2.2)
    assert run.rows() == []
    run.step(11.5)
    assert state(run) == ("lost", True)


def test_an_engine_that_saw_its_gateway_leave_does_not_say_how_the_caller_fared(run):
    gone = {c.OUTCOME: "caller_gone", c.DECISION: "caller_gone", c.HTTP_STATUS: 499, c.SAID_BY: "client"}
    run.receive(act(-60), OPEN, LAST, CALL.middleware(**gone), act(8, "new"))
    run.step(8.2)
    row = run.one()
    assert [row[name] for name in ("outcome", "status", "decision", "said_by")] == ["lost", None, None, "unknown"]


def test_a_restart_while_no_daemon_ran_is_seen_by_the_next_one():
    house = House()
    house.receive(act(-60), OPEN)
    house.tick(1.5)
    assert house.one()["outcome"] == "open"
    house.receive(act(8, "new"))
    house.now = 9
    house.start()
    house.tick(9.5)
    assert (house.one()["outcome"], house.one()["settled"], house.one()["label"]) == ("lost", True, "inconclusive")
    house.store.close()
