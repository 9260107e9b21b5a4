"""Log lines that come in on standard input: `vllm serve ... 2>&1 | lensd agent`."""

import contextlib
import fcntl
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from lensd_collectors.host.line import FOLLOWED, Allowance, Line, Splitter, Standing, State, ready_bytes

CHUNK_BYTES: Final = 256 * 1024
MOST_CHUNKS: Final = 64  # read in one poll
PIPE_BYTES: Final = 1024 * 1024
DROPPED: Final = Standing(State.FOLLOWED, "more lines came than the rate allows: some were dropped")
ENDED: Final = Standing(State.ENDED, "its end was reached")


class StandardInput:
    """Lines of a pipe. It is always emptied, for its writer is the engine, which would stand still: lines over the rate are dropped
    and counted in `dropped`."""

    def __init__(self, max_lines_per_s: int, clock_s: Callable[[], float], fd: int = 0) -> None:
        self._fd, self._allowance, self._splitter = fd, Allowance(max_lines_per_s, clock_s), Splitter()
        self._number, self._standing = 0, FOLLOWED
        self.dropped = 0
        with contextlib.suppress(OSError):  # no pipe, or more than this user may have
            fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, PIPE_BYTES)

    @property
    def standing(self) -> Standing:
        return DROPPED if self.dropped and self._standing is FOLLOWED else self._standing

    @property
    def file(self) -> Path | None:
        return None

    def poll(self) -> Iterator[Line]:
        self._allowance.renew()
        for _ in range(MOST_CHUNKS):
            if self._standing is ENDED or (data := ready_bytes(self._fd, CHUNK_BYTES)) == b"":
                return
            if data is None:
                self._standing = ENDED
                yield from self._lines([left] if (left := self._splitter.rest()) else [])
                return
            yield from self._lines(self._splitter.feed(data))

    def _lines(self, texts: list[str]) -> Iterator[Line]:
        for text in texts:
            self._number += 1
            if self._allowance.open:
                self._allowance.take()
                yield Line(text, self._number)
            else:
                self.dropped += 1

    def close(self) -> None: ...
