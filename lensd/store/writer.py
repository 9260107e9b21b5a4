"""The one writer: drains the journal into the store in large batches, so that no acknowledgement waits for the database."""

import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

import msgspec
import pyarrow as pa

from lensd.errors import StoreError, StoreFailedError
from lensd.store.arrow import Rows, batch_of, merged
from lensd.store.bodies import bodies_of
from lensd.store.interface import Batch, Store
from lensd.store.journal import Journal
from lensd.store.segments import Damage, Record, Signal, segment_of
from lensd.store.speed import Speed

log = logging.getLogger(__name__)

Decode = Callable[[Signal, bytes, int], Rows]
"""A journal record's kind, payload and time of receipt (microseconds) as rows of the public tables."""

MAX_RECORDS: Final = 512
MAX_BYTES: Final = 16 << 20
GATHER_S: Final = 0.05
RETRY_S: Final = 1.0
_MISFITS: Final = (pa.ArrowException, TypeError, ValueError, OverflowError)


class WriterCounts(msgspec.Struct, kw_only=True):
    """What a writer has done since it was made."""

    records: int = 0
    rows: int = 0
    batches: int = 0
    bad_records: int = 0  # left out: could not be decoded or stored
    failed_appends: int = 0  # tried again later
    failed_hooks: int = 0
    last_error: str = ""


class Writer:
    """Moves journal records into the store; `on_batch` is told which rows came in, on the writer's thread.

    A record that cannot be decoded is counted and left out. A store that cannot be written is tried again: the records stay
    in the journal, which in the end refuses new ones.
    """

    def __init__(
        self,
        journal: Journal,
        store: Store,
        decode: Decode,
        *,
        on_batch: Callable[[Rows], None] = lambda rows: None,
        clock: Callable[[], float] = time.time,
        ticks: Callable[[], float] = time.monotonic,
        max_records: int = MAX_RECORDS,
    ) -> None:
        if segment_of(store.reached()) > journal.newest_segment:
            raise StoreFailedError(
                f"journal {journal.folder} begins below what the store already holds; "
                "open it with after=store.reached(), else new records would be lost"
            )
        self._journal, self._store, self._decode, self._on_batch = journal, store, decode, on_batch
        self._clock, self._ticks, self._max_records = clock, ticks, max_records
        self._at = store.position()
        self._undone: tuple[list[Record], Decoded] | None = None  # not in the store yet
        self._oldest_us: int | None = None  # time of receipt of the oldest record not stored yet, where known
        self._work = threading.Lock()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._named = frozenset[Damage]()  # damage of the journal that the log has been told of
        self.counts = WriterCounts()
        self.speed = Speed()

    def start(self) -> None:
        self._thread = threading.Thread(target=self._drain_forever, name="lensd-writer", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Store what the journal holds, then end the thread. Close the journal first, so that nothing more comes in."""
        self._stop.set()
        if self._thread:
            self._thread.join()
        try:
            self.drain_now()
        except StoreError as error:  # stays in the journal for the next start
            log.warning("stopping with records left in the journal: %s", error)

    @property
    def lag_s(self) -> float:
        """Age of the oldest record not stored yet, or of the one before it; 0 with nothing left to do."""
        oldest = self._oldest_us
        return max(0.0, self._clock() - oldest / 1e6) if oldest is not None else 0.0

    def drain_now(self) -> None:
        """Store everything that is on the journal's disk by now. Raises StoreError where the store cannot be written."""
        with self._work:
            end = self._journal.end
            while self._at < end:
                self._step(end)

    def _drain_forever(self) -> None:
        while not self._stop.is_set():
            if not self._journal.wait(self._at, 0.5):
                self._stop.wait(0.0 if self._journal.end > self._at else GATHER_S)
                continue
            self._stop.wait(GATHER_S)  # let more gather: large batches are what makes the store fast
            try:
                self.drain_now()
            except (StoreError, OSError) as error:
                self._failed(error)
                self._stop.wait(RETRY_S)

    def _step(self, end: int) -> None:
        began = self._ticks()
        reached = self._store.reached()
        # After a crash between two files a batch must end where the one before it did: see Store.reached.
        until = reached if self._at < reached <= end else end
        if self._undone is None:
            records = list(_first(self._journal.read_from(self._at, until), self._max_records, MAX_BYTES))
            self._name_damage()
            if not records:
                self._at = until
                self._journal.drained(self._at)
                return
            self._oldest_us = records[0].received_at_us
            # Kept until stored: a decoder follows logs, so decoding twice would not give the same rows.
            self._undone = records, decoded(records, self._decode, self._bad)
        records, content = self._undone
        self._store.append(content.batch, records[-1].position, bodies_of(records))
        self._at, self._undone = records[-1].position, None
        self._oldest_us = records[-1].received_at_us if self._journal.end > self._at else None
        self._journal.drained(self._at)
        self.speed.stored(len(records), self._ticks() - began)
        self._done(records, content.rows)

    def _done(self, records: list[Record], rows: Rows) -> None:
        self.counts.records += len(records)
        self.counts.batches += 1
        self.counts.rows += sum(map(len, rows.values()))
        try:
            self._on_batch(rows)
        except Exception as error:  # the hook's trouble is not the store's
            self.counts.failed_hooks += 1
            self.counts.last_error = f"after a batch: {type(error).__name__}"
            log.exception("the hook after a batch failed")

    def _name_damage(self) -> None:
        """Say once what of the journal could not be read."""
        for damage in sorted(self._journal.damaged - self._named):
            self.counts.last_error = str(damage)
            log.warning("journal %s: %s", self._journal.folder, damage)
        self._named = self._journal.damaged

    def _bad(self, record: Record, error: Exception) -> None:
        self.counts.bad_records += 1
        self.counts.last_error = f"record {record.position:#x} ({record.kind.name.lower()}): {type(error).__name__}"
        log.warning("left out a record that cannot be decoded: %s", self.counts.last_error)

    def _failed(self, error: Exception) -> None:
        self.counts.failed_appends += 1
        self.counts.last_error = str(error)
        log.warning("%s; tried again in %.0f s", error, RETRY_S)


class Decoded(NamedTuple):
    """Records as rows and, the same, as a batch."""

    rows: Rows
    batch: Batch


def decoded(records: Iterable[Record], decode: Decode, bad: Callable[[Record, Exception], None]) -> Decoded:
    """The records' rows, all fit for their columns; a record that gives none is told to `bad` and left out."""
    each: list[tuple[Record, Rows]] = []
    for record in records:
        try:
            each.append((record, decode(record.kind, record.payload, record.received_at_us)))
        except Exception as error:  # whatever a body holds, it does not stop the writer
            bad(record, error)
    whole = merged(rows for _, rows in each)
    try:
        return Decoded(whole, batch_of(whole))
    except _MISFITS:
        pass
    fit: list[Rows] = []
    for record, rows in each:
        try:
            batch_of(rows)
        except _MISFITS as error:
            bad(record, error)
        else:
            fit.append(rows)
    whole = merged(fit)
    return Decoded(whole, batch_of(whole))


def replay(store: Store, records: Iterable[Record], decode: Decode, bad: Callable[[Record, Exception], None] = lambda *_: None) -> int:
    """Append what a journal holds beyond the store (`Scan(folder, store.position())`) to it, and how many records that was.

    For a reader without a daemon: the store is read-only and takes the rows in memory.
    """
    count, reached, group = 0, store.reached(), list[Record]()
    for record in records:
        if group and (len(group) >= MAX_RECORDS or group[-1].position <= reached < record.position):
            store.append(decoded(group, decode, bad).batch, group[-1].position)
            group = []
        group.append(record)
        count += 1
    if group:
        store.append(decoded(group, decode, bad).batch, group[-1].position)
    return count


def _first(records: Iterator[Record], count: int, size: int) -> Iterator[Record]:
    """The first records, at most `count` and about `size` bytes."""
    for record in records:
        yield record
        count, size = count - 1, size - len(record.payload)
        if count <= 0 or size <= 0:
            return
