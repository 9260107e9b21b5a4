"""What lensd.toml may call a log: opened as such, or refused in one line; what is not to be had is told once, and the agent goes on."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from lensd_collectors.host import agent
from lensd_collectors.host.card import Driver, UnavailableDriverError
from lensd_collectors.host.config import AccessLog, AgentConfig, WatchedEngine
from lensd_collectors.host.docker import DockerLog
from lensd_collectors.host.engine import AgentError
from lensd_collectors.host.journald import Journal
from lensd_collectors.host.line import FOLLOWED, Standing, State
from lensd_collectors.host.nvml import NO_DRIVER
from lensd_collectors.host.pods import PodLog
from lensd_collectors.host.sources import Place, Teller, lifecycle_place, log_place, open_source
from lensd_collectors.host.standard_input import StandardInput
from lensd_collectors.host.tail import Tail

NGINX = '10.0.0.1 - - [18/Nov/2026:10:00:05 +0000] "POST /v1/chat/completions HTTP/1.1" 504 167\n'


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("/var/log/vllm.log", Tail),
        ("logs/2026:11.log", Tail),
        ("-", StandardInput),
        ("journald:vllm@0.service", Journal),
        ("docker:llm-vllm-1", DockerLog),
        ("pod:llm/vllm-0/vllm", PodLog),
    ],
)
def test_each_form_opens_its_source(text: str, kind: type, tmp_path: Path) -> None:
    source = open_source(log_place(text, "x"), 10, docker_socket=str(tmp_path / "none"), pod_logs=str(tmp_path))
    assert isinstance(source, kind)
    assert str(log_place(text, "x")) == text
    source.close()


@pytest.mark.parametrize(
    ("log", "lifecycle", "asked"),
    [
        ("journald:vllm.service", "", Place("systemd", "vllm.service")),
        ("docker:v", "", Place("docker", "v")),
        ("pod:a/b/c", "", Place("pod", "a/b/c")),
        ("/var/log/x", "", None),
        ("/var/log/x", "systemd:vllm.service", Place("systemd", "vllm.service")),
        ("journald:vllm.service", "docker:v", Place("docker", "v")),
        ("", "pod:a/b/c", Place("pod", "a/b/c")),
    ],
)
def test_who_runs_an_engine_is_who_keeps_its_log_unless_it_is_said(log: str, lifecycle: str, asked: Place | None) -> None:
    assert lifecycle_place(lifecycle, log_place(log, "x") if log else None, "x") == asked


def engine(**settings: str) -> AgentConfig:
    return AgentConfig(engines=(WatchedEngine(url="http://h:1", name="e0", **settings),))  # type: ignore[arg-type]


def access(**settings: str) -> AgentConfig:
    return AgentConfig(access_logs=(AccessLog(**{"log": "/a", "kind": "nginx", **settings}),))


FORMS = "a path, -, journald:UNIT, docker:NAME or pod:NAMESPACE/POD/CONTAINER"
REFUSED: list[tuple[AgentConfig, str]] = [
    (engine(log="journal:x"), f"engine e0: log 'journal:x' is none of {FORMS}: did you mean journald:?"),
    (engine(log="kafka:x"), f"engine e0: log 'kafka:x' is none of {FORMS}"),
    (engine(log="docker:../x"), "engine e0: log 'docker:../x': '../x' is no name"),
    (engine(log="journald:"), "engine e0: log 'journald:': '' is no name"),
    (engine(log="pod:llm/vllm-0"), "engine e0: log 'pod:llm/vllm-0': 'llm/vllm-0' is no NAMESPACE/POD/CONTAINER"),
    (
        engine(lifecycle="vllm.service"),
        "engine e0: lifecycle 'vllm.service' is none of systemd:UNIT, docker:NAME or pod:NAMESPACE/POD/CONTAINER",
    ),
    (access(kind="ngnix"), "access log /a: kind 'ngnix' is none of alb, envoy, haproxy, litellm, llamacpp, lmdeploy, newapi, nginx, "),
    (access(kind="kernel"), "access log /a: kind 'kernel' is none of "),
    (access(engine="e9"), "access log /a: no engine is called 'e9'"),
    (access(log="docker:"), "access log: log 'docker:': '' is no name"),
    (
        AgentConfig(engines=(WatchedEngine(url="http://h:1", log="-"), WatchedEngine(url="http://h:2", log="-"))),
        "two logs are -: standard input can be one log only",
    ),
]


@pytest.mark.parametrize(("config", "text"), REFUSED, ids=[text[:40] for _, text in REFUSED])
def test_settings_that_cannot_be_used_are_one_line_before_the_start(config: AgentConfig, text: str) -> None:
    with pytest.raises(AgentError) as caught:
        agent.run(config, None, stop=threading.Event())
    assert str(caught.value).startswith(text)
    assert "\n" not in str(caught.value)


TOML = b"""
kmsg = false
[[engines]]
url = "h:1"
log = "docker:v"
lifecycle = "systemd:v.service"
[[access_logs]]
log = "/a"
kind = "envoy"
"""


def test_the_settings_are_read_from_toml() -> None:
    config = msgspec.toml.decode(TOML, type=AgentConfig)
    assert (config.kmsg, config.engines[0].lifecycle) == (False, "systemd:v.service")
    assert config.access_logs == (AccessLog(log="/a", kind="envoy"),)


def sources(recorder: Any) -> list[tuple[str, str, str | None, str | None]]:
    names = ("lensd.source.name", "lensd.source.state", "lensd.source.reason", "lensd.engine")
    return [
        tuple(recorder.attributes(each).get(name) for name in names) for each in recorder.events if each.event_name == "lensd.agent.source"
    ]


def test_how_it_is_with_a_source_is_told_at_each_change(recorder: Any) -> None:
    teller, denied = Teller(recorder, lambda: 5), Standing(State.DENIED, "why")
    for standing in (denied, denied, FOLLOWED, FOLLOWED, denied):
        teller.tell("kmsg", standing)
    teller.tell("kmsg", denied, {"lensd.engine": "e0"})
    assert sources(recorder) == [
        ("kmsg", "denied", "why", None),
        ("kmsg", "followed", None, None),
        ("kmsg", "denied", "why", None),
        ("kmsg", "denied", "why", "e0"),
    ]
    assert [event.severity_text for event in recorder.events[:2]] == ["WARNING", "INFO"]


def until(condition: Callable[[], object], within_s: float = 10.0) -> None:
    limit = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < limit, "did not come"
        time.sleep(0.02)


def test_an_agent_to_which_everything_is_denied_follows_what_is_left(
    recorder: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(agent, "Exporter", lambda *_, **__: recorder)
    monkeypatch.setattr(agent, "open_gpus", no_driver)
    monkeypatch.setattr("lensd_collectors.host.kmsg.PATH", tmp_path / "none")
    monkeypatch.setattr(agent, "Kmsg", lambda: agent_kmsg(tmp_path / "none"))
    log = tmp_path / "access.log"
    log.touch()
    gone = str(tmp_path / "docker.sock")
    config = AgentConfig(
        engines=(WatchedEngine(url="http://127.0.0.1:1", name="e0", log="docker:v"), WatchedEngine(url="http://127.0.0.1:2", name="e1")),
        access_logs=(AccessLog(log=str(log), kind="nginx", engine="e0"), AccessLog(log=str(tmp_path / "later.log"), kind="envoy")),
        docker_socket=gone,
        scrape_interval_s=0.05,
    )
    stopping = threading.Event()
    running = threading.Thread(target=agent.run, args=(config, None), kwargs={"stop": stopping})
    running.start()

    def came() -> bool:
        with log.open("a") as file:
            file.write(NGINX)
        lines = [each for each in recorder.events if each.event_name == "lensd.engine.log"]
        return len(sources(recorder)) >= 8 and bool(lines)

    try:
        until(came)
    finally:
        stopping.set()
        running.join(10)
    assert not running.is_alive()
    missing = f"{gone}: no such file or directory"
    assert set(sources(recorder)) == {
        ("gpu", "missing", "no NVIDIA driver", None),
        ("kmsg", "missing", "no such file or directory", None),
        ("log docker:v", "missing", missing, "e0"),
        ("lifecycle docker:v", "missing", missing, "e0"),
        ("process", "missing", "no process that this user can see listens on port 1", "e0"),
        ("process", "missing", "no process that this user can see listens on port 2", "e1"),
        (f"access log {log}", "followed", None, None),
        (f"access log {tmp_path / 'later.log'}", "missing", "no such file or directory", None),
    }
    line = next(each for each in recorder.events if each.event_name == "lensd.engine.log")
    assert (recorder.attributes(line)["lensd.engine.kind"], recorder.attributes(line)["lensd.engine"]) == ("nginx", "e0")
    assert "vllm" not in recorder.attributes(line).values()


def no_driver() -> Driver:
    raise UnavailableDriverError(NO_DRIVER)


def agent_kmsg(path: Path) -> Any:
    from lensd_collectors.host.kmsg import Kmsg

    return Kmsg(path)
