"""How a container of a pod does, from the Kubernetes API with the service account's token: one GET of the pod, nothing else."""

import http.client
import os
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from lensd_collectors.host.lifecycle import TIMEOUT_S, Ask, End, Run, UnavailableError, instant_ns, signalled
from lensd_collectors.host.line import Standing, State
from lensd_collectors.host.pods import Container

ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
MOST_BYTES: Final = 4 * 1024 * 1024


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


class _Pod(msgspec.Struct, frozen=True):
    status: _PodStatus = _PodStatus()


def asking(container: Container, *, environment: Mapping[str, str] = os.environ, account: Path = ACCOUNT, https: bool = True) -> Ask:
    """Asks for the pod that holds the container; the token is read each time, since it is renewed."""

    def ask() -> Run:
        host, port = environment.get("KUBERNETES_SERVICE_HOST", ""), environment.get("KUBERNETES_SERVICE_PORT", "443")
        if not host or not port.isdigit():
            raise UnavailableError(Standing(State.MISSING, "not in a Kubernetes cluster: KUBERNETES_SERVICE_HOST is not set"))
        body = _get(host, int(port), f"/api/v1/namespaces/{container.namespace}/pods/{container.pod}", account, https, container)
        try:
            pod = msgspec.json.decode(body, type=_Pod).status
        except (msgspec.DecodeError, UnicodeError):
            raise UnavailableError(Standing(State.MISSING, "the Kubernetes API gave no pod")) from None
        for status in (*pod.container_statuses, *pod.init_container_statuses):
            if status.name == container.name:
                return _run(status)
        raise UnavailableError(Standing(State.MISSING, f"pod {container.pod} has no container {container.name}"))

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


def _run(status: _Status) -> Run:
    running, over = status.state.running, status.state.terminated or status.last_state.terminated
    return Run(
        running=running is not None,
        began=f"{status.container_id}@{running.started_at}" if running else "",
        began_ns=instant_ns(running.started_at or "") if running else 0,
        restarts=status.restart_count,
        end=_end(over) if over else None,
    )


def _end(over: _Terminated) -> End:
    return End(
        at_ns=instant_ns(over.finished_at or ""),
        mark=f"{over.started_at}-{over.finished_at}",
        exit_code=signalled(over.exit_code),
        oom_killed=over.reason == "OOMKilled",
    )
