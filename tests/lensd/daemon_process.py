"""A real `lensd serve` on free ports with a store of its own, and the command line against it."""

import json
import os
import socket
import subprocess
import sys
import time
import urllib.request

from lensd_collectors.export import Exporter

LIMIT_S = 30


def free_port():
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return sock.getsockname()[1]


def until(what, seconds=LIMIT_S):
    """What `what()` gives as soon as it is true."""
    end = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < end, f"{what} did not come true within {seconds} s"
        time.sleep(0.05)
    return found


class Daemon:
    def __init__(self, folder, hook_url="http://127.0.0.1:9/"):
        self.folder, self.store = folder, folder / "store"
        self.otlp, self.otlp_grpc, self.api = free_port(), free_port(), free_port()
        self.config = folder / "lensd.toml"
        self.config.write_text(
            f'[serve]\nstore = "{self.store}"\notlp = "127.0.0.1:{self.otlp}"\napi = "127.0.0.1:{self.api}"\nevaluate_every_s = 0.2\n'
            f'otlp_grpc = "127.0.0.1:{self.otlp_grpc}"\n'
            f'[[alerts.webhooks]]\nname = "hook"\nurl = "{hook_url}"\n'
        )
        self.process = None
        self.exporters = []

    def start(self):
        with (self.folder / "serve.log").open("ab") as log:
            command = [sys.executable, "-m", "lensd", "serve", "--config", str(self.config)]
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=self.environment())
        until(self._answers)

    def environment(self):
        return {name: value for name, value in os.environ.items() if not name.startswith("LENSD_")} | {"HOME": str(self.folder)}

    def _answers(self):
        assert self.process.poll() is None, (self.folder / "serve.log").read_text()
        try:
            return urllib.request.urlopen(f"http://127.0.0.1:{self.api}/healthz", timeout=1).status == 200
        except OSError:
            return False

    def end(self, number):
        self.process.send_signal(number)
        return self.process.wait(LIMIT_S)

    def exporter(self, scope, service="test"):
        token = (self.store / "token").read_text().strip()
        made = Exporter(f"http://127.0.0.1:{self.otlp}", token=token, service=service, scope=scope, flush_every_s=60)
        self.exporters.append(made)
        return made

    def cli(self, *arguments):
        """What a command prints: a list's items, else the document."""
        done = self.lensd(*arguments, "--json")
        assert done.returncode in (0, 3, 5), done.stderr
        told = json.loads(done.stdout)
        return told.get("items", told)

    def lensd(self, *arguments):
        command = [sys.executable, "-m", "lensd", *arguments, "--config", str(self.config)]
        return subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, env=self.environment(), check=False)

    def requests(self, *where):
        return self.cli("requests", "ls", "--limit", "500", *where)

    def clean_up(self):
        for exporter in self.exporters:
            exporter.close(0.1)
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait(LIMIT_S)
