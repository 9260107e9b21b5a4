"""Where an engine stands in its life, so that one death, start or stop is told once and an orderly stop is not called a death."""

from enum import StrEnum
from typing import Final

STARTED: Final = "engine.started"
READY: Final = "engine.ready"
STOPPING: Final = "engine.stopping"
DEAD: Final = "engine.dead"
START_FAILED: Final = "engine.start_failed"
ERROR: Final = "engine.log.error"


class Phase(StrEnum):
    UNKNOWN = "unknown"  # the log began before we looked
    STARTING = "starting"
    READY = "ready"
    STOPPING = "stopping"
    DEAD = "dead"


class Life:
    """Follows one engine through its log."""

    def __init__(self) -> None:
        self.phase = Phase.UNKNOWN
        self._start_sign: str | None = None
        self._signs: set[str] = set()

    def admit(self, name: str, sign: str | None) -> str | None:
        """The event's name as it is to be told now; None where it has been told already or follows from what was."""
        match name:
            case "engine.started":
                return self._started(sign)
            case "engine.ready":
                self.phase = Phase.READY
                return name
            case "engine.stopping":
                return self._stopping(name)
            case "engine.dead" | "engine.start_failed":
                return self._died(name, sign or "")
            case _:
                return name

    def serves(self) -> None:
        """Requests run: whatever start was seen last has got through, though nothing of the log said so."""
        if self.phase is Phase.STARTING:
            self.phase = Phase.READY

    def _started(self, sign: str | None) -> str | None:
        # One start prints several of its marks; the same mark again is another start, whose forerunner fell silently.
        # The engine core's mark follows the server's, and there is one for each core.
        if self.phase is Phase.STARTING and (sign == "core" or sign != self._start_sign):
            return None
        self.phase, self._start_sign = Phase.STARTING, sign
        self._signs.clear()
        return STARTED

    def _stopping(self, name: str) -> str | None:
        if self.phase in (Phase.DEAD, Phase.STOPPING):
            return None
        self.phase = Phase.STOPPING
        return name

    def _died(self, name: str, sign: str) -> str | None:
        if self.phase is Phase.STOPPING:
            return ERROR  # some orderly stops print the words of a crash
        told = START_FAILED if self.phase is Phase.STARTING else name
        if self.phase is Phase.DEAD and START_FAILED in self._signs:
            told = START_FAILED
        if sign in self._signs:
            return None
        self.phase = Phase.DEAD
        self._signs |= {sign, START_FAILED} if told == START_FAILED else {sign}
        return told
