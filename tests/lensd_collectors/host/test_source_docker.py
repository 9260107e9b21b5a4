"""A container's log and state over docker's socket: frames cut anywhere, restarts, no way in; nothing but GET is ever sent."""

import itertools
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lensd_collectors.host import docker
from lensd_collectors.host.docker import DockerLog, asking, inspect
from lensd_collectors.host.lifecycle import End, UnavailableError, instant_ns
from lensd_collectors.host.line import FOLLOWED, State
from lensd_collectors.read.lines import Pieces, unwrap

STARTED, FINISHED = "2026-11-29T14:00:00.5Z", "2026-11-29T14:43:00.123456789Z"


def at(number: int) -> str:
    return f"2026-11-29T14:43:{number:02d}.000000000Z"


def frame(text: str, number: int, stream: int = 1) -> bytes:
    data = f"{at(number)} {text}".encode()
    return bytes([stream, 0, 0, 0]) + len(data).to_bytes(4, "big") + data


class Docker:
    """Answers as docker does; a log's body is sent as it is set, then the connection stays open until `cut`."""

    def __init__(self, path: str) -> None:
        self.path, self.requests = path, list[str]()
        self.state: dict[str, object] = {"Running": True, "Pid": 41, "StartedAt": STARTED, "FinishedAt": "0001-01-01T00:00:00Z"}
        self.more: dict[str, object] = {"Id": "abc", "RestartCount": 0, "Config": {"Tty": False}}
        self.body, self.status = b"", 200
        self.open: list[socket.socket] = []
        self.listening = socket.socket(socket.AF_UNIX)
        self.listening.bind(path)
        self.listening.listen()
        threading.Thread(target=self.serve, daemon=True).start()

    def serve(self) -> None:
        while True:
            try:
                connection, _ = self.listening.accept()
            except OSError:
                return
            request = connection.recv(65536).decode()
            self.requests.append(request.split("\r\n")[0])
            if "/logs?" in request:
                connection.sendall(b"HTTP/1.0 200 OK\r\nContent-Type: application/vnd.docker.multiplexed-stream\r\n\r\n" + self.body)
                self.open.append(connection)
                continue
            body = json.dumps({**self.more, "State": self.state}).encode()
            connection.sendall(f"HTTP/1.1 {self.status} X\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)
            connection.close()

    def cut(self) -> None:
        for connection in self.open:
            connection.close()
        self.open.clear()

    def close(self) -> None:
        self.cut()
        self.listening.close()


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Docker]:
    made = Docker(str(tmp_path / "docker.sock"))
    yield made
    made.close()


class Follower:
    def __init__(self, path: str) -> None:
        self.now, self.pieces = 0.0, Pieces()
        self.log = DockerLog(path, "vllm-1", 1000, lambda: self.now, wall_s=lambda: 1_700_000_000.25)

    def texts(self, at_least: int = 0) -> list[str]:
        found: list[str] = []
        for _ in range(500):
            found += [whole.text for line in self.log.poll() if (whole := self.pieces.take(unwrap(line.text), line.number))]
            if len(found) >= at_least and at_least:
                break
            threading.Event().wait(0.004)
            if not at_least and _ > 10:
                break
        return found


def test_frames_become_lines_pieces_and_streams_apart(engine: Docker) -> None:
    engine.body = frame("one\n", 1) + frame("tw", 2) + frame("err\n", 3, stream=2) + frame("o\n", 4)
    follower = Follower(engine.path)
    assert follower.texts(3) == ["one", "err", "two"]
    assert follower.log.standing == FOLLOWED
    assert engine.requests[1] == ("GET /containers/vllm-1/logs?follow=1&stdout=1&stderr=1&timestamps=1&since=1700000000.250000000 HTTP/1.0")
    follower.log.close()


def test_after_a_restart_it_goes_on_after_the_last_instant(engine: Docker) -> None:
    engine.body = frame("one\n", 1) + frame("two\n", 2)
    follower = Follower(engine.path)
    assert follower.texts(2) == ["one", "two"]
    engine.state = {**engine.state, "Running": False}
    engine.cut()
    assert follower.texts() == []
    follower.now += 3
    assert follower.texts() == []
    assert follower.log.standing == (State.MISSING, "container vllm-1 does not run")
    engine.state = {**engine.state, "Running": True, "StartedAt": FINISHED}
    engine.body = frame("two\n", 2) + frame("three\n", 3)
    follower.now += 3
    assert follower.texts(1) == ["three"]
    assert engine.requests[-1].split("since=")[1].split(" ")[0] == f"{instant_ns(at(2)) // 10**9}.000000000"
    assert {request.split(" ")[0] for request in engine.requests} == {"GET"}
    follower.log.close()


def test_a_run_that_ended_between_two_looks_is_read_too(engine: Docker) -> None:
    engine.body = frame("one\n", 1)
    follower = Follower(engine.path)
    assert follower.texts(1) == ["one"]
    engine.cut()
    engine.state = {**engine.state, "Running": False, "StartedAt": FINISHED}
    engine.body = frame("crashed\n", 5)
    assert follower.texts() == []
    follower.now += 3
    assert follower.texts(1) == ["crashed"]
    follower.log.close()


def test_a_terminals_log_has_no_frames(engine: Docker) -> None:
    engine.more = {**engine.more, "Config": {"Tty": True}}
    engine.body = f"{at(1)} one\r\n{at(2)} two\r\n".encode()
    follower = Follower(engine.path)
    assert follower.texts(2) == ["one", "two"]
    follower.log.close()


@settings(max_examples=50, deadline=None)
@given(st.lists(st.integers(1, 300), max_size=12))
def test_bytes_cut_anywhere_give_the_same_lines(cuts: list[int]) -> None:
    data = b"".join(frame(f"line {number}\n", number, 1 + number % 2) for number in range(12))
    places = sorted({0, len(data), *(cut % len(data) for cut in cuts)})
    log = DockerLog("", "x", 1000, lambda: 0.0, wall_s=lambda: 0.0)
    for start, end in itertools.pairwise(places):
        log._bytes += data[start:end]
        log._frames()
    assert [unwrap(line).text for line in log._lines] == [f"line {number}" for number in range(12)]
    assert not log._bytes


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200))
def test_no_bytes_make_it_raise_or_grow(junk: bytes) -> None:
    log = DockerLog("", "x", 1000, lambda: 0.0, wall_s=lambda: 0.0)
    log._bytes += junk
    log._frames()
    assert len(log._bytes) <= docker.MOST_FRAME_BYTES


def test_how_a_container_does(engine: Docker) -> None:
    run = asking(engine.path, "vllm-1")()
    assert (run.running, run.pid, run.restarts, run.end, run.began_ns) == (True, 41, 0, None, instant_ns(STARTED))
    engine.state = {"Running": False, "OOMKilled": True, "Pid": 0, "ExitCode": 137, "StartedAt": STARTED, "FinishedAt": FINISHED}
    ended = asking(engine.path, "vllm-1")()
    assert (ended.running, ended.began) == (False, run.began)
    assert ended.end == End(instant_ns(FINISHED), FINISHED, -9, True)
    assert engine.requests == ["GET /containers/vllm-1/json HTTP/1.1"] * 2


def standing(path: str) -> tuple[State, str]:
    with pytest.raises(UnavailableError) as caught:
        inspect(path, "vllm-1")
    return caught.value.standing


def test_no_way_in_is_named(engine: Docker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine.status = 404
    assert standing(engine.path) == (State.MISSING, "docker has no container vllm-1")
    engine.status = 500
    assert standing(engine.path) == (State.MISSING, "docker answered 500")
    absent = str(tmp_path / "none.sock")
    assert standing(absent) == (State.MISSING, f"{absent}: no such file or directory")
    log = DockerLog(absent, "x", 10, lambda: 0.0, wall_s=lambda: 0.0)
    assert list(log.poll()) == []
    assert log.standing.state is State.MISSING
    monkeypatch.setattr(docker, "_connected", lambda path: (_ for _ in ()).throw(PermissionError(13, "Permission denied")))
    assert standing(engine.path) == (State.DENIED, f"{engine.path}: permission denied")
