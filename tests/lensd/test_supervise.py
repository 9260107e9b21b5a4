"""Parts of lensd as one group: started in order, named in the output, ended together whatever ends them."""

import io
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from checkout import serving

from lensd.errors import PartError
from lensd.supervise import Part, Supervisor, answers, parts, until_signal

STAYS = Part("agent", ("agent",))


@pytest.fixture
def output():
    return io.StringIO()


@pytest.fixture
def supervisor(output, tmp_path):
    made = Supervisor(output, {**os.environ, "HOME": str(tmp_path), "LENSD_SERVE__STORE": str(tmp_path / "store")})
    yield made
    made.stop()


def is_alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def pids(supervisor):
    return [running.process.pid for running in supervisor._running]


CHECK = Part("check", ("config", "check", "--config", "/nowhere/lensd.toml"), lambda: False)
SAID = r"^check ended with 2: no configuration at /nowhere/lensd\.toml$"


def test_a_part_that_ends_before_it_is_up_is_told_with_its_last_words_and_its_status(supervisor, output):
    with pytest.raises(PartError, match=SAID) as caught:
        supervisor.start(CHECK)
    assert caught.value.exit_status == 2
    assert output.getvalue() == "check     | lensd: no configuration at /nowhere/lensd.toml\n"


def test_a_part_that_ends_later_ends_the_wait_with_its_last_words(supervisor):
    supervisor.start(CHECK._replace(ready=None))
    with pytest.raises(PartError, match=SAID):
        supervisor.wait(threading.Event())


def test_a_part_whose_place_is_taken_is_not_started(supervisor, output):
    with pytest.raises(PartError, match=r"^agent: something answers at its address already") as caught:
        supervisor.start(STAYS._replace(ready=lambda: True))
    assert caught.value.exit_status == 2
    assert pids(supervisor) == []


def test_a_part_that_does_not_come_up_is_told(supervisor):
    with pytest.raises(PartError, match=r"^agent was not up after 0 s$") as caught:
        supervisor.start(STAYS._replace(ready=lambda: False), timeout_s=0.3)
    assert caught.value.exit_status == 5


def test_a_stop_ends_the_wait_for_a_part(supervisor):
    stop = threading.Event()
    stop.set()
    begun = time.monotonic()
    supervisor.start(STAYS._replace(ready=lambda: False), stop=stop)
    assert time.monotonic() - begun < 5
    supervisor.wait(stop)


def test_a_part_that_is_killed_ends_the_wait(supervisor):
    supervisor.start(STAYS)
    (pid,) = pids(supervisor)
    os.killpg(pid, signal.SIGKILL)
    with pytest.raises(PartError, match=r"^agent ended with -9: ") as caught:
        supervisor.wait(threading.Event())
    assert caught.value.exit_status == 5


def test_stop_ends_every_part_and_twice_is_no_error(supervisor):
    supervisor.start(STAYS)
    supervisor.start(STAYS._replace(name="other"))
    started = pids(supervisor)
    assert all(is_alive(pid) for pid in started)
    supervisor.stop()
    assert not any(is_alive(pid) for pid in started)
    supervisor.stop()


def test_output_that_nobody_takes_does_not_stop_a_part():
    class Gone(io.StringIO):
        def write(self, _):
            raise BrokenPipeError

    said = subprocess.Popen([sys.executable, "-c", "print('x' * 70_000); print('last')"], stdout=subprocess.PIPE, text=True)
    last: list[str] = []
    Supervisor(Gone())._copy("part", said, last)
    assert said.wait(10) == 0
    assert last[-1] == "last"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_until_signal_sets_the_event_and_puts_the_handlers_back(number):
    before = signal.getsignal(number)
    with until_signal() as stop:
        assert not stop.is_set()
        os.kill(os.getpid(), number)
        assert stop.wait(2)
    assert signal.getsignal(number) == before


class Health(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200 if self.path == "/ok" else 503)
        self.end_headers()

    def log_message(self, format, *args):
        return


@pytest.mark.parametrize("proxy", ["", "http://127.0.0.1:1"])
def test_answers_asks_directly(monkeypatch, proxy):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, proxy)
    monkeypatch.delenv("no_proxy", raising=False)
    monkeypatch.delenv("NO_PROXY", raising=False)
    server = HTTPServer(("127.0.0.1", 0), Health)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_address[1]}"
    assert answers(f"{url}/ok")()
    assert not answers(f"{url}/loading")()
    server.shutdown()
    server.server_close()
    assert not answers(f"{url}/ok")()
    assert not answers("http://127.0.0.1:99999/")()


def test_parts_come_in_order_and_carry_the_configuration():
    found = parts("/etc/lensd.toml", {"serve": lambda: True})
    assert [part.name for part in found] == ["serve", "gateway", "agent", "dashboard"]
    assert found[1].arguments == ("gateway", "--config", "/etc/lensd.toml")
    assert [part.ready is not None for part in found] == [True, False, False, False]
    assert parts(None, {})[0].arguments == ("serve",)


def up(tmp_path, *, taken=None):
    ports = {name: taken if taken and name == "api" else serving.free_port() for name in ("otlp", "api", "gateway")}
    (tmp_path / "keys.toml").write_text("")
    (tmp_path / "lensd.toml").write_text(
        f'[serve]\nstore = "{tmp_path}/store"\notlp = "127.0.0.1:{ports["otlp"]}"\napi = "127.0.0.1:{ports["api"]}"\n'
        f'otlp_grpc = ""\n[gateway]\nlisten = "127.0.0.1:{ports["gateway"]}"\nkeys_file = "{tmp_path}/keys.toml"\nupstreams = [{{url = "http://127.0.0.1:9"}}]\n'
    )
    command = [sys.executable, "-m", "lensd", "up", "--no-dashboard", "--config", str(tmp_path / "lensd.toml")]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True), ports


def test_up_starts_all_says_where_and_ends_all_at_a_hangup(tmp_path):
    process, ports = up(tmp_path)
    first = process.stdout.readline()
    answered = answers(f"http://127.0.0.1:{ports['api']}/healthz")()
    process.send_signal(signal.SIGHUP)
    _, err = process.communicate(timeout=30)
    assert (first, process.returncode) == (f"gateway    http://127.0.0.1:{ports['gateway']}/v1\n", 0), err
    assert answered
    assert not answers(f"http://127.0.0.1:{ports['api']}/healthz")()


def test_up_ends_with_the_status_of_the_part_that_could_not_start(tmp_path):
    server = HTTPServer(("127.0.0.1", 0), Health)  # it listens and answers nobody
    process, _ = up(tmp_path, taken=server.server_address[1])
    _, err = process.communicate(timeout=60)
    server.server_close()
    assert process.returncode == 2, err
    assert err.splitlines()[-1].startswith(f"lensd: serve ended with 2: cannot listen on 127.0.0.1:{server.server_address[1]}")
    assert "Traceback" not in err


def test_serve_tells_of_a_token_file_it_cannot_write(tmp_path):
    environ = {**os.environ, "HOME": str(tmp_path), "LENSD_SERVE__STORE": str(tmp_path / "store")}
    environ |= {"LENSD_SERVE__TOKEN_FILE": "/proc/lensd/token", "LENSD_SERVE__API": f"127.0.0.1:{serving.free_port()}"}
    environ |= {"LENSD_SERVE__OTLP": f"127.0.0.1:{serving.free_port()}"}
    command = [sys.executable, "-m", "lensd", "serve"]
    done = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stderr.count("\n")) == (2, 1), done.stderr
    assert "cannot write the token file /proc/lensd/token: No such file or directory" in done.stderr
