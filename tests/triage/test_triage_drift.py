# ruff: noqa: E501  (lines as programs print them)
"""A changed setting in files that people send: a log of two starts, a diff, two revisions; and what only looks like a change."""

from pathlib import Path

import incident_texts as t
import pytest
from triage_folder import run, write

from lensd.records import Diagnosis

TOO_SMALL = "ValueError: To serve at least one request with the model's max seq len (32768), (4.00 GiB KV cache is needed, which is larger than the available KV cache memory (2.50 GiB). Based on the available memory, the estimated maximum model length is 20464."
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 80.00 GiB of which 0.50 GiB is free. Of the allocated memory 77.60 GiB is allocated by PyTorch, and 218.40 MiB is reserved by PyTorch but unallocated."


def given(clock: str, args: str) -> str:
    return t.log(clock, f"non-default args: {args}", source="utils.py:233")


FAILED = t.lines(t.started("10:00:00"), t.log("10:00:05", "Starting to load model m...", process="EngineCore pid=7"),
                 t.log("10:00:20", "Model loading took 14.99 GiB memory and 5.1 seconds", process="EngineCore pid=7"),
                 t.core("10:00:40", TOO_SMALL), t.core("10:00:41", "EngineCore failed to start."))  # fmt: skip
DIED = t.lines(
    t.stats("10:20:00", running=4, waiting=0), t.core("10:20:07", "EngineCore encountered a fatal error."), t.core("10:20:07", OOM)
)
STARTED = t.lines(t.started("09:00:00"), given("09:00:01", "{'model_tag': 'm', 'max_model_len': 8192}"), t.ready())
DIFF = " args:\n-  - --max-model-len=8192\n+  - --max-model-len=32768\n   - --max-num-seqs=64\n"

CHANGED = {
    "a diff and a start that fails": {"engine.log": FAILED, "values.diff": DIFF},
    "a file of before and one of now": {
        "engine.log": FAILED,
        "serve.args.old": "vllm serve m --max-model-len 8192\n",
        "serve.args": "vllm serve m --max-model-len 32768\n",
    },
    "two revisions in one file": {
        "engine.log": FAILED,
        "rollout.txt": "REVISION 7\nvllm serve m --max-model-len 8192\nREVISION 8\nvllm serve m --max-model-len 32768\n",
    },
    "a log of two starts": {"engine.log": STARTED + t.lines(t.stats("09:30:00", running=2, waiting=0)) + FAILED.replace(
        t.started("10:00:00"), t.lines(t.started("10:00:00"), given("10:00:01", "{'model_tag': 'm', 'max_model_len': 32768}")).rstrip())},
}  # fmt: skip


def labels(found: Diagnosis) -> set[str]:
    return {finding.label for finding in found.findings}


@pytest.mark.parametrize("files", CHANGED.values(), ids=CHANGED.keys())
def test_the_change_is_the_root_of_the_failed_start(files: dict[str, str], tmp_path: Path) -> None:
    found = run(write(tmp_path, files))
    assert found.verdict.label == "config-drift", found.verdict.cause
    assert "max_model_len 8192 -> 32768" in found.verdict.cause
    assert "up to 20464 fit" in found.verdict.fix
    under = {finding.label for finding in found.findings if finding.explained_by == "config-drift"}
    assert "kv-cache-too-small" in under
    [drift] = [finding for finding in found.findings if finding.label == "config-drift"]
    assert drift.evidence[0].quote is not None
    assert "32768" in drift.evidence[0].quote


UNDATED = [
    "INFO:     vLLM API server version 0.13.0",
    "non-default args: {'model_tag': 'm', 'max_num_seqs': 64}",
    "INFO:     Application startup complete.",
    "INFO:     vLLM API server version 0.13.0",
    "non-default args: {'model_tag': 'm', 'max_num_seqs': 512}",
    "Starting to load model m...",
    "Model loading took 14.99 GiB memory and 5.1 seconds",
    "RuntimeError: CUDA out of memory occurred when warming up sampler with 512 dummy requests. Please try lowering `max_num_seqs` or `gpu_memory_utilization`",
]


def test_a_log_without_times_has_its_own_order(tmp_path: Path) -> None:
    found = run(write(tmp_path, {"engine.log": t.lines(*UNDATED)}))
    assert found.verdict.label == "config-drift", found.verdict.cause
    assert found.verdict.cause.endswith("max_num_seqs 64 -> 512"), "no hour is known"


SAME = {
    "two files and no word of which is the newer": {
        "engine.log": FAILED,
        "a.args": "vllm serve m --max-model-len 8192\n",
        "b.args": "vllm serve m --max-model-len 32768\n",
    },
    "the file says what the log says": {
        "engine.log": FAILED.replace(
            t.started("10:00:00"), t.lines(t.started("10:00:00"), given("10:00:01", "{'max_model_len': 32768}")).rstrip()
        ),
        "serve.args": "vllm serve m --max-model-len 32k\n".replace("32k", "32768"),
    },
    "one start alone": {"engine.log": FAILED},
    "a diff of what has no part in it": {"engine.log": FAILED, "values.diff": DIFF.replace("max-model-len", "max-log-len")},
    "a diff that asks for less": {"engine.log": FAILED, "values.diff": DIFF.replace("=8192", "=65536")},
}


@pytest.mark.parametrize("files", SAME.values(), ids=SAME.keys())
def test_without_a_change_the_failure_keeps_its_name(files: dict[str, str], tmp_path: Path) -> None:
    found = run(write(tmp_path, files))
    assert found.verdict.label == "kv-cache-too-small", found.verdict.cause
    assert "config-drift" not in labels(found)


def test_two_values_without_an_order_are_asked_about(tmp_path: Path) -> None:
    found = run(write(tmp_path, SAME["two files and no word of which is the newer"]))
    assert [one.missing for one in found.not_evaluated if one.label == "config-drift"] == [("config_facts.seen_at",)]


def test_a_diff_and_an_engine_that_died_while_it_served(tmp_path: Path) -> None:
    found = run(write(tmp_path, {"engine.log": DIED, "values.diff": DIFF}))
    assert found.verdict.label == "config-drift"
    assert any(label.startswith("oom-") for label in labels(found))
