"""The stat logger tells what the engine measured, and nothing that the engine does can make it raise."""

import math
import subprocess
import sys
import textwrap
import timeit
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lensd_collectors.vllm import plugin
from lensd_collectors.vllm.finished import stages
from lensd_collectors.vllm.plugin import LensdStatLogger
from lensd_collectors.vllm.sender import Sender, make_sender
from stats_objects import AT, VERSIONS, finished, has_ids, is_since, iteration, recorded, scheduler, step

CONFIG = SimpleNamespace(model_config=SimpleNamespace(served_model_name=["tiny-llama", "alias"]))


class Clock:
    now = 100.0  # seconds of monotonic time, when it is AT

    def monotonic(self) -> float:
        return self.now

    def time_ns(self) -> int:
        return int((AT + self.now - 100.0) * 1e9)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(plugin, "time", made)
    return made


@pytest.fixture
def sends(recorder: Any, monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    monkeypatch.delenv("PROMETHEUS_MULTIPROC_DIR", raising=False)
    monkeypatch.setattr(plugin, "sender", lambda: Sender(recorder, {"lensd.engine": "e0", "lensd.engine.kind": "vllm"}))


@pytest.fixture
def logger(sends: None) -> LensdStatLogger:
    return LensdStatLogger(CONFIG, 0)


def test_finished_request(recorder: Any, logger: LensdStatLogger, clock: Clock) -> None:
    clock.now += 0.02
    logger.record(None, iteration(finished()), mm_cache_stats=None, engine_idx=0)
    recorder.post()
    [event] = recorder.events
    assert (event.event_name, event.time_unix_nano) == ("lensd.engine.request", str(int(AT * 1e9)))  # so arrival is that less e2e_ms
    assert recorder.attributes(event) == {
        "event.name": "lensd.engine.request", "lensd.engine": "e0", "lensd.engine.kind": "vllm", "gen_ai.response.model": "tiny-llama",
        "gen_ai.response.id": "chatcmpl-r1", "lensd.engine.queue_ms": 250.0, "lensd.engine.prefill_ms": 500.0,
        "lensd.engine.decode_ms": 1500.0, "lensd.engine.e2e_ms": 2500.0, "lensd.engine.preemptions": "1",
        "gen_ai.usage.input_tokens": "12", "gen_ai.usage.output_tokens": "16", "gen_ai.usage.cache_read.input_tokens": "4",
        "gen_ai.request.max_tokens": "16", "gen_ai.response.finish_reasons": ["length"],
    }  # fmt: skip


@pytest.mark.parametrize("version", VERSIONS)
def test_each_version_tells_what_it_has(version: str, recorder: Any, logger: LensdStatLogger) -> None:
    given = step(version)
    logger.record(given.scheduler_stats, given.iteration_stats)
    recorder.post()
    names = {name for name, _ in recorder.values()}
    assert {"vllm:num_requests_running", "vllm:num_preemptions_total", "vllm:prompt_tokens_total"} <= names
    assert ("vllm:num_requests_waiting_by_reason" in names) == is_since(version, "0.22")
    assert len(recorder.events) == has_ids(version)  # else whose record it is can't be told
    for event in recorder.events:
        said = recorder.attributes(event)
        assert (said["lensd.engine.queue_ms"], "lensd.engine.preemptions" in said) == (250.0, is_since(version, "0.30"))


def test_a_real_servers_requests(recorder: Any, logger: LensdStatLogger) -> None:
    for each in recorded():
        logger.record(each.scheduler_stats, each.iteration_stats, mm_cache_stats=None, engine_idx=0)
    recorder.post()
    told = [recorder.attributes(event) for event in recorder.events]
    assert len({said["gen_ai.response.id"] for said in told}) == len(told) == 5
    for said in told:
        stages = [said[f"lensd.engine.{stage}_ms"] for stage in ("queue", "prefill", "decode")]
        assert all(0 < each < said["lensd.engine.e2e_ms"] for each in stages)
        assert said["gen_ai.usage.output_tokens"] == "16"


@pytest.mark.parametrize(
    ("queued_ts", "scheduled_ts", "first_token_ts", "last_token_ts", "reached"),
    [
        (10.0, 11.0, 12.0, 13.0, 3),
        (10.0, 11.0, 0.0, 0.0, 1),  # left before its first token
        (10.0, 0.0, 0.0, 0.0, 0),  # never scheduled
    ],
)
@pytest.mark.parametrize("is_queue_there", [True, False])
def test_stages_not_reached_are_absent(
    queued_ts: float, scheduled_ts: float, first_token_ts: float, last_token_ts: float, reached: int, is_queue_there: bool
) -> None:
    times = {"prefill_time": first_token_ts - scheduled_ts, "decode_time": last_token_ts - first_token_ts}
    queued = scheduled_ts - queued_ts if is_queue_there else None
    expected = [n < reached for n in range(3)]
    found = stages(finished(queued_time=queued, **times))
    assert [each is not None for each in found] == [expected[0] and is_queue_there, *expected[1:]]


def test_missing_fields_are_absent(recorder: Any, logger: LensdStatLogger) -> None:
    logger.record(None, iteration(SimpleNamespace(request_id="cmpl-1-0", decode_time=1.0)))
    recorder.post()
    said = recorder.attributes(recorder.events[0])
    assert said["lensd.engine.decode_ms"] == 1000.0
    assert not {"lensd.engine.queue_ms", "lensd.engine.prefill_ms", "lensd.engine.e2e_ms", "gen_ai.usage.input_tokens"} & set(said)


def test_figures_that_the_wire_has_no_form_for_are_absent(recorder: Any, logger: LensdStatLogger) -> None:
    logger.record(None, iteration(finished(e2e_latency=1e307, decode_time=math.nan, num_cached_tokens=2**63, num_preemptions=True)))
    recorder.post()
    said = recorder.attributes(recorder.events[0])
    absent = {"lensd.engine.e2e_ms", "lensd.engine.decode_ms", "gen_ai.usage.cache_read.input_tokens", "lensd.engine.preemptions"}
    assert not absent & set(said)
    assert said["lensd.engine.queue_ms"] == 250.0


@pytest.mark.parametrize("stamp", [None, float("nan"), -5.0, 1e300, "soon"])
def test_a_step_without_an_instant_of_use_is_now(stamp: Any, recorder: Any, logger: LensdStatLogger, clock: Clock) -> None:
    logger.record(None, iteration(finished(), iteration_timestamp=stamp))
    recorder.post()
    assert recorder.events[0].time_unix_nano == str(clock.time_ns())


def test_load_is_sent_once_a_second_with_what_came_since(recorder: Any, logger: LensdStatLogger, clock: Clock) -> None:
    for _ in range(24):
        logger.record(scheduler(), iteration())
        clock.now += 0.125
        recorder.post()
    assert len(recorder.batches) == 3
    generated = [m.sum.data_points[0].as_double for name, _, m in recorder.metrics if name == "vllm:generation_tokens_total"]
    assert generated == [8.0, 72.0, 136.0]
    kinds = {name: kind for name, kind, _ in recorder.metrics}
    assert (kinds["vllm:prefix_cache_hits_total"], kinds["vllm:num_requests_waiting_by_reason"]) == ("counter", "gauge")
    labels = recorder.attributes(recorder.metrics[0][2].gauge.data_points[0])
    assert labels == {"lensd.engine": "e0", "lensd.engine.kind": "vllm", "model_name": "tiny-llama", "engine": "0"}


def test_falling_idle_is_said_at_once_and_then_at_the_engines_own_interval(recorder: Any, logger: LensdStatLogger, clock: Clock) -> None:
    logger.log()  # before any step: nothing is known
    recorder.post()
    for running in (1, 0, 0):
        logger.record(scheduler(running=running, waiting=0, deferred=0), None)
        recorder.post()
        clock.now += 0.01
    clock.now += 10.0
    recorder.post()  # of the step that came too soon after the last
    clock.now += 10.0
    recorder.post()
    logger.log()
    recorder.post()
    running = [metric.gauge.data_points[0].as_double for name, _, metric in recorder.metrics if name == "vllm:num_requests_running"]
    assert running == [1.0, 0.0, 0.0, 0.0]


GENERATED = ("vllm:generation_tokens_total", (("engine", "0"), ("model_name", "tiny-llama")))


def test_a_step_only_notes_and_every_step_counts(recorder: Any, logger: LensdStatLogger) -> None:
    for _ in range(98):
        logger.record(scheduler(), iteration())
    logger.record(scheduler(), iteration(finished()))
    logger.record(scheduler(running=0, waiting=0, deferred=0), iteration())
    assert recorder.events == recorder.metrics == []
    recorder.post()
    assert [recorder.attributes(event)["gen_ai.response.id"] for event in recorder.events] == ["chatcmpl-r1"]
    assert recorder.values()[GENERATED] == 800.0


@pytest.mark.parametrize(("most", "of_step"), [("MOST_NOTED", iteration()), ("MOST_ENDED", iteration(finished()))])
def test_where_the_exporter_is_held_up_little_is_kept(
    most: str, of_step: Any, recorder: Any, logger: LensdStatLogger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugin, most, 30)
    for _ in range(200):
        logger.record(scheduler(), of_step)
        load = logger._loads[0].load
        assert len(load.ended if most == "MOST_ENDED" else load._steps) <= 33
    recorder.post()
    assert len(recorder.events) == 200 * len(of_step.finished_requests)
    logger.record(scheduler(running=0, waiting=0, deferred=0), of_step)
    recorder.post()
    assert recorder.values()[GENERATED] == 201 * 8.0


def test_while_another_thread_looks_a_step_is_only_noted(recorder: Any, logger: LensdStatLogger, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plugin, "MOST_NOTED", 30)
    with logger._looking:
        for _ in range(100):
            logger.record(scheduler(), iteration())
    assert recorder.metrics == []
    recorder.post()
    assert recorder.values()[GENERATED] == 800.0


def test_ranks_are_told_apart(recorder: Any, sends: None) -> None:
    together = LensdStatLogger(vllm_config=CONFIG, engine_indexes=[0, 1])  # as an aggregate logger is made
    alone = LensdStatLogger(CONFIG, 3)
    together.record(scheduler(running=5), None, None, engine_idx=0)
    together.record(scheduler(running=7), None, None, engine_idx=1)
    alone.record(scheduler(running=9), None, None)
    recorder.post()
    running = {dict(labels)["engine"]: value for (name, labels), value in recorder.values().items() if name == "vllm:num_requests_running"}
    assert running == {"0": 5.0, "1": 7.0, "3": 9.0}


@pytest.mark.parametrize(("servers", "has_counters"), [(1, True), (2, False)])
def test_one_of_several_api_servers_sends_no_counters(servers: int, has_counters: bool, recorder: Any, sends: None) -> None:
    config = SimpleNamespace(parallel_config=SimpleNamespace(_api_process_count=servers))
    LensdStatLogger(config, 0).record(scheduler(), iteration(finished()))
    recorder.post()
    assert (any(kind == "counter" for _, kind, _ in recorder.metrics), len(recorder.events)) == (has_counters, 1)


class Hostile:
    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("changed")


@pytest.mark.parametrize("name", ["queued_time", "finish_reason", "num_preemptions", "e2e_latency"])
def test_a_field_that_fails_costs_that_field_only(name: str, recorder: Any, logger: LensdStatLogger) -> None:
    class Odd(SimpleNamespace):
        def __getattribute__(self, wanted: str) -> Any:
            if wanted == name:
                raise RuntimeError("changed")
            return super().__getattribute__(wanted)

    logger.record(scheduler(), iteration(finished(), Odd(**vars(finished()))))
    recorder.post()
    whole, said = map(recorder.attributes, recorder.events)
    assert len(whole.keys() - said) == 1
    assert recorder.batches == [12 if name != "finish_reason" else 13]  # one more ended for an unknown reason


def test_stats_that_fail_end_nothing(recorder: Any, logger: LensdStatLogger) -> None:
    for _ in range(3):
        logger.record(Hostile(), Hostile())
        recorder.post()
    assert recorder.batches == []
    logger.record(scheduler(), iteration(Hostile(), finished()))
    recorder.post()
    assert len(recorder.events) == 1
    assert "vllm:num_requests_running" in {name for name, _ in recorder.values()}


def test_an_exporter_that_fails_is_one_line_for_each_part(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    calls: list[Any] = []

    class Fails(Hostile):
        before_posting = calls.append

    monkeypatch.setattr(plugin, "sender", lambda: Sender(Fails(), {}))  # type: ignore[arg-type]
    logger = LensdStatLogger(CONFIG)
    for _ in range(3):
        logger.record(scheduler(), iteration(finished()))
        logger.log()
        calls[0]()
    assert [record.args[0] for record in caplog.records if record.args] == ["finished requests", "load"]


WHATEVER = st.one_of(
    st.none(), st.integers(), st.floats(), st.text(), st.lists(st.integers()), st.just(Hostile()), st.just(finished()), st.just(10**400),
    st.builds(scheduler, running=st.integers() | st.floats() | st.none(), kv_cache_usage=st.floats() | st.text()),
    st.builds(iteration, num_generation_tokens=st.integers() | st.just(10**400), finished_requests=st.integers() | st.text() | st.none()),
)  # fmt: skip


@settings(deadline=None)
@given(WHATEVER, WHATEVER, st.lists(WHATEVER, max_size=3))
def test_nothing_makes_it_raise(scheduler_stats: Any, iteration_stats: Any, more: list[Any]) -> None:
    made = LensdStatLogger(Hostile(), 0)
    made._sender = make_sender({"LENSD_OTLP": "http://127.0.0.1:1"})
    assert made._sender is not None
    made.record(scheduler_stats, iteration_stats, *more, later="argument")
    made.record(scheduler_stats, SimpleNamespace(finished_requests=more))
    made.log()
    made.log_engine_initialized()
    made.record_sleep_state(1, 2)
    made._sender.exporter.close(0)


def test_a_step_costs_little(recorder: Any, logger: LensdStatLogger) -> None:
    stats, of_step = scheduler(), iteration()
    seconds = min(timeit.repeat(lambda: logger.record(stats, of_step), number=500, repeat=5)) / 500
    assert seconds < 200e-6  # it is some 10 µs on one core of its own; a step takes milliseconds


def test_without_a_receiver_it_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert make_sender({}) is None
    monkeypatch.setattr(plugin, "sender", lambda: None)
    made = LensdStatLogger(Hostile(), 0)
    made.record(Hostile(), Hostile())
    made.log()


@pytest.mark.parametrize(
    "environment", [{"LENSD_OTLP": "nowhere://"}, {"LENSD_OTLP": "http://127.0.0.1:1", "LENSD_TOKEN_FILE": "/no/such/file"}]
)
def test_environment_of_no_use_is_one_line(environment: dict[str, str], caplog: pytest.LogCaptureFixture) -> None:
    assert make_sender(environment) is None
    assert caplog.text.count("lensd sends nothing") == 1


def test_import_brings_nothing_but_lensd_and_msgspec() -> None:
    code = """
        import sys, msgspec, msgspec.json
        before = {name.partition(".")[0] for name in sys.modules} | sys.stdlib_module_names
        import lensd_collectors.vllm.plugin, lensd_collectors.vllm.middleware
        print({name.partition(".")[0] for name in sys.modules} - before)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "{'lensd_collectors'}"
