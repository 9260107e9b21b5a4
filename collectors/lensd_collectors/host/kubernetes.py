"""How a container of a pod does, from the Kubernetes API with the service account's token: one GET of the pod.

After a restart one more of the pod's events, which say whether a probe ended it; where the account may not list them, nothing is said.
"""

import http.client
import os
import ssl
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from lensd_collectors.host.lifecycle import TIMEOUT_S, Ask, End, Notice, Run, UnavailableError, instant_ns, signalled
from lensd_collectors.host.line import Standing, State
from lensd_collectors.host.pods import Container

ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
MOST_BYTES: Final = 4 * 1024 * 1024
MOST_EVENTS: Final = 200


class _Running(msgspec.Struct, rename="camel", frozen=True):
    started_at: str | None = ""


class _Terminated(msgspec.Struct, rename="camel", frozen=True):
    exit_code: int
    reason: str | None = ""
    started_at: str | None = ""
    finished_at: str | None = ""


class _State(msgspec.Struct, frozen=True):
    running: _Running | None = None
    terminated: _Terminated | None = None


class _Status(msgspec.Struct, rename="camel", frozen=True):
    name: str
    restart_count: int = 0
    container_id: str | None = msgspec.field(name="containerID", default="")
    state: _State = _State()
    last_state: _State = _State()


class _PodStatus(msgspec.Struct, rename="camel", frozen=True):
    container_statuses: tuple[_Status, ...] = ()
    init_container_statuses: tuple[_Status, ...] = ()  # side-cars are among these


class _Probe(msgspec.Struct, rename="camel", frozen=True):
    initial_delay_seconds: int = 0
    timeout_seconds: int = 1
    period_seconds: int = 10
    failure_threshold: int = 3


class _Container(msgspec.Struct, rename="camel", frozen=True):
    name: str = ""
    liveness_probe: _Probe | None = None
    startup_probe: _Probe | None = None


class _Spec(msgspec.Struct, frozen=True):
    containers: tuple[_Container, ...] = ()


class _Pod(msgspec.Struct, frozen=True):
    status: _PodStatus = _PodStatus()
    spec: _Spec = _Spec()


class _PodEvent(msgspec.Struct, rename="camel", frozen=True):
    type: str | None = ""
    reason: str | None = ""
    message: str | None = ""
    count: int | None = 1
    last_timestamp: str | None = ""


class _PodEvents(msgspec.Struct, frozen=True):
    items: tuple[_PodEvent, ...] = ()


def asking(container: Container, *, environment: Mapping[str, str] = os.environ, account: Path = ACCOUNT, https: bool = True) -> Ask:
    """Asks for the pod that holds the container; the token is read each time, since it is renewed."""

    restarts: int | None = None

    def ask() -> Run:
        nonlocal restarts
        host, port = environment.get("KUBERNETES_SERVICE_HOST", ""), environment.get("KUBERNETES_SERVICE_PORT", "443")
        if not host or not port.isdigit():
            raise UnavailableError(Standing(State.MISSING, "not in a Kubernetes cluster: KUBERNETES_SERVICE_HOST is not set"))
        place = f"/api/v1/namespaces/{container.namespace}"
        body = _get(host, int(port), f"{place}/pods/{container.pod}", account, https, container)
        try:
            pod = msgspec.json.decode(body, type=_Pod)
        except (msgspec.DecodeError, UnicodeError):
            raise UnavailableError(Standing(State.MISSING, "the Kubernetes API gave no pod")) from None
        for status in (*pod.status.container_statuses, *pod.status.init_container_statuses):
            if status.name == container.name:
                break
        else:
            raise UnavailableError(Standing(State.MISSING, f"pod {container.pod} has no container {container.name}"))
        told: list[Notice] = []
        if status.restart_count > (restarts if restarts is not None else status.restart_count - (status.state.running is None)):
            path = f"{place}/events?fieldSelector=involvedObject.name%3D{container.pod}&limit={MOST_EVENTS}"
            told = _events(lambda: _get(host, int(port), path, account, https, container))
        restarts = status.restart_count
        return _run(status, (*_probes(pod.spec, container.name), *told))

    return ask


def _get(host: str, port: int, path: str, account: Path, https: bool, container: Container) -> bytes:
    try:
        token = (account / "token").read_text(encoding="utf-8").strip()
        context = ssl.create_default_context(cafile=str(account / "ca.crt")) if https else None
    except (OSError, ValueError, ssl.SSLError) as error:
        state = State.DENIED if isinstance(error, PermissionError) else State.MISSING
        raise UnavailableError(Standing(state, f"no usable service account below {account}")) from None
    connection = (
        http.client.HTTPSConnection(host, port, timeout=TIMEOUT_S, context=context)
        if https
        else http.client.HTTPConnection(host, port, timeout=TIMEOUT_S)
    )
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {token}", "Accept": "application/json", "Connection": "close"})
        response = connection.getresponse()
        status, body = response.status, response.read(MOST_BYTES)
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise UnavailableError(Standing(State.MISSING, f"the Kubernetes API does not answer: {type(error).__name__}")) from None
    finally:
        connection.close()
    if status in (401, 403):
        raise UnavailableError(Standing(State.DENIED, f"the service account may not get pods in namespace {container.namespace}"))
    if status == 404:
        raise UnavailableError(Standing(State.MISSING, f"no pod {container.pod} in namespace {container.namespace}"))
    if status != 200:
        raise UnavailableError(Standing(State.MISSING, f"the Kubernetes API answered {status}"))
    return body


def _probes(spec: _Spec, name: str) -> list[Notice]:
    """The probes of a container, as `kubectl describe` words them."""
    lines = [
        f"{kind}:  kubelet delay={probe.initial_delay_seconds}s timeout={probe.timeout_seconds}s period={probe.period_seconds}s "
        f"#success=1 #failure={probe.failure_threshold}"
        for one in spec.containers
        if one.name == name
        for kind, probe in (("Liveness", one.liveness_probe), ("Startup", one.startup_probe))
        if probe is not None
    ]
    return [Notice(line, line) for line in lines]


def _events(get: Callable[[], bytes]) -> list[Notice]:
    """What the kubelet says of the pod's probes, as `kubectl get events` words it; nothing where that cannot be had."""
    try:
        found = msgspec.json.decode(get(), type=_PodEvents).items
    except (UnavailableError, msgspec.DecodeError, UnicodeError):
        return []
    return [
        Notice(
            f"{one.reason}/{one.message}/{one.last_timestamp}",
            f"{one.type}  {one.reason}  {one.message}",
            instant_ns(one.last_timestamp or ""),
        )
        for one in found
        if one.reason in ("Unhealthy", "Killing")
    ]


def _run(status: _Status, notices: tuple[Notice, ...] = ()) -> Run:
    running, over = status.state.running, status.state.terminated or status.last_state.terminated
    return Run(
        running=running is not None,
        began=f"{status.container_id}@{running.started_at}" if running else "",
        began_ns=instant_ns(running.started_at or "") if running else 0,
        restarts=status.restart_count,
        end=_end(over) if over else None,
        notices=notices,
    )


def _end(over: _Terminated) -> End:
    return End(
        at_ns=instant_ns(over.finished_at or ""),
        mark=f"{over.started_at}-{over.finished_at}",
        exit_code=signalled(over.exit_code),
        oom_killed=over.reason == "OOMKilled",
    )
