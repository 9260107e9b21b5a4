"""The demo's own folder: configuration, keys, token, store, logs; everything on loopback and free ports."""

import fcntl
import secrets
import shutil
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, NamedTuple

from lensd_collectors.gateway import keys

from lensd.config import as_toml
from lensd.errors import UsageError

PARTS: Final = ("store", "lensd.toml", "token", "engine.log", "tour.json", "keys.toml")  # the keys last: they show whose the rest is


class Ports(NamedTuple):
    gateway: int
    otlp: int
    api: int
    dashboard: int


DEFAULT_PORTS = Ports(8080, 4318, 8600, 8501)


class Place(NamedTuple):
    """What was laid down in the folder. `keys` are the secrets of the demo's callers."""

    folder: Path
    config: Path
    token: str
    ports: Ports
    keys: dict[str, str]

    @property
    def otlp_url(self) -> str:
        return f"http://127.0.0.1:{self.ports.otlp}"

    @property
    def api_url(self) -> str:
        return f"http://127.0.0.1:{self.ports.api}"

    @property
    def gateway_url(self) -> str:
        return f"http://127.0.0.1:{self.ports.gateway}"

    @property
    def dashboard_url(self) -> str:
        return f"http://127.0.0.1:{self.ports.dashboard}"


class Target(NamedTuple):
    """The engine of the tour. `log` and `model_dir` only where it is ours."""

    url: str
    model: str
    log: str = ""
    model_dir: str = ""
    pid: int = 0
    api_key_file: str = ""


@contextmanager
def held(folder: Path) -> Iterator[None]:
    """The folder, for one demo at a time: the next one throws its store away. Raises UsageError."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = (folder / "lock").open("w")
    except OSError as error:
        raise UsageError(f"the demo cannot use the folder {folder}: {error.strerror}") from None
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise UsageError(f"another demo runs in {folder}: end that one, or name another folder by --folder") from None
        yield


def prepare(folder: Path) -> Place:
    """A fresh folder with keys and token; an earlier demo's store goes, since its requests are not this tour's.

    Raises UsageError for a folder that holds somebody else's configuration or store.
    """
    _clear(folder)
    made: dict[str, str] = {"none": f"sk-demo-{secrets.token_urlsafe(12)}"}
    for name, models in (("full", ("*",)), ("other", ("some-other-*",))):
        made[name], entry = keys.new_key(f"demo-{name}", models)
        keys.append(folder / "keys.toml", entry)
    token = secrets.token_urlsafe(24)
    token_file = folder / "token"
    token_file.touch(mode=0o600)
    token_file.write_text(token + "\n")
    return Place(folder, folder / "lensd.toml", token, _ports(), made)


def configure(place: Place, target: Target, webhook_url: str) -> None:
    """Write lensd.toml for this engine."""
    name = "engine"
    upstream = {"name": name, "url": target.url} | ({"api_key_file": target.api_key_file} if target.api_key_file else {})
    watched = upstream | {k: v for k, v in {"log": target.log, "model_dir": target.model_dir, "pid": target.pid}.items() if v}
    export = {"export_url": place.otlp_url, "token_file": str(place.folder / "token")}
    tables: dict[str, dict[str, object]] = {
        "serve": {
            "store": str(place.folder / "store"),
            "otlp": f"127.0.0.1:{place.ports.otlp}",
            "otlp_grpc": "",
            "api": f"127.0.0.1:{place.ports.api}",
            "token_file": str(place.folder / "token"),
            "public_url": place.dashboard_url,
        },
        "gateway": {
            "listen": f"127.0.0.1:{place.ports.gateway}",
            "keys_file": str(place.folder / "keys.toml"),
            "upstreams": [upstream],
            "open_event_after_s": 1.0,
            **export,
        },
        "agent": {"engines": [watched], "scrape_interval_s": 0.5, **export},
        "dashboard": {"listen": f"127.0.0.1:{place.ports.dashboard}"},
        "alerts": {"webhooks": [{"name": "demo", "url": webhook_url}]},
    }
    place.config.write_text(as_toml(tables))


def _clear(folder: Path) -> None:
    """Take away what an earlier demo left, and nothing else: only it has a key of that name."""
    found = [folder / name for name in PARTS if (folder / name).exists()]
    kept = folder / "keys.toml"
    if found and not (kept.is_file() and "demo-full" in kept.read_text(errors="replace")):
        raise UsageError(f"{folder} holds {found[0].name}, which no demo made: name another folder by --folder")
    for part in found:
        shutil.rmtree(part) if part.is_dir() else part.unlink()


def _ports() -> Ports:
    """The usual ports, each replaced by a free one where somebody has it."""
    taken: list[int] = []
    for wanted in DEFAULT_PORTS:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", wanted))
            except OSError:
                probe.bind(("127.0.0.1", 0))
            taken.append(probe.getsockname()[1])
    return Ports(*taken)
