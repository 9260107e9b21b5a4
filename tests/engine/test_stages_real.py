"""Six stages of real requests: there, adding up, and what clocks outside the engine's own statistics say."""

import statistics
from collections import Counter

import pytest
from house import House, until
from stages_real import STAGES, drive, is_exact, mixed, settled, share_within, sources, within

pytestmark = pytest.mark.engine

OK = {"client": "client", "auth_routing": "gateway", "queue": "plugin", "prefill": "plugin", "decode": "plugin", "streaming": "gateway"}
ENGINES_OWN = {"plugin", "llm_request", "response"}
AT_ONCE = 10  # four run, if the cache has room for them


@pytest.fixture(scope="module")
def house(engine_plugged, engine_otlp_port, engine_token, tmp_path_factory):
    engine = engine_plugged.ready()
    made = House(tmp_path_factory.mktemp("stages"), engine, engine_otlp_port, engine_token, engine.host)
    made.start("serve", "gateway", "agent")
    until(lambda: made.chat("warm-up").status == 200)
    yield made
    made.supervisor.stop()


@pytest.fixture(scope="module")
def load(house):
    """What the callers of 200 mixed requests saw, each with its row."""
    seen = drive(house, mixed(200, "mixed"), AT_ONCE)
    rows = settled(house, [each.asked.request_id for each in seen])
    return [(each, rows[each.asked.request_id]) for each in seen]


@pytest.fixture(scope="module")
def streams(load):
    """Those that were streamed to their end."""
    return [(seen, row) for seen, row in load if seen.asked.stream and row.outcome == "ok"]


def test_the_load_is_mixed(load):
    ends = Counter((seen.asked.stream, row.outcome) for seen, row in load)
    assert (ends[True, "ok"] > 80, ends[False, "ok"] > 30, ends[True, "caller_gone"] > 10) == (True, True, True), ends
    assert sum((row.preemptions or 0) > 0 for _, row in load) >= 10
    assert sum((row.queue_ms or 0) > 200 for _, row in load) > 50
    assert {row.outcome for seen, row in load if not seen.asked.leaves} == {"ok"}


def test_every_request_that_ended_has_six_stages_each_from_its_best_source(load):
    for seen, row in load:
        if row.outcome == "ok":
            assert sources(row) == OK, seen.asked
            assert {getattr(row, f"{stage}_state") for stage in STAGES} <= {"ok", "slow"}, seen.asked
            assert row.frontend_ms is not None
            assert row.frontend_ms <= row.prefill_ms


def test_shares_and_what_nobody_has_are_the_whole(load):
    assert [row for _, row in load if not is_exact(row)] == []


def test_a_request_that_its_caller_left_is_there_though_vllm_tells_nothing_of_it(load):
    left = [(seen, row) for seen, row in load if row.outcome == "caller_gone"]
    for seen, row in left:
        assert seen.asked.leaves
        assert (row.status, row.decision, row.said_by) == (499, "caller_gone", "client"), seen.asked
        assert not ENGINES_OWN & set(sources(row).values()), seen.asked
        if seen.tokens:
            assert (row.decode_state, row.decode_source) == ("failed", "gateway"), seen.asked
    assert share_within([(row.total_ms, seen.total_ms) for seen, row in left]) > 0.9


def test_a_request_takes_as_long_as_its_caller_waited(load):
    assert share_within([(row.total_ms, seen.total_ms) for seen, row in load]) > 0.95
    longer = [(row.total_ms, seen.total_ms) for seen, row in load if row.outcome == "ok" and row.total_ms > seen.total_ms]
    assert [pair for pair in longer if not within(*pair)] == []


def test_queue_and_prefill_end_with_the_callers_first_token(streams):
    pairs = [(row.queue_ms + row.prefill_ms, seen.first_ms) for seen, row in streams]
    print(f"queue + prefill within 30 ms or 5 % of the first token's instant: {share_within(pairs):.1%} of {len(pairs)}")
    assert share_within(pairs) > 0.9
    # the engine's own part of it, which the middleware's stamps have no share in
    own = [(row.queue_ms + row.prefill_ms - row.frontend_ms, seen.first_ms) for seen, row in streams]
    print(f"without front end: {share_within(own):.1%}, median {statistics.median(clock - value for value, clock in own):.1f} ms less")
    assert all(value < clock for value, clock in own)  # what is between them is the front end and the way there: with it, it fits


def test_decode_lies_between_the_callers_first_and_last_token(streams):
    pairs = [(row.decode_ms, seen.between_ms) for seen, row in streams]
    off = statistics.median(abs(value - clock) for value, clock in pairs)
    print(f"decode within 30 ms or 5 % of first to last token: {share_within(pairs):.1%} of {len(pairs)}, median {off:.1f} ms off")
    assert share_within(pairs) > 0.8
    assert off < 30


def test_a_preempted_request_decodes_as_long_as_its_caller_sees(streams):
    preempted = [(seen, row) for seen, row in streams if row.preemptions]
    assert preempted
    off = statistics.median((row.decode_ms - seen.between_ms) / seen.between_ms for seen, row in preempted if seen.between_ms > 500)
    assert abs(off) < 0.05  # its second wait in the queue is decode by the engine's count, and by any caller's
