"""The processes of the soak: the gateway, three engines that can be killed and started again, and the OTLP door."""

import contextlib
import http.client
import json
import os
import re
import secrets
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Final

import msgspec
from lensd_collectors.gateway import keys

from gateway.process import BenchError, Group
from gateway.soak.mix import ALIAS, MAX_BODY, RARE, As
from gateway.stacks import ROOT
from gateway.wire import MODEL

BENCH: Final = ROOT / "bench"
STARTS_WITHIN_S: Final = 20.0
STOPS_WITHIN_S: Final = 10.0
ENGINES: Final = {"a": (MODEL,), "b": (MODEL,), "c": (RARE,)}
MANY: Final = 100_000

# Limits short enough to be met, retries that wait a moment, load shedding that comes and goes.
CONFIG: Final = """
[gateway]
listen = "127.0.0.1:{port}"
keys_file = "{folder}/keys.toml"
token_file = "{folder}/token"
export_url = "http://127.0.0.1:{door}"
aliases = {{ {alias} = "{model}" }}
fallback_models = {{ {rare} = "{model}" }}
max_body_bytes = {max_body}
connect_timeout_s = 0.5
first_byte_timeout_s = 1.2
idle_timeout_s = 1.0
total_timeout_s = 8.0
heartbeat_s = 0.2
heartbeat_before_first_byte = {early_beats}
stall_after_s = 1.0
open_event_after_s = 0.3
progress_every_s = 0.5
drain_timeout_s = 1.0

[gateway.retry]
most = 2
first_s = 0.01
busy_s = 0.02
longest_s = 0.5

[gateway.degrade]
enabled = true
act = "cap"
in_flight = {shed_at}
waiting = 100
enter_after_s = 0.05
leave_after_s = 0.1
scrape_every_s = 0.5
max_tokens = 32
"""

_READY: Final = re.compile(r'^lensd_gateway_upstream_state\{[^}]*state="ready"[^}]*\} 1\.0$', re.MULTILINE)
_EXPECTED: Final = re.compile(
    r"^(upstream_(out|stalled|loading|models) [abc]|keys_rejected|degrade_on): "
    r"|^WARNING:  Invalid HTTP request received\.$"
    r"|^export to http://127\.0\.0\.1:\d+ failed: .*; serving goes on without it"
    r"|^Executing <.*> took \d+\.\d+ seconds"  # asyncio's debug mode on a machine with other work
)
"""Lines that the gateway may write to its standard error in a soak."""


class Engines:
    """By name; each on a port of its own that stays bound here, so that nobody else gets it while its engine is dead."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._bound = {name: _bound() for name in ENGINES}
        self._groups: dict[str, Group] = {}
        self.deaths = self.freezes = 0
        for name in ENGINES:
            self.start(name)

    def url(self, name: str) -> str:
        return f"http://127.0.0.1:{self._bound[name].getsockname()[1]}"

    def start(self, name: str) -> None:
        port = str(self._bound[name].getsockname()[1])
        command = [sys.executable, "-m", "gateway.soak.engine", port, *ENGINES[name]]
        self._groups[name] = _started(f"engine {name}", command, self._folder / f"engine-{name}.log", BENCH)

    def kill(self, name: str) -> None:
        self._end(name)
        self.deaths += 1

    def freeze(self, name: str, *, is_on: bool) -> None:
        """As an engine that hangs: it takes connections, since the kernel does, and says nothing."""
        self._groups[name].process.send_signal(signal.SIGSTOP if is_on else signal.SIGCONT)
        self.freezes += is_on

    def check(self) -> None:
        """Raises BenchError where one has died of itself."""
        for group in self._groups.values():
            group.check()

    def close(self) -> None:
        for name in list(self._groups):
            self._end(name)
        for bound in self._bound.values():
            bound.close()

    def _end(self, name: str) -> None:
        group = self._groups.pop(name)
        group.process.kill()
        group.process.wait()


class Door:
    """The OTLP door's process."""

    def __init__(self, folder: Path) -> None:
        self._group = _started("door", [sys.executable, "-m", "gateway.soak.door"], folder / "door.log", BENCH, talks=True)
        assert self._group.process.stdout is not None
        ports = self._group.process.stdout.readline().split()
        if len(ports) != 2:
            raise BenchError(f"the OTLP door did not start: {self._group.last_words()}")
        self.port, self._control = int(ports[0]), int(ports[1])

    def become(self, mood: str) -> None:
        self._ask(f"/mood/{mood}")

    def count(self) -> tuple[int, int]:
        """Requests it was told of, and how many of them more than once."""
        said = self._ask("/count")
        return said["requests"], said["twice"]

    def close(self) -> None:
        self._group.end()

    def _ask(self, path: str) -> dict[str, int]:
        connection = http.client.HTTPConnection("127.0.0.1", self._control, timeout=STARTS_WITHIN_S)
        try:
            connection.request("GET", path)
            said: dict[str, int] = json.loads(connection.getresponse().read())
            return said
        finally:
            connection.close()


class Keys:
    """The keys file, written again in other forms while it is in use."""

    def __init__(self, path: Path) -> None:
        self._path = path
        made = {
            who: keys.new_key(who.value, models)
            for who, models in (
                (As.MAIN, ["*"]), (As.TIGHT, [MODEL]), (As.SCOPED, ["other-*"]), (As.COMING, [MODEL, RARE]), (As.EXPIRED, ["*"]),
            )
        }  # fmt: skip
        self.secrets = {who: secret for who, (secret, _) in made.items()} | {As.UNKNOWN: keys.PREFIX + "x" * 43, As.NOBODY: ""}
        self._entries = {who: entry for who, (_, entry) in made.items()}
        self.writes = 0
        self.write(is_broken=False)

    def write(self, *, is_broken: bool) -> None:
        """With other limits each time, and one key that is there every other time."""
        self.writes += 1
        limits = {
            As.MAIN: {"concurrency": MANY - self.writes, "requests_per_min": 10_000_000, "tokens_per_min": 10**10},
            As.TIGHT: {"concurrency": 2 + self.writes % 3, "max_tokens": 64 + self.writes},
            As.EXPIRED: {"expires": datetime(2020, 1, 1, tzinfo=UTC)},
        }
        aside = self._path.with_suffix(".aside")
        if is_broken:
            aside.write_text("[[keys]]\nid = 7\n")
        else:
            for who, entry in self._entries.items():
                if who is not As.COMING or self.writes % 2:
                    keys.append(aside, msgspec.structs.replace(entry, **limits.get(who, {})))
        aside.replace(self._path)


@dataclass(frozen=True, slots=True)
class House:
    gateway: Group
    port: int
    engines: Engines
    door: Door
    keys: Keys
    log: Path

    def stop_gateway(self) -> int:
        """By SIGTERM; its exit status."""
        self.gateway.process.terminate()
        try:
            return self.gateway.process.wait(STOPS_WITHIN_S)
        except subprocess.TimeoutExpired:
            return -1

    def complaints(self) -> list[str]:
        """Lines of the gateway's that should not be there."""
        lines = (line.strip() for line in self.log.read_text(errors="replace").splitlines())
        return [line for line in lines if line and not _EXPECTED.search(line)]


@contextlib.contextmanager
def opened(folder: Path, together: int, *, is_dev: bool) -> Iterator[House]:
    """All of it, up and answering; everything ends with the block. Raises BenchError."""
    with contextlib.ExitStack() as held:
        door = Door(folder)
        held.callback(door.close)
        engines = Engines(folder)
        held.callback(engines.close)
        written = Keys(folder / "keys.toml")
        (folder / "token").write_text(secrets.token_hex(16))
        (folder / "token").chmod(0o600)
        bound = _bound()
        port = int(bound.getsockname()[1])
        config = folder / "lensd.toml"
        config.write_text(
            CONFIG.format(
                port=port, folder=folder, door=door.port, alias=ALIAS, model=MODEL, rare=RARE, max_body=MAX_BODY, shed_at=together * 3 // 4,
                early_beats="true" if is_dev else "false",
            )
            + "".join(f'\n[[gateway.upstreams]]\nname = "{name}"\nurl = "{engines.url(name)}"\n' for name in ENGINES)
        )  # fmt: skip
        bound.close()
        log = folder / "gateway.log"
        command = [sys.executable, *(["-X", "dev"] if is_dev else []), "-m", "lensd", "gateway", "--config", str(config)]
        env = {name: value for name, value in os.environ.items() if not name.startswith("LENSD_") and not name.lower().endswith("_proxy")}
        gateway = _started("gateway", command, log, folder, env=env)
        held.callback(gateway.end)
        _wait_ready(gateway, port)
        yield House(gateway, port, engines, door, written, log)


def _wait_ready(gateway: Group, port: int) -> None:
    """All engines' models are known."""
    deadline = time.monotonic() + STARTS_WITHIN_S
    while True:
        gateway.check()
        with contextlib.suppress(OSError, http.client.HTTPException):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=1)
            connection.request("GET", "/metrics")
            page = connection.getresponse().read().decode()
            connection.close()
            if len(_READY.findall(page)) == len(ENGINES):
                return
        if time.monotonic() > deadline:
            raise BenchError(f"the gateway was not ready after {STARTS_WITHIN_S:.0f} s: {gateway.last_words()}")
        time.sleep(0.1)


def _started(
    name: str, command: Sequence[str], log: Path, cwd: Path, *, env: Mapping[str, str] | None = None, talks: bool = False
) -> Group:
    """On any core: nothing is compared here."""
    cores = os.sched_getaffinity(0)
    group = Group(name, command, min(cores), log, cwd=cwd, env=env, talks=talks)
    os.sched_setaffinity(group.process.pid, cores)
    return group


def _bound() -> socket.socket:
    """A free port, held but not listened on."""
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.bind(("127.0.0.1", 0))
    return made
