"""Runs of access lines that say that all was served: of a large log they are nine lines of ten, and all but their ends say nothing new."""

import re
from io import BufferedReader
from typing import Final

LARGE: Final = 32 << 20  # bytes of a log from which on its runs are passed over
BUFFER: Final = 1 << 18
_SHORTEST: Final = 16  # lines of a run of which some are passed over
_KEPT: Final = 4  # lines at a run's end that are read
_MOST_KINDS: Final = 32


class Served:
    """Passes over the inner lines of runs in which every line is of a kind that was read before, and answered with 2xx."""

    def __init__(self) -> None:
        self._kinds: set[bytes] = set()
        self._run: re.Pattern[bytes] | None = None

    def learn(self, kind: tuple[bytes, bytes]) -> None:
        """What stands before and behind the address in a line that was read as an exchange."""
        before, behind = kind
        if behind.rpartition(b'" ')[2][:1] != b"2" or len(self._kinds) >= _MOST_KINDS:
            return
        self._kinds.add(re.escape(before) + rb"[\d.]+:\d+" + re.escape(behind))
        self._run = re.compile(rb"(?:(?:" + b"|".join(sorted(self._kinds)) + rb")\r?\n)++")

    def skip(self, file: BufferedReader) -> int:
        """How many lines were passed over, the file being at the beginning of one."""
        if self._run is None:
            return 0
        ahead = file.peek(BUFFER)
        run = self._run.match(ahead)
        if run is None or (count := ahead.count(b"\n", 0, run.end())) < _SHORTEST:
            return 0
        end = run.end()
        for _ in range(_KEPT + 1):
            end = ahead.rfind(b"\n", 0, end)
        file.read(end + 1)
        return count - _KEPT
