"""What a running engine shows from outside without being changed: a few GETs, its process's words and surroundings, its log's words.

Of a command line and an environment only the names in `FLAGS`, `ENVIRONMENT` and `SET_ONLY` are kept, so that no key is.
"""

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import unquote

import msgspec
import psutil

from lensd_collectors import conventions
from lensd_collectors.host.engine import Engine, Fetch, FetchError, FetchFailure, without_secrets
from lensd_collectors.host.facts import from_models
from lensd_collectors.host.place import PROC, Place, PlaceKind, place_of
from lensd_collectors.host.process import is_local, listener
from lensd_collectors.host.scrape import PREFIXES, parse

FLAGS: Final = (
    "api-server-count", "config", "disable-log-stats", "enable-log-requests", "enable-per-request-metrics", "kv-cache-metrics",
    "middleware", "otlp-traces-endpoint",
)  # fmt: skip
ENVIRONMENT: Final = (
    "LENSD_ENGINE", "LENSD_OTLP", "LENSD_TOKEN_FILE", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "VLLM_PLUGINS", "VLLM_USE_RUST_FRONTEND",
)  # fmt: skip
SET_ONLY: Final = ("LENSD_TOKEN", "OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_RESOURCE_ATTRIBUTES")
ENDPOINTS: Final = frozenset({"LENSD_OTLP", "otlp-traces-endpoint"})
SET: Final = "set"
RESOURCE_ENGINE: Final = "OTEL_RESOURCE_ATTRIBUTES lensd.engine"
"""Name under which the engine's name in the resource attributes is kept."""
MOST_LOG_BYTES: Final = 4 * 1024 * 1024
PLUGIN_GROUP: Final = "Available plugins for group vllm.stat_logger_plugins:"
EXPORT_FAILED: Final = re.compile(
    r"^(?:\([^)\n]*\) )?Failed to export (?:spans? batch|traces to)", re.MULTILINE
)  # the OTel SDK's, unframed


class ProcessSeen(msgspec.Struct, frozen=True, kw_only=True):
    """The API server's process; None is what could not be read."""

    pid: int
    flags: dict[str, tuple[str, ...]] | None = None  # of FLAGS those given, each with its values ("" for a switch)
    environment: dict[str, str] | None = None  # of ENVIRONMENT and SET_ONLY those given
    is_rust: bool | None = None  # its HTTP front end is the Rust one
    has_lensd: bool | None = None  # our package is in its Python environment


class Looked(msgspec.Struct, frozen=True, kw_only=True):
    """An engine as it stands; what is None or empty was not to be had, and `reasons` says why."""

    engine: str
    url: str
    kind: str
    answers: bool
    version: str | None = None
    models: tuple[str, ...] = ()
    max_model_len: int | None = None
    model_dir: str = ""
    names: frozenset[str] = frozenset()  # of its own metrics, as on the wire
    is_local: bool = False
    process: ProcessSeen | None = None
    log: Place = Place(PlaceKind.UNKNOWN)
    log_plugins: tuple[str, ...] | None = None  # stat-logger plugins that its log names
    export_failed: bool = False  # its log says that spans did not get out
    reasons: tuple[str, ...] = ()

    @property
    def is_engine(self) -> bool:
        """Whether what answers has said something that only an engine says."""
        return bool(self.version or self.models or self.names)


Find = Callable[[Engine], psutil.Process | None]


def look(engine: Engine, fetch: Fetch, find: Find | None = None, proc: Path = PROC) -> Looked:
    """Look once. Sends GETs only; an engine that does not answer gives `answers` False with the reason."""
    reasons: list[str] = []
    version = _version(engine, fetch)
    facts, root = _models(engine, fetch, reasons)
    kind, names = _metrics(engine, fetch, reasons)
    answers = bool(version or facts or names) or _healthy(engine, fetch, reasons)
    here = bool(engine.pid) or is_local(engine.host)
    process = (find or _listening)(engine) if here else None
    seen = _process(process, proc) if process is not None else None
    if not here:
        reasons.append("it runs on another host: its process and its log are not looked at from here")
    elif seen is None:
        reasons.append("no process that this user can see listens on its port")
    elif seen.flags is None or seen.environment is None:
        reasons.append(f"process {seen.pid} is another user's: what it was started with cannot be read")
    place = _place(engine, seen, proc)
    said = _tail(Path(place.spec)) if place.kind is PlaceKind.FILE and place.spec else ""
    return Looked(
        engine=engine.name,
        url=engine.url,
        kind=kind or engine.kind,
        answers=answers,
        version=version,
        models=tuple(filter(None, facts.get("served_model_name", "").split(", "))),
        max_model_len=int(facts["max_model_len"]) if "max_model_len" in facts else None,
        model_dir=engine.model_dir or (root if root and (Path(root) / "config.json").is_file() else ""),
        names=names,
        is_local=here,
        process=seen,
        log=place,
        log_plugins=plugins_named(said),
        export_failed=EXPORT_FAILED.search(said.rpartition(PLUGIN_GROUP)[2]) is not None,
        reasons=tuple(reasons),
    )


def _version(engine: Engine, fetch: Fetch) -> str | None:
    try:
        told = msgspec.json.decode(fetch(engine, "/version"), type=dict[str, object]).get("version")
    except (FetchError, msgspec.DecodeError, UnicodeDecodeError):
        return None
    return told if isinstance(told, str) and re.fullmatch(r"[\w.+-]{1,60}", told) else None


def _models(engine: Engine, fetch: Fetch, reasons: list[str]) -> tuple[dict[str, str], str]:
    try:
        return from_models(fetch(engine, "/v1/models"))
    except FetchError as error:
        if error.status in (401, 403):
            reasons.append(f"/v1/models answers {error.status}: name a file that holds the engine's key by --api-key-file")
        return {}, ""


def _metrics(engine: Engine, fetch: Fetch, reasons: list[str]) -> tuple[str | None, frozenset[str]]:
    """The dialect that the names on /metrics are of, and the names."""
    try:
        text = fetch(engine, "/metrics").decode(errors="replace")
        for kind, prefixes in PREFIXES.items():
            names = frozenset(each.name for each in parse(text, prefixes) if each.name.startswith(prefixes))
            if names:
                return kind, names
    except FetchError as error:
        reasons.append(f"/metrics: {_said(error)}")
    except ValueError:
        reasons.append("/metrics is no Prometheus text")
    else:
        reasons.append("/metrics has none of an engine's own names")
    return None, frozenset()


def _healthy(engine: Engine, fetch: Fetch, reasons: list[str]) -> bool:
    try:
        fetch(engine, "/health")
    except FetchError as error:
        reasons.append(f"/health: {_said(error)}")
        return error.why is FetchFailure.STATUS
    return True


def _said(error: FetchError) -> str:
    words = {FetchFailure.REFUSED: "nothing listens there", FetchFailure.TIMEOUT: "no answer in time", FetchFailure.BROKEN: "broken off"}
    return error.said or words.get(error.why, f"answers {error.status}")


def _listening(engine: Engine) -> psutil.Process | None:
    try:
        return psutil.Process(engine.pid) if engine.pid else listener(engine.host, engine.port)
    except psutil.Error:
        return None


def _place(engine: Engine, seen: ProcessSeen | None, proc: Path) -> Place:
    """The log that the settings name, else where its output goes."""
    if engine.log:
        kind = next((k for k in PlaceKind if engine.log.startswith(f"{k}:")), PlaceKind.FILE)
        return Place(kind, engine.log)
    return place_of(seen.pid, proc) if seen is not None else Place(PlaceKind.UNKNOWN, why="its process is not seen from here")


def _process(process: psutil.Process, proc: Path) -> ProcessSeen | None:
    try:
        command = process.cmdline()
        if command and command[0].startswith("VLLM::"):  # one of several API servers: what it is started with stands at its parent
            process = process.parent() or process
            command = process.cmdline()
    except psutil.NoSuchProcess:
        return None
    except psutil.Error:
        command = []
    environment = _environment(proc / str(process.pid) / "environ")
    kept = None if environment is None else _kept(environment)
    return ProcessSeen(
        pid=process.pid,
        flags=flags_of(command) if command else None,
        environment=kept,
        is_rust=_is_rust(process, command, kept),
        has_lensd=_has_lensd(command, environment),
    )


def flags_of(command: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Of FLAGS those in a command line with their values, credentials in URLs taken out.

    `--a_b`, `--a-b=v` and `--no-a-b` as vLLM reads them.
    """
    found: dict[str, tuple[str, ...]] = {}
    for number, word in enumerate(command):
        if not word.startswith("--"):
            continue
        given, equals, value = word[2:].partition("=")
        name = given.replace("_", "-")
        if name.startswith("no-") and name[3:] in FLAGS:
            found.pop(name[3:], None)
        elif name in FLAGS:
            after = command[number + 1] if number + 1 < len(command) else ""
            text = value if equals else "" if after.startswith("-") else after
            found[name] = (*found.get(name, ()), without_secrets(text) if name in ENDPOINTS else text)
    return found


def _environment(path: Path) -> dict[str, str] | None:
    try:
        text = path.read_bytes().decode(errors="replace")
    except OSError:
        return None
    return dict(pair.split("=", 1) for pair in text.split("\0") if "=" in pair)


def _kept(environment: Mapping[str, str]) -> dict[str, str]:
    kept = {name: environment[name] for name in ENVIRONMENT if name in environment}
    kept |= {name: SET for name in SET_ONLY if environment.get(name)}
    for pair in environment.get("OTEL_RESOURCE_ATTRIBUTES", "").split(","):
        name, _, value = pair.partition("=")
        if name.strip() == conventions.ENGINE and value.strip():
            kept[RESOURCE_ENGINE] = unquote(value.strip())
    return {name: without_secrets(value) if name in ENDPOINTS else value for name, value in kept.items()}


def _is_rust(process: psutil.Process, command: Sequence[str], environment: Mapping[str, str] | None) -> bool | None:
    """The front end is a child `BINARY frontend --listen-fd N`; or the environment asks for it."""
    try:
        commands = [list(command), *(child.cmdline() for child in process.children(recursive=True))]
    except psutil.Error:
        commands = [list(command)] if command else []
    if any(each[1:2] == ["frontend"] and "--listen-fd" in each for each in commands):
        return True
    if environment is not None:
        return environment.get("VLLM_USE_RUST_FRONTEND", "").strip().lower() not in ("", "0", "false")
    return False if commands else None


def _has_lensd(command: Sequence[str], environment: Mapping[str, str] | None) -> bool | None:
    """Whether the Python environment that the first words of the command lie in has our package; None: not to be seen."""
    folders = [Path(word).parent.parent for word in command[:2] if os.path.isabs(word) and Path(word).parent.name == "bin"]
    places = [place for folder in folders for place in _globbed(folder, "lib/python3*/site-packages")]
    if not places:
        return None
    added = (environment or {}).get("PYTHONPATH", "").split(os.pathsep)
    places += [Path(place) for place in added if os.path.isabs(place)]
    return any(_globbed(place, "lensd-*.dist-info") for place in places)


def _globbed(folder: Path, pattern: str) -> list[Path]:
    try:
        return list(folder.glob(pattern))
    except OSError:
        return []


def plugins_named(text: str) -> tuple[str, ...] | None:
    """The stat-logger plugins that vLLM found at its last start, as its log names them; None: this part of the log does not say."""
    _, mark, after = text.rpartition(PLUGIN_GROUP)
    if not mark:
        return None
    return tuple(_listed(after.splitlines()[1:]))


def _listed(lines: Iterable[str]) -> Iterable[str]:
    for line in lines:
        found = re.search(r"\] - (\S+) -> \S+$", line)
        if not found:
            return
        yield found[1]


def _tail(path: Path) -> str:
    if not path.is_file():  # to open a pipe is to wait for its writer
        return ""
    try:
        with path.open("rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - MOST_LOG_BYTES))
            return file.read(MOST_LOG_BYTES).decode(errors="replace")
    except OSError:
        return ""
