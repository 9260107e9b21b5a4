"""lensd inside a real engine as an installation would put it there, and a door that keeps all that comes out of it."""

import gzip
import threading
import tomllib
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

from checkout import ROOT
from google.protobuf.message import Message

from lensd.receive.parse import parse_json, parse_protobuf
from lensd.store.segments import Signal

MIDDLEWARE = ("--middleware", "lensd_collectors.vllm.middleware.LensdMiddleware")
_SIGNALS = {"/v1/traces": Signal.TRACES, "/v1/metrics": Signal.METRICS, "/v1/logs": Signal.LOGS}


def plugged(folder: Path, otlp_url: str, *, stat_logger: str = "", **more: str) -> dict[str, str]:
    """Environment in which a vLLM finds lensd's plugin by its entry point, and its middleware; `folder` is written to.

    `stat_logger`: another's entry point than ours.
    """
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    about = folder / f"{project['name']}-0.0.0.dist-info"
    about.mkdir(parents=True, exist_ok=True)
    (about / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {project['name']}\nVersion: 0.0.0\n")
    lines = []
    for group, found in project["entry-points"].items():
        lines += [f"[{group}]", *(f"{name} = {stat_logger or value}" for name, value in found.items())]
    (about / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return {"PYTHONPATH": f"{folder}:{ROOT / 'collectors'}", "LENSD_OTLP": otlp_url, **more}


class Span(NamedTuple):
    scope: str
    name: str
    trace_id: str
    span_id: str
    parent_span_id: str
    start_ns: int
    attributes: dict[str, Any]


class Event(NamedTuple):
    name: str
    at_ns: int
    attributes: dict[str, Any]


class Told:
    """An OTLP/HTTP door that keeps spans, events and the last value of each metric series, whoever sends them; port 0: a free one."""

    def __init__(self, port: int = 0) -> None:
        self.spans: list[Span] = []
        self.events: list[Event] = []
        self.series: dict[tuple[str, frozenset[tuple[str, Any]]], float] = {}
        self.bodies = 0
        self._came = threading.Condition()
        told = self

        class Door(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                body = gzip.decompress(body) if self.headers["Content-Encoding"] == "gzip" else body
                signal = _SIGNALS[self.path]
                parse = parse_json if "json" in self.headers["Content-Type"] else parse_protobuf
                told.take(signal, parse(signal, body))
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

    def take(self, signal: Signal, message: Message) -> None:
        take = {Signal.TRACES: self._take_spans, Signal.LOGS: self._take_events, Signal.METRICS: self._take_series}[signal]
        with self._came:
            take(message)
            self.bodies += 1
            self._came.notify_all()

    def wait(self, found: Callable[[], Any], what: str, within_s: float = 20.0) -> Any:
        """What `found` returns, once that is something."""
        with self._came:
            assert self._came.wait_for(found, within_s), f"it did not come in {within_s:g} s: {what}"
            return found()

    def value(self, name: str, **labels: str) -> float | None:
        """The last value of the series that has these labels."""
        return next((value for (found, of), value in self.series.items() if found == name and of >= labels.items()), None)

    def _take_spans(self, message: Any) -> None:
        for resource in message.resource_spans:
            for scope in resource.scope_spans:
                for sent in scope.spans:
                    ids = (each.hex() for each in (sent.trace_id, sent.span_id, sent.parent_span_id))
                    self.spans.append(Span(scope.scope.name, sent.name, *ids, sent.start_time_unix_nano, _plain(sent.attributes)))

    def _take_events(self, message: Any) -> None:
        for resource in message.resource_logs:
            for scope in resource.scope_logs:
                self.events += [Event(each.event_name, each.time_unix_nano, _plain(each.attributes)) for each in scope.log_records]

    def _take_series(self, message: Any) -> None:
        for resource in message.resource_metrics:
            for metric in (each for scope in resource.scope_metrics for each in scope.metrics):
                for point in (*metric.gauge.data_points, *metric.sum.data_points):
                    self.series[metric.name, frozenset(_plain(point.attributes).items())] = point.as_double


def _plain(pairs: Any) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(sent: Any) -> Any:
    kind = sent.WhichOneof("value")
    if kind == "array_value":
        return [_value(each) for each in sent.array_value.values]
    return getattr(sent, kind) if kind else None
