"""A store in memory: the same tables, views, macros and settings as the folder store; for triage, runbook cases and tests."""

import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager

import pyarrow as pa

from lensd.errors import StoreError
from lensd.store.bodies import BODIES, read_bodies
from lensd.store.catalog import HELD, Catalog, store_errors
from lensd.store.interface import Batch, Cursor


class MemoryStore:
    """Implements `Store`; gone when closed."""

    def __init__(self, *, memory_limit: str = "2GiB", threads: int | None = None) -> None:
        self._catalog = Catalog(None, memory_limit=memory_limit, threads=threads)
        self._lock = threading.Lock()
        self._position = 0
        self._closed = False

    def append(self, batch: Batch, position: int | None = None, bodies: pa.Table | None = None) -> None:
        with self._lock, store_errors("append rows"):
            if self._closed:
                raise StoreError("append rows: the store is closed")
            if position is not None and position <= self._position:
                return
            with_bodies = bodies is not None and position is not None
            self._catalog.insert(HELD, {**batch, BODIES: bodies} if with_bodies else batch)
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

    def bodies(self, since_us: int, most: int) -> Iterator[tuple[int, int]]:
        with store_errors("read bodies"), self.cursor() as cursor:
            yield from read_bodies(cursor, [f"{HELD}.{BODIES}"], since_us, most)

    def forget(self, before_us: int) -> None:
        with self._lock, store_errors("forget bodies"):
            if self._closed:
                raise StoreError("forget bodies: the store is closed")
            self._catalog.connection.execute(f"DELETE FROM {HELD}.{BODIES} WHERE received_at < make_timestamp(?)", [before_us])

    def cursor(self) -> AbstractContextManager[Cursor]:
        return self._catalog.cursor()

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._catalog.close()
