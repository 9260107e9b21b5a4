"""What every store backend does. The comments are the specification; `tests/lensd/store/test_conformance.py` holds each backend to it."""

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager
from typing import Any, Protocol

import pyarrow as pa

Batch = Mapping[str, pa.Table]
"""Table name (a key of `lensd_collectors.rows.TABLES`) to an Arrow table with that table's columns; missing columns are null."""


class Cursor(Protocol):
    """The part of a DuckDB cursor that readers use; one per thread."""

    def execute(self, sql: str, parameters: object = None) -> Any: ...
    def fetchall(self) -> list[Any]: ...
    def fetchmany(self, size: int = 1) -> list[Any]: ...


class Store(Protocol):
    """An append-only set of the public tables.

    Rows are never updated: `requests` and `incidents` carry a revision, their views show the last one.
    """

    def append(self, batch: Batch, position: int | None = None, bodies: pa.Table | None = None) -> None:
        """Add a batch's rows: all of a day's rows of the batch at once, or none of them.

        `position` is the journal position the batch reaches. A position at or below one that a file has already stored adds
        nothing to that file, so that a replay neither loses nor doubles. None: the rows do not come from the journal.
        `bodies` (what `lensd.store.bodies.bodies_of` gives of the batch's records) is stored together with the position and counts
        only with one, so that a replay neither loses nor doubles it either; no reader's view shows it.
        One thread appends; the caller keeps the batch. Raises StoreError's subclasses, never a DuckDB error.
        """
        ...

    def position(self) -> int:
        """The journal position up to which every file holds everything; 0 for a new store."""
        ...

    def reached(self) -> int:
        """The highest journal position that any file has stored; above `position()` after a crash between two files.

        A replay from `position()` must end a batch exactly there: a batch that runs across it would double that file's rows.
        """
        ...

    def bodies(self, since_us: int, most: int) -> Iterator[tuple[int, int]]:
        """Hash and time of receipt of the latest `most` bodies received at `since_us` or later, oldest first."""
        ...

    def forget(self, before_us: int) -> None:
        """Delete the bodies received before an instant. Raises StoreError on a read-only store."""
        ...

    def cursor(self) -> AbstractContextManager[Cursor]:
        """A cursor that sees every public table, each statement as of its start; closed at the end of the with block.

        Temporary views made on it are seen by it alone. Any thread may ask; each gets its own.
        """
        ...

    def close(self) -> None:
        """Release files and locks. Closing twice is no error."""
        ...
