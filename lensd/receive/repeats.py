"""Which bodies are known already: a sender that got no answer sends the same one again, and it must not count twice.

A body is known by 64 bits of a hash for 24 to 25 h after it was acknowledged. Of so many that they would take more than 16 MiB, the
oldest are forgotten first: the latest 1.4 million are kept for sure.
"""

import threading
from array import array
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from typing import Final, NamedTuple

from lensd.store.bodies import hash_of
from lensd.store.interface import Store
from lensd.store.journal import Journal

KEPT_US: Final = 24 * 3600 * 1_000_000
A_RUN: Final = 1 << 15
MOST: Final = 45 * A_RUN
_RUN_US: Final = 3600 * 1_000_000


class _Run(NamedTuple):
    """Sorted hashes, and when the last of them came in. Eight bytes each, where a set takes a hundred."""

    hashes: "array[int]"
    last_us: int


class Repeats:
    """Bodies acknowledged of late, and those at work; any thread may ask. Instants are microseconds since the epoch."""

    def __init__(self, *, a_run: int = A_RUN, most: int = MOST) -> None:
        self._a_run, self._most = a_run, most
        self._lock = threading.Lock()
        self._at_work: dict[int, Future[int]] = {}
        self._recent: set[int] = set()
        self._since_us = self._last_us = 0  # when the first and the last of the recent ones came in
        self._runs: deque[_Run] = deque()  # oldest first
        self._kept = 0  # in the runs

    def __len__(self) -> int:
        return self._kept + len(self._recent)

    def learn(self, bodies: Iterable[tuple[int, int]]) -> None:
        """Bodies that were acknowledged before: hash and time of receipt, oldest first."""
        with self._lock:
            for key, at_us in bodies:
                self._add(key, at_us)

    def enter(self, key: int, at_us: int, write: Callable[[], Future[int]]) -> tuple[Future[int] | None, bool]:
        """The future to wait for before a body is acknowledged, and whether the body is one sent again.

        None: it was acknowledged before. A body at work gives the future of the first; any other that of `write`. Whatever `write`
        raises is raised, and the body is not remembered; nor is one whose future fails.
        """
        with self._lock:
            self._forget(at_us)
            if self._knows(key):
                return None, True
            if key in self._at_work:
                return self._at_work[key], True
            future = self._at_work[key] = write()
        future.add_done_callback(lambda done: self._settle(key, at_us, done))
        return future, False

    def _settle(self, key: int, at_us: int, done: Future[int]) -> None:
        with self._lock:
            del self._at_work[key]
            if not done.cancelled() and done.exception() is None:
                self._add(key, at_us)

    def _knows(self, key: int) -> bool:
        return key in self._recent or any(_holds(run.hashes, key) for run in self._runs)

    def _add(self, key: int, at_us: int) -> None:
        if self._recent and (len(self._recent) >= self._a_run or at_us - self._since_us >= _RUN_US):
            self._seal()
        if not self._recent:
            self._since_us = self._last_us = at_us
        self._last_us = max(self._last_us, at_us)
        self._recent.add(key)

    def _seal(self) -> None:
        self._runs.append(_Run(array("Q", sorted(self._recent)), self._last_us))
        self._kept += len(self._recent)
        self._recent = set()
        while self._kept > self._most:
            self._kept -= len(self._runs.popleft().hashes)

    def _forget(self, now_us: int) -> None:
        while self._runs and self._runs[0].last_us < now_us - KEPT_US:
            self._kept -= len(self._runs.popleft().hashes)
        if self._recent and self._last_us < now_us - KEPT_US:
            self._recent = set()


def remembered(store: Store, journal: Journal, now_us: int) -> Repeats:
    """What earlier runs have acknowledged: what the store says of it, then what the journal holds beyond the store."""
    since, made = now_us - KEPT_US, Repeats()
    made.learn(store.bodies(since, MOST))
    undrained = journal.read_from(store.position())
    made.learn((hash_of(record.kind, record.payload), record.received_at_us) for record in undrained if record.received_at_us >= since)
    return made


def _holds(hashes: "array[int]", key: int) -> bool:
    place = bisect_left(hashes, key)
    return place < len(hashes) and hashes[place] == key
