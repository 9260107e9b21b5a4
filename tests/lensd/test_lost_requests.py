"""Real processes and an engine that never answers: a gateway that is killed loses what it held, and its successor's start says so."""

import http.client
import json
import re
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from daemon_process import LIMIT_S, Daemon, free_port, until
from lensd_collectors import conventions as c

from lensd.api.client import Client
from lensd.errors import IdsNotRecordedError, RequestNotFoundError

SOON_S = 10  # far below the 30 s of silence after which it would be lost anyway


class Gateway:
    """`lensd gateway` on one address, with the daemon's configuration."""

    def __init__(self, daemon, upstream):
        self._daemon, self.port, self._process = daemon, free_port(), None
        self._log = (daemon.folder / "gateway.log").open("ab")
        table = (
            f'[gateway]\nlisten = "127.0.0.1:{self.port}"\nrequire_key = false\nopen_event_after_s = 0.2\nprogress_every_s = 0.5\n'
            f'export_url = "http://127.0.0.1:{daemon.otlp}"\nupstreams = [{{ name = "e0", url = "{upstream}" }}]\n'
        )
        daemon.config.write_text(daemon.config.read_text() + table)

    def start(self):
        command = [sys.executable, "-m", "lensd", "gateway", "--config", str(self._daemon.config)]
        self._process = subprocess.Popen(command, stdout=self._log, stderr=self._log, env=self._daemon.environment())
        until(self._is_ready)

    def kill(self):
        self._process.kill()
        self._process.wait(LIMIT_S)

    def send(self, request_id):
        """A streamed request on its way; its connection, on which no answer has come."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LIMIT_S)
        body = {"model": "tiny", "messages": [{"role": "user", "content": "hello"}], "stream": True}
        headers = {"Content-Type": "application/json", "X-Request-Id": request_id}
        connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        return connection

    def clean_up(self):
        if self._process is not None and self._process.poll() is None:
            self.kill()
        self._log.close()

    def _is_ready(self):
        assert self._process.poll() is None, (self._daemon.folder / "gateway.log").read_text()
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=1)
        try:
            connection.request("GET", "/readyz")
            return connection.getresponse().status == 200
        except OSError:
            return False
        finally:
            connection.close()


@pytest.fixture
def engine():
    """URL of one that lists its model, takes every request and answers none."""
    over = threading.Event()

    class Engine(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            body = json.dumps({"object": "list", "data": [{"id": "tiny", "object": "model"}]}).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def do_POST(self):
            self.rfile.read(int(self.headers["Content-Length"]))
            over.wait()
            self.close_connection = True

        def log_message(self, *_):
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Engine)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    over.set()
    server.shutdown()
    thread.join()
    server.server_close()


@pytest.fixture
def daemon(tmp_path):
    made = Daemon(tmp_path)
    yield made
    made.clean_up()


@pytest.fixture
def gateway(daemon, engine):
    made = Gateway(daemon, engine)
    yield made
    made.clean_up()


def outcome_of(daemon, request_id):
    """As GET requests/{id} tells it; None while it is not known."""
    try:
        (row,) = Client(f"http://127.0.0.1:{daemon.api}", (daemon.store / "token").read_text().strip()).request(request_id)
    except (RequestNotFoundError, IdsNotRecordedError):  # nothing has told of it yet, or of any
        return None
    return row.outcome


PLACES = {
    "gateway": ("lensd-gateway", c.SCOPE_GATEWAY, {c.LISTEN: "10.0.0.9:8080"}, {c.REQUEST_MODEL: "tiny"}, "the gateway 10.0.0.9:8080"),
    "middleware": ("lensd-vllm", c.SCOPE_VLLM, {c.ENGINE: "e7"}, {c.ENGINE: "e7"}, "the middleware in e7"),
}


@pytest.mark.parametrize(("service", "scope", "place", "about", "name"), PLACES.values(), ids=PLACES)
def test_a_start_in_the_same_place_is_enough_for_the_door(daemon, service, scope, place, about, name):
    daemon.start()
    old, new = daemon.exporter(scope, service), daemon.exporter(scope, service)  # each is an instance of its own
    seconds = 1_000_000_000
    now = time.time_ns()
    about = {**about, c.REQUEST_ID: "held", c.OUTCOME: "open", c.PROGRESS_STAGE: "upstream", c.PROGRESS_AGE_MS: 1000.0}
    old.event(c.EVENT_GATEWAY_ACT, at_ns=now - 60 * seconds, attributes={c.ACT: "started", **place})
    old.event(c.EVENT_STARTED, at_ns=now - 2 * seconds, attributes=about, trace_id="a" * 32, span_id="b" * 16)
    assert old.flush(LIMIT_S)
    until(lambda: outcome_of(daemon, "held") == "open")
    new.event(c.EVENT_GATEWAY_ACT, at_ns=now - seconds, attributes={c.ACT: "started", **place})
    assert new.flush(LIMIT_S)
    until(lambda: outcome_of(daemon, "held") == "lost", SOON_S)
    assert f"lost: {name} was restarted at " in daemon.cli("diagnose", "held")["verdict"]["cause"]


@pytest.mark.slow
def test_what_a_killed_gateway_held_is_lost_when_it_is_started_anew(daemon, gateway):
    daemon.start()
    gateway.start()
    caller = gateway.send("held")
    until(lambda: outcome_of(daemon, "held") == "open")
    gateway.kill()
    with pytest.raises((http.client.RemoteDisconnected, ConnectionResetError)):
        caller.getresponse()
    assert outcome_of(daemon, "held") == "open"
    gateway.start()
    until(lambda: outcome_of(daemon, "held") == "lost", SOON_S)

    told = daemon.cli("diagnose", "held")
    assert (told["subject"]["outcome"], told["verdict"]["label"]) == ("lost", "inconclusive")
    assert re.fullmatch(
        rf"lost: the gateway 127\.0\.0\.1:{gateway.port} was restarted at \S+ \S+ UTC while the request stood in queue or prefill "
        r"\(for \S+ m?s when last heard of, at \S+ \S+ UTC\); its end is unknown; "
        r"its caller's connection broke when the old process died",
        told["verdict"]["cause"],
    )
    said = daemon.lensd("diagnose", "held")
    assert (said.returncode, told["verdict"]["cause"] in said.stdout) == (5, True)

    caller = gateway.send("next")
    until(lambda: outcome_of(daemon, "next") == "open")
    daemon.end(signal.SIGKILL)
    daemon.start()
    assert (outcome_of(daemon, "held"), outcome_of(daemon, "next")) == ("lost", "open")
    caller.close()
    until(lambda: outcome_of(daemon, "next") == "caller_gone")
