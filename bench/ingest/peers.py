"""Phoenix and MLflow, each with its defaults on SQLite in an environment of its own: how many of the same spans a second they store."""

import os
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from daemon_process import free_port
from gateway.process import BenchError, Group

from ingest.client import SEED, Target
from ingest.sending import client

STARTS_WITHIN_S: Final = 180.0
STORED_WITHIN_S: Final = 180.0
LOOK_S: Final = 0.1
CONNECTIONS: Final = 1
"""SQLite has one writer: more senders only wait for each other's locks."""


@dataclass(frozen=True, slots=True)
class Peer:
    name: str
    package: str
    version: str
    spans: int
    command: Callable[[Path, int], list[str]]  # of its environment's `bin` and the port
    database: str
    headers: Mapping[str, str] = field(default_factory=dict)


# One worker, since its supervisor ends a worker that is at a body for more than five seconds, as the first body takes.
MLFLOW: Final = ("server", "--backend-store-uri", "sqlite:///mlflow.db", "--workers", "1", "--port")
PEERS: Final = (
    Peer("phoenix", "arize-phoenix", "20.26.1", 4_096, lambda programs, _: [str(programs / "phoenix"), "serve"], "phoenix.db"),
    Peer(
        "mlflow", "mlflow", "3.17.2", 8_192, lambda programs, port: [str(programs / "mlflow"), *MLFLOW, str(port)], "mlflow.db",
        {"x-mlflow-experiment-id": "0"},
    ),
)  # fmt: skip


def rates(home: Path, a_body: int, problems: list[str]) -> dict[str, float]:
    """Spans a second by peer, from the first one sent until the last one is in its database; why one is missing goes to `problems`."""
    found = {}
    for peer in PEERS:
        try:
            found[peer.name] = _rate(peer, home, a_body)
        except BenchError as error:
            problems.append(f"{peer.name} is not measured: {error}")
    return found


def _rate(peer: Peer, home: Path, a_body: int) -> float:
    programs = _installed(peer, home)
    folder = home / f"{peer.name}-data"
    subprocess.run(["rm", "-rf", str(folder)], check=True)
    folder.mkdir(parents=True)
    port, grpc = free_port(), free_port()
    env = _environment(folder, port, grpc, programs)
    group = Group(peer.name, peer.command(programs, port), None, folder / "said.log", cwd=folder, env=env)
    try:
        _until_up(group, port)
        _stored(peer, folder, port, a_body, a_body, SEED + 1, 0)  # what is loaded or made with the first body is not its rate
        return peer.spans / _stored(peer, folder, port, a_body, peer.spans, SEED, a_body)
    finally:
        group.end()


def _stored(peer: Peer, folder: Path, port: int, a_body: int, spans: int, seed: int, before: int) -> float:
    """Seconds from the first body until all of its spans are in the database, beside the `before` ones."""
    with client(folder, spans, a_body, CONNECTIONS, seed) as sender:
        began = time.monotonic()
        sender.send(Target(port, dict(peer.headers)))
        sender.sent()
        until = time.monotonic() + STORED_WITHIN_S
        while (count := _count(folder / peer.database)) < before + spans:
            if time.monotonic() > until:
                raise BenchError(f"{count - before} of {spans} spans were stored, {STORED_WITHIN_S:.0f} s after the last was acknowledged")
            time.sleep(LOOK_S)
        return time.monotonic() - began


def _count(database: Path) -> int:
    try:
        connection = sqlite3.connect(f"file:{database}?mode=ro", uri=True, timeout=5)
        try:
            return int(connection.execute("SELECT count(*) FROM spans").fetchone()[0])
        finally:
            connection.close()
    except sqlite3.OperationalError as error:
        raise BenchError(f"its database {database.name} cannot be read: {error}") from None


def _installed(peer: Peer, home: Path) -> Path:
    """The folder of its programs; made where it is missing. Raises BenchError where it cannot be had."""
    place = home / peer.name
    python = place / "bin" / "python"
    wanted = f"{peer.package}=={peer.version}"
    look = [str(python), "-c", f"import importlib.metadata as m, sys; sys.exit(m.version('{peer.package}') != '{peer.version}')"]
    if not python.exists() or subprocess.run(look, capture_output=True, check=False).returncode:
        print(f"bench-ingest: {wanted} into an environment of its own, once", file=sys.stderr)
        for command in (
            [sys.executable, "-m", "venv", str(place)],
            [str(python), "-m", "pip", "--disable-pip-version-check", "--no-input", "--quiet", "install", wanted],
        ):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            if done.returncode:
                said = (done.stderr.strip() or "without a word").splitlines()[-1]
                where = place.relative_to(home.parent.parent)
                raise BenchError(f"{wanted} cannot be installed ({said}): see whether `pip install '{wanted}'` works in {where}")
    return place / "bin"


def _environment(folder: Path, port: int, grpc: int, programs: Path) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("LENSD_", "MLFLOW_", "PHOENIX_"))}
    return kept | {
        "PATH": f"{programs}:{kept.get('PATH', '')}", "HOME": str(folder), "PHOENIX_WORKING_DIR": str(folder), "PHOENIX_HOST": "127.0.0.1",
        "PHOENIX_PORT": str(port), "PHOENIX_GRPC_PORT": str(grpc), "PHOENIX_TELEMETRY_ENABLED": "false", "MLFLOW_DISABLE_TELEMETRY": "true",
    }  # fmt: skip


def _until_up(group: Group, port: int) -> None:
    until = time.monotonic() + STARTS_WITHIN_S
    while not _answers(port):
        group.check()
        if time.monotonic() > until:
            raise BenchError(f"{group.name} was not up after {STARTS_WITHIN_S:.0f} s: {group.last_words()}")
        time.sleep(LOOK_S)


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), 1), urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=5):
            return True
    except urllib.error.HTTPError:
        return True
    except OSError:
        return False
