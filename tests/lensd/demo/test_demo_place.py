"""The demo's folder and engine: nothing of anybody else's is thrown away, one demo at a time, Ctrl-C at any time."""

import json
import re
import signal
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from lensd.config import load
from lensd.demo.engine import NoEngineError, named_target
from lensd.demo.place import Target, configure, held, prepare
from lensd.errors import UsageError
from lensd.supervise import answers


def test_a_second_demo_starts_afresh_in_the_folder_of_the_first(tmp_path):
    first = prepare(tmp_path)
    (tmp_path / "store").mkdir()
    (tmp_path / "store" / "store.json").write_text("{}")
    second = prepare(tmp_path)
    assert not (tmp_path / "store").exists()
    assert second.keys["full"] != first.keys["full"]
    assert (tmp_path / "token").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("name", ["store", "keys.toml", "lensd.toml", "token"])
def test_what_no_demo_made_is_left_alone(tmp_path, name):
    (tmp_path / name).write_text("of somebody else")
    with pytest.raises(UsageError, match=rf"holds {re.escape(name)}, which no demo made"):
        prepare(tmp_path)
    assert (tmp_path / name).read_text() == "of somebody else"


def test_one_demo_at_a_time(tmp_path):
    with held(tmp_path / "demo"), pytest.raises(UsageError, match="another demo runs in"), held(tmp_path / "demo"):
        pass
    with held(tmp_path / "demo"):
        pass


def test_a_folder_that_cannot_be_one_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match=r"^the demo cannot use the folder .*file: File exists$"), held(tmp_path / "file"):
        pass


def test_the_configuration_it_writes_is_one(tmp_path, monkeypatch):
    place = prepare(tmp_path)
    configure(
        place, Target("http://127.0.0.1:9", "m", log="engine.log", pid=7, api_key_file="a 'key' \"file\""), "http://127.0.0.1:5/alerts"
    )
    config = load(str(place.config), {})
    assert config.gateway.upstreams[0].api_key_file == "a 'key' \"file\""
    assert (config.agent.engines[0].log, config.agent.engines[0].pid) == ("engine.log", 7)
    assert config.api_url == place.api_url


class Models(BaseHTTPRequestHandler):
    answer: bytes = b""

    def do_GET(self):
        self.send_response(200 if self.path == "/v1/models" else 404)
        self.end_headers()
        self.wfile.write(self.answer)

    def log_message(self, format, *args):
        return


@pytest.fixture
def engine():
    server = HTTPServer(("127.0.0.1", 0), Models)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("suffix", ["", "/", "/v1", "/v1/"])
def test_an_engine_is_named_with_or_without_v1(engine, monkeypatch, suffix):
    monkeypatch.setattr(Models, "answer", json.dumps({"data": [{"id": "llama"}]}).encode())
    assert named_target(engine + suffix, "") == Target(engine, "llama")


@pytest.mark.parametrize("answer", [b"<html>", b"[]", b"{}", b'{"data": []}', b'{"data": [{}]}', b'{"data": 3}', b"\xff"])
def test_what_is_no_engine_is_told_in_one_line(engine, monkeypatch, answer):
    monkeypatch.setattr(Models, "answer", answer)
    with pytest.raises(NoEngineError, match="engine at http"):
        named_target(engine, "")


@pytest.mark.parametrize(
    ("url", "key_file", "error", "said"),
    [
        ("http://127.0.0.1:1", "", NoEngineError, "^no engine at http://127.0.0.1:1: .*refused"),
        ("127.0.0.1:8000", "", UsageError, "is no URL: write http"),
        ("http://127.0.0.1:8000", "/nowhere/key", UsageError, "^cannot read the engine's key in /nowhere/key: No such file"),
    ],
)
def test_a_wrong_engine_url_is_told_in_one_line(url, key_file, error, said):
    with pytest.raises(error, match=said):
        named_target(url, key_file)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_it_ends_at_once_and_takes_its_parts_along(tmp_path, number):
    command = [sys.executable, "-m", "lensd", "demo", "--folder", "place"]
    process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert "no engine can be had here" in process.stdout.readline()
    process.stdout.readline()  # the parts are up once the first fault is told
    process.send_signal(number)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130, out + err
    assert "Traceback" not in err
    assert not answers(f"{load(str(tmp_path / 'place' / 'lensd.toml'), {}).api_url}/healthz")()
