"""An engine's load and counters, added up step by step, under the names that vLLM's own /metrics has for them.

vLLM adds up the same statistics for its own page, from the same beginning: so one process's counters here are those of its
page. Where several API servers share an engine each is told of a part of the steps only, and its sums are nobody's counters.
"""

import operator
from collections import deque
from collections.abc import Collection, Iterator
from typing import Any, Final, NamedTuple

from lensd_collectors.vllm.fields import amount, field, items, label, total

RUNNING: Final = "vllm:num_requests_running"
WAITING: Final = "vllm:num_requests_waiting"
WAITING_BY_REASON: Final = "vllm:num_requests_waiting_by_reason"
KV_USAGE: Final = "vllm:kv_cache_usage_perc"
FINISHED: Final = "vllm:request_success_total"

_OPEN: Final = ("num_running_reqs", "num_waiting_reqs", "num_skipped_waiting_reqs")
_OF_STEP: Final = (  # of IterationStats
    ("num_preempted_reqs", "vllm:num_preemptions_total"),
    ("num_prompt_tokens", "vllm:prompt_tokens_total"),
    ("num_generation_tokens", "vllm:generation_tokens_total"),
)
_OF_CACHE: Final = (("queries", "vllm:prefix_cache_queries_total"), ("hits", "vllm:prefix_cache_hits_total"))  # of PrefixCacheStats
_read_step, _read_cache = (operator.attrgetter(*(name for name, _ in what)) for what in (_OF_STEP, _OF_CACHE))
_NO_REASON: Final = "unknown"


class Value(NamedTuple):
    """One series, as it stands now."""

    name: str
    labels: dict[str, str]
    value: float
    is_counter: bool


class Ended(NamedTuple):
    """Of a step in which requests have ended, as vLLM says it."""

    at: Any  # seconds since the epoch
    finished: Any  # FinishedRequestStats


class Load:
    """One engine's, of one data-parallel rank. `counts`: False where its sums would not be the engine's.

    What a step says is noted on vLLM's event loop and added up elsewhere, many steps in one go. Only numbers are kept: with the
    steps' objects alive the garbage collector would run ten times as often.
    """

    def __init__(self, *, counts: bool = True) -> None:
        self.ended: deque[Ended] = deque()
        self._is_noted = False  # something since it was added up last
        self._counts = counts
        self._last: Any = None  # what the scheduler said last, read when it is asked for
        self._steps: list[Any] = []  # of each step the numbers of _OF_STEP, one after another; None where one could not be read
        self._caches: list[Any] = []  # the same of _OF_CACHE
        self._sums: dict[str, float] = {}
        self._finished: dict[str, float] = {}
        self._lost: set[str] = set()  # counters of which a step could not be read: a sum with a hole is no counter

    def note(self, scheduler_stats: Any, iteration_stats: Any) -> int:
        """Notes what vLLM says of one step, either may be None; how many numbers wait. Must cost little, cold above all."""
        if scheduler_stats is not None:
            self._last = scheduler_stats
            try:
                if (cache := scheduler_stats.prefix_cache_stats) is not None:
                    self._caches.extend(_read_cache(cache))
            except Exception:
                if (cache := field(scheduler_stats, "prefix_cache_stats")) is not None:
                    self._caches.extend([amount(cache, name) for name, _ in _OF_CACHE])
        if iteration_stats is not None:
            try:
                has_ended = iteration_stats.finished_requests
                self._steps.extend(_read_step(iteration_stats))
            except Exception:
                has_ended = field(iteration_stats, "finished_requests") != []
                self._steps.extend([amount(iteration_stats, name) for name, _ in _OF_STEP])
            if has_ended:
                self.ended.append(Ended(field(iteration_stats, "iteration_timestamp"), field(iteration_stats, "finished_requests")))
        self._is_noted = True
        return len(self._steps) + len(self._caches)

    def add_up(self) -> bool:
        """Adds what was noted since the last time; False where nothing was. Not by two threads at once."""
        was_noted, self._is_noted = self._is_noted, False
        self._add(self._steps, _OF_STEP)
        self._add(self._caches, _OF_CACHE)
        return was_noted

    def end(self, ended: Ended) -> Collection[Any]:
        """Counts the requests that ended in a step, and hands them out."""
        finished = items(ended.finished)
        if finished is None:
            self._lost.add(FINISHED)
            return ()
        for each in finished:
            reason = label(field(each, "finish_reason")) or _NO_REASON
            self._finished[reason] = self._finished.get(reason, 0.0) + 1.0
        return finished

    @property
    def is_known(self) -> bool:
        """A step has told how many requests run."""
        return amount(self._last, "num_running_reqs") is not None

    @property
    def is_busy(self) -> bool:
        return any(amount(self._last, name) for name in _OPEN)

    def values(self) -> Iterator[Value]:
        for name, reason, gauge in self._gauges():
            if gauge is not None:
                yield Value(name, {"reason": reason} if reason else {}, gauge, False)
        if not self._counts:
            return
        for name, value in self._sums.items():
            if name not in self._lost:
                yield Value(name, {}, value, True)
        if FINISHED not in self._lost:
            for reason, value in self._finished.items():
                yield Value(FINISHED, {"finished_reason": reason}, value, True)

    def _gauges(self) -> Iterator[tuple[str, str, float | None]]:
        """(name, reason, value). Since 0.22 requests that wait for something else than room are counted apart; before, with the others."""
        stats = self._last
        capacity, deferred = amount(stats, "num_waiting_reqs"), amount(stats, "num_skipped_waiting_reqs")
        yield RUNNING, "", amount(stats, "num_running_reqs")
        yield WAITING, "", None if capacity is None else capacity + (deferred or 0.0)
        if capacity is not None and deferred is not None:
            yield WAITING_BY_REASON, "capacity", capacity
            yield WAITING_BY_REASON, "deferred", deferred
        yield KV_USAGE, "", amount(stats, "kv_cache_usage")

    def _add(self, noted: list[Any], what: tuple[tuple[str, str], ...]) -> None:
        numbers = noted[:]
        del noted[: len(numbers)]  # more may have come meanwhile
        if not numbers:
            return
        if what is _OF_STEP:
            self._finished.setdefault("stop", 0.0)  # so that the first to end is seen as one more
        for place, (_, counter) in enumerate(what):
            value = total(numbers[place :: len(what)])
            if value is None:
                self._lost.add(counter)
            else:
                self._sums[counter] = self._sums.get(counter, 0.0) + value
