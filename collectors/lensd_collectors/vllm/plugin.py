"""vLLM stat logger that sends the engine's own record of each finished request, and its load and counters once a second.

Loaded by the entry point `vllm.stat_logger_plugins` in the API-server process. `record` runs on that process's event loop
at every engine step, and an exception out of it would end the engine: so nothing here waits, and nothing raises. It notes what
it is told and leaves the rest to the exporter's thread: between two steps nothing of ours is left in the processor's caches,
and code that runs then costs ten times as much as it does many times in a row.
vLLM calls its stats classes no stable interface: every field is looked for, none is relied on.
"""

import contextlib
import functools
import importlib
import inspect
import logging
import os
import sys
import threading
import time
from typing import TYPE_CHECKING, Any, Final

from lensd_collectors import conventions, span_json
from lensd_collectors.otlp import Value
from lensd_collectors.vllm.fields import field, finite, number
from lensd_collectors.vllm.finished import finished_record
from lensd_collectors.vllm.load import Ended, Load
from lensd_collectors.vllm.sender import Sender, sender

log = logging.getLogger("lensd.vllm")

LOAD_EVERY_S: Final = 1.0
MOST_NOTED: Final = 1 << 14  # numbers that wait to be added up
MOST_ENDED: Final = 1024  # steps whose finished requests wait to be sent
MOST_SKEW_S: Final = 3600.0
LOGGERS: Final = "vllm.v1.metrics.loggers"
BASES: Final = ("StatLoggerBase", "AggregateStatLoggerBase")


def _stat_logger_base() -> type[Any]:
    """vLLM's base class where vLLM is already running; importing it is never started from here.

    Raises ImportError where it runs and has none: vLLM leaves out a plugin that can't be imported, and does not start with one
    that is no subclass.
    """
    if "vllm" not in sys.modules and LOGGERS not in sys.modules:
        return object
    loggers = sys.modules.get(LOGGERS) or importlib.import_module(LOGGERS)
    base, of_all = (getattr(loggers, name, None) for name in BASES)
    if isinstance(of_all, type) and (not isinstance(base, type) or issubclass(of_all, base)):
        return of_all  # called for all ranks; between vLLM and the other stands an adapter of vLLM's
    if isinstance(base, type):
        return base
    raise ImportError(f"this vLLM has no {BASES[0]} in {LOGGERS}: lensd's stat logger can't be used with it")


if TYPE_CHECKING:

    class Base:
        """Stands for vLLM's StatLoggerBase."""

        def __init__(self, *_: Any, **__: Any) -> None: ...
else:
    Base = _stat_logger_base()


class LensdStatLogger(Base):
    """One per engine core, or one for all its ranks. Without LENSD_OTLP in the environment it does nothing at all."""

    def __init__(self, vllm_config: Any = None, engine_index: Any = 0, *_: Any, **__: Any) -> None:
        with contextlib.suppress(Exception):  # a base that is abstract, or that wants other arguments
            super().__init__(vllm_config, engine_index)
        self._sender: Sender | None = None
        self._rank = engine_index if isinstance(engine_index, int) else 0
        self._loads: dict[int, _Sent] = {}
        self._looking = threading.Lock()
        self._says_again = False
        self._counts = True
        self._said_of_all = ""  # pairs of each finished request's record
        self._model: str | None = None
        self._told: set[str] = set()
        try:
            self._model = _model_name(vllm_config)
            self._counts = not _shares_engine(vllm_config)
            made = sender()
            if made is not None:
                self._said_of_all = span_json.pairs({**made.attributes, conventions.RESPONSE_MODEL: self._model})
                made.exporter.before_posting(self._look)
            self._sender = made
        except Exception as error:
            self._tell("configuration", error)

    def record(self, scheduler_stats: Any = None, iteration_stats: Any = None, *_: Any, engine_idx: Any = None, **__: Any) -> None:
        """Called by vLLM after each engine step; either of the stats may be None."""
        if self._sender is None:
            return
        try:
            load = (self._loads.get(engine_idx) or self._sent(engine_idx)).load
            if load.note(scheduler_stats, iteration_stats) > MOST_NOTED or len(load.ended) > MOST_ENDED:
                self._look()  # the exporter's thread is held up
        except Exception as error:
            self._tell("load", error)

    def log(self, *_: Any, **__: Any) -> None:
        """Called at vLLM's own log interval, 10 s: has it said again how an engine stands of which no step has come since."""
        self._says_again = True

    def log_engine_initialized(self, *_: Any, **__: Any) -> None:
        """Nothing to say: the agent reads an engine's set-up."""

    def record_sleep_state(self, *_: Any, **__: Any) -> None:
        """Nothing to say: the engine's own metrics show it."""

    def record_admission_rejection(self, *_: Any, **__: Any) -> None:
        """Nothing to say: the engine's own metrics and the middleware show it."""

    def _sent(self, engine_idx: Any) -> "_Sent":
        rank = engine_idx if isinstance(engine_idx, int) else self._rank
        return self._loads.get(rank) or self._loads.setdefault(rank, _Sent(Load(counts=self._counts)))

    def _look(self) -> None:
        """Adds up what was noted, and sends what is due; does nothing where another thread is at it."""
        if (to := self._sender) is None or not self._looking.acquire(blocking=False):
            return
        try:
            now, says_again, self._says_again = time.monotonic(), self._says_again, False
            for rank, sent in tuple(self._loads.items()):
                for _ in range(len(sent.load.ended)):
                    self._requests(to, sent.load, sent.load.ended.popleft())
                sent.has_news |= sent.load.add_up()
                if sent.is_due(now, says_again=says_again):
                    self._send(to, rank, sent, now)
        except Exception as error:
            self._tell("load", error)
        finally:
            self._looking.release()

    def _requests(self, to: Sender, load: Load, ended: Ended) -> None:
        try:
            finished, at_ns = load.end(ended), _instant(ended.at)
            for each in finished:
                request_id = field(each, "request_id")
                if isinstance(request_id, str) and request_id:  # vLLM before 0.22 does not say whose record it is
                    to.exporter.logs(functools.partial(finished_record, each, request_id, at_ns, self._said_of_all), 1)
        except Exception as error:
            self._tell("finished requests", error)

    def _send(self, to: Sender, rank: int, sent: "_Sent", now: float) -> None:
        """All series of one engine with one instant, in one body."""
        sent.at, sent.was_busy, sent.has_news = now, sent.load.is_busy, False
        at_ns = time.time_ns()
        labels: dict[str, Value | None] = {**to.attributes, "model_name": self._model, "engine": str(rank)}
        with to.exporter.batch() as batch:
            for name, more, value, is_counter in sent.load.values():
                put = batch.counter if is_counter else batch.gauge
                put(name, value, at_ns=at_ns, attributes={**labels, **more})

    def _tell(self, what: str, error: Exception) -> None:
        """Once for each part; the others go on."""
        if what not in self._told:
            self._told.add(what)
            log.warning("lensd does not understand this vLLM's %s (%s) and leaves them out", what, type(error).__name__)


class _Sent:
    """A load, and when it was last sent."""

    def __init__(self, load: Load) -> None:
        self.load = load
        self.at = float("-inf")
        self.was_busy = False
        self.has_news = False  # steps have come since

    def is_due(self, now: float, *, says_again: bool) -> bool:
        """Once a second while steps come, and at once when the engine has fallen idle."""
        if not self.load.is_known or not (self.has_news or says_again):
            return False
        return now - self.at >= LOAD_EVERY_S or (self.was_busy and not self.load.is_busy)


def _make_concrete(made: type[Any]) -> None:
    """Gives the class every method that a later base may call for, each doing nothing: without one vLLM could not start."""
    for name in tuple(getattr(made, "__abstractmethods__", ())):
        wanted = getattr(made, name, None)
        setattr(made, name, _nothing_async if inspect.iscoroutinefunction(wanted) else _nothing)
    made.__abstractmethods__ = frozenset()


def _nothing(*_: Any, **__: Any) -> None: ...


async def _nothing_async(*_: Any, **__: Any) -> None: ...


_make_concrete(LensdStatLogger)


def _instant(said: Any) -> int:
    """When a step's outputs were read, which is where the requests' own times end; nanoseconds since the epoch."""
    now, at = time.time_ns(), finite(said)
    return now if at is None or abs(at - now / 1e9) > MOST_SKEW_S else int(at * 1e9)


def _model_name(vllm_config: Any) -> str | None:
    """The first served name, as in the engine's own metrics."""
    served = field(field(vllm_config, "model_config"), "served_model_name")
    if isinstance(served, (list, tuple)):
        served = served[0] if served else None
    return served if isinstance(served, str) else None


def _shares_engine(vllm_config: Any) -> bool:
    """Several API servers share the engine, and each is told of a part of its steps."""
    servers = number(field(vllm_config, "parallel_config"), "_api_process_count")
    return servers > 1 if servers is not None else "PROMETHEUS_MULTIPROC_DIR" in os.environ
