"""Where a log's lines come from and who says how an engine ended, by the words in lensd.toml; what is not there is told."""

import difflib
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

from lensd_collectors import conventions
from lensd_collectors.export import Exporter
from lensd_collectors.host import docker, kubernetes, systemd
from lensd_collectors.host.engine import AgentError
from lensd_collectors.host.journald import Journal
from lensd_collectors.host.lifecycle import Ask
from lensd_collectors.host.line import Source, Standing, State
from lensd_collectors.host.pods import Container, PodLog
from lensd_collectors.host.standard_input import StandardInput
from lensd_collectors.host.tail import Tail

LOGS: Final = ("journald", "docker", "pod")
LIFECYCLES: Final = ("systemd", "docker", "pod")
_SCHEME: Final = re.compile(r"([A-Za-z][A-Za-z0-9_+-]*):(.*)", re.DOTALL)
_UNIT: Final = re.compile(r"[\w:.@\\-]{1,255}")
_NAME: Final = re.compile(r"[A-Za-z0-9][\w.-]{0,254}")
_POD: Final = re.compile(r"([a-z0-9-]{1,63})/([a-z0-9.-]{1,253})/([a-z0-9-]{1,63})")


class Place(msgspec.Struct, frozen=True):
    """A log or lifecycle as it is called in lensd.toml, taken apart. `scheme` is "" for a path, "-" for standard input."""

    scheme: str
    rest: str

    def __str__(self) -> str:
        return f"{self.scheme}:{self.rest}" if self.scheme not in ("", "-") else self.rest


def log_place(text: str, of: str) -> Place:
    """Raises AgentError, one line that begins with what the log is `of`."""
    if text == "-":
        return Place("-", text)
    match = _SCHEME.fullmatch(text)
    if match is None:
        return Place("", text)
    return _known(match[1], match[2], LOGS, f"{of}: log {text!r}", "a path, -, journald:UNIT, docker:NAME or pod:NAMESPACE/POD/CONTAINER")


def lifecycle_place(text: str, log: Place | None, of: str) -> Place | None:
    """As it is named, else after the log; None where neither says who runs the engine. Raises AgentError."""
    if not text:
        scheme = {"journald": "systemd", "docker": "docker", "pod": "pod"}.get(log.scheme if log else "")
        return Place(scheme, log.rest) if scheme and log else None
    scheme, _, rest = text.partition(":")
    return _known(scheme, rest, LIFECYCLES, f"{of}: lifecycle {text!r}", "systemd:UNIT, docker:NAME or pod:NAMESPACE/POD/CONTAINER")


def _known(scheme: str, rest: str, schemes: tuple[str, ...], what: str, forms: str) -> Place:
    if scheme not in schemes:
        near = difflib.get_close_matches(scheme, schemes, 1)
        raise AgentError(f"{what} is none of {forms}" + (f": did you mean {near[0]}:?" if near else ""))
    pattern = {"docker": _NAME, "pod": _POD}.get(scheme, _UNIT)
    if not pattern.fullmatch(rest):
        raise AgentError(f"{what}: {rest!r} is no {'NAMESPACE/POD/CONTAINER' if scheme == 'pod' else 'name'}")
    return Place(scheme, rest)


def open_source(
    place: Place,
    max_lines_per_s: int,
    *,
    docker_socket: str = docker.SOCKET,
    pod_logs: str = "/var/log/pods",
    clock_s: Callable[[], float] = time.monotonic,
    wall_s: Callable[[], float] = time.time,
) -> Source:
    """The source of a log's lines from now on. What is not there (yet) is no error: its `standing` says so, and it is tried again."""
    match place.scheme:
        case "-":
            return StandardInput(max_lines_per_s, clock_s)
        case "journald":
            return Journal(place.rest, max_lines_per_s, clock_s, wall_s=wall_s)
        case "docker":
            return docker.DockerLog(docker_socket, place.rest, max_lines_per_s, clock_s, wall_s=wall_s)
        case "pod":
            return PodLog(Container(*place.rest.split("/")), max_lines_per_s, clock_s, root=Path(pod_logs))
        case _:
            return Tail(Path(place.rest), max_lines_per_s, clock_s)


def asking(place: Place, *, docker_socket: str = docker.SOCKET) -> Ask:
    """How who runs the engine is asked."""
    match place.scheme:
        case "systemd":
            return systemd.asking(place.rest)
        case "docker":
            return docker.asking(docker_socket, place.rest)
        case _:
            return kubernetes.asking(Container(*place.rest.split("/")))


class Teller:
    """Says how it is with each of the agent's sources, once and again at each change, as `lensd.agent.source` events."""

    def __init__(self, exporter: Exporter, clock_ns: Callable[[], int]) -> None:
        self._exporter, self._clock_ns = exporter, clock_ns
        self._told: dict[tuple[str, str], Standing] = {}

    def tell(self, name: str, standing: Standing, attributes: dict[str, str] | None = None) -> None:
        """`name`: what is read, as its setting calls it; `attributes`: those of the engine that it is about."""
        about = attributes or {}
        key = (name, about.get(conventions.ENGINE, ""))
        if self._told.get(key) == standing:
            return
        self._told[key] = standing
        self._exporter.event(
            conventions.EVENT_AGENT_SOURCE,
            at_ns=self._clock_ns(),
            attributes={
                **about,
                conventions.SOURCE_NAME: name,
                conventions.SOURCE_STATE: standing.state,
                conventions.SOURCE_REASON: standing.reason or None,
            },
            severity="info" if standing.state is State.FOLLOWED else "warning",
        )
