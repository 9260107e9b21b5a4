"""Writes the logs of attached database files into the files, each time with an undo record beside: see docs/adr/022.

DuckDB itself never checkpoints a file of the store: the catalogue's settings see to it, also where a file is detached or closed.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import duckdb

from lensd.errors import StoreError, StoreFailedError
from lensd.store import undo
from lensd.store.disk import Disk, RealDisk
from lensd.store.torn_log import log_bytes

log = logging.getLogger(__name__)

LOG_BYTES: Final = 64_000_000
"""A log that is longer is written into its file."""
_RETRY_BYTES: Final = 8_000_000
"""What did not come to an end is tried again when the log has grown by so much."""


@dataclass(slots=True)
class _Attached:
    file: Path
    handle: int
    due_at: int  # bytes of the log
    is_cut_short: bool = False


class Checkpoints:
    """One at a time. `run`: `execute` of a connection that has no transaction open.

    No other connection writes to the file meanwhile: DuckDB would give it blocks that the file still stands on.
    """

    def __init__(self, run: Callable[..., Any], disk: Disk | None = None) -> None:
        self._run, self._disk = run, disk or RealDisk()
        self._attached: dict[str, _Attached] = {}

    def names(self) -> list[str]:
        return [*self._attached]

    def add(self, name: str, file: Path) -> None:
        """A file that is attached for writing. It is held open: closing it would take away the lock that DuckDB has on it."""
        self._attached[name] = _Attached(file, self._disk.open(file), LOG_BYTES)

    def remove(self, name: str) -> None:
        """A file that is no longer attached."""
        if name in self._attached:
            self._disk.close(self._attached.pop(name).handle)

    def close(self) -> None:
        """After DuckDB has closed its files."""
        for name in self.names():
            self.remove(name)

    def write(self, name: str) -> None:
        """Write what a file's log holds into it; put off where DuckDB cannot do it now.

        Raises duckdb.Error, OSError, StoreFailedError; all rows are then still in the log.
        """
        one = self._attached[name]
        one.due_at = log_bytes(one.file) + _RETRY_BYTES
        if one.is_cut_short:
            raise StoreFailedError(f"write the log of {one.file.name}: an earlier try was cut short, which the next start takes back")
        if log_bytes(one.file) == 0:
            return
        blocks = [block for (block,) in self._run("SELECT block_id FROM pragma_metadata_info(?)", [name]).fetchall()]
        undo.keep(one.file, one.handle, blocks, self._disk)
        one.is_cut_short = True
        try:
            self._run(f"CHECKPOINT {name}")
            one.due_at = LOG_BYTES
        except duckdb.TransactionException as error:  # it has not begun
            log.info("writing the log of %s is put off: %s", one.file, error)
        one.is_cut_short = False
        undo.drop(one.file, self._disk)

    def write_if_due(self, name: str) -> None:
        """The same for a log that has grown long; what goes wrong is logged, and tried again when it is longer."""
        if log_bytes(self._attached[name].file) > self._attached[name].due_at:
            self.try_to_write(name)

    def try_to_write(self, name: str) -> None:
        try:
            self.write(name)
        except (duckdb.Error, OSError, StoreError) as error:
            log.warning("%s: its log was not written into it: %s", self._attached[name].file, error)
