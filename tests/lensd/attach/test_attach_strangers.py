"""`lensd attach` and `lensd doctor` on what is no engine, or is reached in another way than it is asked: one line that is right."""

import contextlib
import http.server
import io
import os
import socket
import threading
import tomllib

import pytest
from lensd_collectors.host.config import WatchedEngine
from lensd_collectors.host.engine import resolve

from lensd.cli.main import run

METRICS = b'vllm:num_requests_running{model_name="m"} 0\n'


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for name in [*os.environ]:
        if name.startswith(("LENSD_", "ENGINE_", "XDG_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "settings.toml").write_text('[serve]\napi = "127.0.0.1:1"\n')
    return tmp_path


class Six(http.server.ThreadingHTTPServer):
    address_family = socket.AF_INET6


@contextlib.contextmanager
def answering(status, pages, host="127.0.0.1"):
    """A server that gives these pages, and this status for all of them; its port."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            body = pages.get(self.path, pages.get("", b""))
            self.send_response(status)
            self.send_header("content-length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    with (Six if ":" in host else http.server.ThreadingHTTPServer)((host, 0), Handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


def lensd(*arguments, config="settings.toml"):
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = run([*arguments, "--config", config])
    return status, out.getvalue(), err.getvalue()


@pytest.mark.parametrize(
    ("status", "pages", "said"),
    [
        (200, {"": b"<html>"}, "/metrics has none of an engine's own names"),
        (401, {}, "/v1/models answers 401: name a file that holds the engine's key by --api-key-file; /metrics: answers 401"),
        (404, {}, "/metrics: answers 404; /health: answers 404"),
        (302, {}, "/metrics: answers 302; /health: answers 302"),
    ],
)
def test_what_is_no_engine_is_not_attached_to(folder, status, pages, said):
    with answering(status, pages) as port:
        url = f"http://127.0.0.1:{port}"
        got, out, err = lensd("attach", url)
        (folder / "lensd.toml").write_text(f'agent.engines = [{{ name = "e0", url = "{url}" }}]\nserve.api = "127.0.0.1:1"\n')
        doctor, checks, _ = lensd("doctor", config="lensd.toml")
    assert (got, out) == (5, "")
    assert err.startswith(f"lensd: what answers at {url} is no engine that lensd knows: ")
    assert said in err
    assert err.count("\n") == 1
    assert doctor == 3
    assert f"fail  e0 link: what answers at {url} is no engine that lensd knows: " in checks


def test_tls_and_plain_text_mixed_up_and_a_name_that_is_none(folder):
    with answering(200, {"/metrics": METRICS}) as port:
        _, out, tls = lensd("attach", f"https://127.0.0.1:{port}")
    with socket.create_server(("127.0.0.1", 0)) as listening:

        def other():
            with contextlib.suppress(OSError):
                while True:
                    connection, _ = listening.accept()
                    connection.recv(1000)
                    connection.sendall(b"\x15\x03\x01\x00\x02\x02\x16\r\n")
                    connection.close()

        threading.Thread(target=other, daemon=True).start()
        _, _, plain = lensd("attach", f"http://127.0.0.1:{listening.getsockname()[1]}")
    assert (out, tls.count("\n"), plain.count("\n")) == ("", 1, 1)
    assert "what answers there speaks no TLS" in tls
    assert "what answers there speaks no plain HTTP" in plain
    assert "nobody knows the name no-such-host.invalid" in lensd("attach", "http://no-such-host.invalid:8000")[2]


def test_an_engine_at_an_address_of_six_is_watched_by_the_file(folder):
    with answering(200, {"/metrics": METRICS}, "::1") as port:
        status, out, _ = lensd("attach", f"http://[::1]:{port}/v1/")
        assert (status, f"at http://[::1]:{port}, " in out) == (0, True)
        assert lensd("attach", f"http://[::1]:{port}")[0] == 0
    watched = tomllib.loads((folder / "lensd.toml").read_text())["agent"]["engines"][0]
    assert resolve(WatchedEngine(url=watched["url"])).host == "::1"


def test_no_secret_of_a_url_is_shown(folder):
    (folder / "lensd.toml").write_text('agent.engines = [{ url = "http://joe:s3cr3t@h:99999" }]\nserve.api = "127.0.0.1:1"\n')
    said = [
        *lensd("attach", "http://joe:s3cr3t@h:99999"),
        *lensd("doctor", config="lensd.toml"),
        *lensd("doctor", "--json", config="lensd.toml"),
    ]
    assert not any("s3cr3t" in str(each) for each in said)


def test_standard_input_of_the_agent_is_a_log(folder):
    (folder / "lensd.toml").write_text(
        'agent.engines = [{ name = "e0", url = "http://127.0.0.1:9", log = "-" }]\nserve.api = "127.0.0.1:1"\n'
    )
    assert "ok    e0 log: standard input of lensd agent" in lensd("doctor", config="lensd.toml")[1]
