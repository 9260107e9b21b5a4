"""Several parts of lensd as one foreground process group: started together, ended together."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import IO, NamedTuple

from lensd.errors import PartError

GRACE_S = 10.0  # a part that has not ended by then after SIGTERM is killed
ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)  # Ctrl-C, a service manager, a terminal that was closed


class Part(NamedTuple):
    """One process: the verb and its arguments, and how to tell that it is up."""

    name: str
    arguments: tuple[str, ...]
    ready: Callable[[], bool] | None = None
    grace_s: float = GRACE_S


class _Running(NamedTuple):
    part: Part
    process: "subprocess.Popen[str]"
    copying: threading.Thread
    last: list[str]  # lines it said last

    def ended(self) -> PartError:
        """What is to be said of a part that ended by itself."""
        self.copying.join(1.0)  # it may still be reading
        said = self.last[-1].removeprefix("lensd: ") if self.last else "without a word"
        return PartError(f"{self.part.name} ended with {self.process.returncode}: {said}", self.process.returncode)


class Supervisor:
    """Starts parts in order, passes their output on with the part's name before each line, ends them in reverse order."""

    def __init__(self, output: IO[str], environ: Mapping[str, str] = os.environ) -> None:
        self._output = output
        self._environ = dict(environ)
        self._running: list[_Running] = []

    def start(self, part: Part, timeout_s: float = 60.0, stop: threading.Event | None = None) -> None:
        """Start a part and wait until it is up, or until `stop`. Raises PartError with its last words where it ends before."""
        if part.ready is not None and part.ready():
            raise PartError(f"{part.name}: something answers at its address already; is another lensd running?", 2)
        process = subprocess.Popen(
            [sys.executable, "-m", "lensd", *part.arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=self._environ,
            process_group=0,
        )
        last: list[str] = []
        copying = threading.Thread(target=self._copy, args=(part.name, process, last), daemon=True)
        running = _Running(part, process, copying, last)
        self._running.append(running)
        copying.start()
        deadline = time.monotonic() + timeout_s
        stop = stop or threading.Event()
        while part.ready is not None and not part.ready():
            if process.poll() is not None:
                raise running.ended()
            if time.monotonic() > deadline:
                raise PartError(f"{part.name} was not up after {timeout_s:.0f} s")
            if stop.wait(0.1):
                return

    def wait(self, stop: threading.Event) -> None:
        """Until `stop`. Raises PartError with its last words where a part ends by itself."""
        while not stop.wait(0.3):
            for running in self._running:
                if running.process.poll() is not None:
                    raise running.ended()

    def stop(self) -> None:
        for running in reversed(self._running):
            if running.process.poll() is None:
                _signal(running.process, signal.SIGTERM)
                _wait(running.process, running.part.grace_s)
        for running in self._running:
            _signal(running.process, signal.SIGKILL)  # also to what a part that has ended left behind in its group
            running.process.wait()
        self._running.clear()

    def _copy(self, name: str, process: "subprocess.Popen[str]", last: list[str]) -> None:
        """Read on where nobody takes the output any more: a part whose pipe is full stands still."""
        assert process.stdout is not None
        for line in process.stdout:
            last[:] = [*last[-4:], line.rstrip()] if line.strip() else last
            with contextlib.suppress(OSError, ValueError):
                self._output.write(f"{name:<9} | {line}")
                self._output.flush()


@contextlib.contextmanager
def until_signal() -> Iterator[threading.Event]:
    """An event that Ctrl-C, SIGTERM and SIGHUP set, instead of ending this process before its parts."""
    stop = threading.Event()
    before = {number: signal.signal(number, lambda *_: stop.set()) for number in ENDING}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _signal(process: "subprocess.Popen[str]", number: int) -> None:
    """To the part's own group, so that what it started ends with it."""
    try:
        os.killpg(process.pid, number)
    except (ProcessLookupError, PermissionError):
        return


def _wait(process: "subprocess.Popen[str]", timeout_s: float) -> None:
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        return


def answers(url: str) -> Callable[[], bool]:
    """Whether the URL answers 200; asked directly, whatever proxy the environment names."""
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))

    def ask() -> bool:
        try:
            with direct.open(url, timeout=1) as reply:
                return bool(reply.status == 200)
        except (OSError, ValueError):
            return False

    return ask


def parts(config_path: str | None, ready: Mapping[str, Callable[[], bool]]) -> Sequence[Part]:
    """The four parts of `lensd up`, in starting order; `ready` says by name how to tell that a part is up."""
    named = ("--config", config_path) if config_path is not None else ()
    return [Part(name, (name, *named), ready.get(name)) for name in ("serve", "gateway", "agent", "dashboard")]
