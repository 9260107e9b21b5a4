"""`lensd.toml`: every part's settings in one file, each value also as `LENSD_TABLE__KEY`.

Looked for at `--config`, `./lensd.toml`, `~/.config/lensd/lensd.toml`, `/etc/lensd/lensd.toml`; none is no error.
"""

import difflib
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from lensd_collectors.gateway.config import GatewayConfig
from lensd_collectors.host.config import AgentConfig

from lensd.alerts.config import AlertsConfig
from lensd.errors import ConfigError
from lensd.receive.limits import DoorLimits
from lensd.timeline.limits import Limits

DEFAULT_STORE = "~/.local/share/lensd"
LOOPBACK = ("127.", "localhost:", "[::1]:")


class ServeConfig(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """The daemon: where it listens, where it keeps what it is told."""

    store: str = DEFAULT_STORE
    otlp: str = "127.0.0.1:4318"
    api: str = "127.0.0.1:8600"
    token_file: str = ""  # default: `token` in the store's folder, made on first start
    public_url: str = "http://127.0.0.1:8501"  # builds every link that leaves the machine
    journal_max_bytes: int = 1 << 30
    limits: DoorLimits = DoorLimits()
    evaluate_every_s: float = 1.0


class DashboardConfig(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    listen: str = "127.0.0.1:8501"
    allow_remote: bool = False  # the dashboard has no login of its own: behind a proxy that has one, or in a container


class RunbooksConfig(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """`folders` hold runbooks of your own; `params` override a runbook's: `[runbooks.params.queue-saturation]`."""

    folders: tuple[str, ...] = ()
    params: dict[str, dict[str, Any]] = {}


class Config(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    serve: ServeConfig = ServeConfig()
    timeline: Limits = Limits()
    gateway: GatewayConfig = GatewayConfig()
    agent: AgentConfig = AgentConfig()
    dashboard: DashboardConfig = DashboardConfig()
    runbooks: RunbooksConfig = RunbooksConfig()
    alerts: AlertsConfig = AlertsConfig()

    @property
    def store_folder(self) -> Path:
        return Path(self.serve.store).expanduser()

    @property
    def token_file(self) -> Path:
        return Path(self.serve.token_file).expanduser() if self.serve.token_file else self.store_folder / "token"

    @property
    def api_url(self) -> str:
        return f"http://{self.serve.api}"

    def token_for(self, named: str) -> Path:
        """The token file of a part that may name its own."""
        return Path(named).expanduser() if named else self.token_file


def find(path: str | None, cwd: Path | None = None) -> Path | None:
    """The file that counts, or None. Raises ConfigError for a named one that is not there."""
    if path is not None:
        if not Path(path).is_file():
            raise ConfigError(f"no configuration at {path}")
        return Path(path)
    places = ((cwd or Path.cwd()) / "lensd.toml", Path("~/.config/lensd/lensd.toml").expanduser(), Path("/etc/lensd/lensd.toml"))
    return next((place for place in places if place.is_file()), None)


def load(path: str | None = None, environ: Mapping[str, str] = os.environ) -> Config:
    """Defaults, then the file, then the environment. Raises ConfigError with the key as the user wrote it."""
    place = find(path)
    try:
        data = tomllib.loads(place.read_text()) if place is not None else {}
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{place}: {error}") from None
    named = str(place) if place is not None else "environment"
    _add_environment(data, environ)
    _check_keys(data, Config, "", named)
    try:
        config = msgspec.convert(data, Config, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(f"{named}: {error}") from None
    _check_listen(config)
    return config


def read_token(path: Path) -> str | None:
    """The bearer token, or None where there is no file yet."""
    try:
        return path.read_text().strip() or None
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ConfigError(f"cannot read the token file {path}: {error.strerror}") from None


def _add_environment(data: dict[str, Any], environ: Mapping[str, str]) -> None:
    for name, text in environ.items():
        if not name.startswith("LENSD_") or "__" not in name:
            continue
        table, _, key = name.removeprefix("LENSD_").lower().partition("__")
        data.setdefault(table, {})[key] = _value(text)


def _value(text: str) -> Any:
    """Text as TOML reads it (numbers, lists, tables), else as it stands."""
    try:
        return tomllib.loads(f"v = {text}")["v"]
    except tomllib.TOMLDecodeError:
        return text


def _check_keys(data: Any, struct: type[msgspec.Struct], where: str, place: str) -> None:
    """Name the nearest known key for one that is not known."""
    fields = {f.name: f.type for f in msgspec.structs.fields(struct)}
    for key, value in data.items():
        if key not in fields:
            near = difflib.get_close_matches(key, fields, 1)
            hint = f"; did you mean {where}{near[0]}?" if near else f"; known: {', '.join(sorted(fields))}"
            raise ConfigError(f"{place}: unknown key {where}{key}{hint}")
        inner = fields[key]
        if isinstance(inner, type) and issubclass(inner, msgspec.Struct):
            if not isinstance(value, dict):
                raise ConfigError(f"{place}: {where}{key} is a table, not {value!r}")
            _check_keys(value, inner, f"{where}{key}.", place)


def _check_listen(config: Config) -> None:
    """Anything but loopback needs a token that somebody chose, so that nobody opens the door by accident."""
    for name, listen in (("serve.otlp", config.serve.otlp), ("serve.api", config.serve.api)):
        if not listen.startswith(LOOPBACK) and not config.serve.token_file:
            raise ConfigError(f"{name} = {listen} is reachable from outside: set serve.token_file, or listen on 127.0.0.1")
