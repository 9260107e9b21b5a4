"""The end of a DuckDB log that a loss of power has torn: DuckDB passes over one that is cut short, and refuses one with a hole."""

import logging
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Final

import duckdb

from lensd.store import damage

log = logging.getLogger(__name__)

_BAD_ENTRY: Final = re.compile(r"Corrupt WAL file: entry at byte position (\d+) computed checksum")
_FRAME_BYTES: Final = 16
"""Length and checksum, before the byte position that the error names."""
_COMMIT: Final = bytes.fromhex("0500000000000000e7fe7d722fed3d5e640064ffff")
"""The entry that ends every transaction, frame and all."""


def log_of(file: Path) -> Path:
    return file.with_name(f"{file.name}.wal")


def log_bytes(file: Path) -> int:
    try:
        return log_of(file).stat().st_size
    except FileNotFoundError:
        return 0


def attach(run: Callable[[str], object], statement: str, file: Path) -> None:
    """Run the statement that attaches a file; where the end of its log is torn, that is cut off first. Raises duckdb.Error, OSError."""
    size = log_bytes(file)
    try:
        run(statement)
    except duckdb.Error as error:
        found = _BAD_ENTRY.search(str(error))
        if found is None or log_bytes(file) != size:  # another process has been at it
            raise
        if not _cut_off(log_of(file), int(found[1]) - _FRAME_BYTES):
            raise
        log.warning("%s: the end of its log was torn and is cut off: %s", file, damage.line_of(error))
        run(statement)


def _cut_off(path: Path, at: int) -> bool:
    """Whether the log ends with a torn transaction, which is cut off at its bad entry.

    A commit returns when its log is synced, so only the last transaction can be torn. With further commits behind it, it is damage.
    """
    with path.open("rb+") as file:
        file.seek(at)
        if _COMMIT in file.read().removesuffix(_COMMIT):
            return False
        file.truncate(at)
        os.fsync(file.fileno())
    return True
