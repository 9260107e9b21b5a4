"""Without LENSD_ENGINE an engine is called what the agent calls it by default."""

import pytest
from lensd_collectors.host.config import WatchedEngine
from lensd_collectors.host.engine import resolve
from lensd_collectors.vllm.engine_name import engine_name
from lensd_collectors.vllm.sender import make_sender

HERE, ELSEWHERE = "http://127.0.0.1:4318", "http://lensd.example:4318"


@pytest.mark.parametrize(
    ("options", "endpoint", "name"),
    [
        ("--host 127.0.0.1 --port 8100", ELSEWHERE, "127.0.0.1:8100"),
        ("--host=gpu-1.Example --port=8100", HERE, "gpu-1.example:8100"),
        ("--host ::1", HERE, "[::1]:8000"),
        ("", HERE, "127.0.0.1:8000"),  # it listens everywhere, and whoever watches it is here
        ("--host 0.0.0.0 --port 8100", HERE, "127.0.0.1:8100"),
        ("--host 0.0.0.0 --port 8100", "localhost:4318", "127.0.0.1:8100"),
        ("--port 8100", ELSEWHERE, "gpu-7:8100"),  # another host may have a server on that port
        ("--port 1 --port 8100", HERE, "127.0.0.1:8100"),
        ("--config served.yaml --port 8100", HERE, ""),  # the host may be in that file
        ("--config served.yaml --host 10.0.0.1 --port 8100", HERE, "10.0.0.1:8100"),
        ("--uds /run/vllm.sock", HERE, ""),
        ("--port nonsense", HERE, ""),
    ],
)
def test_name(options: str, endpoint: str, name: str) -> None:
    assert engine_name(["vllm", "serve", "MODEL", *options.split()], endpoint, "gpu-7") == name


@pytest.mark.parametrize("host", ["127.0.0.1", "GPU-1", "[::1]"])
def test_it_is_the_agents_own_default(host: str) -> None:
    url = resolve(WatchedEngine(url=f"http://{host}:8100/v1"))
    assert engine_name(["--host", host, "--port", "8100"], HERE, "gpu-7") == url.name


@pytest.mark.parametrize(
    ("environment", "argv", "service", "name"),
    [
        ({"LENSD_ENGINE": "e0"}, ("--port", "8100"), "lensd-vllm", "e0"),
        ({}, ("--port", "8100"), "lensd-vllm", "127.0.0.1:8100"),
        ({}, (), "lensd-vllm", None),  # no command line of a vLLM's
        ({}, ("--port", "8100"), "shop", None),  # an app of another kind
    ],
)
def test_what_a_sender_says(environment: dict[str, str], argv: tuple[str, ...], service: str, name: str | None) -> None:
    made = make_sender({"LENSD_OTLP": HERE, **environment}, service=service, argv=argv)
    assert made is not None
    assert made.attributes.get("lensd.engine") == name
    made.exporter.close(0)
