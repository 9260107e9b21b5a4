"""What vLLM's versions hand to a stat logger: classes built field by field, and the record of a real 0.32.0 server.

Each version has the fields that its own source has, of those that may matter here; what it lacks is not there at all.
"""

import enum
import functools
import json
import re
from dataclasses import dataclass, make_dataclass
from typing import Any, Final

from checkout import ROOT

RECORDED: Final = ROOT / "tests" / "captures" / "vllm-0.32.0" / "plugin-events-five-requests.jsonl"
AT: Final = 1_795_963_341.0  # when a step's outputs were read
VERSIONS: Final = ("0.11", "0.13", "0.18", "0.22", "0.30", "0.32", "0.33")


class FinishReason(enum.IntEnum):
    STOP = 0
    LENGTH = 1
    ABORT = 2
    ERROR = 3
    REPETITION = 4


@dataclass
class Step:
    """The arguments of one call."""

    scheduler_stats: Any
    iteration_stats: Any


def is_since(version: str, first: str) -> bool:
    return [int(part) for part in version.split(".")] >= [int(part) for part in first.split(".")]


def has_ids(version: str) -> bool:
    return is_since(version, "0.22")


def finished(version: str = "0.32", **changes: Any) -> Any:
    """A FinishedRequestStats."""
    fields: dict[str, Any] = {
        "finish_reason": FinishReason.LENGTH, "e2e_latency": 2.5, "num_prompt_tokens": 12, "num_generation_tokens": 16,
        "max_tokens_param": 16, "queued_time": 0.25, "prefill_time": 0.5, "inference_time": 2.0, "decode_time": 1.5,
        "mean_time_per_output_token": 0.1,
    }  # fmt: skip
    for first, name, value in (("0.13", "num_cached_tokens", 4), ("0.22", "request_id", "chatcmpl-r1"), ("0.30", "num_preemptions", 1)):
        if is_since(version, first):
            fields[name] = value
    return _made("FinishedRequestStats", fields | changes)


def scheduler(version: str = "0.32", running: int = 2, waiting: int = 3, deferred: int = 1, **changes: Any) -> Any:
    """A SchedulerStats; before 0.22 those deferred are among the waiting."""
    cache = {"reset": False, "requests": 1, "queries": 12, "hits": 4, "preempted_requests": 0, "preempted_queries": 0, "preempted_hits": 0}
    fields: dict[str, Any] = {
        "num_running_reqs": running, "num_waiting_reqs": waiting, "step_counter": 0, "current_wave": 0, "kv_cache_usage": 0.5,
        "prefix_cache_stats": _made("PrefixCacheStats", cache), "spec_decoding_stats": None, "kv_connector_stats": None,
    }  # fmt: skip
    if is_since(version, "0.22"):
        fields["num_skipped_waiting_reqs"] = deferred
    else:
        fields["num_waiting_reqs"] = waiting + deferred
    if is_since(version, "0.32"):
        fields["num_kv_fetch_reqs_by_stage"] = {}
    return _made("SchedulerStats", fields | changes)


def iteration(*requests: Any, version: str = "0.32", **changes: Any) -> Any:
    """An IterationStats."""
    fields: dict[str, Any] = {
        "iteration_timestamp": AT, "num_generation_tokens": 8, "num_preempted_reqs": 1, "finished_requests": list(requests),
        "max_num_generation_tokens_iter": [], "n_params_iter": [], "time_to_first_tokens_iter": [], "inter_token_latencies_iter": [],
    }  # fmt: skip
    if not is_since(version, "0.18"):
        return _made("IterationStats", fields | {"num_prompt_tokens": 12} | changes)
    tokens = {"computed": 8, "local_cache_hit": 4, "external_kv_transfer": 0, "cached_tokens": 4, "total": 12}
    return _made("IterationStats", fields | {"prompt_token_stats": _made("PromptTokenStats", tokens)} | changes)


def step(version: str, *requests: Any) -> Step:
    return Step(scheduler(version), iteration(*(requests or (finished(version),)), version=version))


def recorded() -> list[Step]:
    """Every step of five requests that a real server, just started, was asked one after another."""
    return [_read(json.loads(line)) for line in RECORDED.read_text().splitlines()]


def _read(row: dict[str, Any]) -> Step:
    cache = row["sched"]["prefix_cache_stats"]
    scheduled = _made("SchedulerStats", row["sched"] | {"prefix_cache_stats": _made("PrefixCacheStats", _shown(cache))})
    if "iter" not in row:
        return Step(scheduled, None)
    reasons = [each | {"finish_reason": FinishReason(each["finish_reason"])} for each in row["finished"]]
    fields = row["iter"] | {
        "prompt_token_stats": _made("PromptTokenStats", _shown(row["iter"]["prompt_token_stats"])),
        "finished_requests": [_made("FinishedRequestStats", each) for each in reasons],
    }
    return Step(scheduled, _made("IterationStats", fields))


def _shown(text: str) -> dict[str, int]:
    """The numbers of a dataclass as Python shows it."""
    return {name: int(value) for name, value in re.findall(r"(\w+)=(\d+)", text)}


def _made(name: str, fields: dict[str, Any]) -> Any:
    return _type(name, tuple(fields))(**fields)


@functools.cache
def _type(name: str, fields: tuple[str, ...]) -> type[Any]:
    """Since 0.18 the number of prompt tokens of a step is a property."""
    totals = {"num_prompt_tokens": property(lambda step: step.prompt_token_stats.total)} if "prompt_token_stats" in fields else {}
    return make_dataclass(name, fields, namespace=totals)
