"""vLLM stat logger that sends the engine's own record of each finished request, and its load once a second.

Loaded by the entry point `vllm.stat_logger_plugins` in the API-server process. `record` runs on that process's event loop
at every engine step, and an exception out of it would end the engine: so nothing here waits, and nothing raises.
vLLM calls its stats classes no stable interface: every field is looked for, none is relied on.
"""

import importlib
import logging
import sys
import time
from typing import TYPE_CHECKING, Any, Final

from lensd_collectors import conventions
from lensd_collectors.otlp import Value
from lensd_collectors.vllm.sender import Sender, sender

log = logging.getLogger("lensd.vllm")

LOAD_EVERY_S: Final = 1.0
LOGGERS: Final = "vllm.v1.metrics.loggers"


def _stat_logger_base() -> type[Any]:
    """vLLM's StatLoggerBase where vLLM is already running; importing it is never started from here."""
    loggers = sys.modules.get(LOGGERS)
    if loggers is None and "vllm" in sys.modules:
        try:
            loggers = importlib.import_module(LOGGERS)
        except Exception:
            return object
    found = getattr(loggers, "StatLoggerBase", object)
    return found if isinstance(found, type) else object


if TYPE_CHECKING:

    class Base:
        """Stands for vLLM's StatLoggerBase."""
else:
    Base = _stat_logger_base()


class LensdStatLogger(Base):
    """One per engine core. Without LENSD_OTLP in the environment it does nothing at all."""

    def __init__(self, vllm_config: Any = None, engine_index: int = 0, *_: Any, **__: Any) -> None:
        self._sender: Sender | None = None
        self._labels: dict[str, Value | None] = {}
        self._attributes: dict[str, Value | None] = {}
        self._sent_at, self._was_busy = 0.0, False
        self._failed = False
        try:
            self._sender = sender()
            if self._sender is not None:
                model = _model_name(vllm_config)
                self._labels = {**self._sender.attributes, "model_name": model, "engine": str(engine_index)}
                self._attributes = {**self._sender.attributes, conventions.RESPONSE_MODEL: model}
        except Exception as error:
            self._give_up(error)

    def record(self, scheduler_stats: Any = None, iteration_stats: Any = None, *_: Any, **__: Any) -> None:
        """Called by vLLM after each engine step; either of the stats may be None."""
        if self._sender is None or self._failed:
            return
        try:
            for finished in getattr(iteration_stats, "finished_requests", None) or ():
                self._request(self._sender, finished)
            if scheduler_stats is not None:
                self._load(self._sender, scheduler_stats)
        except Exception as error:
            self._give_up(error)

    def log_engine_initialized(self, *_: Any, **__: Any) -> None:
        """Nothing to say: the agent reads an engine's set-up."""

    def log(self, *_: Any, **__: Any) -> None:
        """Nothing to do at vLLM's own log interval."""

    def record_sleep_state(self, *_: Any, **__: Any) -> None:
        """Nothing to say: the engine's own metrics show it."""

    def record_admission_rejection(self, *_: Any, **__: Any) -> None:
        """Nothing to say: the engine's own metrics and the middleware show it."""

    def _request(self, to: Sender, finished: Any) -> None:
        request_id = getattr(finished, "request_id", None)
        if not isinstance(request_id, str) or not request_id:  # vLLM before 0.22 does not say whose record it is
            return
        attributes = {**self._attributes, conventions.RESPONSE_ID: request_id, **finished_attributes(finished)}
        to.exporter.event(conventions.EVENT_ENGINE_REQUEST, at_ns=time.time_ns(), attributes=attributes)

    def _load(self, to: Sender, stats: Any) -> None:
        """Once a second, and at once when the engine falls idle, since no step comes after that to correct the last value."""
        running, capacity = _number(stats, "num_running_reqs"), _number(stats, "num_waiting_reqs")
        deferred = _number(stats, "num_skipped_waiting_reqs")
        waiting = None if capacity is None else capacity + (deferred or 0.0)
        busy = (running or 0.0) + (waiting or 0.0)
        now = time.monotonic()
        if now - self._sent_at < LOAD_EVERY_S and not (busy == 0 and self._was_busy):
            return
        self._sent_at, self._was_busy = now, busy > 0
        at_ns = time.time_ns()
        values = {
            "vllm:num_requests_running": running,
            "vllm:num_requests_waiting": waiting,
            "vllm:kv_cache_usage_perc": _number(stats, "kv_cache_usage"),
        }
        with to.exporter.batch() as batch:
            for name, value in values.items():
                if value is not None:
                    batch.gauge(name, value, at_ns=at_ns, attributes=self._labels)

    def _give_up(self, error: Exception) -> None:
        self._failed = True
        log.warning("lensd does not understand this vLLM's stats (%s: %s) and sends no more of them", type(error).__name__, error)


def finished_attributes(finished: Any) -> dict[str, Value | None]:
    """What a FinishedRequestStats says, in milliseconds and with our names; what was not reached or is not there is None.

    A stage that was not reached shows as a negative time, since its end is still 0, and the stages after it as 0.
    """
    queue, prefill, decode = (_ms(finished, name) for name in ("queued_time", "prefill_time", "decode_time"))
    if queue is None or queue < 0:
        queue = prefill = decode = None
    elif prefill is None or prefill < 0:
        prefill = decode = None
    elif decode is None or decode < 0:
        decode = None
    e2e = _ms(finished, "e2e_latency")
    reason = getattr(finished, "finish_reason", None)
    return {
        conventions.QUEUE_MS: queue,
        conventions.PREFILL_MS: prefill,
        conventions.DECODE_MS: decode,
        conventions.E2E_MS: e2e if e2e is not None and e2e >= 0 else None,
        conventions.PREEMPTIONS: _count(finished, "num_preemptions"),
        conventions.INPUT_TOKENS: _count(finished, "num_prompt_tokens"),
        conventions.OUTPUT_TOKENS: _count(finished, "num_generation_tokens"),
        conventions.CACHED_TOKENS: _count(finished, "num_cached_tokens"),
        conventions.MAX_TOKENS: _count(finished, "max_tokens_param"),
        conventions.FINISH_REASONS: None if reason is None else [str(getattr(reason, "name", reason)).lower()],
    }


def _number(stats: Any, name: str) -> float | None:
    value = getattr(stats, name, None)
    return float(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else None


def _ms(stats: Any, name: str) -> float | None:
    value = _number(stats, name)
    return None if value is None else value * 1000.0


def _count(stats: Any, name: str) -> int | None:
    value = _number(stats, name)
    return int(value) if value is not None and value >= 0 else None


def _model_name(vllm_config: Any) -> str | None:
    """The first served name, as in the engine's own metrics."""
    served = getattr(getattr(vllm_config, "model_config", None), "served_model_name", None)
    if isinstance(served, (list, tuple)):
        served = served[0] if served else None
    return served if isinstance(served, str) else None
