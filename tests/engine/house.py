"""Daemon, gateway and agent as processes of their own around a real engine, as `lensd up` starts them."""

import io
import subprocess
import sys
import threading
import time
from contextlib import contextmanager
from pathlib import Path

import msgspec
from checkout import serving
from lensd_collectors.client.call import Caller
from lensd_collectors.client.spans import tracer
from lensd_collectors.gateway import keys

from lensd.api.client import Client
from lensd.supervise import Part, Supervisor, answers


class House:
    """The running parts; `lensd` runs the command line against them."""

    def __init__(self, folder: Path, engine, otlp_port: int, token: str, name: str = "e0", beside=None) -> None:
        """`name` is what gateway and agent call the engine, `beside` has further engines by name, which the agent watches too."""
        self.folder, self.engine, self.token, self.name, self.beside = folder, engine, token, name, beside or {}
        self.store = folder / "store"
        self.config = folder / "lensd.toml"
        self.otlp_url = f"http://127.0.0.1:{otlp_port}"
        self.api, self.gateway = (f"127.0.0.1:{serving.free_port()}" for _ in range(2))
        self.output = io.StringIO()
        self.supervisor = Supervisor(self.output)
        self.key, entry = keys.new_key("team-a", ("tiny-*",))
        keys.append(folder / "keys.toml", entry)
        (folder / "token").write_text(token)
        self._write_config(otlp_port)
        self.client = Client(f"http://{self.api}", token)

    def _write_config(self, otlp_port: int) -> None:
        reached = f'name = "{self.name}", url = "{self.engine.url}"'
        if self.engine.api_key:
            (self.folder / "engine.key").write_text(self.engine.api_key)
            reached += f', api_key_file = "{self.folder}/engine.key"'
        engine = f"{{ {reached} }}"
        watched = [f'{{ {reached}, log = "{self.engine.log}", model_dir = "{self.engine.root}/{self.engine.model_dir}" }}']
        watched += [
            f'{{ name = "{name}", url = "{each.url}", log = "{each.log}", model_dir = "{each.root}/{each.model_dir}" }}'
            for name, each in self.beside.items()
        ]
        export = f'export_url = "{self.otlp_url}"\ntoken_file = "{self.folder}/token"\n'
        self.config.write_text(
            f'[serve]\nstore = "{self.store}"\notlp = "127.0.0.1:{otlp_port}"\napi = "{self.api}"\ntoken_file = "{self.folder}/token"\n'
            f'otlp_grpc = ""\n[gateway]\nlisten = "{self.gateway}"\nkeys_file = "{self.folder}/keys.toml"\nupstreams = [{engine}]\n{export}'
            f"[agent]\nengines = [{', '.join(watched)}]\nscrape_interval_s = 0.5\n{export}"
        )

    def start(self, *names: str) -> None:
        ready = {"serve": answers(f"http://{self.api}/healthz"), "gateway": answers(f"http://{self.gateway}/health")}
        for name in names:
            self.supervisor.start(Part(name, (name, "--config", str(self.config)), ready.get(name)))

    def lensd(self, *arguments: str) -> "subprocess.CompletedProcess[str]":
        command = [sys.executable, "-m", "lensd", *arguments, "--config", str(self.config)]
        return subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)

    def verdict(self, ident: str, wait_s: float = 14.0) -> dict:
        """The verdict document as `lensd diagnose --json` prints it."""
        done = self.lensd("diagnose", ident, "--json", "--wait", str(wait_s))
        assert done.stderr == "", done.stderr + self.output.getvalue()
        return msgspec.json.decode(done.stdout)

    @contextmanager
    def caller(self, key: str | None = None):
        made, provider = tracer(self.otlp_url, self.token)
        yield Caller(f"http://{self.gateway}", key or self.key, made)
        provider.shutdown()

    def chat(self, request_id: str, *, content: str = "the queue waits", max_tokens: int = 8, stream: bool = True, timeout_s: float = 60.0):
        body = {
            "model": "tiny-llama", "messages": [{"role": "user", "content": content}], "max_tokens": max_tokens, "stream": stream,
            "ignore_eos": True,
        }  # fmt: skip
        with self.caller() as caller:
            return caller.chat(body, timeout_s=timeout_s, request_id=request_id)


def in_background(run) -> threading.Thread:
    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    return thread


def until(done, limit_s: float = 20.0) -> None:
    """Wait for something that another process does."""
    end = time.monotonic() + limit_s
    while not done():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.1)
