"""What a stranger may point the agent at: no file, no engine, a URL with secrets. Nothing leaks, blocks, or is said for something else."""

import contextlib
import os
import socket
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest
from lensd_collectors.host.config import WatchedEngine
from lensd_collectors.host.engine import AgentError, Engine, FetchError, FetchFailure, fetch_with, resolve
from lensd_collectors.host.line import State
from lensd_collectors.host.logs import last_line_with
from lensd_collectors.host.look import flags_of, look
from lensd_collectors.host.place import place_of
from lensd_collectors.host.tail import Tail

T = TypeVar("T")


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def in_time(call: Callable[[], T]) -> T:
    """What a call returns that must not wait for anybody."""
    found: list[T] = []
    thread = threading.Thread(target=lambda: found.append(call()), daemon=True)
    thread.start()
    thread.join(5)
    assert found, "it waits"
    return found[0]


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_a_log_that_is_no_file_is_said_to_be_none_and_holds_no_descriptor(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "vllm.log")
    before = descriptors()
    for _ in range(5):
        tail = Tail(tmp_path / "vllm.log", 100, lambda: 0.0)
        assert list(tail.poll()) == []
        assert tail.standing.state is State.MISSING
        assert tail.standing.reason == "it is no regular file"
    assert descriptors() == before


def test_a_file_in_the_place_of_a_folder_is_followed(tmp_path: Path) -> None:
    (tmp_path / "vllm.log").mkdir()
    tail = Tail(tmp_path / "vllm.log", 100, lambda: 0.0)
    (tmp_path / "vllm.log").rmdir()
    (tmp_path / "vllm.log").write_text("a\n")
    assert [line.text for line in tail.poll()] == ["a"]
    tail.close()


def test_nobody_waits_for_a_pipe_that_has_a_name(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "vllm.log")
    assert in_time(lambda: last_line_with(tmp_path / "vllm.log", b"args")) == ""

    def gone(engine: Engine, path: str) -> bytes:
        raise FetchError(FetchFailure.REFUSED)

    engine = Engine(name="e0", kind="vllm", host="127.0.0.1", port=1, log=str(tmp_path / "vllm.log"))
    assert in_time(lambda: look(engine, gone, lambda _: None)).log_plugins is None


def test_output_that_goes_into_a_pipe_with_a_name_is_no_log(tmp_path: Path) -> None:
    (tmp_path / "7" / "fd").mkdir(parents=True)
    os.mkfifo(tmp_path / "out")
    for number in (1, 2):
        (tmp_path / "7" / "fd" / str(number)).symlink_to(tmp_path / "out")
    place = place_of(7, tmp_path)
    assert place.spec == ""
    assert str(tmp_path / "out") in place.why


@pytest.mark.parametrize(
    "given",
    [
        "http://joe:s3cr3t@collector:4318/v1/traces",
        "joe:s3cr3t@collector:4317",
        "http://joe:s3/s3cr3t@collector:4318/v1/traces",
        "http://collector:4318/v1/traces?api-key=s3cr3t",
        "http://collector:4318/v1/traces#s3cr3t",
    ],
)
def test_an_endpoint_keeps_no_secret(given: str) -> None:
    kept = flags_of(["vllm", "serve", "m", "--otlp-traces-endpoint", given])["otlp-traces-endpoint"][0]
    assert "s3cr3t" not in kept
    assert "collector:431" in kept


@pytest.mark.parametrize("url", ["http://joe:s3cr3t@h:99999", "ftp://joe:s3cr3t@h", "joe:s3cr3t@h:x", "http://h:x/?token=s3cr3t"])
def test_a_url_of_no_use_is_told_without_its_secret(url: str) -> None:
    with pytest.raises(AgentError) as told:
        resolve(WatchedEngine(url=url))
    assert "s3cr3t" not in str(told.value)


@pytest.mark.parametrize("url", ["http://[::1]:8000", "[fd00::2]:8000/v1", "https://[::1]", "http://h:8000"])
def test_an_engine_is_found_again_by_the_url_that_is_told(url: str) -> None:
    engine = resolve(WatchedEngine(url=url))
    again = resolve(WatchedEngine(url=engine.url))
    assert (again.host, again.port, again.path, again.url) == (engine.host, engine.port, engine.path, engine.url)


def test_a_name_that_nobody_knows_refuses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A resolver out of order is no death of an engine: engine-crash takes "refused" for one."""

    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(FetchError) as told:
        fetch_with(1.0)(Engine(name="e0", kind="vllm", host="engine.example", port=8000), "/metrics")
    assert told.value.why is FetchFailure.BROKEN
    assert told.value.said == "nobody knows the name engine.example"


def test_an_answer_that_never_ends_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lensd_collectors.host.engine.WHOLE_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def drip() -> None:
            with contextlib.suppress(OSError), listening.accept()[0] as connection:
                connection.recv(1000)
                connection.sendall(b"HTTP/1.1 200 OK\r\n\r\n")
                while True:
                    connection.sendall(b": still there\n\n")
                    time.sleep(0.05)

        threading.Thread(target=drip, daemon=True).start()
        engine = Engine(name="e0", kind="vllm", host="127.0.0.1", port=listening.getsockname()[1])

        def failed() -> FetchFailure:
            with pytest.raises(FetchError) as told:
                fetch_with(0.2)(engine, "/metrics")
            return told.value.why

        assert in_time(failed) is FetchFailure.TIMEOUT
