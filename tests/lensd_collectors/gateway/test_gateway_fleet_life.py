"""Requests and engines in any order: an engine is picked by its state, and nothing is lost count of."""

import itertools

from fleet_stage import LOADING, OUT, READY, STALLED, S, Stage, models
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from lensd_collectors.gateway.upstream import NotTakenError


class Life(RuleBasedStateMachine):
    """Requests begin, get bytes and end in any order while engines come, fail and stall."""

    @initialize(configured=st.booleans())
    def start(self, configured):
        self.stage = Stage("abc", ("m",) if configured else ())
        self.open = []

    def _later(self, seconds):
        self.stage.now += int(seconds * S) + 1

    @rule(tried=st.sets(st.integers(0, 2)), seconds=st.floats(0, 40))
    def begin(self, tried, seconds):
        self._later(seconds)
        targets = self.stage.fleet.targets
        left_out = [targets[number] for number in tried]
        target = self.stage.fleet.pick("m", left_out)
        able = [each for each in self.stage.fleet.serving("m") if each.state is not LOADING and each not in left_out]
        if target is None:
            assert not able
            return
        assert target in able
        if any(each.state is READY for each in able):
            assert target.state is READY or (target.state is STALLED and not target.in_flight)
        target.begin(self.stage.now)
        self.open.append((target, self.stage.now))

    @rule(pick=st.integers(0), seconds=st.floats(0, 40), how=st.sampled_from(["byte", "answered", "refused", "gone"]))
    def hear(self, pick, seconds, how):
        self._later(seconds)
        if self.open:
            target, began = self.open[pick % len(self.open)]
            if how == "byte":
                target.byte(self.stage.now)
                assert target.state is not STALLED
            elif how == "answered":
                self.stage.fleet.answered(target, began)
            elif how == "refused":
                self.stage.fleet.refused(target, "does not take connections")
                assert target.state in (OUT, LOADING)
            else:
                self.stage.fleet.gone(target, "m")

    @rule(pick=st.integers(0), seconds=st.floats(0, 40))
    def end(self, pick, seconds):
        self._later(seconds)
        if self.open:
            target, _ = self.open.pop(pick % len(self.open))
            target.end(self.stage.now)

    @rule(
        seconds=st.floats(0, 40), answers=st.lists(st.sampled_from(["m", "none", 503, 401, 404, "refused", "late"]), min_size=3, max_size=3)
    )
    def ask(self, seconds, answers):
        self._later(seconds)
        said = {"m": models("m"), "none": models(), "refused": NotTakenError("x"), "late": TimeoutError()}
        self.stage.refresh(**{name: said.get(each, (each, b"")) for name, each in zip("abc", answers, strict=True)})

    @rule(seconds=st.floats(0, 40))
    def tick(self, seconds):
        self._later(seconds)
        self.stage.fleet.tick(self.stage.now)

    @invariant()
    def counts_are_right(self):
        if hasattr(self, "open"):
            for target in self.stage.fleet.targets:
                assert target.in_flight == sum(each is target for each, _ in self.open)
                assert (target.state is LOADING) <= (not target.has_answered)

    def teardown(self):
        if hasattr(self, "open"):
            for target, _ in self.open:
                target.end(self.stage.now)
            assert [target.in_flight for target in self.stage.fleet.targets] == [0, 0, 0]


TestLife = Life.TestCase


@given(st.lists(st.sampled_from(["a", "b"]), max_size=12), st.sampled_from(list(itertools.product([0, 1, 5], repeat=2))))
def test_engines_in_the_same_state_share_what_comes(ends, before):
    """Whatever ends in between, a new request goes where fewer are."""
    stage = Stage().refresh()
    for target, count in zip(stage.fleet.targets, before, strict=True):
        for _ in range(count):
            target.begin(stage.now)
    for name in ends:
        stage.now += 1
        target = getattr(stage, name)
        if target.in_flight:
            target.end(stage.now)
        least = min(each.in_flight for each in stage.fleet.targets)
        picked = stage.fleet.pick("m")
        assert picked.in_flight == least
        picked.begin(stage.now)
