"""A process is announced once and its end told once, with the exit status where it can be known."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import psutil
import pytest
from lensd_collectors.host import agent
from lensd_collectors.host import process as process_module
from lensd_collectors.host.config import AgentConfig, WatchedEngine
from lensd_collectors.host.engine import AgentError, resolve
from lensd_collectors.host.process import ProcessWatch, exit_code, is_local, listener

SLEEPER = "import sys, time; print('up', flush=True); time.sleep(60)"
PARENT = f"import subprocess, sys; c = subprocess.Popen([sys.executable, '-c', {SLEEPER!r}]); print(c.pid, flush=True); sys.stdin.read()"
LISTENER = """
import socket, sys, time
s = socket.socket(); s.bind(("127.0.0.1", 0)); s.listen(); print(s.getsockname()[1], flush=True); time.sleep(60)
"""


def start(code: str, *arguments: str) -> tuple[subprocess.Popen[str], str]:
    made = subprocess.Popen([sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, text=True)
    assert made.stdout is not None
    return made, made.stdout.readline().strip()


def stop(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait()
    assert process.stdout is not None
    process.stdout.close()


def until(condition: Callable[[], object], within_s: float = 5.0) -> None:
    limit = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < limit, "did not come"
        time.sleep(0.01)


@pytest.fixture
def listening() -> Iterator[tuple[subprocess.Popen[str], int]]:
    process, port = start(LISTENER)
    yield process, int(port)
    stop(process)


def states(recorder: Any) -> list[tuple[str, str, str | None]]:
    found = []
    for event in recorder.events:
        attributes = recorder.attributes(event)
        found.append((attributes["lensd.process.state"], attributes["process.pid"], attributes.get("process.exit.code")))
    return found


def test_listener_is_found_by_its_port(listening: tuple[subprocess.Popen[str], int]) -> None:
    process, port = listening
    for host in ("127.0.0.1", "localhost"):
        found = listener(host, port)
        assert found is not None
        assert found.pid == process.pid


def test_nothing_listens() -> None:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        assert listener("127.0.0.1", bound.getsockname()[1]) is None


def test_seen_once_and_gone_once(recorder: Any, listening: tuple[subprocess.Popen[str], int]) -> None:
    process, port = listening
    watch = ProcessWatch(resolve(WatchedEngine(url=f"http://127.0.0.1:{port}", name="e0")), recorder, lambda: 3)
    for _ in range(3):
        watch.search()
        watch.look()
    assert states(recorder) == [("running", str(process.pid), None)]
    process.send_signal(signal.SIGKILL)
    until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_ZOMBIE)
    for _ in range(3):
        watch.look()
        watch.search()
    assert states(recorder)[1:] == [("exited", str(process.pid), "-9")]
    assert process.wait() == -9, "the parent must still be able to collect the end"
    attributes = recorder.attributes(recorder.events[1])
    assert attributes["lensd.engine"] == "e0"
    assert attributes["process.creation.time"].endswith("Z")


def test_a_child_that_dies_first_is_named(recorder: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    parent = subprocess.Popen([sys.executable, "-c", PARENT], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    child_pid = int(parent.stdout.readline())
    real = process_module._title
    monkeypatch.setattr(process_module, "_title", lambda each: "VLLM::EngineCore" if each.pid == child_pid else real(each))
    try:
        watch = ProcessWatch(resolve(WatchedEngine(url="http://127.0.0.1:1", name="e0", pid=parent.pid)), recorder, lambda: 3)
        watch.search()
        watch.search()
        os.kill(child_pid, signal.SIGKILL)
        until(lambda: psutil.Process(child_pid).status() == psutil.STATUS_ZOMBIE)
        watch.look()
        told = [
            (state, recorder.attributes(event)["process.executable.name"])
            for (state, _, _), event in zip(states(recorder), recorder.events, strict=True)
        ]
        assert told[1:] == [("running", "VLLM::EngineCore"), ("exited", "VLLM::EngineCore")]
        assert states(recorder)[2][2] in ("-9", None)
    finally:
        os.kill(child_pid, signal.SIGKILL)
        parent.communicate()


def test_other_children_are_not_the_engine(recorder: Any) -> None:
    code = PARENT + "; c.kill()"
    parent = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    parent.stdout.readline()
    watch = ProcessWatch(resolve(WatchedEngine(url="http://127.0.0.1:1", pid=parent.pid)), recorder, lambda: 3)
    watch.search()
    assert [pid for _, pid, _ in states(recorder)] == [str(parent.pid)]
    parent.communicate()


@pytest.mark.parametrize(("code", "status"), [("raise SystemExit(3)", 3), ("pass", 0)])
def test_exit_status(code: str, status: int) -> None:
    process = subprocess.Popen([sys.executable, "-c", code])
    until(lambda: psutil.Process(process.pid).status() == psutil.STATUS_ZOMBIE)
    assert exit_code(process.pid) == status
    assert process.wait() == status
    assert exit_code(process.pid) is None


@pytest.mark.parametrize(
    ("host", "local"), [("127.0.0.1", True), ("localhost", True), ("192.0.2.1", False), ("no-such-host.invalid", False)]
)
def test_local(host: str, local: bool) -> None:
    assert is_local(host) is local


def test_engine_on_another_host_is_not_watched(recorder: Any) -> None:
    watch = ProcessWatch(resolve(WatchedEngine(url="http://192.0.2.1:8000")), recorder, lambda: 3)
    watch.search()
    watch.look()
    assert recorder.events == []


def test_agent_runs_all_its_parts_and_stops(recorder: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Engine(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            bodies = {
                "/metrics": b"# TYPE vllm:num_requests_running gauge\nvllm:num_requests_running 2\n",
                "/v1/models": b'{"data":[{"id":"m","max_model_len":8}]}',
            }
            body = bodies[self.path]
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args: object) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Engine)
    threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
    monkeypatch.setattr(agent, "Exporter", lambda *_, **__: recorder)
    log = tmp_path / "log"
    engine = WatchedEngine(url=f"http://127.0.0.1:{server.server_address[1]}", name="e0", log=str(log))
    stopping = threading.Event()
    config = AgentConfig(engines=(engine,), scrape_interval_s=0.05)
    running = threading.Thread(target=agent.run, args=(config, None), kwargs={"stop": stopping})
    running.start()
    line = "(EngineCore pid=2) ERROR 11-29 14:45:50 [x.py:1] boom\n"
    wanted = {"lensd.config", "lensd.engine.log", "lensd.engine.process"}

    def all_came() -> bool:
        with log.open("a") as file:
            file.write(line)
        return wanted <= {event.event_name for event in recorder.events} and bool(recorder.metrics)

    try:
        until(all_came)
    finally:
        stopping.set()
        running.join(5)
        server.shutdown()
        server.server_close()
    assert not running.is_alive()
    assert recorder.facts() == {"served_model_name": "m", "max_model_len": "8"}
    assert (f"{os.getpid()}") in {pid for _, pid, _ in states_of(recorder)}


def states_of(recorder: Any) -> list[tuple[str, str, None]]:
    events = [event for event in recorder.events if event.event_name == "lensd.engine.process"]
    return [(recorder.attributes(event)["lensd.process.state"], recorder.attributes(event)["process.pid"], None) for event in events]


@pytest.mark.parametrize(
    ("config", "text"),
    [
        (AgentConfig(engines=(WatchedEngine(url="ftp://x"),)), "no http or https URL"),
        (AgentConfig(engines=(WatchedEngine(url="http://x:port"),)), "is no URL"),
        (AgentConfig(engines=(WatchedEngine(url="http://x:1"), WatchedEngine(url="http://x:1"))), "two engines are called 'x:1'"),
        (AgentConfig(engines=(WatchedEngine(url="http://x:1", api_key_file="/no/such/file"),)), "api_key_file /no/such/file: No such file"),
        (AgentConfig(export_url="nowhere://"), "export_url"),
    ],
)
def test_settings_of_no_use_are_named_before_the_start(config: AgentConfig, text: str) -> None:
    with pytest.raises(AgentError, match=text):
        agent.run(config, None, stop=threading.Event())
