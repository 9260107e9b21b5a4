"""Database files that do not open: which errors mean that, and how such a file gets out of the way."""

import os
import re
from pathlib import Path
from typing import Final

import duckdb

SUFFIX: Final = ".damaged"
_OTHER: Final = re.compile(r"Could not set lock on file|Unique file handle conflict|Cannot open file|Out of Memory|No space left")
"""What keeps a sound file from opening: another process, a right or a handle that is missing, a lack of memory or disk."""


def is_damage(error: duckdb.Error) -> bool:
    """Whether the file itself is at fault, so that trying again changes nothing."""
    return _OTHER.search(str(error)) is None


def line_of(error: Exception) -> str:
    """The first line of what a database says, which is the whole of it for a file."""
    return str(error).splitlines()[0][:200]


def set_aside(file: Path) -> Path:
    """Rename a damaged file and its log so that one of its name can be made anew; nothing of it is lost. The new path."""
    target, number = file.with_name(f"{file.name}{SUFFIX}"), 1
    while target.exists():
        number += 1
        target = file.with_name(f"{file.name}{SUFFIX}-{number}")
    log = file.with_name(f"{file.name}.wal")
    if log.exists():
        os.replace(log, target.with_name(f"{target.name}.wal"))
    os.replace(file, target)
    return target
