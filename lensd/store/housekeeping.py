"""Looks after the store's files once a minute: days that are over are packed, days that are too old or too many are deleted."""

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

import msgspec

from lensd.errors import StoreError
from lensd.store import name_filters, retention
from lensd.store.catalog import store_errors
from lensd.store.config import StoreConfig
from lensd.store.day_files import DAY_US, date_of
from lensd.store.folder import DayState, FolderStore
from lensd.store.rollover import roll_over

log = logging.getLogger(__name__)

EVERY_S: Final = 60.0
LATE_ROWS: Final = 50_000
"""Rows that came to a packed day are packed in when they are so many,"""
LATE_S: Final = 86_400.0
"""or when no more have come for so long."""
BODIES_S: Final = 86_400.0
"""Bodies that were acknowledged are known again for so long."""


class HouseState(msgspec.Struct, kw_only=True):
    """What was done last; instants in microseconds since the epoch."""

    bytes: int = 0  # of all database files
    days: int = 0
    packed_day: str | None = None
    packed_at: int | None = None
    deleted_day: str | None = None
    deleted_at: int | None = None
    deleted_by: str | None = None
    names_at: int | None = None  # when the filters by name had last all that they are to have
    last_error: str = ""


class Housekeeping:
    """`look` does what is due; `run` does it on a thread of its own until it is told to stop."""

    def __init__(self, store: FolderStore, config: StoreConfig, clock: Callable[[], float] = time.time) -> None:
        self._store, self._config, self._clock = store, config, clock
        self._opened_at = clock()
        self._stop = threading.Event()
        self.state = HouseState()

    def run(self, stop: threading.Event) -> None:
        self._stop = stop
        self._try(self._filter_names)
        while not stop.wait(EVERY_S):
            self.look()

    def look(self) -> None:
        """Everything that is due now. What fails is logged and tried again at the next look."""
        for doing in (self._store.release, self._delete, self._pack, self._forget, self._filter_names):
            if self._stop.is_set():
                return
            self._try(doing)
        self._measure()

    def _try(self, doing: Callable[[], None]) -> None:
        try:
            doing()
        except StoreError as error:
            self.state.last_error = str(error)
            log.warning("put off until the next look: %s", error)
        except Exception as error:
            self.state.last_error = f"{type(error).__name__}: this is a fault of lensd"
            log.exception("looking after the store failed; the next look tries again")

    def _delete(self) -> None:
        while not self._stop.is_set():
            now, days = self._clock(), self._store.days()
            quiet = {day: now - state.heard_at for day, state in days.items() if state.heard_at is not None}
            sizes = {day: state.bytes for day, state in days.items()}
            what = retention.due(self._config, sizes, self._store.other_bytes(), now, quiet)
            gone = retention.delete(self._store, what, self._config, now) if what else None
            if gone is None:
                return
            log.info("%s", gone)
            self.state.deleted_day, self.state.deleted_at, self.state.deleted_by = str(date_of(gone.day)), int(now * 1e6), gone.rule

    def _pack(self) -> None:
        for day, state in self._store.days().items():
            if self._stop.is_set():
                return
            if not self._is_due(day, state):
                continue
            packed = roll_over(self._store, day, self._go_on)
            if packed is not None:
                log.info("%s", packed)
                self.state.packed_day, self.state.packed_at = str(date_of(day)), int(self._clock() * 1e6)

    def _is_due(self, day: int, state: DayState) -> bool:
        now = self._clock()
        if state.loose_rows == 0 or now < (day + 1) * DAY_US / 1e6 + self._config.roll_over_after_s:
            return False
        heard_at = self._opened_at if state.heard_at is None else state.heard_at
        return not state.is_packed or state.loose_rows >= LATE_ROWS or now - heard_at >= LATE_S

    def _go_on(self, step: str) -> None:
        if self._stop.is_set():
            raise StoreError(f"stopped while packing {step}")

    def _forget(self) -> None:
        self._store.forget(int((self._clock() - BODIES_S) * 1e6))

    def _filter_names(self) -> None:
        with store_errors("filter the names of requests"), self._store.cursor() as cursor:
            name_filters.cover(cursor, lambda: not self._stop.is_set())
        if not self._stop.is_set():
            self.state.names_at = int(self._clock() * 1e6)

    def _measure(self) -> None:
        days = self._store.days()
        self.state.days = len(days)
        self.state.bytes = sum(state.bytes for state in days.values()) + self._store.other_bytes()
