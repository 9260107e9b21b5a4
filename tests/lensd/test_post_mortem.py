"""What is put together of an out-of-memory: live by the API's client, from files in the report; what was not recorded is said so."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from judged_house import BOOKS, T0, House
from lensd_collectors.rows import EngineSample, Event, GpuSample
from night_story import AFTER, BEFORE, EVENING, FREE_GIB, MODEL, MORNING, NIGHT, PROMPT, WANT_GIB, Told, core, death, line, start, whole

from lensd import report
from lensd.diagnosis.postmortem import POINTS, of_incident, post_mortem
from lensd.diagnosis.triage import triage
from lensd.errors import EvidenceError
from lensd.memory.post_mortem import post_mortem_lines
from lensd.records import PostMortem
from lensd.store.arrow import batch_of
from lensd.timeline.limits import Limits

GIB = 1 << 30


def at(seconds: float) -> int:
    return T0 + round(seconds * 1e6)


def card(seconds: float, gib: float | None, *, gpu: str = "0", pid: int | None = None, engine: str | None = None) -> GpuSample:
    used = None if gib is None else round(gib * GIB)
    told: dict[str, Any] = {"used_bytes": used, "free_bytes": None if used is None else 80 * GIB - used}
    if pid is not None:
        told = {"pid": pid, "pid_engine": engine, "pid_used_bytes": used}
    return GpuSample(seen_at=at(seconds), host="h", gpu=gpu, src=f"g:{gpu}/{pid}@{seconds}", **told)


def of(house: House, **span: int) -> PostMortem | None:
    with house.store.cursor() as cursor:
        return post_mortem(cursor, BOOKS, "e0", from_us=span.get("from_us", at(NIGHT - 600)), to_us=span.get("to_us", at(NIGHT + 60)))


def lived(house: House) -> Told:
    told = Told(house)
    lines = whole()
    told.log(one for one in lines if one[0] < EVENING)
    told.model(MORNING + 45)
    told.log(one for one in lines if one[0] >= EVENING)
    return told


def test_everything_that_is_recorded(house: House) -> None:
    told = lived(house)
    readings = [NIGHT - 600 + step for step in range(1, 601) if not 200 < step <= 300]
    rows = [card(second, 70 + (second - NIGHT + 600) / 100) for second in readings]
    rows += [card(second, 60.0, pid=4471, engine="e0") for second in readings] + [card(second, 9.0, gpu="1") for second in readings]
    house.store.append(batch_of({"gpu_samples": rows}))
    told.caller()
    house.tick(NIGHT + 15)
    [incident] = house.judge.all()
    with house.store.cursor() as cursor:
        found = of_incident(cursor, BOOKS, incident)
    assert (found.engine, found.gpu, found.at, found.started_at, found.phase) == ("e0", "0", at(NIGHT), at(EVENING), "spike")
    assert (found.numbers["want_bytes"], found.numbers["free_bytes"]) == (round(WANT_GIB * GIB), round(FREE_GIB * GIB))
    assert "CUDA out of memory" in (found.said.quote or "")
    assert len(found.curve) == POINTS * 5 // 6, "an interval without a sample has no reading"
    assert [reading.used_bytes for reading in found.curve] == sorted(reading.used_bytes or 0 for reading in found.curve)
    assert found.curve[-1].used_bytes == 76 * GIB
    assert {reading.pid_used_bytes for reading in found.curve} == {60 * GIB}
    assert [(one.request_id, one.prompt_tokens, one.is_sure) for one in found.in_flight or ()] == [("r7", PROMPT, True)]
    assert found.trigger is not None
    assert (found.trigger.request_id, found.trigger.because) == ("r7", f"its prompt was the largest, {PROMPT} tokens")
    assert [(one.name, one.was, one.value) for one in found.changes] == [("max_model_len", str(BEFORE), str(AFTER))]
    assert (found.settings["max_model_len"], found.settings["max_num_seqs"]) == (str(AFTER), "8")
    assert found.fits == AFTER


def test_nothing_recorded_is_said_so(house: House) -> None:
    Told(house).log([one for one in death() if "Received" not in one[1]][1:])
    found = of(house)
    assert found is not None
    assert (found.curve, found.in_flight, found.trigger, found.settings, found.changes, found.fits) == ((), None, None, {}, (), None)
    lines = post_mortem_lines(found)
    for name in ("before", "in flight", "likely trigger", "settings"):
        assert f"{name}: not recorded" in lines


def test_what_a_start_does_not_measure_with_goes_before_the_largest_prompt(house: House) -> None:
    told = Told(house)
    asked = "Received request cmpl-a-0: prompt: 'x', params: SamplingParams(n=1, prompt_logprobs=1, max_tokens=1), lora_request: None."
    told.log([*start(EVENING, AFTER), line(NIGHT - 20, asked), *death()])
    told.caller()
    house.tick(NIGHT + 15)
    found = of(house)
    assert found is not None
    assert found.trigger is not None
    assert found.trigger.request_id == "cmpl-a-0"


def test_without_records_of_requests_the_last_that_came_is_the_likely_one(house: House) -> None:
    Told(house).log([*start(EVENING, AFTER), *death()])
    found = of(house)
    assert found is not None
    assert found.trigger is not None
    assert (found.trigger.request_id, found.trigger.because) == ("chatcmpl-r7", "it came last")
    assert [one.is_sure for one in found.in_flight or ()] == [False]


def changed(seconds: float, was: str, value: str) -> Event:
    fields = json.dumps({"changes": [{"name": "max_model_len", "was": was, "value": value, "origin": "effective"}]})
    return Event(seen_at=at(seconds), engine="e0", name="lensd.config.changed", fields=fields, src=f"c@{seconds}")


def test_of_an_engine_without_a_log_the_changes_are_those_of_its_last_start(house: House) -> None:
    Told(house).log([*death()][1:])
    running = [
        EngineSample(seen_at=at(NIGHT - back), engine="e0", running=1, start_at=at(EVENING), src=f"s@{back}") for back in (60, 45, 30, 15)
    ]
    house.store.append(
        batch_of({"engine_samples": running, "events": [changed(MORNING, "1024", "2048"), changed(EVENING + 5, "2048", "8192")]})
    )
    found = of(house)
    assert found is not None
    assert found.started_at == at(EVENING)
    assert [(one.was, one.value) for one in found.changes] == [("2048", "8192")]


OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of 80.00 GiB of which 0.50 GiB is free."  # noqa: E501


@pytest.mark.parametrize(
    ("reached", "phase"),
    [
        ((), "load"),
        (("Model loading took 74.90 GiB memory and 11.1 seconds",), "profiling"),
        (("Model loading took 12.55 GiB memory and 11.1 seconds", "Available KV cache memory: 20.5 GiB",
          "GPU KV cache size: 41,984 tokens", "Graph capturing finished in 21 secs, took 0.52 GiB"), "capture"),
    ],
)  # fmt: skip
def test_the_phase_is_what_the_start_had_reached(house: House, reached: tuple[str, ...], phase: str) -> None:
    lines = [
        *start(EVENING, AFTER)[:4],
        *(core(EVENING + 10 + n, said) for n, said in enumerate(reached)),
        core(EVENING + 40, OOM, "ERROR"),
    ]
    Told(house).log(lines)
    found = of(house, from_us=at(EVENING - 60), to_us=at(EVENING + 60))
    assert found is not None
    assert found.phase == phase


def test_an_incident_without_an_out_of_memory_has_none(house: House) -> None:
    told = lived(house)
    told.caller()
    house.tick(NIGHT + 15)
    [incident] = house.judge.all()
    other = msgspec.structs.replace(incident, label="queue-saturation")
    with house.store.cursor() as cursor, pytest.raises(EvidenceError, match="no post-mortem"):
        of_incident(cursor, BOOKS, other)


def test_the_report_of_files_has_it(tmp_path: Path) -> None:
    (tmp_path / "engine.log").write_text("".join(f"{said}\n" for _, said in whole()))
    (tmp_path / "config.json").write_text(json.dumps(MODEL))
    found = triage([tmp_path], BOOKS, {}, Limits())
    text = report.as_text(found)
    assert "\nout of memory\n" in text
    assert "asked for 6.00 GiB, free 1.50 GiB" in text
    assert f"changed at that start: max_model_len {BEFORE} -> {AFTER}" in text
    assert "### Out of memory" in report.as_markdown(found)
    document = json.loads(report.as_json(found))
    assert document["post_mortem"]["phase"] == "spike"


def test_a_report_of_anything_else_has_not(tmp_path: Path) -> None:
    (tmp_path / "engine.log").write_text("".join(f"{said}\n" for _, said in whole()[:-4]))
    found = triage([tmp_path], BOOKS, {}, Limits())
    assert "post_mortem" not in json.loads(report.as_json(found))
    assert "out of memory" not in report.as_text(found)
