"""A store in memory: the same tables, views, macros and settings as the folder store; for triage, runbook cases and tests."""

import threading
from contextlib import AbstractContextManager

from lensd.errors import StoreError
from lensd.store.catalog import HELD, Catalog, store_errors
from lensd.store.interface import Batch, Cursor


class MemoryStore:
    """Implements `Store`; gone when closed."""

    def __init__(self, *, memory_limit: str = "2GiB", threads: int | None = None) -> None:
        self._catalog = Catalog(None, memory_limit=memory_limit, threads=threads)
        self._lock = threading.Lock()
        self._position = 0
        self._closed = False

    def append(self, batch: Batch, position: int | None = None) -> None:
        with self._lock, store_errors("append rows"):
            if self._closed:
                raise StoreError("append rows: the store is closed")
            if position is not None and position <= self._position:
                return
            self._catalog.insert(HELD, batch)
            if position is not None:
                self._position = position

    def empty(self) -> None:
        """Forget all rows: a store that is used again costs a tenth of a new one."""
        with self._lock, store_errors("empty the store"):
            self._catalog.empty(HELD)

    def position(self) -> int:
        return self._position

    def reached(self) -> int:
        return self._position

    def cursor(self) -> AbstractContextManager[Cursor]:
        return self._catalog.cursor()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._catalog.close()
