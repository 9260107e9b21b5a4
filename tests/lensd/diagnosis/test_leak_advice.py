"""What is advised against a leak or a line that stands: values of the start that runs, and values that fit."""

import copy

import pytest

from lensd.diagnosis.cases import Rows, cases_path, evaluate_case, fill, load_cases
from lensd.diagnosis.runbook import files, parse
from lensd.records import Finding
from lensd.store.memory import MemoryStore


def found(name: str, case: str, **tables: list[dict[str, object]]) -> Finding:
    """The finding of a case of this runbook, with these tables in place of its own."""
    path = files()[name]
    [rows] = [one.rows for one in load_cases(cases_path(path)) if one.case == case]
    given: Rows = {**copy.deepcopy(rows), **tables}
    store = MemoryStore()
    try:
        keys, bounds = fill(store, given)
        with store.cursor() as cursor:
            [finding] = evaluate_case(cursor, [parse(path)], keys, bounds).findings
    finally:
        store.close()
    return finding


def facts(*told: tuple[str, str, str]) -> list[dict[str, object]]:
    return [{"seen_at": at, "subject": "e0", "name": name, "value": value, "src": f"log:{n}"} for n, (at, name, value) in enumerate(told)]


@pytest.mark.parametrize(("was", "value"), [("0.95", "0.90"), ("0.85", "0.90")])
def test_the_share_of_the_card_is_that_of_the_last_start(was: str, value: str) -> None:
    told = facts(("2026-11-19 08:00:00", "gpu_memory_utilization", was), ("2026-11-20 07:00:00", "gpu_memory_utilization", value))
    fix = found("gpu-memory-leak", "the engine's process holds more at each idle moment of two hours", config_facts=told).fix
    assert "instead of 0.90 it lasts a day longer" in fix


@pytest.mark.parametrize(("was", "value"), [("32768", "4096"), ("4096", "32768")])
def test_the_limit_that_is_named_is_that_of_the_last_start(was: str, value: str) -> None:
    told = facts(("2026-11-19 08:00:00", "max_model_len", was), ("2026-11-20 08:00:00", "max_model_len", value))
    case = "free before the work, held for a minute after it, and nobody was served meanwhile"
    assert f"refuse prompts over {value} tokens" in found("kv-cache-leak", case, config_facts=told).fix


STARTED = "2026-11-20 08:00:00"
WAITING = "the one at the head is known, and longer than the cache"


def test_of_the_cache_one_block_is_nobodys() -> None:
    told = facts((STARTED, "kv_cache_tokens", "52736"), (STARTED, "max_model_len", "131072"), (STARTED, "block_size", "16"))
    assert "set --max-model-len 52720 or less" in found("scheduler-deadlock-never-fits", WAITING, config_facts=told).fix


def test_a_block_of_unknown_size_counts_as_the_largest_usual_one() -> None:
    told = facts((STARTED, "kv_cache_tokens", "52736"), (STARTED, "max_model_len", "131072"))
    assert "set --max-model-len 52608 or less" in found("scheduler-deadlock-never-fits", WAITING, config_facts=told).fix


def test_a_cache_of_one_block_has_no_value_that_fits() -> None:
    told = facts((STARTED, "kv_cache_tokens", "128"), (STARTED, "max_model_len", "131072"), (STARTED, "block_size", "128"))
    assert (
        "set --max-model-len to no more than the KV cache holds" in found("scheduler-deadlock-never-fits", WAITING, config_facts=told).fix
    )
