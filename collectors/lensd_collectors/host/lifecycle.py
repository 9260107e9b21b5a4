"""Starts and ends of an engine as whoever runs it tells them: exit status, restarts, memory kills, as `lensd.engine.process` events."""

from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Final

import msgspec

from lensd_collectors import conventions
from lensd_collectors.export import Exporter
from lensd_collectors.host.line import FOLLOWED, Standing
from lensd_collectors.otlp import Value
from lensd_collectors.scrub import scrub

POLL_EVERY_S: Final = 5.0
TIMEOUT_S: Final = 2.0
SIGNALS: Final = 64
MOST_NOTICES: Final = 256  # that are remembered
NOTICE_AGE_NS: Final = 3600 * 1_000_000_000


class UnavailableError(Exception):
    """Who runs the engine cannot be asked; `standing` says why."""

    def __init__(self, standing: Standing) -> None:
        super().__init__(standing.reason)
        self.standing = standing


class End(msgspec.Struct, frozen=True):
    at_ns: int  # 0: not told
    mark: str = ""  # tells one end from another
    exit_code: int | None = None  # negative: by that signal
    oom_killed: bool | None = None


class Notice(msgspec.Struct, frozen=True):
    """What the runner says besides, as its own tool words it: probes, and what they end."""

    mark: str  # tells one notice from another, and from itself told again
    text: str
    at_ns: int = 0  # 0: not told


class Run(msgspec.Struct, frozen=True, kw_only=True):
    """How it is with an engine at one instant."""

    running: bool
    began: str = ""  # tells one run from another
    began_ns: int = 0  # 0: not told
    pid: int | None = None
    restarts: int | None = None  # by whoever runs it, of its own accord
    end: End | None = None  # of the run that ended last, where that is still known
    notices: tuple[Notice, ...] = ()


Ask = Callable[[], Run]
"""Asks who runs the engine; at most some seconds. Raises UnavailableError."""


class LifeWatch:
    """Polls one engine's runner. One thread calls it.

    A run that ended and was followed by another without a word of its status is told as ended only where the runner counts it as a
    restart of its own: what a person restarted did not die.
    """

    def __init__(self, ask: Ask, attributes: dict[str, str], exporter: Exporter, clock_ns: Callable[[], int]) -> None:
        self._ask, self._attributes, self._exporter, self._clock_ns = ask, attributes, exporter, clock_ns
        self._last: Run | None = None
        self._noticed: deque[str] = deque(maxlen=MOST_NOTICES)
        self.standing = FOLLOWED
        self.ends = 0  # that were told

    @property
    def pid(self) -> int | None:
        """The first process of the run that is going on, in the host's own count; None where that is not told."""
        return self._last.pid if self._last is not None and self._last.running else None

    def poll(self) -> None:
        try:
            run = self._ask()
        except UnavailableError as unavailable:
            self.standing = unavailable.standing
            return
        self.standing = FOLLOWED
        last, self._last = self._last, run
        ended = _ended(last, run)
        if ended is not None:
            self.ends += 1
            self._say("exited", ended.at_ns, run, pid=None if last is None else last.pid, end=ended)
        if run.running and (last is None or not last.running or last.began != run.began):
            self._say("running", 0 if last is None else run.began_ns, run, pid=run.pid)
        for notice in run.notices:
            self._pass_on(notice)

    def _pass_on(self, notice: Notice) -> None:
        """Once each, as a line of a log of its own; one of long ago tells nothing of the run that goes on."""
        if notice.mark in self._noticed:
            return
        self._noticed.append(notice.mark)
        now_ns = self._clock_ns()
        at_ns = notice.at_ns or now_ns
        if at_ns < now_ns - NOTICE_AGE_NS:
            return
        attributes: dict[str, Value | None] = {**self._attributes, conventions.ENGINE_KIND: "supervisor", conventions.LOG_FILE: "runner"}
        self._exporter.event(
            conventions.EVENT_ENGINE_LOG, at_ns=min(at_ns, now_ns), attributes=attributes, severity="info", body=scrub(notice.text)
        )

    def _say(self, state: str, at_ns: int, run: Run, *, pid: int | None, end: End | None = None) -> None:
        attributes: dict[str, Value | None] = {
            **self._attributes,
            conventions.PROCESS_STATE: state,
            conventions.PROCESS_PID: pid or None,
            conventions.PROCESS_EXIT: end.exit_code if end else None,
            conventions.CONTAINER_OOM_KILLED: end.oom_killed if end else None,
            conventions.CONTAINER_RESTARTS: run.restarts,
        }
        now_ns = self._clock_ns()
        severity = "info" if state == "running" else "warning"
        at_ns = at_ns if 0 < at_ns <= now_ns else now_ns
        self._exporter.event(conventions.EVENT_ENGINE_PROCESS, at_ns=at_ns, attributes=attributes, severity=severity)


def _ended(last: Run | None, run: Run) -> End | None:
    """The end that lies between two looks, or before the first where nothing runs now."""
    if last is None:
        return None if run.running or run.end is None or not run.end.at_ns else run.end
    if not last.running:
        # down at both looks: a run between them shows in a new end, or in the count of restarts
        if _is_new(run.end, last.end):
            return run.end
        return End(0) if _more_restarts(last, run) and not run.running else None
    if run.running and run.began == last.began:
        return None
    if _is_new(run.end, last.end):
        return run.end
    return End(0) if not run.running or _more_restarts(last, run) else None


def _is_new(end: End | None, before: End | None) -> bool:
    return end is not None and (before is None or end.mark != before.mark)


def _more_restarts(last: Run, run: Run) -> bool:
    return last.restarts is not None and run.restarts is not None and run.restarts > last.restarts


def signalled(code: int) -> int:
    """A status as shells and containers give it, 128 + signal, with the signal negative as it is elsewhere here."""
    return 128 - code if 128 < code <= 128 + SIGNALS else code


def instant_ns(text: str) -> int:
    """Nanoseconds of an RFC 3339 instant, to the microsecond; 0 where it is none, or before 1971 as docker's zero is."""
    whole, dot, rest = text.strip().replace("Z", "+00:00").partition(".")
    digits = rest[: next((at for at, char in enumerate(rest) if not char.isdigit()), len(rest))]
    try:
        at = datetime.fromisoformat(whole + (dot + digits[:6].ljust(6, "0") + rest[len(digits) :] if dot else ""))
    except ValueError:
        return 0
    at = at if at.tzinfo else at.replace(tzinfo=UTC)
    return 0 if at.year < 1971 else round(at.timestamp() * 1e6) * 1000
