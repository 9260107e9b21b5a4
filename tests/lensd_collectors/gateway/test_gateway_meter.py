"""Each key's limits: what passes, what waits, and that nobody waits for too short or too long."""

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from lensd_collectors.conventions import Decision
from lensd_collectors.gateway.decisions import Refused
from lensd_collectors.gateway.keyring import Key
from lensd_collectors.gateway.keys import KeyEntry
from lensd_collectors.gateway.meter import MINUTE_NS, Meter

SECOND = 1_000_000_000


class Clock:
    def __init__(self):
        self.now = 5 * SECOND

    def __call__(self):
        return self.now

    def pass_s(self, seconds):
        self.now += math.ceil(seconds * SECOND)


@pytest.fixture
def clock():
    return Clock()


def key(key_id="a", **limits):
    return Key(KeyEntry(id=key_id, sha256="a" * 64, models=("*",), **limits))


def ask(meter, one, tokens=0):
    """The lease, or the refusal."""
    try:
        return meter.admit(one, tokens)
    except Refused as refused:
        return refused


def refusal(meter, one, tokens=0):
    with pytest.raises(Refused) as caught:
        meter.admit(one, tokens)
    assert caught.value.decision is Decision.RATE_LIMITED
    assert caught.value.status == 429
    return caught.value


def test_a_key_without_limits_always_passes(clock):
    meter, free = Meter(clock), key()
    leases = [meter.admit(free, 10**9) for _ in range(1000)]
    assert meter.in_flight("a") == 1000
    for lease in leases:
        lease.end(None)
    assert meter.in_flight("a") == 0


def test_requests_a_minute(clock):
    meter, one = Meter(clock), key(requests_per_min=3)
    for _ in range(3):
        meter.admit(one, 0).end(0)
    refused = refusal(meter, one)
    assert (refused.code, refused.retry_after_s) == ("requests_per_min", 20.0)
    assert refused.message == "this API key is over its limit of 3 requests/min"
    assert refused.reason == "key a is over its limit of 3 requests/min"
    clock.pass_s(12.5)
    assert refusal(meter, one).retry_after_s == 7.5
    clock.pass_s(7.5)
    meter.admit(one, 0)
    assert refusal(meter, one).retry_after_s == 20.0
    clock.pass_s(3600)
    for _ in range(3):  # no more than a minute's worth is saved up
        meter.admit(one, 0)
    refusal(meter, one)


def test_requests_at_the_same_time(clock):
    meter, one = Meter(clock), key(concurrency=2)
    first, second = meter.admit(one, 0), meter.admit(one, 0)
    refused = refusal(meter, one)
    assert (refused.code, refused.retry_after_s) == ("concurrency", 1.0)
    first.end(0)
    first.end(0)  # a place is given back once
    meter.admit(one, 0)
    refusal(meter, one)
    second.end(None)
    meter.admit(one, 0)


def test_tokens_are_taken_as_estimated_and_corrected_at_the_end(clock):
    meter, one = Meter(clock), key(tokens_per_min=600)
    lease = meter.admit(one, 1200)  # more than there is: admitted while above zero
    refused = refusal(meter, one)
    assert (refused.code, refused.retry_after_s) == ("tokens_per_min", 60.001)  # 600 are owed, and then one thing more
    lease.end(590)
    meter.admit(one, 10).end(10)
    assert refusal(meter, one).retry_after_s == 0.001
    clock.pass_s(1)
    meter.admit(one, 0).end(1000)  # it used more than anybody thought
    assert refusal(meter, one).retry_after_s == pytest.approx(99.001)


def test_an_estimate_stands_where_nobody_knows_better(clock):
    meter, one = Meter(clock), key(tokens_per_min=60)
    meter.admit(one, 120).end(None)
    assert refusal(meter, one).retry_after_s == 60.001


def test_a_correction_saves_up_no_more_than_a_minutes_worth(clock):
    meter, one = Meter(clock), key(tokens_per_min=60)
    lease = meter.admit(one, 60)
    clock.pass_s(600)  # full again
    lease.end(0)
    meter.admit(one, 61)
    assert refusal(meter, one).retry_after_s == 1.001


def test_the_limit_that_holds_longest_is_named(clock):
    meter, one = Meter(clock), key(requests_per_min=60, tokens_per_min=60, concurrency=1)
    lease = meter.admit(one, 90)
    assert refusal(meter, one).code == "tokens_per_min"
    lease.end(0)
    lease = meter.admit(one, 0)
    assert refusal(meter, one).code == "concurrency"


def test_a_refused_request_takes_nothing(clock):
    meter, one = Meter(clock), key(requests_per_min=10, tokens_per_min=10, concurrency=1)
    lease = meter.admit(one, 0)
    for _ in range(50):
        refusal(meter, one, tokens=1000)
    lease.end(0)
    meter.admit(one, 10)
    assert meter.in_flight("a") == 1


def test_keys_do_not_share(clock):
    meter = Meter(clock)
    meter.admit(key("a", concurrency=1), 0)
    meter.admit(key("b", concurrency=1), 0)
    refusal(meter, key("a", concurrency=1))


def test_a_reload_with_other_limits_forgets_nothing(clock):
    meter = Meter(clock)
    leases = [meter.admit(key(requests_per_min=10, concurrency=5), 0) for _ in range(5)]
    meter.keep({"a"})
    refused = refusal(meter, key(requests_per_min=100, concurrency=3))
    assert refused.code == "concurrency"  # the five are still there
    for lease in leases:
        lease.end(0)
    for _ in range(2):  # five of ten were left; of them no more than the new minute's worth
        meter.admit(key(requests_per_min=2), 0)
    assert refusal(meter, key(requests_per_min=2)).retry_after_s == 30.0
    clock.pass_s(30)
    meter.admit(key(requests_per_min=50), 0)
    assert refusal(meter, key(requests_per_min=50)).retry_after_s == 1.2


def test_a_key_that_is_gone_is_forgotten_once_its_requests_are(clock):
    meter, one = Meter(clock), key(requests_per_min=1, concurrency=1)
    lease = meter.admit(one, 0)
    meter.keep(set())
    assert meter.in_flight("a") == 1
    refusal(meter, one)
    lease.end(5)
    meter.keep({"b"})
    meter.admit(one, 0)  # a new key of the same name begins anew
    assert meter.in_flight("a") == 1
    lease.end(5)
    assert meter.in_flight("a") == 1


def wait_out(clock, meter, one, refused, tokens=0):
    """As long as it was told to: a moment before it is still refused, then it passes."""
    last = min(refused.retry_after_s, 0.0011)
    clock.pass_s(refused.retry_after_s - last)
    refusal(meter, one)
    clock.pass_s(last)
    return meter.admit(one, tokens)


steps = st.lists(st.one_of(st.just("ask"), st.floats(0, 30), st.just("wait")), min_size=1, max_size=120)


@given(st.integers(1, 40), steps)
def test_over_any_minute_no_more_than_the_limit_and_what_was_saved_up(limit, course):
    clock = Clock()
    meter, one = Meter(clock), key(requests_per_min=limit)
    passed: list[int] = []
    for step in course:
        if isinstance(step, float):
            clock.pass_s(step)
            continue
        got = ask(meter, one)
        if isinstance(got, Refused):
            assert 0 < got.retry_after_s <= 60 / limit + 0.001
            if step == "ask":
                continue
            got = wait_out(clock, meter, one, got)
        got.end(None)
        passed.append(clock.now)
    for start in passed:
        assert sum(start <= each < start + MINUTE_NS for each in passed) <= 2 * limit
    if passed:
        assert len(passed) <= limit + (passed[-1] - passed[0]) * limit // MINUTE_NS


@given(st.integers(1, 1000), st.lists(st.tuples(st.integers(0, 3000), st.integers(0, 3000) | st.none(), st.floats(0, 30)), max_size=40))
def test_tokens_that_pass_stay_within_the_limit_and_one_request(limit, course):
    """Each passes while something is left, so what is over is never more than the last one."""
    clock = Clock()
    meter, one = Meter(clock), key(tokens_per_min=limit)
    begun, spent = clock.now, 0
    for estimate, used, pause in course:
        lease = ask(meter, one, estimate)
        if isinstance(lease, Refused):
            lease = wait_out(clock, meter, one, lease, estimate)
        assert spent < limit + (clock.now - begun) * limit / MINUTE_NS
        lease.end(used)
        spent += estimate if used is None else used
        clock.pass_s(pause)


class Concurrency(RuleBasedStateMachine):
    """Requests that begin and end in any order, under a limit that a reload changes."""

    @initialize(limit=st.integers(1, 4))
    def begin(self, limit):
        self.meter, self.limit, self.open, self.done = Meter(Clock()), limit, [], []

    @rule()
    def ask(self):
        got = ask(self.meter, key(concurrency=self.limit))
        if isinstance(got, Refused):
            assert (got.code, len(self.open) >= self.limit) == ("concurrency", True)
        else:
            assert len(self.open) < self.limit
            self.open.append(got)

    @rule(data=st.data(), tokens=st.none() | st.integers(0, 9))
    def end(self, data, tokens):
        if self.open:
            lease = self.open.pop(data.draw(st.integers(0, len(self.open) - 1)))
            lease.end(tokens)
            self.done.append(lease)

    @rule()
    def end_again(self):
        for lease in self.done:
            lease.end(None)

    @rule(limit=st.integers(1, 4), is_there=st.booleans())
    def reload(self, limit, is_there):
        self.limit = limit
        self.meter.keep({"a"} if is_there else set())

    @invariant()
    def counts(self):
        if hasattr(self, "meter"):
            assert self.meter.in_flight("a") == len(self.open)


TestConcurrency = Concurrency.TestCase
TestConcurrency.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
