import http.client
import os
import signal
import socket
import subprocess
import sys
import time

import pytest
from lensd_collectors.gateway.config import GatewayConfig, Upstream
from lensd_collectors.gateway.keys import KeysError
from lensd_collectors.gateway.routes import GatewayError
from lensd_collectors.gateway.server import build_app, read_listen, run


@pytest.mark.parametrize(
    ("listen", "place"), [("127.0.0.1:8080", ("127.0.0.1", 8080)), ("[::1]:80", ("::1", 80)), ("localhost:0", ("localhost", 0))]
)
def test_where_it_listens(listen, place):
    assert read_listen(listen) == place


@pytest.mark.parametrize("listen", ["8080", ":8080", "host:", "host:port", "host:99999", ""])
def test_a_place_that_is_none(listen):
    with pytest.raises(GatewayError, match="must be HOST:PORT"):
        read_listen(listen)


@pytest.mark.parametrize("listen", ["0.0.0.0:0", "192.168.1.5:0", "[::]:0", "example.org:0"])
def test_without_keys_only_loopback(listen):
    with pytest.raises(GatewayError, match="without keys the gateway listens on loopback only"):
        run(GatewayConfig(listen=listen, require_key=False), None)


def test_a_port_that_is_taken_is_one_line():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(GatewayError, match=r"cannot listen on 127\.0\.0\.1:\d+: address already in use"):
            run(GatewayConfig(listen=f"127.0.0.1:{taken.getsockname()[1]}", require_key=False), None)


@pytest.mark.parametrize(
    ("settings", "error", "said"),
    [
        ({"upstreams": (Upstream(url="localhost:8000"),)}, GatewayError, "must be http://HOST:PORT"),
        ({"upstreams": (Upstream(url="http://h:1"), Upstream(url="http://h:1/v1"))}, GatewayError, "'h:1' is used twice"),
        (
            {"upstreams": (Upstream(url="http://h:1", api_key_file="/no/such/file"),)},
            GatewayError,
            "cannot read api_key_file /no/such/file",
        ),
        ({"require_key": True, "keys_file": "."}, KeysError, "cannot read"),
    ],
)
def test_a_configuration_that_cannot_work_is_one_line(settings, error, said):
    with pytest.raises(error, match=said) as caught:
        build_app(GatewayConfig(**{"require_key": False, **settings}), exporter=None)
    assert "\n" not in str(caught.value)


PROGRAM = """
import sys
from lensd_collectors.gateway.config import GatewayConfig
from lensd_collectors.gateway.server import run
run(GatewayConfig(listen="127.0.0.1:" + sys.argv[1], require_key=False, export_url="http://127.0.0.1:9"), "token")
"""


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it_in_the_ordinary_way(how):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen([sys.executable, "-c", PROGRAM, str(port)], stderr=subprocess.PIPE, env={**os.environ, "NO_COLOR": "1"})
    try:
        assert _health(port, process) == 200
        process.send_signal(how)
        _, errors = process.communicate(timeout=15)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 0
    assert b"Traceback" not in errors


def _health(port, process):
    until = time.monotonic() + 15
    while time.monotonic() < until and process.poll() is None:
        try:
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=2)
            connection.request("GET", "/health")
            return connection.getresponse().status
        except ConnectionError:
            time.sleep(0.05)
    return None
