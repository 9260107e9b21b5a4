"""Memory that ran out is named by the stage it ran out in, in the words of every version, with a setting that would have fitted."""

import re

import pytest
from incident_shape import Incident
from memory_incidents import MEMORY
from memory_look_alikes import LOOK_ALIKES, MEMORY_LABELS
from memory_texts import SERVING_CALLS, Era, oom, page
from triage_folder import run, write

from lensd.records import Diagnosis, Finding


def root_of(found: Diagnosis, label: str) -> Finding:
    [finding] = [one for one in found.findings if one.label == label]
    return finding


@pytest.mark.parametrize("incident", MEMORY, ids=lambda one: one.name)
def test_the_memory_cause_is_named_on_what_shows_it(incident: Incident, tmp_path) -> None:
    found = run(write(tmp_path, incident.files))
    assert (found.verdict.label, found.verdict.stage) == (incident.label, incident.stage), found.verdict.cause
    quotes = "\n".join(line.quote or "" for finding in found.findings for line in finding.evidence)
    assert [text for text in incident.says if text not in quotes] == []


@pytest.mark.parametrize("incident", MEMORY, ids=lambda one: one.name)
def test_it_is_one_incident_and_everything_else_stands_under_it(incident: Incident, tmp_path) -> None:
    found = run(write(tmp_path, incident.files))
    roots = [one.label for one in found.findings if one.kind == "cause" and one.explained_by is None]
    assert roots == [incident.label]


@pytest.mark.parametrize(("incident", "never"), LOOK_ALIKES, ids=lambda one: one.name if isinstance(one, Incident) else "")
def test_what_only_looks_like_it_is_not_named(incident: Incident, never: frozenset[str], tmp_path) -> None:
    found = run(write(tmp_path, incident.files))
    assert {one.label for one in found.findings} & never == set()
    assert found.verdict.label == incident.label or incident.label is None


def test_an_error_of_no_known_stage_asks_for_the_lines_before_it(tmp_path) -> None:
    found = run(write(tmp_path, {"vllm.log": page(Era("0.9.2").line("10:00:00", oom(), level="ERROR"))}))
    assert {one.label for one in found.not_evaluated} >= {"oom-model-load", "oom-profiling-warmup", "oom-runtime-activation-spike"}


def advice(tmp_path, name: str) -> str:
    incident = next(one for one in MEMORY if one.name == name)
    return run(write(tmp_path, incident.files)).verdict.fix


def test_more_cards_are_advised_by_what_the_weights_need(tmp_path) -> None:
    fix = advice(tmp_path, "0.11.0: the weights are too large")
    [cards] = re.findall(r"--tensor-parallel-size (\d+)", fix)
    assert 72e9 * 2 / int(cards) < 0.9 * 79.15 * (1 << 30) < 72e9 * 2 / (int(cards) // 2)


def test_fewer_tokens_a_step_are_advised_where_the_trial_run_failed(tmp_path) -> None:
    fix = advice(tmp_path, "0.11.0: the trial run is too large")
    [(was, to)] = re.findall(r"--max-num-batched-tokens from (\d+) to (\d+)", fix)
    assert (int(was), int(to) % 256) == (65536, 0)
    # of 5.48 GiB beside the weights and 2.80 GiB free, in proportion
    assert int(to) <= 65536 * (75.60 - 70.12 + 2.80) / (75.60 - 70.12 + 9.27) < int(to) + 256


def test_a_smaller_share_is_advised_by_what_was_short(tmp_path) -> None:
    fix = advice(tmp_path, "0.11.0: a step too large while it serves")
    [share] = re.findall(r"--gpu-memory-utilization (0\.\d+)", fix)
    assert float(share) * 79.15 + (3.71 - 1.02) <= 0.9 * 79.15


def test_the_length_that_fits_is_the_engines_own_estimate(tmp_path) -> None:
    assert "--max-model-len 76736" in advice(tmp_path, "0.33.0: a length that the cache cannot hold")


def test_the_length_that_fits_is_in_whole_blocks_where_the_engine_tells_the_tokens(tmp_path) -> None:
    [length] = re.findall(r"--max-model-len (\d+)", advice(tmp_path, "a length that the V0 cache cannot hold"))
    assert (int(length) <= 52736, int(length) % 16) == (True, 0)


def test_the_share_that_would_have_passed_is_what_was_free(tmp_path) -> None:
    fix = advice(tmp_path, "0.33.0: the card is not free when it starts")
    [share] = re.findall(r"--gpu-memory-utilization (0\.\d+)", fix)
    assert float(share) <= 17.62 / 79.19 < float(share) + 0.01


def test_expandable_segments_are_not_advised_to_whoever_has_them(tmp_path) -> None:
    era = Era("0.9.2")
    log = page(
        era.start("10:00"),
        era.stats("11:00:00", running=2),
        era.raised("11:00:03", oom("1.20 GiB", "0.30 GiB", allocated="70.00 GiB", unallocated="8.00 GiB"), *SERVING_CALLS),
        era.dead("11:00:04"),
    )
    script = "export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True\nvllm serve meta-llama/Llama-3.1-8B-Instruct --max-model-len 8192\n"
    found = run(write(tmp_path, {"vllm.log": log, "start.sh": script}))
    assert found.verdict.label == "oom-fragmentation"
    assert "expandable segments are on already" in found.verdict.fix


def test_a_start_that_failed_before_a_good_one_is_told_with_it(tmp_path) -> None:
    incident, _ = next(pair for pair in LOOK_ALIKES if pair[0].label == "kv-cache-too-small")
    finding = root_of(run(write(tmp_path, incident.files)), "kv-cache-too-small")
    assert "a later start got through" in [line.text for line in finding.evidence]


def test_three_starts_are_counted(tmp_path) -> None:
    incident = next(one for one in MEMORY if one.name.startswith("three starts"))
    finding = root_of(run(write(tmp_path, incident.files)), "oom-model-load")
    assert any("in 3 starts one after the other" in line.text for line in finding.evidence)


def test_two_cards_are_counted(tmp_path) -> None:
    incident = next(one for one in MEMORY if one.name.startswith("two ranks"))
    finding = root_of(run(write(tmp_path, incident.files)), "oom-model-load")
    assert any("on 2 GPUs" in line.text for line in finding.evidence)


def test_every_label_has_an_incident_and_a_look_alike() -> None:
    assert {one.label for one in MEMORY} == MEMORY_LABELS
    assert {label for _, never in LOOK_ALIKES for label in never} >= MEMORY_LABELS
