"""What every source of log lines gives, and what they share: the protocol, lines out of bytes, the limit on their rate."""

import errno
import os
import select
from collections.abc import Callable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Final, NamedTuple, Protocol

import msgspec

MOST_LINE_BYTES: Final = 128 * 1024  # docker's and CRI's pieces of 16 KiB fit, each character escaped


class Line(msgspec.Struct, frozen=True):
    """A line as its source holds it, wrappers of a container runtime included."""

    text: str
    number: int  # from 1
    file: str = ""  # where it is another than the one the source is called by


class State(StrEnum):
    FOLLOWED = "followed"
    MISSING = "missing"
    DENIED = "denied"
    ENDED = "ended"


class Standing(NamedTuple):
    """How it is with a source; `reason` in a few words where it is not followed."""

    state: State
    reason: str = ""


FOLLOWED: Final = Standing(State.FOLLOWED)


class Source(Protocol):
    """Where lines come from. One thread calls it; `poll` never waits, holds a bounded amount and gives each line once."""

    @property
    def standing(self) -> Standing: ...

    @property
    def file(self) -> Path | None:
        """The file that is read at present, where it is one."""
        ...

    def poll(self) -> Iterator[Line]:
        """The lines that have come since the last call, as far as the rate allows."""
        ...

    def close(self) -> None: ...


def why(error: OSError) -> Standing:
    """The standing of what could not be opened."""
    state = State.DENIED if error.errno in (errno.EACCES, errno.EPERM) else State.MISSING
    return Standing(state, (error.strerror or type(error).__name__).lower())


class Allowance:
    """At most `rate` lines a second, and as many at once."""

    def __init__(self, rate: int, clock_s: Callable[[], float]) -> None:
        self._rate, self._clock_s = max(1, rate), clock_s
        self._left, self._counted_at = float(self._rate), clock_s()

    def renew(self) -> None:
        now = self._clock_s()
        self._left = min(self._rate, self._left + (now - self._counted_at) * self._rate)
        self._counted_at = now

    @property
    def open(self) -> bool:
        return self._left >= 1

    def take(self) -> None:
        self._left -= 1


class Splitter:
    """Whole lines out of bytes as they come; of a line over the limit the beginning is kept."""

    def __init__(self) -> None:
        self._partial, self._cut = b"", False

    def feed(self, data: bytes) -> list[str]:
        *whole, rest = data.split(b"\n")
        lines = []
        for piece in whole:
            lines.append(_text(self._partial if self._cut else (self._partial + piece)[:MOST_LINE_BYTES]))
            self._partial, self._cut = b"", False
        if not self._cut:
            self._partial += rest
            if len(self._partial) > MOST_LINE_BYTES:
                self._partial, self._cut = self._partial[:MOST_LINE_BYTES], True
        return lines

    def rest(self) -> str:
        """A last line without its newline, once nothing can follow it."""
        left, self._partial, self._cut = self._partial, b"", False
        return _text(left)


def _text(line: bytes) -> str:
    return line.rstrip(b"\r").decode("utf-8", "replace")


def ready_bytes(fd: int, most: int) -> bytes | None:
    """What a pipe, terminal or file has for us now, b"" where that is nothing; None at its end."""
    poller = select.poll()
    poller.register(fd, select.POLLIN)
    if not poller.poll(0):
        return b""
    try:
        return os.read(fd, most) or None
    except BlockingIOError:
        return b""
    except OSError:
        return None
