"""How an engine ended, by whoever runs it: status, memory kills and restarts, each end told once; a restart by hand is no death."""

import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from lensd_collectors.dialects import load
from lensd_collectors.host import kubernetes, systemd
from lensd_collectors.host.config import WatchedEngine
from lensd_collectors.host.engine import resolve
from lensd_collectors.host.lifecycle import End, LifeWatch, Run, UnavailableError, instant_ns, signalled
from lensd_collectors.host.line import Standing, State
from lensd_collectors.host.pods import Container
from lensd_collectors.host.process import ProcessWatch

NOW = 1_800_000_000_000_000_000
UP, UP_AGAIN = Run(running=True, began="1", restarts=0, pid=41), Run(running=True, began="2", restarts=1, pid=42)
OOM = End(NOW - 5_000_000_000, "a", -9, True)


def watch(recorder: Any, *runs: Run | Standing) -> LifeWatch:
    left = list(runs)

    def ask() -> Run:
        run = left.pop(0)
        if isinstance(run, Run):
            return run
        raise UnavailableError(run)

    made = LifeWatch(ask, {"lensd.engine": "e0"}, recorder, lambda: NOW)
    for _ in runs:
        made.poll()
    return made


def told(recorder: Any) -> list[tuple[str, str | None, bool | None, str | None]]:
    names = ("lensd.process.state", "process.exit.code", "lensd.container.oom_killed", "lensd.container.restarts")
    return [tuple(recorder.attributes(event).get(name) for name in names) for event in recorder.events]


DOWN = Run(running=False, began="1", restarts=0, end=OOM)
CASES: dict[str, tuple[list[Run | Standing], list[tuple[str, str | None, bool | None, str | None]]]] = {
    "runs on": ([UP, UP, UP], [("running", None, None, "0")]),
    "killed": ([UP, DOWN, DOWN], [("running", None, None, "0"), ("exited", "-9", True, "0")]),
    "killed, then up again": (
        [UP, DOWN, UP_AGAIN],
        [("running", None, None, "0"), ("exited", "-9", True, "0"), ("running", None, None, "1")],
    ),
    "restarted between two looks, status known": (
        [UP, Run(running=True, began="2", restarts=1, end=OOM)],
        [("running", None, None, "0"), ("exited", "-9", True, "1"), ("running", None, None, "1")],
    ),
    "restarted between two looks, status lost": (
        [UP, UP_AGAIN],
        [("running", None, None, "0"), ("exited", None, None, "1"), ("running", None, None, "1")],
    ),
    "restarted by hand": ([UP, Run(running=True, began="2", restarts=0)], [("running", None, None, "0")] * 2),
    "down when we came": ([DOWN, DOWN], [("exited", "-9", True, "0")]),
    "never ran": ([Run(running=False, restarts=0)] * 2, []),
    "crash loop, down at each look": (
        [DOWN, Run(running=False, began="2", restarts=1, end=End(NOW, "b", 1, False))],
        [("exited", "-9", True, "0"), ("exited", "1", False, "1")],
    ),
    "not to be asked for a while": ([UP, Standing(State.DENIED, "x"), UP], [("running", None, None, "0")]),
}


@pytest.mark.parametrize(("runs", "expected"), CASES.values(), ids=CASES)
def test_each_end_is_told_once(recorder: Any, runs: list[Run | Standing], expected: list[object]) -> None:
    watch(recorder, *runs)
    assert told(recorder) == expected


def test_an_end_is_dated_when_it_was(recorder: Any) -> None:
    watch(recorder, UP, DOWN)
    assert [event.time_unix_nano for event in recorder.events] == [str(NOW), str(OOM.at_ns)]
    assert recorder.attributes(recorder.events[1])["process.pid"] == "41"


def test_no_answer_is_said(recorder: Any) -> None:
    assert watch(recorder, Standing(State.DENIED, "why")).standing == (State.DENIED, "why")
    assert recorder.events == []


@pytest.mark.parametrize(("code", "same"), [(0, 0), (1, 1), (137, -9), (143, -15), (128, 128), (255, 255), (-9, -9)])
def test_statuses_have_one_form(code: int, same: int) -> None:
    assert signalled(code) == same


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("2026-11-29T14:43:00.123456789Z", 1_795_963_380_123_456_000),
        ("2026-11-29T15:43:00.5+01:00", 1_795_963_380_500_000_000),
        ("2026-11-29T14:43:00Z", 1_795_963_380_000_000_000),
        ("0001-01-01T00:00:00Z", 0),
        ("", 0),
        ("soon", 0),
    ],
)
def test_instants(text: str, ns: int) -> None:
    assert instant_ns(text) == ns


@pytest.fixture
def process() -> Iterator[subprocess.Popen[bytes]]:
    made = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    yield made
    made.kill()
    made.wait()


@pytest.mark.parametrize(
    ("answers", "expected"),
    [
        ([UP, UP, DOWN], [("running", None), ("running", None), ("exited", "-9")]),  # asked again until it says so
        ([UP] + [UP] * 20, [("running", None), ("running", None), ("exited", None)]),  # it never does: told without it
        ([UP, Standing(State.MISSING, "gone")], [("running", None), ("running", None), ("exited", None)]),
    ],
)
def test_one_death_is_told_once_by_who_knows_more(
    recorder: Any, process: subprocess.Popen[bytes], monkeypatch: pytest.MonkeyPatch, answers: list[Run | Standing], expected: list[object]
) -> None:
    left, now = list(answers), [0.0]

    def ask() -> Run:
        run = left.pop(0) if len(left) > 1 else left[0]
        if isinstance(run, Run):
            return run
        raise UnavailableError(run)

    monkeypatch.setattr("lensd_collectors.host.process.exit_code", lambda pid: None)
    life = LifeWatch(ask, {}, recorder, lambda: NOW)
    seen = ProcessWatch(
        resolve(WatchedEngine(url="http://127.0.0.1:1", pid=process.pid)), recorder, lambda: NOW, life=life, clock_s=lambda: now[0]
    )
    life.poll()
    seen.search()
    process.kill()
    process.wait()
    for _ in range(20):
        seen.look()
        now[0] += 0.25
    assert [(state, code) for state, code, _, _ in told(recorder)] == expected


SHOW = """#!/bin/sh
echo "$@" >> {folder}/calls
cat {folder}/shown
cat {folder}/said >&2
exit $(cat {folder}/rc)
"""


class Systemctl:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.answer("", "", 0)

    def answer(self, shown: str, said: str = "", rc: int = 0) -> None:
        for name, text in (("shown", shown), ("said", said), ("rc", str(rc))):
            (self.folder / name).write_text(text)

    def ask(self) -> Run:
        return systemd.asking("vllm.service", wall_ns=lambda: NOW, monotonic_ns=lambda: 100_000_000_000)()


@pytest.fixture
def systemctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Systemctl:
    binary = tmp_path / "bin" / "systemctl"
    binary.parent.mkdir()
    binary.write_text(SHOW.format(folder=tmp_path))
    binary.chmod(0o755)
    monkeypatch.setenv("PATH", f"{binary.parent}:{os.environ['PATH']}")
    return Systemctl(tmp_path)


def shown(**properties: object) -> str:
    return "".join(f"{name}={value}\n" for name, value in {"LoadState": "loaded", **properties}.items())


def test_systemd(systemctl: Systemctl) -> None:
    systemctl.answer(
        shown(MainPID=41, NRestarts=2, Result="success", ExecMainCode=0, ExecMainStatus=0, ExecMainStartTimestampMonotonic=90_000_000)
    )
    assert systemctl.ask() == Run(running=True, began="90000000", began_ns=NOW - 10_000_000_000, pid=41, restarts=2)
    [call] = (systemctl.folder / "calls").read_text().splitlines()
    assert call.startswith("show --property=")
    assert call.endswith("-- vllm.service")
    systemctl.answer(
        shown(MainPID=0, NRestarts=2, Result="oom-kill", ExecMainCode=2, ExecMainStatus=9, ExecMainExitTimestampMonotonic=99_000_000)
    )
    run = systemctl.ask()
    assert (run.running, run.end) == (False, End(NOW - 1_000_000_000, "99000000", -9, True))
    systemctl.answer(shown(MainPID=0, Result="exit-code", ExecMainCode=1, ExecMainStatus=3, ExecMainExitTimestampMonotonic=99_000_000))
    assert systemctl.ask().end == End(NOW - 1_000_000_000, "99000000", 3, False)


@pytest.mark.parametrize(
    ("answer", "standing"),
    [
        ((shown(LoadState="not-found"), "", 0), (State.MISSING, "systemd knows no unit vllm.service")),
        (
            ("", "System has not been booted with systemd as init system\nmore\n", 1),
            (State.MISSING, "systemctl: System has not been booted with systemd as init system"),
        ),
        (("", "Access denied\n", 1), (State.DENIED, "systemctl: Access denied")),
    ],
)
def test_systemd_that_does_not_tell(systemctl: Systemctl, answer: tuple[str, str, int], standing: tuple[State, str]) -> None:
    systemctl.answer(*answer)
    with pytest.raises(UnavailableError) as caught:
        systemctl.ask()
    assert caught.value.standing == standing


VLLM = Container("llm", "vllm-0", "vllm")
FINISHED = "2026-11-29T14:43:00Z"
OOMKILLED = {"terminated": {"exitCode": 137, "reason": "OOMKilled", "startedAt": "2026-11-29T10:00:00Z", "finishedAt": FINISHED}}


def pod(restarts: int, state: dict[str, object], last: dict[str, object]) -> dict[str, object]:
    other = {"name": "side", "restartCount": 9, "containerID": "x", "state": {}, "lastState": OOMKILLED}
    status = {"name": "vllm", "restartCount": restarts, "containerID": "containerd://a", "state": state, "lastState": last}
    return {"metadata": {"name": "vllm-0"}, "status": {"containerStatuses": [other, status], "phase": "Running"}}


class Cluster:
    def __init__(self, folder: Path) -> None:
        self.requests: list[tuple[str, str, str | None]] = []
        self.status, self.body, self.events = 200, b"", b"{}"
        (folder / "token").write_text("secret-1\n")
        cluster = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                cluster.requests.append((self.command, self.path, self.headers["Authorization"]))
                body = cluster.events if "/events?" in self.path else cluster.body
                self.send_response(cluster.status)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, *args: object) -> None: ...

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()
        environment = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(self.server.server_address[1])}
        self.ask: Callable[[], Run] = kubernetes.asking(VLLM, environment=environment, account=folder, https=False)

    def shows(self, document: object, status: int = 200) -> None:
        self.body, self.status = json.dumps(document).encode(), status


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(tmp_path)
    yield made
    made.server.shutdown()
    made.server.server_close()


def test_kubernetes(cluster: Cluster, recorder: Any, tmp_path: Path) -> None:
    life = LifeWatch(cluster.ask, {}, recorder, lambda: NOW)
    cluster.shows(pod(0, {"running": {"startedAt": "2026-11-29T10:00:00Z"}}, {}))
    life.poll()
    (tmp_path / "token").write_text("secret-2")
    cluster.shows(pod(1, {"running": {"startedAt": "2026-11-29T14:43:02Z"}}, OOMKILLED))
    life.poll()
    life.poll()
    cluster.shows(pod(1, {"waiting": {"reason": "CrashLoopBackOff"}}, {"terminated": {"exitCode": 1, "finishedAt": None}}))
    life.poll()
    assert told(recorder) == [
        ("running", None, None, "0"),
        ("exited", "-9", True, "1"),
        ("running", None, None, "1"),
        ("exited", "1", False, "1"),
    ]
    assert recorder.events[1].time_unix_nano == str(instant_ns(FINISHED))
    assert cluster.requests[:2] == [("GET", "/api/v1/namespaces/llm/pods/vllm-0", f"Bearer secret-{number}") for number in (1, 2)]


def test_kubernetes_says_which_probe_ended_a_container(cluster: Cluster, recorder: Any) -> None:
    life = LifeWatch(cluster.ask, {"lensd.engine": "e0"}, recorder, lambda: instant_ns(FINISHED) + 1_000_000_000)
    asked = {"containers": [{"name": "vllm", "livenessProbe": {"initialDelaySeconds": 120, "periodSeconds": 25, "failureThreshold": 3}}]}
    for restarts in (0, 1, 1):
        said = "Container vllm failed liveness probe, will be restarted"
        items = [
            {"type": "Normal", "reason": "Killing", "message": said, "lastTimestamp": FINISHED},
            {"type": "Normal", "reason": "Pulled", "message": "Container image is there", "lastTimestamp": FINISHED},
            {"type": "Normal", "reason": "Killing", "message": "long ago", "lastTimestamp": "2026-11-01T10:00:00Z"},
        ]
        cluster.events = json.dumps({"items": items}).encode()
        cluster.shows({"spec": asked, **pod(restarts, {"running": {"startedAt": f"2026-11-29T10:0{restarts}:00Z"}}, {})})
        life.poll()
    lines = [event.body.string_value for event in recorder.events if event.event_name == "lensd.engine.log"]
    assert lines == [
        "Liveness:  kubelet delay=120s timeout=1s period=25s #success=1 #failure=3",
        "Normal  Killing  Container vllm failed liveness probe, will be restarted",
    ]
    assert [path.partition("?")[0].rpartition("/")[2] for _, path, _ in cluster.requests] == ["vllm-0", "vllm-0", "events", "vllm-0"]
    names = [next(event.name for event in load()["supervisor"].events if event.search(line)) for line in lines]
    assert names == ["container.probe", "container.probe_killed"]


@pytest.mark.parametrize(
    ("status", "document", "standing"),
    [
        (403, {}, (State.DENIED, "the service account may not get pods in namespace llm")),
        (404, {}, (State.MISSING, "no pod vllm-0 in namespace llm")),
        (500, {}, (State.MISSING, "the Kubernetes API answered 500")),
        (200, {"status": {}}, (State.MISSING, "pod vllm-0 has no container vllm")),
        (200, [], (State.MISSING, "the Kubernetes API gave no pod")),
    ],
)
def test_kubernetes_that_does_not_tell(cluster: Cluster, status: int, document: object, standing: tuple[State, str]) -> None:
    cluster.shows(document, status)
    with pytest.raises(UnavailableError) as caught:
        cluster.ask()
    assert caught.value.standing == standing
    assert "secret" not in str(caught.value)


def test_outside_a_cluster(tmp_path: Path) -> None:
    for environment, said in (
        ({}, "not in a Kubernetes cluster"),
        ({"KUBERNETES_SERVICE_HOST": "h", "KUBERNETES_SERVICE_PORT": "1"}, "no usable service account"),
    ):
        with pytest.raises(UnavailableError, match=said):
            kubernetes.asking(VLLM, environment=environment, account=tmp_path / "none")()
