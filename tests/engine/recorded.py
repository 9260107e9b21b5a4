"""Doors that keep every OTLP body with its instant, and lensd fed with them, or with a part of them, as they had come one by one."""

import gzip
import json
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

from lensd_collectors import conventions as c
from lensd_collectors.rows import Row

from lensd.alerts.outbox import Outbox
from lensd.alerts.post import post
from lensd.diagnosis.runbook import load
from lensd.judge import Judge
from lensd.receive.decode import Decoder
from lensd.receive.parse import parse_json, parse_protobuf
from lensd.receive.scrub import Scrubber
from lensd.store import names, queries
from lensd.store.arrow import batch_of
from lensd.store.folder import FolderStore
from lensd.store.segments import Signal
from lensd.timeline.assembler import Assembler, answered, sender_started, touched
from lensd.timeline.limits import Limits

SIGNALS = {"/v1/traces": Signal.TRACES, "/v1/metrics": Signal.METRICS, "/v1/logs": Signal.LOGS}
SCRAPE, LOG, PROCESS, SPANS, PLUGIN, MIDDLEWARE = "scrape", "log", "process", "spans", "plugin", "middleware"
S = 1_000_000


class Body(NamedTuple):
    """One body as it came, `at` in microseconds since the epoch."""

    at: int
    signal: Signal
    payload: bytes  # protobuf


def body_of(path: str, kind: str, encoding: str | None, sent: bytes) -> Body:
    """What was posted, as the daemon's door keeps it."""
    signal = SIGNALS[path]
    plain = gzip.decompress(sent) if encoding == "gzip" else sent
    message = parse_json(signal, plain) if "json" in kind else parse_protobuf(signal, plain)
    Scrubber().scrub(signal, message)
    return Body(time.time_ns() // 1000, signal, message.SerializeToString())


class Recorder:
    """An OTLP/HTTP door on a port of 127.0.0.1 (0: a free one) that takes whatever comes."""

    def __init__(self, port: int = 0) -> None:
        self.bodies: list[Body] = []
        recorder = self

        class Door(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                sent = self.rfile.read(int(self.headers["Content-Length"]))
                recorder.bodies.append(body_of(self.path, self.headers["Content-Type"], self.headers["Content-Encoding"], sent))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None: ...

        self._server = ThreadingHTTPServer(("127.0.0.1", port), Door)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()


def only(bodies: Iterable[Body], kinds: set[str]) -> Iterator[Body]:
    """The bodies with what came from these sources; a body of which nothing is left goes."""
    for body in bodies:
        message: Any = parse_protobuf(body.signal, body.payload)
        if _keep(body.signal, message, kinds):
            yield body._replace(payload=message.SerializeToString())


def _keep(signal: Signal, message: Any, kinds: set[str]) -> bool:
    """Takes the rest out of the message; whether anything stays."""
    outer, inner, scopes, records = {
        Signal.TRACES: ("resource_spans", _kind_of_span, "scope_spans", "spans"),
        Signal.METRICS: ("resource_metrics", _kind_of_metric, "scope_metrics", "metrics"),
        Signal.LOGS: ("resource_logs", _kind_of_event, "scope_logs", "log_records"),
    }[signal]
    left = 0
    for resource in getattr(message, outer):
        service = next(pair.value.string_value for pair in resource.resource.attributes if pair.key == c.SERVICE_NAME)
        for scope in getattr(resource, scopes):
            sent = getattr(scope, records)
            kept = [record for record in sent if inner(service, scope.scope.name, record) in kinds]
            del sent[:]
            sent.extend(kept)
            left += len(kept)
    return left > 0


def _kind_of_span(_: str, scope: str, __: Any) -> str:
    if scope == c.SCOPE_VLLM:
        return MIDDLEWARE
    assert scope.startswith("vllm."), scope
    return SPANS


def _kind_of_metric(service: str, *_: Any) -> str:
    return {"lensd-agent": SCRAPE, "lensd-vllm": PLUGIN}[service]


def _kind_of_event(service: str, _: str, record: Any) -> str:
    if service == "lensd-vllm":
        return PLUGIN if record.event_name == c.EVENT_ENGINE_REQUEST else MIDDLEWARE
    named = {c.EVENT_ENGINE_LOG: LOG, c.EVENT_ENGINE_PROCESS: PROCESS}
    return named.get(record.event_name, SCRAPE)


class Lensd:
    """Decoder, store, assembler and judge as the daemon wires them, fed with bodies in order; its clock is theirs."""

    def __init__(self, folder: Path, params: dict[str, dict[str, Any]] | None = None) -> None:
        self.folder = folder
        self.now = 0
        self.store = FolderStore(folder)
        self._decoder = Decoder()
        outbox = Outbox(lambda rows: self.store.append(batch_of({"deliveries": rows})), (), self._clock, chance=lambda: 0.5, post=post)
        self._judge = Judge(self.store, load(), params or {}, Assembler(Limits()), outbox, 0, clock=self._clock)

    def _clock(self) -> int:
        return self.now

    def hear(self, bodies: Iterable[Body], *, every_s: float = 1.0, look_on_s: float = 20.0) -> "Lensd":
        """Takes them in as they came, judging every so often, and looks on for a while after the last."""
        left = deque(sorted(bodies))
        self.now, end = left[0].at, left[-1].at + round(look_on_s * S)
        while self.now < end:
            self.now += round(every_s * S)
            while left and left[0].at <= self.now:
                self._take(left.popleft())
            self._judge.tick(self.now)
        return self

    def _take(self, body: Body) -> None:
        rows: dict[str, list[Row]] = self._decoder.decode(body.signal, body.payload, body.at)
        self.store.append(batch_of(rows))
        self._judge.touch(touched(rows), answered(rows), started=sender_started(rows))

    def rows(self, sql: str) -> list[dict[str, Any]]:
        with self.store.cursor() as cursor:
            return queries.rows(cursor, sql)

    def requests(self) -> dict[str, dict[str, Any]]:
        """The requests by the ids that their callers gave them."""
        found = self.rows("select * from requests order by started_at, request_key")
        return {names.external(row["request_id"] or row["engine_request_id"]): row for row in found}

    def findings(self) -> list[dict[str, Any]]:
        """What was found to stand, in order; those on single requests are not among it."""
        return self.rows("select * from findings where request_key is null order by seen_at")

    def close(self) -> "Lensd":
        """Lets others read the folder."""
        self.store.close()
        return self


def lensd(folder: Path, *arguments: str) -> "subprocess.CompletedProcess[str]":
    """The command line on a store's folder, without a daemon."""
    (folder / "lensd.toml").touch()
    command = [sys.executable, "-m", "lensd", *arguments, "--store", str(folder), "--config", str(folder / "lensd.toml")]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


def triage(path: Path) -> dict[str, Any]:
    """The verdict document on a bundle, or whatever the path is of."""
    command = [sys.executable, "-m", "lensd", "triage", str(path), "--json"]
    told = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    return dict(json.loads(told.stdout))


def together(run: Callable[[int], Any], times: int) -> list[threading.Thread]:
    """So many threads, started at once."""
    threads = [threading.Thread(target=run, args=(number,), daemon=True) for number in range(times)]
    for thread in threads:
        thread.start()
    return threads
