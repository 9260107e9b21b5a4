"""Lines of a systemd unit, from a journalctl that runs as our child and goes on where the last one stopped."""

import contextlib
import os
import re
import subprocess
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

from lensd_collectors.host.line import FOLLOWED, Allowance, Line, Splitter, Standing, State, ready_bytes, why

CHUNK_BYTES: Final = 64 * 1024
FIRST_WAIT_S: Final = 1.0
MOST_WAIT_S: Final = 60.0
MOST_SAID_CHARS: Final = 1000
FIELDS: Final = "MESSAGE,_LINE_BREAK"
DENIED: Final = re.compile(r"not seeing messages|insufficient permissions|Permission denied|Access denied", re.IGNORECASE)
_CURSOR: Final = re.compile(r'"__CURSOR"\s*:\s*"([^"\\]+)"')


class Journal:
    """Follows one unit. The child writes to a pipe that is read as far as the rate allows, so what comes over it waits in the journal."""

    def __init__(
        self,
        unit: str,
        max_lines_per_s: int,
        clock_s: Callable[[], float],
        *,
        wall_s: Callable[[], float],
        command: str = "journalctl",
    ) -> None:
        self._unit, self._clock_s, self._command = unit, clock_s, command
        self._allowance = Allowance(max_lines_per_s, clock_s)
        self._since_s = int(wall_s())
        self._child: subprocess.Popen[bytes] | None = None
        self._cursor, self._started = "", False
        self._splitter, self._lines, self._number = Splitter(), deque[str](), 0
        self._said = ""  # the end of what the child says of itself
        self._standing = Standing(State.MISSING, "not started yet")
        self._wait_s, self._start_at = FIRST_WAIT_S, clock_s()

    @property
    def standing(self) -> Standing:
        return self._standing

    @property
    def file(self) -> Path | None:
        return None

    def poll(self) -> Iterator[Line]:
        self._allowance.renew()
        if self._child is None and (self._clock_s() < self._start_at or not self._start()):
            return
        self._listen()
        while self._allowance.open and (self._lines or self._read()):
            while self._lines and self._allowance.open:
                self._allowance.take()
                text = self._lines.popleft()
                cursor = _CURSOR.search(text)
                self._cursor = cursor[1] if cursor else self._cursor
                self._number += 1
                yield Line(text, self._number)

    def close(self) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        with contextlib.suppress(OSError):
            child.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(1.0)
        for pipe in (child.stdout, child.stderr):
            if pipe is not None:
                pipe.close()

    def _start(self) -> bool:
        # the first one begins with what comes now, a later one after the last line given, or at the time of the first where none was
        place = [f"--after-cursor={self._cursor}"] if self._cursor else [f"--since=@{self._since_s}"] if self._started else ["--lines=0"]
        tail = [] if place == ["--lines=0"] else ["--no-tail"]
        arguments = [f"--unit={self._unit}", "--follow", "--output=json", f"--output-fields={FIELDS}", "--no-pager", *place, *tail]
        try:
            self._child = subprocess.Popen(
                [self._command, *arguments],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**os.environ, "LC_ALL": "C"},
            )
        except OSError as error:
            self._standing = why(error)._replace(reason=f"{self._command}: {why(error).reason}")
            self._again_later()
            return False
        self._started, self._said, self._splitter = True, "", Splitter()
        self._standing = FOLLOWED
        return True

    def _read(self) -> bool:
        """Takes what the child has written; False where that is nothing."""
        if self._child is None or self._child.stdout is None:
            return False
        data = ready_bytes(self._child.stdout.fileno(), CHUNK_BYTES)
        if data is None:
            self._ended()
            return False
        self._lines.extend(self._splitter.feed(data))
        if data:
            self._wait_s = FIRST_WAIT_S
        return bool(data)

    def _listen(self) -> None:
        """What the child says on standard error: that this user may not see the journal, for one."""
        if self._child is None or self._child.stderr is None:
            return
        for _ in range(16):
            data = ready_bytes(self._child.stderr.fileno(), CHUNK_BYTES)
            if not data:
                break
            self._said = (self._said + data.decode("utf-8", "replace"))[-MOST_SAID_CHARS:]
        if DENIED.search(self._said):
            self._standing = Standing(State.DENIED, "this user may not read the system's journal")

    def _ended(self) -> None:
        self._listen()
        said = next((line.strip() for line in reversed(self._said.splitlines()) if line.strip()), "")
        if self._standing.state is not State.DENIED:
            self._standing = Standing(State.MISSING, f"{self._command} ended{': ' + said[:200] if said else ''}")
        self.close()
        self._again_later()

    def _again_later(self) -> None:
        self._start_at = self._clock_s() + self._wait_s
        self._wait_s = min(MOST_WAIT_S, self._wait_s * 2)
