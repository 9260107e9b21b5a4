"""Follows a log file by its inode through rotation and truncation; gives each whole line once, with its number."""

import os
import stat
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from lensd_collectors.host.line import FOLLOWED, MOST_LINE_BYTES, Allowance, Line, Splitter, Standing, State, why

__all__ = ["MOST_LINE_BYTES", "Line", "Tail"]

CHUNK_BYTES: Final = 256 * 1024
MOST_LAG_BYTES: Final = 64 * 1024 * 1024
SKIPPED: Final = Standing(State.FOLLOWED, "it was written faster than the rate allows: a part was skipped")
NO_FILE: Final = Standing(State.MISSING, "it is no regular file")
PRINT_BYTES: Final = 64  # of what was read last: tells an appended file from one written anew


class Tail:
    """Lines appended to a file. An existing file is followed from its end, one that appears later from its beginning.

    `back_bytes`: how much of the end of an existing file is given too, from whole lines on; None: all of it.
    At most `max_lines_per_s` lines a second are given; the others wait in the file. A file that is more than 64 MiB ahead is
    skipped up to there and the skipped bytes are counted in `skipped_bytes`. A line over 128 KiB is cut.
    """

    def __init__(self, path: Path, max_lines_per_s: int, clock_s: Callable[[], float], *, back_bytes: int | None = 0) -> None:
        self._path, self._allowance = path, Allowance(max_lines_per_s, clock_s)
        self._fd: int | None = None
        self._splitter = Splitter()
        self._offset, self._number = 0, 0
        self._last_bytes = b""
        self._lines: deque[Line] = deque()  # read, but over the rate
        self._standing = Standing(State.MISSING)
        self.skipped_bytes = 0
        self._open(back_bytes)

    @property
    def standing(self) -> Standing:
        return SKIPPED if self.skipped_bytes and self._standing is FOLLOWED else self._standing

    @property
    def file(self) -> Path | None:
        return self._path

    def poll(self) -> Iterator[Line]:
        """The lines that have come since the last call, as far as the rate allows."""
        self._allowance.renew()
        while self._allowance.open:
            if not self._lines and not self._read():
                return
            while self._lines and self._allowance.open:
                self._allowance.take()
                yield self._lines.popleft()

    def finish(self) -> Iterator[Line]:
        """What is left once nothing more is written, whatever the rate, and a last line without its newline."""
        while self._lines or self._read() or self._finish_partial():
            while self._lines:
                yield self._lines.popleft()

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _open(self, back_bytes: int | None) -> bool:
        try:
            fd = os.open(self._path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            self._standing = why(error)
            return False
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            self._standing = NO_FILE
            return False
        self._standing = FOLLOWED
        self._fd, self._offset, self._number = fd, 0, 0
        self._splitter, self._last_bytes = Splitter(), b""
        if back_bytes is not None:
            self._pass_over(max(0, os.fstat(fd).st_size - back_bytes))
        return True

    def _pass_over(self, end: int) -> None:
        """Goes to just after the last whole line before `end`, counting lines."""
        assert self._fd is not None
        position = self._offset
        while position < end and (data := os.pread(self._fd, min(CHUNK_BYTES, end - position), position)):
            newline = data.rfind(b"\n")
            if newline >= 0:
                self._number += data.count(b"\n")
                self._offset = position + newline + 1
            position += len(data)
        self._remember()

    def _read(self) -> bool:
        """Reads on; False when there is nothing new. A rotated file is read to its end before the new one is opened."""
        if self._fd is None and not self._open(None):
            return False
        assert self._fd is not None
        size = os.fstat(self._fd).st_size
        if size < self._offset or (size > self._offset and not self._same_as_before()):
            self._finish_partial()
            self._offset, self._number, self._last_bytes = 0, 0, b""
            if self._lines:
                return True
        if size - self._offset > MOST_LAG_BYTES:
            before = self._offset
            self._splitter.rest()
            self._pass_over(size - MOST_LAG_BYTES)
            self.skipped_bytes += self._offset - before
        data = os.pread(self._fd, CHUNK_BYTES, self._offset)
        if data:
            self._offset += len(data)
            for text in self._splitter.feed(data):
                self._add(text)
            self._remember()
            return True
        return self._rotated()

    def _same_as_before(self) -> bool:
        assert self._fd is not None
        return os.pread(self._fd, len(self._last_bytes), self._offset - len(self._last_bytes)) == self._last_bytes

    def _remember(self) -> None:
        assert self._fd is not None
        start = max(0, self._offset - PRINT_BYTES)
        self._last_bytes = os.pread(self._fd, self._offset - start, start)

    def _rotated(self) -> bool:
        """Goes over to the file that now has the name, if it is another one; True when something can be given."""
        assert self._fd is not None
        try:
            named = os.stat(self._path)
        except OSError:
            return False
        held = os.fstat(self._fd)
        if (named.st_dev, named.st_ino) == (held.st_dev, held.st_ino):
            return False
        if self._finish_partial():
            return True
        self.close()
        return self._open(None)

    def _finish_partial(self) -> bool:
        """A last line without its newline, once nothing can follow it."""
        left = self._splitter.rest()
        if left:
            self._add(left)
        return bool(left)

    def _add(self, text: str) -> None:
        self._number += 1
        self._lines.append(Line(text, self._number))
