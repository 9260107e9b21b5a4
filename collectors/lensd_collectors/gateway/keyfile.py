"""Changes to the text of a keys file: one table is marked or taken out, the rest stays as somebody wrote it, and it is swapped whole."""

import contextlib
import fcntl
import os
import re
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Final

_HEADING: Final = re.compile(r"^[ \t]*\[\[[ \t]*keys[ \t]*\]\][^\n]*(?:\n|\Z)", re.MULTILINE)
_DISABLED: Final = re.compile(r"^([ \t]*disabled[ \t]*=[ \t]*)(?:true|false)\b", re.MULTILINE)
_ID_LINE: Final = re.compile(r"^([ \t]*)id[ \t]*=[^\n]*(?:\n|\Z)", re.MULTILINE)


class FormError(ValueError):
    """A text that does not have one [[keys]] heading a key."""


def disabled(text: str, place: int, tables: int) -> str:
    """The text with `disabled = true` in that table (from 0) of so many."""
    start, end = _span(text, place, tables)
    block = text[start:end]
    if _DISABLED.search(block):
        block = _DISABLED.sub(r"\1true", block, count=1)
    elif line := _ID_LINE.search(block):
        newline = "\r\n" if line[0].endswith("\r\n") else "\n"
        block = f"{line.string[: line.end()].rstrip(newline)}{newline}{line[1]}disabled = true{newline}{block[line.end() :]}"
    else:
        raise FormError
    return text[:start] + block + text[end:]


def without(text: str, place: int, tables: int) -> str:
    """The text without that table; comments before and after it stay."""
    start, end = _span(text, place, tables)
    return text[:start] + text[end:].removeprefix("\r").removeprefix("\n")


def _span(text: str, place: int, tables: int) -> tuple[int, int]:
    """Where a table begins and ends. Blank lines and comments at its end are the next one's."""
    headings = [found.start() for found in _HEADING.finditer(text)]
    if len(headings) != tables:
        raise FormError
    start, stop = headings[place], headings[place + 1] if place + 1 < tables else len(text)
    lines = text[start:stop].splitlines(keepends=True)
    while lines[-1].strip() == "" or lines[-1].lstrip().startswith("#"):
        stop -= len(lines.pop())
    return start, stop


class Opened:
    """The file's text, and its swap for a new one in one step."""

    def __init__(self, path: Path, folder: int) -> None:
        self._path, self._folder = path, folder
        self.text = path.read_bytes().decode() if path.exists() else ""

    def write(self, text: str) -> None:
        aside = self._path.with_name(f".{self._path.name}.{secrets.token_hex(4)}")
        try:
            with open(os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8", newline="") as out:
                if self._path.exists() and (old := self._path.stat()).st_uid != os.geteuid():
                    os.fchown(out.fileno(), old.st_uid, old.st_gid)  # who could read it before still can
                out.write(text)
                out.flush()
                os.fsync(out.fileno())
            aside.replace(self._path)
            os.fsync(self._folder)
        except OSError:
            aside.unlink(missing_ok=True)
            raise


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Opened]:
    """For one change at a time: of two at once the first would be lost. A link stays one. Raises OSError, UnicodeDecodeError."""
    target = Path(os.path.realpath(path))
    folder = os.open(target.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield Opened(target, folder)
    finally:
        os.close(folder)
