"""`lensd.toml`: every part's settings in one file, each value also as `LENSD_TABLE__KEY`.

Looked for at `--config`, `./lensd.toml`, `~/.config/lensd/lensd.toml`, `/etc/lensd/lensd.toml`; none is no error.
"""

import contextlib
import difflib
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import msgspec
from lensd_collectors.gateway.config import GatewayConfig
from lensd_collectors.host.config import AgentConfig

from lensd.alerts.config import AlertsConfig
from lensd.errors import ConfigError
from lensd.receive.limits import DoorLimits
from lensd.store.config import StoreConfig
from lensd.timeline.limits import Limits

DEFAULT_STORE = "~/.local/share/lensd"
ENVIRONMENT = re.compile(r"LENSD_[A-Z0-9_]*[A-Z0-9]__[A-Z0-9_]+", re.IGNORECASE)
LOOPBACK = re.compile(r"127(\.\d{1,3}){3}|localhost|\[::1\]")
LISTEN = re.compile(r"(?P<host>[^\s:]+|\[[0-9a-fA-F:.]+\]):(?P<port>\d{1,5})")

AboveZero = Annotated[float, msgspec.Meta(gt=0)]
Struct = type[msgspec.Struct]


class ServeConfig(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """The daemon: where it listens, where it keeps what it is told."""

    store: str = DEFAULT_STORE
    otlp: str = "127.0.0.1:4318"  # OTLP over HTTP
    otlp_grpc: str = "127.0.0.1:4317"  # OTLP over gRPC; empty: off
    api: str = "127.0.0.1:8600"
    token_file: str = ""  # default: `token` in the store's folder, made on first start
    public_url: str = "http://127.0.0.1:8501"  # builds every link that leaves the machine
    journal_max_bytes: Annotated[int, msgspec.Meta(gt=0)] = 1 << 30
    limits: DoorLimits = DoorLimits()
    evaluate_every_s: AboveZero = 1.0


class DashboardConfig(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    listen: str = "127.0.0.1:8501"
    allow_remote: bool = False  # the dashboard has no login of its own: behind a proxy that has one, or in a container


class RunbooksConfig(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    """`folders` hold runbooks of your own; a table `[runbooks.queue-saturation]` overrides that runbook's params."""

    folders: tuple[str, ...] = ()
    params: dict[str, dict[str, Any]] = {}  # by id: what all tables `[runbooks.<id>]` say


class Config(msgspec.Struct, forbid_unknown_fields=True, kw_only=True, frozen=True):
    serve: ServeConfig = ServeConfig()
    store: StoreConfig = StoreConfig()
    timeline: Limits = Limits()
    gateway: GatewayConfig = GatewayConfig()
    agent: AgentConfig = AgentConfig()
    dashboard: DashboardConfig = DashboardConfig()
    runbooks: RunbooksConfig = RunbooksConfig()
    alerts: AlertsConfig = AlertsConfig()

    @property
    def store_folder(self) -> Path:
        return expanded("serve.store", self.serve.store)

    @property
    def token_file(self) -> Path:
        return expanded("serve.token_file", self.serve.token_file) if self.serve.token_file else self.store_folder / "token"

    @property
    def api_url(self) -> str:
        return f"http://{self.serve.api}"

    def token_for(self, named: str) -> Path:
        """The token file of a part that may name its own."""
        return expanded("token_file", named) if named else self.token_file


def find(path: str | None, cwd: Path | None = None) -> Path | None:
    """The file that counts, or None. Raises ConfigError for a named one that is not there."""
    if path is not None:
        try:
            there = Path(path).is_file()
        except OSError as error:
            raise ConfigError(f"cannot read {path}: {error.strerror}") from None
        if not there:
            raise ConfigError(f"no configuration at {path}")
        return Path(path)
    for place in ((cwd or Path()) / "lensd.toml", Path("~/.config/lensd/lensd.toml"), Path("/etc/lensd/lensd.toml")):
        # A folder we may not look into, a working directory that is gone, a user without a home: nothing of ours is there.
        with contextlib.suppress(OSError, RuntimeError):
            if place.expanduser().is_file():
                return place.expanduser().absolute()
    return None


def load(path: str | None = None, environ: Mapping[str, str] = os.environ) -> Config:
    """Defaults, then the file, then the environment. Raises ConfigError with the key as the user wrote it."""
    place = find(path)
    data = _with_overrides(_read(place), str(place)) if place is not None else {}
    _check_keys(data, Config, "", str(place))
    sources = _add_environment(data, environ)  # dotted key -> variable
    try:
        config = msgspec.convert(data, Config, strict=False)
    except msgspec.ValidationError as error:
        raise ConfigError(_said(str(error), sources, str(place))) from None
    _check_listen(config)
    return config


def as_toml(tables: Mapping[str, Mapping[str, Any]]) -> str:
    """Plain values as a lensd.toml."""
    parts = [[f"[{table}]", *(f"{_key(key)} = {_toml(value)}" for key, value in values.items()), ""] for table, values in tables.items()]
    return "\n".join(line for part in parts for line in part)


def read_token(path: Path) -> str | None:
    """The bearer token, or None where there is no file yet."""
    try:
        return path.read_text().strip() or None
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not text"
        raise ConfigError(f"cannot read the token file {path}: {why}") from None


def _read(place: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(place.read_text(encoding="utf-8"))
    except UnicodeDecodeError:
        raise ConfigError(f"{place}: this is not UTF-8 text") from None
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"{place}: not TOML: {str(error)[:1].lower()}{str(error)[1:]}") from None
    except OSError as error:
        raise ConfigError(f"cannot read {place}: {error.strerror}") from None


def _with_overrides(data: dict[str, Any], place: str) -> dict[str, Any]:
    """`[runbooks.<id>]` as the member of `runbooks.params` it means: any table there that is no setting's name is a runbook's."""
    given = data.get("runbooks")
    if not isinstance(given, dict):
        return data
    own = {name: table for name, table in given.items() if isinstance(table, dict) and name not in _fields(RunbooksConfig)}
    params = given.get("params", {})
    if twice := sorted(own.keys() & params.keys()) if isinstance(params, dict) else []:
        raise ConfigError(f"{place}: [runbooks.{twice[0]}] stands beside [runbooks.params.{twice[0]}]: keep one of them")
    if not own or not isinstance(params, dict):
        return data
    rest = {name: value for name, value in given.items() if name not in own}
    return {**data, "runbooks": {**rest, "params": {**params, **own}}}


def _add_environment(data: dict[str, Any], environ: Mapping[str, str]) -> dict[str, str]:
    """Put every `LENSD_TABLE__KEY` into `data`; which variable gave which dotted key."""
    sources = {}
    for name in sorted(environ):
        if not ENVIRONMENT.fullmatch(name):
            continue
        keys = name.removeprefix("LENSD_").lower().split("__")
        struct: Struct | None = Config
        table, kind = data, Any
        for depth, key in enumerate(keys):
            fields = _fields(struct) if struct is not None else {}
            if key not in fields:
                raise ConfigError(_unknown(name, ".".join(keys[: depth + 1]), ".".join(keys[:depth]), fields))
            kind, struct = fields[key], _struct(fields[key])
            if depth < len(keys) - 1:
                table = table.setdefault(key, {})
        table[keys[-1]] = _value(environ[name], kind)
        sources[".".join(keys)] = name
    return sources


def _value(text: str, kind: Any) -> Any:
    """Text for a setting that is text, else as TOML reads it (numbers, lists, tables) where it does."""
    try:
        value = tomllib.loads(f"v = {text}")["v"]
    except tomllib.TOMLDecodeError:
        return text
    return text if kind is str and not isinstance(value, str) else value


def _check_keys(data: Mapping[str, Any], struct: Struct, where: str, place: str) -> None:
    """Name the nearest known key for one that is not known, in tables and in lists of tables."""
    fields = _fields(struct)
    for key, value in data.items():
        if key not in fields:
            raise ConfigError(_unknown(place, f"{where}{key}", where.rstrip("."), fields))
        inner = _struct(fields[key])
        if inner is None:
            continue
        if get_origin(fields[key]) is tuple:
            for number, item in enumerate(value if isinstance(value, list) else ()):
                if isinstance(item, dict):
                    _check_keys(item, inner, f"{where}{key}[{number}].", place)
        elif isinstance(value, dict):
            _check_keys(value, inner, f"{where}{key}.", place)
        else:
            raise ConfigError(f"{place}: {where}{key} is a table: write its settings under [{where}{key}]")


def _fields(struct: Struct) -> dict[str, Any]:
    return {field.name: field.type for field in msgspec.structs.fields(struct)}


def _struct(kind: Any) -> Struct | None:
    """The struct of a table, or of a list of tables."""
    kind = get_args(kind)[0] if get_origin(kind) is tuple else kind
    return kind if isinstance(kind, type) and issubclass(kind, msgspec.Struct) else None


def _unknown(place: str, key: str, table: str, fields: Mapping[str, Any]) -> str:
    near = difflib.get_close_matches(key.rpartition(".")[2], fields, 1)
    within = f"{table}." if table else ""
    hint = f"did you mean {within}{near[0]}?" if near else f"known: {', '.join(sorted(fields)) or f'{table} is one value'}"
    return f"{place}: unknown key {key}; {hint}"


def _said(error: str, sources: Mapping[str, str], place: str) -> str:
    """msgspec's sentence with the key in front, and the file or the variable it stands in."""
    what, _, path = error.partition(" - at `$")
    key = path.rstrip("`").lstrip(".") or "the file"
    what = f"{what[:1].lower()}{what[1:]}".replace("`", "")
    source = next((name for dotted, name in sources.items() if key == dotted or key.startswith((f"{dotted}.", f"{dotted}["))), place)
    return f"{source}: {key}: {what}"


def _check_listen(config: Config) -> None:
    """Anything but loopback needs a token that somebody chose, so that nobody opens the door by accident."""
    doors = {"serve.otlp": config.serve.otlp, "serve.api": config.serve.api}
    if config.serve.otlp_grpc:
        doors["serve.otlp_grpc"] = config.serve.otlp_grpc
    for name, listen in {**doors, "gateway.listen": config.gateway.listen, "dashboard.listen": config.dashboard.listen}.items():
        found = LISTEN.fullmatch(listen)
        if found is None or not 0 < int(found["port"]) < 65536:
            raise ConfigError(f"{name} = {listen!r} is no address to listen on: write host:port, such as 127.0.0.1:8600")
        if name in doors and not LOOPBACK.fullmatch(found["host"]) and not config.serve.token_file:
            raise ConfigError(f"{name} = {listen} is reachable from outside: set serve.token_file, or listen on 127.0.0.1")
    if not config.serve.public_url.startswith(("http://", "https://")):
        raise ConfigError(f"serve.public_url = {config.serve.public_url!r} is no URL: write http://host:8501")


def _toml(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(_toml(v) for v in value)}]"
    if isinstance(value, Mapping):
        return "{ " + ", ".join(f"{_key(k)} = {_toml(v)}" for k, v in value.items()) + " }" if value else "{}"
    return msgspec.json.encode(value).decode()


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _toml(name)


def expanded(name: str, text: str) -> Path:
    """The path with `~` as the user's home. Raises ConfigError that names the setting."""
    try:
        return Path(text).expanduser()
    except RuntimeError:
        raise ConfigError(f"{name} = {text}: this user has no home folder; set it to a full path") from None
