"""A real `lensd serve` on free ports and a store of its own: what it acknowledged survives a kill, what it told it tells once."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections import Counter

import pytest
from judged_house import T0, Call, S, webhooks
from lensd_collectors import conventions as c
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
        self.otlp, self.api = free_port(), free_port()
        self.config = folder / "lensd.toml"
        self.config.write_text(
            f'[serve]\nstore = "{self.store}"\notlp = "127.0.0.1:{self.otlp}"\napi = "127.0.0.1:{self.api}"\nevaluate_every_s = 0.2\n'
            f'[[alerts.webhooks]]\nname = "hook"\nurl = "{hook_url}"\n'
        )
        self.process = None
        self.exporters = []

    def start(self):
        with (self.folder / "serve.log").open("ab") as log:
            command = [sys.executable, "-m", "lensd", "serve", "--config", str(self.config)]
            self.process = subprocess.Popen(command, stdout=log, stderr=log, env=self._environment())
        until(self._answers)

    def _environment(self):
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

    def exporter(self, scope):
        made = Exporter(
            f"http://127.0.0.1:{self.otlp}", token=(self.store / "token").read_text().strip(), service="test", scope=scope, flush_every_s=60
        )
        self.exporters.append(made)
        return made

    def cli(self, *arguments):
        """What a command prints: a list's items, else the document."""
        command = [sys.executable, "-m", "lensd", *arguments, "--json", "--config", str(self.config)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, env=self._environment(), check=False)
        assert done.returncode in (0, 3), done.stderr
        told = json.loads(done.stdout)
        return told.get("items", told)

    def requests(self, *where):
        return self.cli("requests", "ls", "--limit", "500", *where)

    def clean_up(self):
        for exporter in self.exporters:
            exporter.close(0.1)
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait(LIMIT_S)


@pytest.fixture
def daemon(tmp_path):
    made = Daemon(tmp_path)
    yield made
    made.clean_up()


def send(exporter, rows, ago_s=1.0):
    """Spans as if they had begun `ago_s` ago."""
    moved = (time.time_ns() // 1000 - round(ago_s * S) - T0) * 1000
    for row in rows:
        exporter.span(
            row.name, trace_id=row.trace_id, span_id=row.span_id, parent_span_id=row.parent_span_id, kind=row.kind,
            start_ns=row.started_at * 1000 + moved, end_ns=row.ended_at * 1000 + moved, attributes=json.loads(row.attributes),
        )  # fmt: skip


REFUSED = {c.OUTCOME: "refused", c.DECISION: "key_unknown", c.HTTP_STATUS: 401, c.SAID_BY: "gateway", c.CHUNKS: 0}


@pytest.mark.slow
def test_kill_9_right_after_the_answer_loses_and_doubles_nothing(daemon):
    wanted = Counter()
    for life in range(3):
        daemon.start()
        gateway, engine = daemon.exporter(c.SCOPE_GATEWAY), daemon.exporter("vllm")
        for n in range(life * 20 + 1, life * 20 + 21):
            call = Call(n, at=0, about=REFUSED if n % 4 == 0 else {})
            send(gateway, call.gateway())
            send(engine, call.llm_request() if n % 4 else [])
            assert gateway.flush(LIMIT_S)
            wanted[call.request_id] += 1
        assert engine.flush(LIMIT_S)
        assert (gateway.failed, gateway.dropped, gateway.ambiguous) == (0, 0, 0)
        assert daemon.end(signal.SIGKILL) == -signal.SIGKILL
        read = daemon.requests("--store", str(daemon.store))
        assert Counter(row["request_id"] for row in read) == wanted
        verdict = daemon.cli("diagnose", f"r{life * 20 + 20}", "--store", str(daemon.store))["verdict"]
        assert verdict["label"] == "auth-wrong-key"
    daemon.start()
    rows = until(lambda: all_judged(daemon.requests(), len(wanted)))
    assert Counter(row["request_id"] for row in rows) == wanted
    labels = {row["request_id"]: row["label"] for row in rows}
    assert labels == {name: "auth-wrong-key" if int(name[1:]) % 4 == 0 else "no-incident" for name in wanted}
    assert daemon.end(signal.SIGTERM) == 0


def all_judged(rows, count):
    return rows if len(rows) == count and all(row["label"] for row in rows) else None


@pytest.mark.slow
def test_a_dead_engine_is_told_once_whatever_becomes_of_the_daemon(tmp_path):
    with webhooks() as (url, got):
        daemon = Daemon(tmp_path, url)
        try:
            daemon.start()
            agent, gateway = daemon.exporter(c.SCOPE_AGENT), daemon.exporter(c.SCOPE_GATEWAY)
            engine = {c.ENGINE: "e0", c.ENGINE_KIND: "vllm"}

            def say(state, code=None):
                told = {**engine, c.PROCESS_STATE: state, c.PROCESS_PID: 7, c.PROCESS_EXIT: code}
                agent.event(c.EVENT_ENGINE_PROCESS, at_ns=time.time_ns(), attributes=told)
                agent.gauge("up", 1.0 if state == "running" else 0.0, at_ns=time.time_ns(), attributes=engine)

            say("running")
            assert agent.flush(LIMIT_S)
            open_one, cut = Call(1, at=0), Call(2, at=0, total=900, about={c.OUTCOME: "cut", c.DONE_SEEN: False, c.FINISH_REASONS: None})
            event = open_one.open(1000)
            gateway.event(
                event.name, at_ns=time.time_ns(), attributes=json.loads(event.fields), trace_id=event.trace_id, span_id=event.span_id
            )
            send(gateway, cut.gateway())
            say("exited", -9)
            began = time.monotonic()
            assert gateway.flush(LIMIT_S)
            assert agent.flush(LIMIT_S)
            until(lambda: got)
            assert time.monotonic() - began < 10
            until(lambda: {row["request_id"]: row["outcome"] for row in daemon.requests()} == {"r1": "open", "r2": "cut"})
            assert daemon.end(signal.SIGKILL) == -signal.SIGKILL
            daemon.start()
            until(lambda: [i for i in daemon.cli("incidents", "ls") if i["label"] == "engine-crash"])
            assert daemon.end(signal.SIGTERM) == 0
            daemon.start()
            time.sleep(1)  # several ticks of the third process
            assert daemon.end(signal.SIGINT) == 0
        finally:
            daemon.clean_up()
    assert [(body["status"], body["commonLabels"]["alertname"]) for body in got] == [("firing", "engine-crash")]


def test_a_port_that_is_taken_is_said_in_one_line(daemon):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", daemon.otlp))
        taken.listen()
        command = [sys.executable, "-m", "lensd", "serve", "--config", str(daemon.config)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, env=daemon._environment(), check=False)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert f"cannot listen on 127.0.0.1:{daemon.otlp}" in done.stderr
    assert not daemon.store.exists()
