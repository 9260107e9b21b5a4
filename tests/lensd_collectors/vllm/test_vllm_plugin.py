"""The stat logger tells what the engine measured, and nothing that the engine does can make it raise."""

import enum
import subprocess
import sys
import textwrap
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lensd_collectors.vllm import plugin
from lensd_collectors.vllm.plugin import LensdStatLogger, finished_attributes
from lensd_collectors.vllm.sender import Sender, make_sender

CONFIG = SimpleNamespace(model_config=SimpleNamespace(served_model_name=["tiny-llama", "alias"]))


class FinishReason(enum.IntEnum):
    STOP = 0
    LENGTH = 1


def finished(**changes: Any) -> SimpleNamespace:
    """As vLLM 0.32 fills it in."""
    fields: dict[str, Any] = {
        "finish_reason": FinishReason.LENGTH, "request_id": "chatcmpl-r1", "e2e_latency": 2.5, "num_prompt_tokens": 12,
        "num_preemptions": 1, "num_generation_tokens": 16, "max_tokens_param": 16, "queued_time": 0.25, "prefill_time": 0.5,
        "inference_time": 2.0, "decode_time": 1.5, "mean_time_per_output_token": 0.1, "is_corrupted": False, "num_cached_tokens": 0,
    }  # fmt: skip
    return SimpleNamespace(**(fields | changes))


def load(running: int, waiting: int, deferred: int = 0) -> SimpleNamespace:
    return SimpleNamespace(num_running_reqs=running, num_waiting_reqs=waiting, num_skipped_waiting_reqs=deferred, kv_cache_usage=0.5)


class Clock:
    now = 100.0

    def monotonic(self) -> float:
        return self.now

    def time_ns(self) -> int:
        return int(self.now * 1e9)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(plugin, "time", made)
    return made


@pytest.fixture
def logger(recorder: Any, monkeypatch: pytest.MonkeyPatch, clock: Clock) -> LensdStatLogger:
    monkeypatch.setattr(plugin, "sender", lambda: Sender(recorder, {"lensd.engine": "e0", "lensd.engine.kind": "vllm"}))
    return LensdStatLogger(CONFIG, 0)


def iteration(*requests: Any) -> SimpleNamespace:
    return SimpleNamespace(finished_requests=list(requests))


def test_finished_request(recorder: Any, logger: LensdStatLogger) -> None:
    logger.record(None, iteration(finished()), mm_cache_stats=None, engine_idx=0)
    [event] = recorder.events
    assert event.event_name == "lensd.engine.request"
    assert recorder.attributes(event) == {
        "event.name": "lensd.engine.request", "lensd.engine": "e0", "lensd.engine.kind": "vllm", "gen_ai.response.model": "tiny-llama",
        "gen_ai.response.id": "chatcmpl-r1", "lensd.engine.queue_ms": 250.0, "lensd.engine.prefill_ms": 500.0,
        "lensd.engine.decode_ms": 1500.0, "lensd.engine.e2e_ms": 2500.0, "lensd.engine.preemptions": "1",
        "gen_ai.usage.input_tokens": "12", "gen_ai.usage.output_tokens": "16", "gen_ai.usage.cache_read.input_tokens": "0",
        "gen_ai.request.max_tokens": "16", "gen_ai.response.finish_reasons": ["length"],
    }  # fmt: skip


STAGES = ("lensd.engine.queue_ms", "lensd.engine.prefill_ms", "lensd.engine.decode_ms")


@pytest.mark.parametrize(
    ("queued_ts", "scheduled_ts", "first_token_ts", "last_token_ts", "reached"),
    [
        (10.0, 11.0, 12.0, 13.0, 3),
        (10.0, 11.0, 0.0, 0.0, 1),  # left before its first token
        (10.0, 0.0, 0.0, 0.0, 0),  # never scheduled
    ],
)
def test_stages_not_reached_are_absent(
    queued_ts: float, scheduled_ts: float, first_token_ts: float, last_token_ts: float, reached: int
) -> None:
    said = finished_attributes(
        finished(
            queued_time=scheduled_ts - queued_ts, prefill_time=first_token_ts - scheduled_ts, decode_time=last_token_ts - first_token_ts
        )
    )
    assert [said[name] is not None for name in STAGES] == [n < reached for n in range(3)]


def test_an_older_record_without_an_id_is_not_sent(recorder: Any, logger: LensdStatLogger) -> None:
    logger.record(None, iteration(finished(request_id=None), SimpleNamespace()))
    assert recorder.events == []


def test_missing_fields_are_absent(recorder: Any, logger: LensdStatLogger) -> None:
    logger.record(None, iteration(SimpleNamespace(request_id="cmpl-1-0", queued_time=0.0)))
    said = recorder.attributes(recorder.events[0])
    assert said["lensd.engine.queue_ms"] == 0.0
    assert not {"lensd.engine.prefill_ms", "lensd.engine.e2e_ms", "gen_ai.usage.input_tokens"} & set(said)


def test_load_is_sent_once_a_second(recorder: Any, logger: LensdStatLogger, clock: Clock) -> None:
    for _ in range(30):
        logger.record(load(2, 3, deferred=1), None)
        clock.now += 0.1
    assert recorder.batches == [3, 3, 3]
    values = {name: value for (name, _), value in recorder.values().items()}
    assert values == {"vllm:num_requests_running": 2.0, "vllm:num_requests_waiting": 4.0, "vllm:kv_cache_usage_perc": 0.5}


def test_falling_idle_is_said_at_once(recorder: Any, logger: LensdStatLogger, clock: Clock) -> None:
    logger.record(load(1, 0), None)
    clock.now += 0.01
    logger.record(load(0, 0), None)
    logger.record(load(0, 0), None)
    running = [metric.gauge.data_points[0].as_double for name, _, metric in recorder.metrics if name == "vllm:num_requests_running"]
    assert running == [1.0, 0.0]


class Hostile:
    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("changed")


def test_stats_that_fail_end_the_reports_not_the_engine(recorder: Any, logger: LensdStatLogger, caplog: pytest.LogCaptureFixture) -> None:
    for _ in range(3):
        logger.record(Hostile(), Hostile())
    logger.record(None, iteration(finished()))
    assert recorder.events == []
    assert caplog.text.count("does not understand this vLLM's stats") == 1


WHATEVER = st.one_of(st.none(), st.integers(), st.floats(), st.text(), st.lists(st.integers()), st.just(Hostile()), st.just(finished()))


@given(WHATEVER, WHATEVER, st.lists(WHATEVER, max_size=3))
def test_nothing_makes_it_raise(scheduler: Any, iteration_stats: Any, more: list[Any]) -> None:
    made = LensdStatLogger(Hostile(), 0)
    made._sender = make_sender({"LENSD_OTLP": "http://127.0.0.1:1"})
    assert made._sender is not None
    made.record(scheduler, iteration_stats, *more, later="argument")
    made.record(scheduler, SimpleNamespace(finished_requests=more))
    made.log()
    made.log_engine_initialized()
    made.record_sleep_state(1, 2)
    made._sender.exporter.close(0)


def test_without_a_receiver_it_does_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    assert make_sender({}) is None
    monkeypatch.setattr(plugin, "sender", lambda: None)
    made = LensdStatLogger(Hostile(), 0)
    made.record(Hostile(), Hostile())


@pytest.mark.parametrize(
    "environment", [{"LENSD_OTLP": "nowhere://"}, {"LENSD_OTLP": "http://127.0.0.1:1", "LENSD_TOKEN_FILE": "/no/such/file"}]
)
def test_environment_of_no_use_is_one_line(environment: dict[str, str], caplog: pytest.LogCaptureFixture) -> None:
    assert make_sender(environment) is None
    assert caplog.text.count("lensd sends nothing") == 1


def run(code: str) -> str:
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True, timeout=60)
    return done.stdout.strip()


def test_import_brings_nothing_but_lensd_and_msgspec() -> None:
    assert (
        run("""
        import sys, msgspec, msgspec.json
        before = {name.partition(".")[0] for name in sys.modules} | sys.stdlib_module_names
        import lensd_collectors.vllm.plugin, lensd_collectors.vllm.middleware
        print({name.partition(".")[0] for name in sys.modules} - before)
    """)
        == "{'lensd_collectors'}"
    )


def test_beside_a_running_vllm_it_is_a_stat_logger() -> None:
    assert (
        run("""
        import abc, sys, types
        class StatLoggerBase(abc.ABC):
            @abc.abstractmethod
            def __init__(self, vllm_config, engine_index=0): ...
            @abc.abstractmethod
            def record(self, scheduler_stats, iteration_stats, mm_cache_stats=None, engine_idx=0): ...
            @abc.abstractmethod
            def log_engine_initialized(self): ...
        loggers = types.ModuleType("vllm.v1.metrics.loggers")
        loggers.StatLoggerBase = StatLoggerBase
        sys.modules |= {"vllm": types.ModuleType("vllm"), "vllm.v1.metrics.loggers": loggers}
        from lensd_collectors.vllm.plugin import LensdStatLogger
        print(issubclass(LensdStatLogger, StatLoggerBase), LensdStatLogger(None, engine_index=1).record(None, None, engine_idx=1))
    """)
        == "True None"
    )
