"""An engine's load and counters as its own /metrics page would have them."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lensd_collectors.vllm.load import Load
from stats_objects import VERSIONS, Step, finished, is_since, iteration, recorded, scheduler, step


def shown(load: Load, *, counters: bool) -> dict[str, float]:
    found = {}
    for name, labels, value, is_counter in load.values():
        if is_counter is counters:
            found[f"{name.removeprefix('vllm:')}{''.join(f'[{each}]' for each in labels.values())}"] = value
    return found


def add_up(load: Load) -> None:
    load.add_up()
    while load.ended:
        load.end(load.ended.popleft())


def taken(*steps: Step, **how: Any) -> Load:
    load = Load(**how)
    for each in steps:
        load.note(each.scheduler_stats, each.iteration_stats)
    add_up(load)
    return load


def test_its_sums_are_those_of_the_page_that_the_recorded_server_showed_then() -> None:
    load = taken(*recorded())
    assert shown(load, counters=True) == {
        "prompt_tokens_total": 46, "generation_tokens_total": 80, "prefix_cache_queries_total": 46, "prefix_cache_hits_total": 0,
        "num_preemptions_total": 0, "request_success_total[stop]": 0, "request_success_total[length]": 5,
    }  # fmt: skip
    assert shown(load, counters=False) == {
        "num_requests_running": 0, "num_requests_waiting": 0, "num_requests_waiting_by_reason[capacity]": 0,
        "num_requests_waiting_by_reason[deferred]": 0, "kv_cache_usage_perc": 0,
    }  # fmt: skip


@pytest.mark.parametrize("version", VERSIONS)
def test_every_step_of_every_version_counts(version: str) -> None:
    load = taken(*[step(version)] * 3)
    assert shown(load, counters=True) == {
        "prompt_tokens_total": 36, "generation_tokens_total": 24, "prefix_cache_queries_total": 36, "prefix_cache_hits_total": 12,
        "num_preemptions_total": 3, "request_success_total[stop]": 0, "request_success_total[length]": 3,
    }  # fmt: skip
    gauges = {"num_requests_running": 2, "num_requests_waiting": 4, "kv_cache_usage_perc": 0.5}
    if is_since(version, "0.22"):
        gauges |= {"num_requests_waiting_by_reason[capacity]": 3, "num_requests_waiting_by_reason[deferred]": 1}
    assert shown(load, counters=False) == gauges


def test_steps_without_one_of_the_stats_count_with_the_other() -> None:
    load = taken(Step(scheduler(), None), Step(None, iteration(finished())), Step(None, None))
    assert shown(load, counters=True)["prefix_cache_queries_total"] == 12
    assert shown(load, counters=True)["generation_tokens_total"] == 8
    assert shown(load, counters=False)["num_requests_running"] == 2


def test_a_counter_with_a_hole_in_it_is_none() -> None:
    steps = [Step(scheduler(), iteration()), Step(scheduler(), iteration(num_generation_tokens=None)), Step(scheduler(), iteration())]
    counters = shown(taken(*steps), counters=True)
    assert "generation_tokens_total" not in counters
    assert counters["num_preemptions_total"] == 3


def test_where_api_servers_share_an_engine_there_is_its_load_and_no_counter() -> None:
    load = taken(step("0.32"), counts=False)
    assert shown(load, counters=True) == {}
    assert shown(load, counters=False)["num_requests_running"] == 2


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.sampled_from(VERSIONS)), max_size=20))
def test_counters_never_fall_and_end_at_the_sum(steps: list[tuple[int, int, str]]) -> None:
    load, last = Load(), 0.0
    for tokens, requests, version in steps:
        of_step = iteration(*[finished(version)] * requests, version=version, num_generation_tokens=tokens)
        load.note(scheduler(version), of_step)
        add_up(load)
        now = shown(load, counters=True)["generation_tokens_total"]
        assert now >= last
        last = now
    assert last == sum(tokens for tokens, _, _ in steps)
    assert sum(v for k, v in shown(load, counters=True).items() if k.startswith("request_success")) == sum(n for _, n, _ in steps)
