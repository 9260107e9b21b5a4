"""A real `lensd serve` over a copy of a store, on free ports of 127.0.0.1."""

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

READY_S: Final = 120.0
STOP_S: Final = 60.0


class Daemon(NamedTuple):
    config: Path
    api: str
    otlp: str
    token: str
    pid: int


@contextlib.contextmanager
def serving(store: Path, folder: Path) -> Iterator[Daemon]:
    """The daemon, ready; ended, and its copy removed, at the end of the with block."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    shutil.copytree(store, folder / "store")
    otlp, api = (f"127.0.0.1:{_free_port()}" for _ in range(2))
    config = folder / "lensd.toml"
    config.write_text(
        f'[serve]\nstore = "{folder / "store"}"\notlp = "{otlp}"\notlp_grpc = ""\napi = "{api}"\n'
        "[store]\nroll_over_after_s = 1e9\nkeep_days = 0\nkeep_bytes = 0\n"  # the days stay as they are while they are measured
    )
    with (folder / "serve.log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "lensd", "serve", "--config", str(config)], stdout=log, stderr=log, env=_environ(folder)
        )
    try:
        _wait(process, api, folder / "serve.log")
        token = (folder / "store" / "token").read_text().strip()
        _wait_for_names(api, token)
        yield Daemon(config, f"http://{api}", f"http://{otlp}", token, process.pid)
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(STOP_S)
        process.kill()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def lensd(daemon: Daemon, *arguments: str) -> tuple[float, int, bytes]:
    """One command as a process: seconds, exit status, stdout."""
    command = [sys.executable, "-m", "lensd", *arguments, "--config", str(daemon.config)]
    began = time.perf_counter()
    done = subprocess.run(command, stdout=subprocess.PIPE, env=_environ(daemon.config.parent), check=False)
    return time.perf_counter() - began, done.returncode, done.stdout


def _environ(home: Path) -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith("LENSD_")} | {"HOME": str(home)}


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def _wait(process: subprocess.Popen[bytes], api: str, log: Path) -> None:
    until = time.monotonic() + READY_S
    while True:
        if process.poll() is not None or time.monotonic() > until:
            raise SystemExit(f"the daemon did not come up:\n{log.read_text()[-2000:]}")
        with contextlib.suppress(OSError), urllib.request.urlopen(f"http://{api}/healthz", timeout=1) as answer:
            if answer.status == 200:
                return
        time.sleep(0.1)


def _wait_for_names(api: str, token: str) -> None:
    """Until requests are looked up as in a daemon that has run for a while."""
    asking = urllib.request.Request(f"http://{api}/api/v1/status", headers={"Authorization": f"Bearer {token}"})
    until = time.monotonic() + READY_S
    while time.monotonic() < until:
        with urllib.request.urlopen(asking, timeout=10) as answer:
            if json.load(answer)["housekeeping"]["names_at"] is not None:
                return
        time.sleep(0.5)
    raise SystemExit(f"the daemon had no filters by name after {READY_S:g} s")
