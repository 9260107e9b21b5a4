"""Whether an engine can be reached is told at each change, with the reason; histograms are forwarded every 10 s."""

import itertools
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lensd_collectors.host.config import WatchedEngine
from lensd_collectors.host.engine import Engine, FetchError, FetchFailure, resolve
from lensd_collectors.host.scrape import HISTOGRAMS_EVERY_NS, Scraper

SCRAPE = (Path(__file__).parents[2] / "captures" / "vllm-0.32.0" / "metrics-4-after-load.txt").read_bytes()
ENGINE = resolve(WatchedEngine(url="http://127.0.0.1:8100", name="e0"))
S = 1_000_000_000
Answer = FetchFailure | None


def run(recorder: Any, answers: list[Answer], body: bytes = b"", step_ns: int = S, statuses: list[int] | None = None) -> None:
    """One scrape an answer, `step_ns` apart, from the instant 0."""
    left, at = list(answers), -step_ns

    def fetch(engine: Engine, path: str) -> bytes:
        why = left.pop(0)
        if why is not None:
            raise FetchError(why, statuses.pop(0) if statuses and why is FetchFailure.STATUS else None)
        return body

    def clock() -> int:
        nonlocal at
        at += step_ns
        return at

    scraper = Scraper(ENGINE, recorder, fetch, clock)
    for _ in answers:
        scraper.scrape()


def told(recorder: Any) -> list[tuple[int, Any]]:
    """Second and reason of each event."""
    assert all(event.event_name == "lensd.engine.reach" for event in recorder.events)
    return [(int(event.time_unix_nano) // S, recorder.attributes(event).get("error.type")) for event in recorder.events]


@pytest.mark.parametrize(
    ("answers", "wanted"),
    [
        ([None, None, None], [(0, None)]),
        ([FetchFailure.REFUSED] * 3, [(0, "refused")]),
        ([None, FetchFailure.REFUSED, FetchFailure.REFUSED, None], [(0, None), (1, "refused"), (3, None)]),
        ([FetchFailure.REFUSED, FetchFailure.TIMEOUT, FetchFailure.TIMEOUT], [(0, "refused"), (1, "timeout")]),
        ([None, FetchFailure.STATUS, FetchFailure.BROKEN, None], [(0, None), (1, "status"), (2, "broken"), (3, None)]),
    ],
)
def test_each_change_is_told_once(recorder: Any, answers: list[Answer], wanted: list[tuple[int, Any]]) -> None:
    run(recorder, answers)
    assert told(recorder) == wanted


@settings(deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(answers=st.lists(st.sampled_from([None, *FetchFailure]), min_size=1, max_size=30))
def test_what_was_told_last_is_how_it_is(recorder: Any, answers: list[Answer]) -> None:
    recorder.events.clear()
    run(recorder, answers)
    events = told(recorder)
    for second, why in enumerate(answers):
        assert [reason for at, reason in events if at <= second][-1] == (why.value if why else None)
    reasons = [reason for _, reason in events]
    assert all(before != after for before, after in itertools.pairwise(reasons))


def test_the_event_says_which_engine_and_what_it_answered(recorder: Any) -> None:
    run(recorder, [FetchFailure.STATUS], statuses=[503])
    [event] = recorder.events
    assert recorder.attributes(event) == {
        "event.name": "lensd.engine.reach", "lensd.engine": "e0", "lensd.engine.kind": "vllm",
        "lensd.scrape.target": "http://127.0.0.1:8100/metrics", "error.type": "status", "http.response.status_code": "503",
    }  # fmt: skip


def test_an_answer_that_is_no_scrape_reaches_it(recorder: Any) -> None:
    run(recorder, [None], b"<html>")
    assert told(recorder) == [(0, None)]


def test_histograms_go_every_10_s_and_the_rest_each_time(recorder: Any) -> None:
    run(recorder, [None] * 25, SCRAPE)
    kinds = [
        (kind, int((metric.gauge or metric.sum or metric.histogram).data_points[0].time_unix_nano)) for _, kind, metric in recorder.metrics
    ]
    assert {at // S for kind, at in kinds if kind == "histogram"} == {0, 10, 20}
    assert {at // S for kind, at in kinds if kind == "gauge"} == {at // S for kind, at in kinds if kind == "counter"} == set(range(25))


def test_a_clock_set_back_does_not_stop_histograms(recorder: Any) -> None:
    run(recorder, [None] * 3, SCRAPE, step_ns=-HISTOGRAMS_EVERY_NS)
    assert len({metric.histogram.data_points[0].time_unix_nano for _, kind, metric in recorder.metrics if kind == "histogram"}) == 3
