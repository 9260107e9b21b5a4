"""Hands spans, events and metrics to an OTLP receiver without ever holding up or failing the program it runs in.

Bounded, dropping, counting: a full queue drops the newest record, an unreachable receiver is tried again with back-off.
Standard library and msgspec only, since it runs inside other people's engines.
"""

import contextlib
import logging
import random
import socket
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NamedTuple

import msgspec

from lensd_collectors import conventions, otlp, span_json
from lensd_collectors.otlp import Value
from lensd_collectors.post import Post, Reply, Result
from lensd_collectors.signals import Batch, Pending, Records

log = logging.getLogger("lensd.export")

BATCH_RECORDS: Final = 4096  # a body costs as much as some twenty requests of a busy gateway


class Item(NamedTuple):
    """Records that travel in one body, each with how many it stands for, and how many they come to."""

    records: tuple[tuple[Pending, int], ...]
    weight: int


__all__ = ["Backoff", "Batch", "Exporter", "Value"]


class Backoff(msgspec.Struct, frozen=True):
    """How long to wait before the next attempt; a receiver's Retry-After is a lower bound."""

    first_s: float = 0.2
    most_s: float = 10.0
    most_attempts: int = 5  # for an answer that is not known to be temporary (500)

    def wait_s(self, attempt: int, retry_after_s: float | None, jitter: float) -> float:
        """Seconds after failed attempt number `attempt` (from 1); `jitter` lies in 0..1."""
        grown = min(self.most_s, self.first_s * 2.0 ** min(attempt - 1, 16))
        return max(grown * (0.5 + jitter / 2), min(retry_after_s or 0.0, 60.0))


class Exporter(Records):
    """Posts records in the background; make it in the process that uses it, its thread starts with the first record.

    `sent`, `dropped` (queue full, or closed), `failed` (the receiver refused it, or it could not be encoded) and `ambiguous`
    (sent again after an attempt whose outcome is unknown: may have arrived twice) count records.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        token: str | None,
        service: str,
        scope: str,
        resource: Mapping[str, Value] | None = None,
        capacity: int = 10_000,
        flush_every_s: float = 0.5,
        timeout_s: float = 5.0,
        backoff: Backoff = Backoff(),  # noqa: B008 - frozen
        jitter: Callable[[], float] = random.random,
    ) -> None:
        self.sent = self.dropped = self.failed = self.ambiguous = 0
        self._post = Post(endpoint, token, timeout_s)
        self._scope = otlp.Scope(name=scope)
        self._resource = _resource(service, resource or {})
        self._before_spans, self._after_spans = self._around_spans()
        self._capacity, self._flush_every_s = capacity, flush_every_s
        self._backoff, self._jitter = backoff, jitter
        self._queue: deque[Item] = deque()
        self._held = 0  # records queued or in flight
        self._taken, self._finished = 0, 0  # records ever queued, records done with
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)  # for flush: something was finished
        self._wake = threading.Event()  # for the thread: post now
        self._closed = threading.Event()
        self._give_up_at: float | None = None
        self._thread: threading.Thread | None = None
        self._reachable = True
        self._calls: list[Callable[[], None]] = []

    @property
    def held(self) -> int:
        """Records queued or in flight."""
        return self._held

    def before_posting(self, call: Callable[[], None]) -> None:
        """Has `call` called before each posting, idle or not: mostly on the exporter's thread, which starts now.

        For what is better looked at seldom and all at once than whenever it comes; `call` hands its records in as always.
        """
        self._calls.append(call)
        with self._lock:
            if self._thread is None and not self._closed.is_set():
                self._start()

    @contextlib.contextmanager
    def batch(self) -> Iterator[Batch]:
        """Collects records that must arrive together, such as one scrape; queued as one item at the end of the with block.

        An error in the block passes through and nothing of the batch is queued.
        """
        collected = Batch()
        yield collected
        if collected.records:
            self._enqueue(Item(tuple(collected.records), collected.count))

    def flush(self, timeout_s: float = 5.0) -> bool:
        """Posts what is queued now; True when all of it was sent, refused or dropped before `timeout_s` ran out."""
        self._ask()
        self._wake.set()
        with self._changed:
            target = self._taken
            return self._changed.wait_for(lambda: self._finished >= target, timeout_s)

    def close(self, timeout_s: float = 5.0) -> None:
        """Flushes, then stops; what could not be sent in time is counted as dropped. Later records are dropped too."""
        if self._closed.is_set():
            return
        self._give_up_at = time.monotonic() + timeout_s
        self._ask()
        self._closed.set()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(timeout_s + 0.5)
        with self._changed:
            self.dropped += sum(item.weight for item in self._queue)
            self._queue.clear()

    def _put(self, record: Pending, count: int = 1) -> None:
        self._enqueue(Item(((record, count),), count))

    def _enqueue(self, item: Item) -> None:
        with self._lock:
            if self._closed.is_set() or self._held + item.weight > self._capacity:
                self.dropped += item.weight
                return
            self._queue.append(item)
            self._held += item.weight
            self._taken += item.weight
            if self._thread is None:
                self._start()
        if self._held >= BATCH_RECORDS and not self._wake.is_set():
            self._wake.set()

    def _start(self) -> None:
        thread = threading.Thread(target=self._run, name="lensd-export", daemon=True)
        try:
            thread.start()
        except RuntimeError:  # no more threads, or the interpreter is shutting down
            return
        self._thread = thread

    def _run(self) -> None:
        while True:
            self._wake.wait(self._flush_every_s)
            self._wake.clear()
            self._ask()
            while taken := self._take():
                self._deliver(taken)
                with self._changed:
                    self._held -= taken.weight
                    self._finished += taken.weight
                    self._changed.notify_all()
            if self._closed.is_set():
                return

    def _ask(self) -> None:
        for call in self._calls:
            try:
                call()
            except Exception:  # a fault there costs its records, never the thread
                log.debug("records left out", exc_info=True)

    def _take(self) -> Item | None:
        """The oldest items, up to a body's worth; an item is never split."""
        records: list[tuple[Pending, int]] = []
        count = 0
        with self._lock:
            while self._queue and (not records or count + self._queue[0].weight <= BATCH_RECORDS):
                item = self._queue.popleft()
                records += item.records
                count += item.weight
        return Item(tuple(records), count) if records else None

    def _deliver(self, taken: Item) -> None:
        spans: list[bytes] = []
        logs: list[bytes] = []
        span_count = log_count = 0
        points: list[tuple[str, str, otlp.Metric]] = []
        for make, count in taken.records:
            try:
                made = make()
            except Exception as error:  # a caller's odd value costs that record, never the rest
                self.failed += count
                log.debug("record left out: %s", error)
                continue
            if isinstance(made, list):
                spans += [each.encode() for each in made]
                span_count += count
            elif isinstance(made, str):
                logs.append(made.encode())
                log_count += count
            else:
                points.append(made)
        bodies: tuple[tuple[str, int, Callable[[], bytes]], ...] = (
            ("/v1/metrics", len(points), lambda: self._metrics(points)),
            ("/v1/traces", span_count, lambda: self._traces(spans)),
            ("/v1/logs", log_count, lambda: self._logs(logs)),
        )
        for path, number, write in bodies:
            if not number:
                continue
            try:
                self._send(path, write(), number)
            except Exception:  # a fault of ours costs this body, never the thread
                self.failed += number
                log.debug("body left out", exc_info=True)

    def _metrics(self, points: list[tuple[str, str, otlp.Metric]]) -> bytes:
        scope_metrics = otlp.ScopeMetrics(scope=self._scope, metrics=otlp.metrics(points))
        resource_metrics = otlp.ResourceMetrics(resource=self._resource, scope_metrics=[scope_metrics])
        return otlp.encode(otlp.MetricsBody(resource_metrics=[resource_metrics]))

    def _traces(self, spans: list[bytes]) -> bytes:
        """Put together in one step: the body of a busy gateway is megabytes long, and copying or searching it costs more than the rest."""
        spans[0] = self._before_spans + spans[0]
        spans[-1] += self._after_spans
        return b",".join(spans)

    def _around_spans(self) -> tuple[bytes, bytes]:
        scope_spans = otlp.ScopeSpans(scope=self._scope, spans=msgspec.Raw(f"[{span_json.GAP}]".encode()))
        resource_spans = otlp.ResourceSpans(resource=self._resource, scope_spans=[scope_spans])
        before, _, after = otlp.encode(otlp.TracesBody(resource_spans=[resource_spans])).partition(span_json.GAP.encode())
        return before, after

    def _logs(self, logs: list[bytes]) -> bytes:
        scope_logs = otlp.ScopeLogs(scope=self._scope, log_records=msgspec.Raw(b"[%b]" % b",".join(logs)))
        return otlp.encode(otlp.LogsBody(resource_logs=[otlp.ResourceLogs(resource=self._resource, scope_logs=[scope_logs])]))

    def _send(self, path: str, data: bytes, count: int) -> None:
        """Posts until the receiver takes the body or refuses it for good; a body never makes room for a newer one."""
        attempt = 0
        while True:
            reply = self._post.send(path, data)
            attempt += 1
            self._tell(reply)
            if reply.result is Result.TAKEN:
                rejected = min(count, reply.rejected)
                self.sent += count - rejected
                self.failed += rejected
                return
            if reply.result is Result.REFUSED or (reply.result is Result.ERROR and attempt >= self._backoff.most_attempts):
                self.failed += count
                return
            if not self._pause(self._backoff.wait_s(attempt, reply.retry_after_s, self._jitter())):
                self.dropped += count
                return
            if reply.result is Result.UNCERTAIN:
                self.ambiguous += count

    def _pause(self, seconds: float) -> bool:
        """Waits; False when the exporter is closing and its time is up."""
        if not self._closed.is_set():
            self._closed.wait(seconds)
            return True
        left = (self._give_up_at or 0.0) - time.monotonic()
        if left <= 0:
            return False
        time.sleep(min(seconds, left, 0.2))
        return True

    def _tell(self, reply: Reply) -> None:
        """One line when the receiver stops taking records and one when it takes them again."""
        taken = reply.result is Result.TAKEN
        if taken == self._reachable:
            return
        self._reachable = taken
        if taken:
            log.info("export to %s works again; %d records dropped, %d failed so far", self._post.place, self.dropped, self.failed)
        else:
            log.warning("export to %s failed: %s; serving goes on without it", self._post.place, reply.reason)


def _resource(service: str, extra: Mapping[str, Value]) -> otlp.Resource:
    named: dict[str, Value] = {
        conventions.SERVICE_NAME: service,
        conventions.SERVICE_INSTANCE_ID: str(uuid.uuid4()),
        conventions.HOST_NAME: socket.gethostname(),
    }
    return otlp.Resource(attributes=otlp.key_values({**named, **extra}))
