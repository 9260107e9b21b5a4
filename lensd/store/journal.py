"""An append-only journal of received bodies: what it has acknowledged survives a crash and is read back in order."""

import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Final, NamedTuple

from lensd.errors import BodyTooLargeError, FullError, JournalError
from lensd.store.disk import Disk, RealDisk
from lensd.store.segments import HEADER, MAX_RECORD_BYTES, Damage, Record, Scan, Signal, framed, name_of, numbers, position_of, segment_of

__all__ = ["Damage", "Journal", "Record", "Scan", "Signal"]

_RECORDS_A_COMMIT: Final = 4096


class _Waiting(NamedTuple):
    data: bytes
    future: Future[int]


class Journal:
    """Appends records in group commits: one thread writes what has gathered, syncs once, then resolves all futures.

    Opening never changes an old segment: a new one is begun, above every old one and above `after` (the store's position, so that
    a journal that was removed does not begin anew below it). Not for two writers; readers in other processes use `Scan`.
    """

    def __init__(
        self,
        folder: Path,
        *,
        max_bytes: int = 1 << 30,
        segment_bytes: int = 64 << 20,
        max_waiting_bytes: int = 256 << 20,
        after: int = 0,
        disk: Disk | None = None,
    ) -> None:
        self.folder = folder
        self._disk = disk or RealDisk()
        self._max_bytes, self._segment_bytes, self._max_waiting_bytes = max_bytes, min(segment_bytes, max_bytes // 4), max_waiting_bytes
        self._state = threading.Condition()
        self._queue: list[_Waiting] = []
        self._queued_bytes = 0
        self._closing = False
        self._handle: int | None = None
        self._offset = 0
        self._sizes: dict[int, int] = {}
        self._drained = 0
        self._damaged: set[Damage] = set()
        try:
            self._disk.make_folder(folder)
            for number in numbers(self._disk.names(folder)):
                self._sizes[number] = self._disk.size(folder / name_of(number))
        except OSError as error:
            raise JournalError(f"open journal {folder}: {error}") from error
        self._number = max([segment_of(after), *self._sizes])
        # Everything in old segments is as safe as it will get; positions above this are this run's.
        self._synced = position_of(self._number, 0xFFFFFFFF) if self._sizes else 0
        self._thread = threading.Thread(target=self._commit_forever, name="lensd-journal", daemon=True)
        self._thread.start()

    def append(self, kind: Signal, received_at_us: int, payload: bytes) -> Future[int]:
        """A future that gives the record's position once it is on disk, or raises JournalError. Raises FullError at once."""
        if len(payload) > MAX_RECORD_BYTES:
            raise BodyTooLargeError(f"body of {len(payload)} bytes is over the journal's limit of {MAX_RECORD_BYTES}")
        waiting = _Waiting(framed(kind, received_at_us, payload), Future())
        size = len(waiting.data)
        with self._state:
            if self._closing:
                raise JournalError("the journal is closed")
            if self._queued_bytes + size > self._max_waiting_bytes or self.bytes + self._queued_bytes + size > self._max_bytes:
                raise FullError(f"journal holds {self.bytes} of {self._max_bytes} bytes and the store is behind: try again later")
            waiting.future.set_running_or_notify_cancel()  # a caller that goes away cannot take its record back
            self._queue.append(waiting)
            self._queued_bytes += size
            self._state.notify_all()
        return waiting.future

    @property
    def bytes(self) -> int:
        """Bytes on disk that are not drained yet."""
        with self._state:
            done, offset = segment_of(self._drained), self._drained & 0xFFFFFFFF
            return sum(size - (min(offset, size) if number == done else 0) for number, size in self._sizes.items() if number >= done)

    @property
    def newest_segment(self) -> int:
        """Number of the newest segment, written or about to be; new records have positions in it or above."""
        with self._state:
            return self._number

    @property
    def end(self) -> int:
        """Position up to which everything is on disk."""
        with self._state:
            return self._synced

    @property
    def damaged(self) -> frozenset[Damage]:
        """Every damage a reader of this journal has met."""
        return frozenset(self._damaged)

    def read_from(self, position: int, until: int | None = None) -> Iterator[Record]:
        """Records after `position` that are safely on disk, in order; up to `until`, by default to the end as of now."""
        scan = Scan(self.folder, position, end=self.end if until is None else until, disk=self._disk)
        try:
            yield from scan
        finally:
            self._damaged.update(scan.damaged)

    def wait(self, position: int, timeout_s: float) -> bool:
        """Wait until something after `position` is on disk; False when the time is over or the journal closes first."""
        with self._state:
            return self._state.wait_for(lambda: self._synced > position or self._closing, timeout_s) and self._synced > position

    def drained(self, position: int) -> None:
        """Remove the segments that lie wholly below `position`: the store has what they hold."""
        with self._state:
            self._drained = max(self._drained, position)
            gone = [number for number in self._sizes if number < segment_of(position) and number != self._number]
        for number in gone:
            with contextlib.suppress(OSError):  # tried again at the next call
                self._disk.remove(self.folder / name_of(number))
                with self._state:
                    self._sizes.pop(number, None)

    def close(self) -> None:
        """Write what is queued, then stop. Closing twice is no error."""
        with self._state:
            self._closing = True
            self._state.notify_all()
        self._thread.join()

    def _commit_forever(self) -> None:
        while True:
            with self._state:
                self._state.wait_for(lambda: self._queue or self._closing)
                group, self._queue = self._queue[:_RECORDS_A_COMMIT], self._queue[_RECORDS_A_COMMIT:]
                if not group:
                    self._leave_segment()
                    return
            self._commit(group)

    def _commit(self, group: list[_Waiting]) -> None:
        data = b"".join(waiting.data for waiting in group)
        try:
            handle = self._segment()
            self._disk.append(handle, data)
            self._disk.sync(handle)
        except OSError as error:
            self._give_up_segment()
            failed = JournalError(f"write journal {self.folder}: {error}")
            with self._state:
                self._queued_bytes -= len(data)
            for waiting in group:
                waiting.future.set_exception(failed)
            return
        offset = self._offset
        with self._state:
            self._offset += len(data)
            self._sizes[self._number] = self._offset
            self._queued_bytes -= len(data)
            self._synced = position_of(self._number, self._offset)
            self._state.notify_all()
        for waiting in group:
            offset += len(waiting.data)
            waiting.future.set_result(position_of(self._number, offset))

    def _segment(self) -> int:
        """The open segment's handle; a new segment where none is open or the open one is full."""
        with self._state:
            if self._handle is not None and self._offset >= self._segment_bytes:
                self._leave_segment()
            if self._handle is not None:
                return self._handle
            self._number += 1
            number = self._number
        handle = self._disk.create(self.folder / name_of(number))
        with self._state:
            self._handle, self._offset = handle, 0
        self._disk.append(handle, HEADER)
        self._disk.sync(handle)
        self._disk.sync_folder(self.folder)
        with self._state:
            self._offset = len(HEADER)
            self._sizes[number] = self._offset
        return handle

    def _leave_segment(self) -> None:
        if self._handle is not None:
            with contextlib.suppress(OSError):
                self._disk.close(self._handle)
            self._handle = None

    def _give_up_segment(self) -> None:
        """After a failed write nobody knows what the segment's end holds: cut off what was refused and begin another."""
        with self._state:
            if self._handle is not None:
                with contextlib.suppress(OSError):
                    self._disk.cut(self._handle, self._offset)
                    self._disk.sync(self._handle)
                self._sizes.setdefault(self._number, self._offset)
                self._leave_segment()
