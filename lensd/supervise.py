"""Several parts of lensd as one foreground process group: started together, ended together."""

import os
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from typing import IO, NamedTuple

GRACE_S = 10.0  # a part that has not ended by then after SIGTERM is killed


class Part(NamedTuple):
    """One process: the verb and its arguments, and how to tell that it is up."""

    name: str
    arguments: tuple[str, ...]
    ready: Callable[[], bool] | None = None


class Supervisor:
    """Starts parts in order, passes their output on with the part's name before each line, ends them in reverse order."""

    def __init__(self, output: IO[str], environ: Mapping[str, str] = os.environ) -> None:
        self._output = output
        self._environ = dict(environ)
        self._running: list[tuple[Part, subprocess.Popen[str]]] = []

    def start(self, part: Part, timeout_s: float = 60.0) -> None:
        """Start a part and wait until it is up. Raises RuntimeError with its last words where it ends before."""
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
        self._running.append((part, process))
        last: list[str] = []
        threading.Thread(target=self._copy, args=(part.name, process, last), daemon=True).start()
        deadline = time.monotonic() + timeout_s
        while part.ready is not None and not part.ready():
            if process.poll() is not None:
                time.sleep(0.1)  # the copying thread reads what it said last
                raise RuntimeError(f"{part.name} ended with {process.returncode}: {last[-1] if last else 'without a word'}")
            if time.monotonic() > deadline:
                raise RuntimeError(f"{part.name} was not up after {timeout_s:.0f} s")
            time.sleep(0.1)

    def wait(self, stop: threading.Event) -> Part | None:
        """Until `stop`, or until a part ends by itself: that part."""
        while not stop.wait(0.3):
            for part, process in self._running:
                if process.poll() is not None:
                    return part
        return None

    def stop(self) -> None:
        for _, process in reversed(self._running):
            if process.poll() is None:
                _signal(process, signal.SIGTERM)
                _wait(process, GRACE_S)
        for _, process in self._running:
            if process.poll() is None:
                _signal(process, signal.SIGKILL)
            process.wait()
        self._running.clear()

    def _copy(self, name: str, process: "subprocess.Popen[str]", last: list[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            last[:] = [*last[-4:], line.rstrip()]
            self._output.write(f"{name:<9} | {line}")
            self._output.flush()


def _signal(process: "subprocess.Popen[str]", number: int) -> None:
    """To the part's own group, so that what it started ends with it."""
    try:
        os.killpg(process.pid, number)
    except ProcessLookupError:
        return


def _wait(process: "subprocess.Popen[str]", timeout_s: float) -> None:
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        return


def answers(url: str) -> Callable[[], bool]:
    """Whether the URL answers 200."""

    def ask() -> bool:
        try:
            with urllib.request.urlopen(url, timeout=1) as reply:
                return bool(reply.status == 200)
        except OSError:
            return False

    return ask


def parts(config_path: str | None, ready: Mapping[str, Callable[[], bool]]) -> Sequence[Part]:
    """The four parts of `lensd up`, in starting order; `ready` says by name how to tell that a part is up."""
    named = ("--config", config_path) if config_path is not None else ()
    return [Part(name, (name, *named), ready.get(name)) for name in ("serve", "gateway", "agent", "dashboard")]
