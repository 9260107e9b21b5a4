from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lensd.errors import IncidentNotFoundError
from lensd.incidents import Incidents, Served, to_row
from lensd.records import Confidence, Evidence, Finding, Incident, Severity

S = 1_000_000
START = 1_800_000_000 * S


@dataclass(frozen=True)
class HoldFor:
    open_after: timedelta = timedelta(minutes=2)
    close_after: timedelta = timedelta(minutes=5)


@dataclass(frozen=True)
class From:
    min_requests: int = 3
    within: timedelta = timedelta(minutes=5)
    min_share: float = 0.0


@dataclass(frozen=True)
class Book:
    label: str
    scope: Literal["request", "window"] = "window"
    status: Literal["draft", "stable", "retired"] = "stable"
    hold: HoldFor = field(default_factory=HoldFor)
    alert: From | None = field(default_factory=From)


BOOKS = {
    "kv-cache-leak": Book("kv-cache-leak"),
    "engine-crash": Book("engine-crash", hold=HoldFor(timedelta(0), timedelta(seconds=30))),
    "queue-saturation": Book("queue-saturation", "request"),
    "auth-wrong-key": Book("auth-wrong-key", "request", alert=False),
    "shares": Book("shares", "request", alert=From(min_requests=2, min_share=0.1)),
    "young": Book("young", status="draft", hold=HoldFor(timedelta(0))),
    "twin": Book("twin", "request", alert=From(min_requests=1)),
    "twin@window": Book("twin", hold=HoldFor(timedelta(0))),
    "pair": Book("pair", "request", alert=From(min_requests=100)),
    "pair@window": Book("pair", hold=HoldFor(timedelta(minutes=1))),
}


def finding(runbook: str, request: str | None = None, **more: Any) -> Finding:
    label = BOOKS[runbook].label if runbook in BOOKS else runbook
    plain: dict[str, Any] = {"engine": "e1", "kind": "cause", "confidence": Confidence.LIKELY}
    return Finding(
        label=label,
        runbook=runbook,
        title=label,
        stage="engine",
        severity=Severity.CRITICAL,
        cause=f"cause of {label}",
        fix="fix it",
        request_id=request,
        **(plain | more),
    )


class Run:
    """Ticks of a machine under a clock that the test sets."""

    def __init__(self, machine: Incidents | None = None) -> None:
        self.machine = machine or Incidents()

    def at(self, second: float, *findings: Finding, **more: Any) -> list[Incident]:
        return self.machine.update(findings, BOOKS, START + int(second * S), **more)


def states(changed: Sequence[Incident]) -> list[tuple[str, str]]:
    return [(one.label, one.state) for one in changed]


def test_window_finding_opens_after_it_stood_at_every_tick() -> None:
    run, leak = Run(), finding("kv-cache-leak")
    assert [states(run.at(second, leak)) for second in (0, 60, 119, 120)] == [[], [], [], [("kv-cache-leak", "open")]]


def test_window_finding_that_was_absent_for_a_tick_starts_over() -> None:
    run, leak = Run(), finding("kv-cache-leak")
    run.at(0, leak)
    run.at(60)
    assert states(run.at(120, leak)) == []
    assert states(run.at(180, leak)) == []
    assert states(run.at(240, leak)) == [("kv-cache-leak", "open")]


def test_hard_fault_opens_at_once_and_resolves_once_it_is_gone() -> None:
    run, crash = Run(), finding("engine-crash")
    opened = run.at(0, crash)
    assert states(opened) == [("engine-crash", "open")]
    assert run.at(29, crash) == []
    assert run.at(58) == []
    resolved = run.at(59)
    assert states(resolved) == [("engine-crash", "resolved")]
    assert resolved[0].incident_id == opened[0].incident_id
    assert (resolved[0].last_seen_at, resolved[0].resolved_at) == (START + 29 * S, START + 59 * S)
    assert run.machine.standing() == []


def test_flapping_finding_is_one_incident() -> None:
    run, crash = Run(), finding("engine-crash")
    changes = [one for second in range(0, 600, 10) for one in run.at(second, *([crash] if second % 20 else []))]
    assert {one.state for one in changes} == {"open"}
    assert len({one.incident_id for one in changes}) == 1


def test_incident_that_comes_back_is_a_new_one() -> None:
    run, crash = Run(), finding("engine-crash")
    first = run.at(0, crash)[0]
    run.at(30)
    again = run.at(60, crash)[0]
    assert again.state == "open"
    assert again.incident_id != first.incident_id


def test_rule_that_could_not_be_judged_is_not_absent() -> None:
    run = Run()
    run.at(0, finding("engine-crash"))
    assert run.at(100, unknown={"engine-crash"}) == []
    assert run.at(129) == []
    assert states(run.at(130)) == [("engine-crash", "resolved")]


def test_unknown_of_a_request_rule_keeps_nothing_open() -> None:
    run = Run()
    run.at(0, *(finding("queue-saturation", f"r{n}") for n in range(3)))
    assert states(run.at(300, unknown={"queue-saturation"})) == [("queue-saturation", "resolved")]


def test_request_findings_open_when_enough_came_in_time() -> None:
    run = Run()
    assert run.at(0, finding("queue-saturation", "old")) == []
    assert run.at(200, finding("queue-saturation", "a")) == []
    assert run.at(301, finding("queue-saturation", "b")) == []
    opened = run.at(302, finding("queue-saturation", "c"))
    assert states(opened) == [("queue-saturation", "open")]
    assert opened[0].requests_hit == 3
    assert opened[0].typical_requests == ("a", "b", "c")


def test_request_told_again_counts_once() -> None:
    run = Run()
    for second in range(10):
        assert run.at(second, finding("queue-saturation", "a"), finding("queue-saturation", "b")) == []


def test_request_incident_resolves_when_none_came_for_close_after() -> None:
    run = Run()
    run.at(0, *(finding("queue-saturation", f"r{n}") for n in range(3)))
    run.at(100, finding("queue-saturation", "r3"))
    assert run.at(399) == []
    resolved = run.at(400)
    assert states(resolved) == [("queue-saturation", "resolved")]
    assert resolved[0].requests_hit == 4


@pytest.mark.parametrize(("served", "opens"), [(20, True), (21, False)])
def test_share_of_requests_is_taken_of_those_served_there(served: int, opens: bool) -> None:
    run = Run()
    elsewhere = Served(count=1000, engine="e2")
    run.at(0, finding("shares", "a"), served=[Served(count=served - 1, engine="e1", model="m"), elsewhere])
    changed = run.at(1, finding("shares", "b"), served=[Served(count=1, engine="e1", model="m2"), elsewhere])
    assert bool(changed) is opens


def test_served_requests_older_than_the_gate_do_not_dilute() -> None:
    run = Run()
    run.at(0, served=[Served(count=1000, engine="e1")])
    run.at(301, finding("shares", "a"), served=[Served(count=1, engine="e1")])
    assert states(run.at(302, finding("shares", "b"), served=[Served(count=1, engine="e1")])) == [("shares", "open")]


@pytest.mark.parametrize(
    "one",
    [
        finding("young"),
        finding("no-such-runbook"),
        finding("engine-crash", kind="negative"),
        finding("auth-wrong-key", "r"),
    ],
)
def test_what_never_opens(one: Finding) -> None:
    run = Run()
    assert [run.at(second, one) for second in range(0, 900, 60)] == [[]] * 15
    assert run.machine.standing() == []


def test_subjects_are_kept_apart() -> None:
    changed = Run().at(0, finding("engine-crash"), finding("engine-crash", engine="e2"), finding("engine-crash", engine="e2", model="m"))
    assert len({one.incident_id for one in changed}) == 3


def test_explained_finding_is_noted_on_its_cause_only() -> None:
    run = Run()
    hit = [finding("queue-saturation", f"r{n}", explained_by="engine-crash", model="m") for n in range(5)]
    opened = run.at(0, *hit, finding("engine-crash"))
    assert states(opened) == [("engine-crash", "open")]
    assert opened[0].requests_hit == 5
    assert [line.text for line in opened[0].evidence] == ["explains queue-saturation: cause of queue-saturation"]


def test_explained_finding_is_noted_on_the_last_of_a_chain() -> None:
    run = Run()
    middle = finding("kv-cache-leak", explained_by="engine-crash")
    for second in (0, 60, 120):
        run.at(second, finding("queue-saturation", f"r{second}", explained_by="kv-cache-leak"), middle, finding("engine-crash"))
    assert [one.label for one in run.machine.standing()] == ["engine-crash"]


def test_effect_of_a_cause_elsewhere_stands_for_itself() -> None:
    run = Run()
    hit = [finding("queue-saturation", f"r{n}", explained_by="engine-crash") for n in range(3)]
    changed = run.at(0, *hit, finding("engine-crash", engine="e2"))
    assert sorted(states(changed)) == [("engine-crash", "open"), ("queue-saturation", "open")]


@pytest.mark.parametrize("cause", ["young", "auth-wrong-key", "not-there"])
def test_effect_of_a_cause_that_opens_nothing_stands_for_itself(cause: str) -> None:
    run = Run()
    for n in range(3):
        run.at(n, finding("queue-saturation", f"r{n}", explained_by=cause), finding(cause, f"r{n}"))
    assert [one.label for one in run.machine.standing()] == ["queue-saturation"]


def test_circle_of_explanations_loses_nothing() -> None:
    run = Run()
    run.at(0, finding("engine-crash", explained_by="twin"), finding("twin@window", explained_by="engine-crash"))
    assert run.machine.standing() != []


def test_open_effect_stays_open_while_its_cause_takes_over() -> None:
    run = Run()
    run.at(0, *(finding("queue-saturation", f"r{n}") for n in range(3)))
    for second in range(60, 660, 60):
        changed = run.at(second, finding("queue-saturation", f"s{second}", explained_by="engine-crash"), finding("engine-crash"))
        assert all(one.state == "open" for one in changed)


def test_two_files_of_one_label_are_one_incident() -> None:
    run = Run()
    run.at(0, finding("twin@window"))
    changed = run.at(1, finding("twin@window"), finding("twin", "r1", model="m", key_id="k"))
    assert [(one.label, one.revision, one.requests_hit) for one in changed] == [("twin", 2, 1)]
    assert len(run.machine.standing()) == 1


def test_requests_do_not_stand_in_for_a_window_rule_that_was_absent() -> None:
    run = Run()
    run.at(0, finding("pair@window"))
    run.at(30, finding("pair", "r1"))
    assert run.at(60, finding("pair@window")) == []
    assert states(run.at(120, finding("pair@window"))) == [("pair", "open")]


def test_incident_that_goes_on_is_written_once_a_minute() -> None:
    run, crash = Run(), finding("engine-crash")
    written = [one for second in range(301) for one in run.at(second, crash)]
    assert [one.revision for one in written] == [1, 2, 3, 4, 5, 6]
    assert written[-1].last_seen_at == START + 300 * S


def test_confidence_rises_at_once_and_never_falls() -> None:
    run = Run()
    run.at(0, finding("engine-crash"))
    assert [one.confidence for one in run.at(1, finding("engine-crash", confidence=Confidence.CERTAIN))] == [Confidence.CERTAIN]
    run.at(2, finding("engine-crash", confidence=Confidence.POSSIBLE))
    assert run.at(90, finding("engine-crash", confidence=Confidence.POSSIBLE))[0].confidence is Confidence.CERTAIN


def test_what_receivers_pair_by_does_not_move() -> None:
    run = Run()
    opened = run.at(0, finding("engine-crash"))[0]
    later = msgspec.structs.replace(finding("engine-crash"), stage="gpu", severity=Severity.WARNING)
    run.at(1, later)
    resolved = run.at(31)[0]
    assert (resolved.stage, resolved.severity, resolved.opened_at) == (opened.stage, opened.severity, opened.opened_at)


def test_evidence_is_of_the_first_and_the_latest() -> None:
    run = Run()
    for second, text in ((0, "first"), (70, "middle"), (140, "latest")):
        changed = run.at(second, finding("engine-crash", evidence=(Evidence(text=text),)))
    assert [line.text for line in changed[0].evidence] == ["first", "latest"]


def test_typical_requests_are_the_first_and_the_latest() -> None:
    run = Run()
    changed = run.at(0, *(finding("queue-saturation", f"r{n}") for n in range(100)))
    assert changed[0].requests_hit == 100
    assert changed[0].typical_requests == tuple(f"r{n}" for n in (*range(10), *range(90, 100)))


def test_people_ack_and_close() -> None:
    run, crash = Run(), finding("engine-crash")
    name = run.at(0, crash)[0].incident_id
    assert run.machine.ack(name).state == "acknowledged"
    assert run.machine.ack(name).revision == 2
    closed = run.machine.close(name, START + 5 * S)
    assert (closed.state, closed.revision, closed.resolved_at) == ("resolved", 3, START + 5 * S)
    for change in (run.machine.ack, lambda one: run.machine.close(one, START)):
        with pytest.raises(IncidentNotFoundError, match=name):
            change(name)


def test_closed_by_hand_stays_closed_while_it_goes_on() -> None:
    run, crash = Run(), finding("engine-crash")
    run.machine.close(run.at(0, crash)[0].incident_id, START + 1)
    assert [run.at(second, crash) for second in range(10, 3600, 10)] == [[]] * 359
    run.at(3620)
    assert states(run.at(3630, crash)) == [("engine-crash", "open")]


def test_closed_by_hand_and_still_there_a_day_later_opens_again() -> None:
    run, crash = Run(), finding("engine-crash")
    run.machine.close(run.at(0, crash)[0].incident_id, START + 1)
    changes = [one for second in range(20, 90_000, 20) for one in run.at(second, crash) if one.revision == 1]
    assert [(one.opened_at - START) // S // 3600 for one in changes] == [24]


def test_restart_neither_opens_again_nor_resolves_before_looking() -> None:
    run, crash = Run(), finding("engine-crash")
    opened = run.at(0, crash)[0]
    again = Run()
    again.machine.restore([to_row(opened)], BOOKS)
    assert again.machine.standing() == [opened]
    assert again.at(3600) == []
    assert all(one.incident_id == opened.incident_id and one.state == "open" for one in again.at(3601, crash))
    assert [(one.incident_id, one.state) for one in again.at(3631)] == [(opened.incident_id, "resolved")]


def test_restart_does_not_count_requests_again() -> None:
    run = Run()
    hit = [finding("queue-saturation", f"r{n}") for n in range(3)]
    opened = run.at(0, *hit)[0]
    again = Run()
    again.machine.restore([to_row(opened)], BOOKS)
    again.at(1, *hit)
    again.at(100, finding("queue-saturation", "new"))
    assert again.at(170, finding("queue-saturation", "newer"))[0].requests_hit == 5


def test_restart_remembers_what_a_person_closed_and_forgets_what_ended() -> None:
    run, crash = Run(), finding("engine-crash")
    closed = run.machine.close(run.at(0, crash)[0].incident_id, START + 1)
    again = Run()
    again.machine.restore([to_row(closed)], BOOKS)
    assert again.at(10, crash) == []
    run = Run()
    run.at(0, crash)
    ended = run.at(30)[0]
    again = Run()
    again.machine.restore([to_row(ended)], BOOKS)
    assert states(again.at(40, crash)) == [("engine-crash", "open")]


@given(st.lists(st.tuples(st.integers(1, 400), st.sets(st.sampled_from(["engine-crash", "kv-cache-leak", "queue-saturation"])))))
def test_every_incident_opens_once_and_resolves_at_most_once(ticks: list[tuple[int, set[str]]]) -> None:
    run, second = Run(), 0
    told: dict[str, list[Incident]] = {}
    for n, (gap, labels) in enumerate(ticks):
        second += gap
        found = [finding(label, f"r{n}" if label == "queue-saturation" else None) for label in sorted(labels)]
        for one in run.at(second, *found):
            told.setdefault(one.incident_id, []).append(one)
    for revisions in told.values():
        assert [one.revision for one in revisions] == list(range(1, len(revisions) + 1))
        assert [one.state for one in revisions[:-1]] == ["open"] * (len(revisions) - 1)
    standing = {one.incident_id for one in run.machine.standing()}
    assert standing == {name for name, revisions in told.items() if revisions[-1].state == "open"}


def test_requests_of_one_id_are_counted_by_their_keys_and_shown_once() -> None:
    run = Run()
    changed = run.at(0, *(finding("queue-saturation", "test", request_key=key) for key in range(3)))
    assert [(one.state, one.requests_hit, one.typical_requests) for one in changed] == [("open", 3, ("test",))]
    again = Run()
    again.machine.restore([to_row(changed[0])], BOOKS)
    again.at(1, finding("queue-saturation", "test", request_key=2))  # known by its id alone since the restart
    again.at(2, *(finding("queue-saturation", "test", request_key=key) for key in (7, 7, 8)))
    assert again.at(70, finding("queue-saturation", "new", request_key=9))[0].requests_hit == 6


def test_what_hits_the_whole_engine_is_one_incident_whoever_tells_first() -> None:
    run = Run()
    opened = run.at(0, finding("twin", "r1", model="m", key_id="k1"), finding("twin", "r2", model="m2", key_id="k2"))
    assert [(one.engine, one.model, one.key_id, one.requests_hit) for one in opened] == [("e1", None, None, 2)]
    run.at(1, finding("twin@window"))
    assert len(run.machine.standing()) == 1


def test_clock_set_back_neither_holds_an_incident_open_nor_counts_old_hits_as_fresh() -> None:
    run = Run()
    run.at(86_400, finding("engine-crash"), finding("queue-saturation", "a"), finding("queue-saturation", "b"))
    assert run.at(0) == []
    assert states(run.at(30)) == [("engine-crash", "resolved")]
    assert run.at(31, finding("queue-saturation", "c")) == []
