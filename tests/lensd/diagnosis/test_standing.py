"""How long an answer of a window rule stands, when it is asked for again, and what of it may be said of requests."""

import pytest
from lensd_collectors.rows import EngineSample, Instant
from runbook_files import FRONT, write

from lensd.diagnosis.runbook import parse
from lensd.diagnosis.standing import Standing
from lensd.store.arrow import batch_of
from lensd.store.memory import MemoryStore

S = 1_000_000
T0 = 1_790_000_000 * S
WINDOW = (
    FRONT.replace("scope: request", "scope: window\nwindow: 1m")
    .replace("subjects.queue_ms", "engine_samples.waiting")
    .replace("waited {queue_ms:.0f} ms", "{n:.0f} samples")
)
SQL = "select engine, count(*) as n from engine_samples where seen_at between $from and $to and waiting > $least_ms group by all"


@pytest.fixture
def store():
    made = MemoryStore()
    yield made
    made.close()


@pytest.fixture
def books(tmp_path):
    """Two rules of windows and one of requests."""
    made = [
        parse(write(tmp_path, "at-once", front=WINDOW + "hold: {open_after: 0s}\n", sql=SQL)),
        parse(write(tmp_path, "held", front=WINDOW + "hold: {open_after: 30s}\n", sql=SQL)),
        parse(write(tmp_path, "of-requests")),
    ]
    return {book.id: book for book in made}


def sampled(store, at, waiting=20.0, running=None):
    store.append(
        batch_of({"engine_samples": [EngineSample(seen_at=Instant(T0 + round(at * S)), engine="e0", waiting=waiting, running=running)]})
    )


def look(store, standing, at):
    with store.cursor() as cursor:
        standing.look(cursor, T0 + round(at * S))


def found(standing):
    return {result.runbook.id for result in standing.results if result.findings}


def test_window_rules_only_are_judged(store, books):
    standing = Standing(books, {"of-requests": {"least_ms": 1}})
    assert standing.labels == {"at-once", "held"}
    assert standing.results == ()
    look(store, standing, 0)
    assert {result.runbook.id for result in standing.results} == {"at-once", "held"}


def test_each_rule_is_asked_every_two_seconds(store, books):
    standing = Standing(books, {})
    look(store, standing, 0)
    sampled(store, 0.5)
    seen = {}
    for at in (1, 1.9, 2):
        look(store, standing, at)
        seen[at] = found(standing)
    assert seen == {1: set(), 1.9: set(), 2: {"at-once", "held"}}


def test_what_is_over_is_said_until_the_next_look_and_no_longer(store, books):
    standing = Standing(books, {})
    sampled(store, 0)
    look(store, standing, 58)
    look(store, standing, 59.9)
    assert found(standing) == {"at-once", "held"}
    look(store, standing, 61)
    assert found(standing) == set()


def test_a_clock_that_was_set_back_makes_everything_due(store, books):
    standing = Standing(books, {})
    look(store, standing, 3600)
    sampled(store, 0)
    look(store, standing, 1)
    assert found(standing) == {"at-once", "held"}
    look(store, standing, 7)
    assert found(standing) == {"at-once", "held"}


def test_parameters_are_those_given_for_each_rule(store, books):
    standing = Standing(books, {"held": {"least_ms": 100}, "of-requests": {"least_ms": 1}})
    sampled(store, 0)
    look(store, standing, 1)
    assert found(standing) == {"at-once"}
    look(store, standing, 7)
    assert found(standing) == {"at-once"}


def test_what_lacks_evidence_is_unknown_until_it_comes(store, books):
    standing = Standing(books, {})
    look(store, standing, 0)
    assert [result.window_unknown.missing for result in standing.results] == [("engine_samples.waiting",)] * 2
    sampled(store, 1)
    look(store, standing, 5)
    assert [result.window_unknown for result in standing.results] == [None, None]


def test_after_a_fault_everything_is_asked_again_at_once(store, books):
    standing = Standing(books, {})
    sampled(store, 0)
    look(store, standing, 1)
    standing.forget()
    assert standing.results == ()
    look(store, standing, 1.5)
    assert found(standing) == {"at-once", "held"}


def test_a_look_that_fails_leaves_what_was_said_and_is_made_again(store, books, monkeypatch):
    standing = Standing(books, {})
    look(store, standing, 0)
    sampled(store, 1)
    with monkeypatch.context() as broken:
        broken.setattr("lensd.diagnosis.standing.evaluate", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            look(store, standing, 6)
    assert len(standing.results) == 2
    assert found(standing) == set()
    look(store, standing, 6.5)
    assert found(standing) == {"at-once", "held"}


def test_where_no_rule_is_due_the_store_is_not_asked(store, books, monkeypatch):
    standing = Standing(books, {})
    look(store, standing, 0)
    monkeypatch.setattr("lensd.diagnosis.standing.evaluate", lambda *_, **__: 1 / 0)
    look(store, standing, 1)


# --- what is said of requests


def said(standing, begun, looked_from=-1e9):
    return {result.runbook.id for result in standing.of_requests(T0 + round(begun * S), T0 + round(looked_from * S))}


def test_only_silence_is_said_of_requests(store, books):
    """What was found may be older than the request is: that is judged on the request's own time."""
    standing = Standing(books, {"held": {"least_ms": 100}})
    sampled(store, 0)
    look(store, standing, 10)
    assert found(standing) == {"at-once"}
    assert said(standing, 9) == {"held"}


def test_a_window_that_begins_after_the_request_says_nothing_of_it(store, books):
    standing = Standing(books, {})
    sampled(store, 100, waiting=0.0)
    look(store, standing, 100)
    assert said(standing, 40) == {"at-once", "held"}
    assert said(standing, 39) == set()


def test_a_look_before_it_failed_says_nothing_of_a_request(store, books):
    standing = Standing(books, {})
    sampled(store, 100, waiting=0.0)
    look(store, standing, 100)
    look(store, standing, 102)
    look(store, standing, 103)
    assert said(standing, 90, looked_from=102) == {"at-once", "held"}
    assert said(standing, 90, looked_from=103) == set()
