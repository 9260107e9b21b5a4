"""What is visible of an engine now, from which source, and the one line that adds the next rung."""

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from lensd_collectors.conventions import Stage
from lensd_collectors.host.look import RESOURCE_ENGINE, Looked

from lensd import rungs
from lensd.api.items import Link
from lensd.records import SCHEMA_VERSION, Record
from lensd.rungs import Needs

MIDDLEWARE: Final = "lensd_collectors.vllm.middleware.LensdMiddleware"
PLUGIN: Final = "lensd"
GRPC_PORT: Final = 4317
OF_LINK: Final = {"scrape": "0", "log": "1", "llm_request": "2", "plugin": "3a", "middleware": "3b", "gateway": "5", "gpu": rungs.HOST.key}
"""Rung of what the daemon has heard."""


class Next(Record, frozen=True, kw_only=True):
    rung: int
    name: str
    adds: str
    line: str
    where: str


class Seen(Record, frozen=True, kw_only=True):
    """The answer of `lensd attach`, as `--json` prints it."""

    schema_version: int = SCHEMA_VERSION
    engine: str
    url: str
    kind: str
    version: str | None
    models: tuple[str, ...]
    max_model_len: int | None
    log: str | None
    rung: int  # the highest that is there
    rungs: tuple[str, ...]  # all that are there, by their keys
    stages: dict[str, str | None]  # of each of the six the source its time is taken from
    frontend: str | None  # the same of prefill's first part
    labels: tuple[str, ...]
    ids: tuple[str, ...]
    next: Next | None
    because: tuple[str, ...]


class House(Record, frozen=True, kw_only=True):
    """What the lines have to name: the door and the token's file of the daemon."""

    otlp: str  # host:port
    token_file: Path

    @property
    def otlp_url(self) -> str:
        return f"http://{self.otlp}"


def see(looked: Looked, house: House, links: Sequence[Link] | None, needs: Needs) -> Seen:
    """`links`: what the running daemon has heard of this engine, None without one."""
    because = list(looked.reasons)
    on = _there(looked, house, links, because)
    rungs_on = [each for each in (*rungs.RUNGS, rungs.HOST) if each.key in on]
    found = rungs.stages(rungs_on)
    if any(link.kind == "client" for link in links or ()):
        found[Stage.CLIENT] = "client"
    ids = [name for each in rungs_on for name in each.ids]
    if not ids and "enable-log-requests" in _flags(looked):
        ids = ["chatcmpl-ID in the engine's log, without times"]
    return Seen(
        engine=looked.engine,
        url=looked.url,
        kind=looked.kind,
        version=looked.version,
        models=looked.models,
        max_model_len=looked.max_model_len,
        log=looked.log.spec or None,
        rung=max((int(key[0]) for key in on - {rungs.HOST.key}), default=-1),
        rungs=tuple(each.key for each in rungs_on),
        stages={str(stage): found.get(stage) for stage in Stage},
        frontend=found.get("frontend"),
        labels=tuple(dict.fromkeys(name.partition("@")[0] for name in rungs.claimed(rungs_on, needs))),
        ids=tuple(dict.fromkeys(ids)),
        next=_next(looked, house, on, because),
        because=tuple(dict.fromkeys(because)),
    )


def links_of(engine: str, links: Iterable[Link]) -> list[Link]:
    """Those of one engine, with what names none."""
    return [link for link in links if link.engine in (engine, None)]


def _there(looked: Looked, house: House, links: Sequence[Link] | None, because: list[str]) -> set[str]:
    on = {OF_LINK[link.kind] for link in links or () if link.kind in OF_LINK}
    if looked.names:
        on.add("0")
    else:
        on.discard("0")
    if looked.log.spec:
        on.add("1")
    elif looked.log.why:
        because.append(looked.log.why)
    if looked.kind != "vllm":
        return on
    flags, environment = _flags(looked), _environment(looked)
    if "config" in flags:
        because.append(f"vLLM is started with --config {flags['config'][-1]}: what that file sets is not looked at")
    sends = "LENSD_OTLP" in environment
    if fault := sends_elsewhere(environment, house):
        because.append(fault)
        sends = False
    if _spans_come(flags, environment, house, because) and not is_rust(looked):
        on.add("2")
    if sends and plugin_loads(looked) and not older(looked.version, rungs.rung("3a").since) and not is_rust(looked):
        on.add("3a")
    if sends and any(MIDDLEWARE in given for given in flags.get("middleware", ())) and not is_rust(looked):
        on.add("3b")
    return on


def _spans_come(flags: Mapping[str, Sequence[str]], environment: Mapping[str, str], house: House, because: list[str]) -> bool:
    """Whether vLLM sends its spans to our door, as far as its command and environment say; why not goes to `because`."""
    if "otlp-traces-endpoint" not in flags:
        return False
    faults = span_faults(flags, environment, house)
    because += faults
    return not faults


def span_faults(flags: Mapping[str, Sequence[str]], environment: Mapping[str, str], house: House) -> list[str]:
    """What keeps the spans of a vLLM that traces from our door, in words; nothing where all is as it has to be."""
    endpoint, port, path = _endpoint(flags)
    if elsewhere(flags, house):
        return [f"vLLM's spans go to {endpoint}: let what listens there pass them on to {house.otlp_url}/v1/traces"]
    found = []
    if environment.get("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "grpc") != "http/protobuf":
        if port != GRPC_PORT:
            found.append(f"vLLM sends its spans by gRPC, and {endpoint} takes HTTP: set OTEL_EXPORTER_OTLP_TRACES_PROTOCOL=http/protobuf")
    elif port == GRPC_PORT or path.rstrip("/") != "/v1/traces":
        found.append(f"--otlp-traces-endpoint is {endpoint}, and vLLM adds no path to it: it has to be {house.otlp_url}/v1/traces")
    if not {"OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS"} & set(environment):
        header = f'OTEL_EXPORTER_OTLP_TRACES_HEADERS="authorization=Bearer%20$(cat {shlex.quote(str(house.token_file))})"'
        found.append(f"vLLM's spans carry no token: set {header}")
    return found


def elsewhere(flags: Mapping[str, Sequence[str]], house: House) -> bool:
    """Whether vLLM's spans go to somebody else's door."""
    return "otlp-traces-endpoint" in flags and _endpoint(flags)[1] not in (_port(house), GRPC_PORT)


def _endpoint(flags: Mapping[str, Sequence[str]]) -> tuple[str, int | None, str]:
    """Where the spans go, as it was given, with its port and path."""
    given = (flags.get("otlp-traces-endpoint") or ("",))[-1] or "nowhere"
    return given, *_parts(given)


def sends_elsewhere(environment: Mapping[str, str], house: House) -> str | None:
    """What is to be said where plugin and middleware send to another door than ours."""
    given = environment.get("LENSD_OTLP")
    if given is None or _parts(given)[0] == _port(house):
        return None
    return f"plugin and middleware send to {given or 'nowhere'} (LENSD_OTLP), not to {house.otlp_url}"


def _port(house: House) -> int:
    return int(house.otlp.rpartition(":")[2])


def _parts(url: str) -> tuple[int | None, str]:
    """Port and path."""
    try:
        parts = urlsplit(url if "://" in url else f"http://{url}")
        return parts.port, parts.path
    except ValueError:
        return None, ""


def plugin_loads(looked: Looked) -> bool:
    """Whether vLLM loads our plugin: it is installed there, and VLLM_PLUGINS does not leave it out."""
    process = looked.process
    installed = PLUGIN in (looked.log_plugins or ()) or bool(process and process.has_lensd)
    return installed and not left_out(looked)


def left_out(looked: Looked) -> str | None:
    """VLLM_PLUGINS where it is set and does not name our plugin."""
    listed = _environment(looked).get("VLLM_PLUGINS")
    return listed if listed is not None and PLUGIN not in [name.strip() for name in listed.split(",")] else None


def _flags(looked: Looked) -> Mapping[str, Sequence[str]]:
    return (looked.process.flags or {}) if looked.process else {}


def _environment(looked: Looked) -> Mapping[str, str]:
    return (looked.process.environment or {}) if looked.process else {}


def is_rust(looked: Looked) -> bool:
    return bool(looked.process and looked.process.is_rust)


def older(version: str | None, since: Sequence[int]) -> bool:
    """Whether a release is older; what is no release number counts as new."""
    found = re.match(r"0\.(\d+)(?:\.(\d+))?", version or "")
    if not found or "dev" in (version or ""):
        return False
    return (0, int(found[1]), int(found[2] or 0)) < (*since, 0, 0)[:3]


def _next(looked: Looked, house: House, on: set[str], because: list[str]) -> Next | None:
    flags = _flags(looked)
    if looked.kind == "vllm" and "disable-log-stats" in flags:
        because.append("--disable-log-stats leaves vLLM without figures; with tracing on it also ends at its first finished request")
        found = rungs.rung("0")
        return Next(rung=0, name=found.name, adds=found.adds, line="vllm serve ...   # without --disable-log-stats", where="shell")
    if "0" not in on:
        return None
    key = _next_key(looked, house, on, because)
    if key is None:
        return None
    if key == "3b" and (listed := left_out(looked)) is not None:
        because.append(f"VLLM_PLUGINS={listed} leaves lensd out: no other plugin than those it names is loaded")
    if not looked.is_local and key in ("2", "3b"):
        because.append(f"it runs on another host: {house.otlp} has to be an address it reaches (serve.otlp, with serve.token_file)")
    found = rungs.rung(key)
    name = "plugin and middleware" if key == "3b" and "3a" not in on else found.name
    return Next(rung=int(key[0]), name=name, adds=found.adds, line=line_for(key, looked, house), where=found.where)


def line_for(key: str, looked: Looked, house: House) -> str:
    """The line that adds a rung to this engine."""
    environment = _environment(looked)
    line = rungs.line(
        key,
        engine=looked.engine,
        otlp=house.otlp_url,
        token_file=house.token_file,
        url=looked.url,
        keep_attributes="OTEL_RESOURCE_ATTRIBUTES" in environment and RESOURCE_ENGINE not in environment,
    )
    listed = left_out(looked)
    if key == "3b" and listed is not None:
        line = line.replace("LENSD_OTLP=", f"{listing(listed)} LENSD_OTLP=", 1)
    return line.removeprefix("pip install lensd && ") if looked.process and looked.process.has_lensd else line


def listing(listed: str) -> str:
    """VLLM_PLUGINS with our plugin in it too."""
    return shlex.quote(f"VLLM_PLUGINS={','.join(filter(None, [listed, PLUGIN]))}")


def silence(looked: Looked) -> str:
    """Why an engine does not answer."""
    return "; ".join(reason for reason in looked.reasons if reason.startswith("/"))


def _next_key(looked: Looked, house: House, on: set[str], because: list[str]) -> str | None:
    """The lowest rung that is not there and can be had. Spans are passed over where a newer vLLM's plugin tells the same."""
    wanted = ["1", "2", "3b", "5"]
    if looked.kind != "vllm":
        wanted = ["1", "5"]
        because.append(f"spans, plugin and middleware are vLLM's: what {looked.kind} says is its metrics and its log")
    elif is_rust(looked):
        wanted = ["1", "5"]
        because.append("its HTTP front end is the Rust one: spans, plugin and middleware do not come out of it")
    elif older(looked.version, rungs.rung("2").since):
        wanted.remove("2")
        because.append(f"vLLM {looked.version} has no such spans of requests: they come with 0.10.2")
    elif "3a" in on or elsewhere(_flags(looked), house):
        wanted.remove("2")
    return next((key for key in wanted if key not in on), None)
