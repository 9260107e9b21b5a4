"""Every sender's bodies, sent to a real daemon in every encoding, and everything that the daemon then holds on disk or says to anybody."""

import gzip
import hashlib
import importlib.util
import json
import shutil
import signal
import time
import urllib.error
import urllib.request
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import anywhere
import duckdb
import proxies
import semconv
import tracers
from canaries import Planted, found_in
from daemon_process import Daemon, until
from google.protobuf.message import Message
from lensd_collectors.rows import TABLES
from otlp import Said, as_json, engine_span, messages
from refused import refused

from lensd.store.folder import FolderStore
from lensd.store.interface import Cursor
from lensd.store.segments import Scan

SENDERS: Final[dict[str, Callable[[Planted], Said]]] = {
    make.__name__: make
    for make in (
        proxies.litellm, proxies.envoy_ai_gateway, proxies.envoy,
        tracers.openllmetry, tracers.openinference, tracers.langchain, tracers.llama_index, tracers.langfuse, tracers.helicone,
        tracers.ai_sdk, tracers.mlflow,
        semconv.genai_attributes, semconv.genai_events, semconv.genai_span_events, semconv.frameworks,
        anywhere.places, anywhere.keys, anywhere.named, anywhere.disguised,
    )
}  # fmt: skip
ENCODINGS: Final = ("protobuf", "json", "grpc")
HAS_GRPC: Final = importlib.util.find_spec("grpc") is not None
METHODS: Final = {
    f"/v1/{signal}": f"/opentelemetry.proto.collector.{room}.v1.{service}Service/Export"
    for signal, room, service in (("traces", "trace", "Trace"), ("logs", "logs", "Logs"), ("metrics", "metrics", "Metrics"))
}
PATHS: Final = (
    "requests?limit=500", "incidents", "status", "coverage", "runbooks", "gpus", "deliveries", "changes", "memory", "usage", "stages",
    "refusals",
    "plan",
)  # fmt: skip
REFUSED: Final = "refused"
BY_COMMAND: Final = 1  # requests that are diagnosed and packed by the commands; one of each sender is through the API


@dataclass
class Run:
    """What one run left. `taken`: mark -> sender and what it was planted in; `leaks`: mark -> the places where it was found."""

    taken: dict[str, str] = field(default_factory=dict)
    said: dict[tuple[str, str], Said] = field(default_factory=dict)  # by sender and encoding
    leaks: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))
    spans: dict[tuple[str, str], dict[str, Any]] = field(default_factory=dict)  # by trace and span id
    requests: dict[str, list[dict[str, Any]]] = field(default_factory=lambda: defaultdict(list))  # by trace id
    searched: Counter[str] = field(default_factory=Counter)  # kind of place -> bytes
    statuses: Counter[int] = field(default_factory=Counter)
    asked: Counter[str] = field(default_factory=Counter)  # what was asked and answered
    rows: Counter[str] = field(default_factory=Counter)  # by table
    faults: list[str] = field(default_factory=list)  # what the API failed to say

    def look(self, place: str, blob: bytes) -> None:
        self.searched[place.partition(" ")[0]] += len(blob)
        for mark, count in found_in(blob).items():
            self.leaks[mark][place] += count

    def of(self, sender: str) -> list[str]:
        """What is left of a sender's marks: where each was planted, and where it was found."""
        return sorted(
            f"{self.taken[mark]}: in {', '.join(sorted({place.partition(' ')[0] for place in places}))}"
            for mark, places in self.leaks.items()
            if self.taken.get(mark, "").startswith(f"{sender}: ")
        )


def run_all(folder: Path) -> Run:
    """Raises AssertionError where the daemon refuses a body that it should take, or does not store it in time."""
    run, daemon = Run(), Daemon(folder)
    try:
        daemon.start()
        sent = _send_all(run, daemon)
        until(lambda: _status(daemon)["counts"]["records"] == sent)
        until(lambda: len(_requests(daemon)) >= len(run.said))
        _ask(run, daemon)
        for file in _files(daemon.store):
            run.look(f"file {file.name} while running", file.read_bytes())
        assert daemon.end(signal.SIGTERM) == 0
        run.look("log", (folder / "serve.log").read_bytes())
        _read_store(run, daemon.store)
        _read_files(run, daemon.store, folder / "checkpointed")
    finally:
        daemon.clean_up()
    return run


def _send_all(run: Run, daemon: Daemon) -> int:
    """How many bodies were taken."""
    token, sent = _token(daemon), 0
    for encoding in ENCODINGS if HAS_GRPC else ENCODINGS[:2]:
        for name, make in SENDERS.items():
            said = make(Planted(f"{name}/{encoding}", run.taken))
            said.trace_id = hashlib.sha256(f"{name}/{encoding}".encode()).hexdigest()[:32]
            run.said[name, encoding] = said
            at_ns = time.time_ns() - 5_000_000_000
            for path, message in [*messages(said, at_ns).items(), ("/v1/traces", engine_span(said, at_ns))]:
                _send(daemon, path, message, encoding, token)
                sent += 1
    for body in refused(Planted(REFUSED, run.taken)):
        status = _post(daemon, body.path, body.content, body.headers, body.token or token)
        assert status == body.status, f"{body.about}: {status}"
        run.statuses[status] += 1
        sent += status == 200
    return sent


def _send(daemon: Daemon, path: str, message: Message, encoding: str, token: str) -> None:
    if encoding == "grpc":
        import grpc

        with grpc.insecure_channel(f"127.0.0.1:{daemon.otlp_grpc}") as channel:
            call = channel.unary_unary(METHODS[path], request_serializer=type(message).SerializeToString)
            call(message, timeout=10, metadata=[("authorization", f"Bearer {token}")])
        return
    if encoding == "json":
        body, headers = gzip.compress(as_json(message)), {"content-type": "application/json", "content-encoding": "gzip"}
    else:
        body, headers = message.SerializeToString(), {"content-type": "application/x-protobuf"}
    status = _post(daemon, path, body, headers, token)
    assert status == 200, f"{path} in {encoding}: {status}"


def _post(daemon: Daemon, path: str, body: bytes, headers: dict[str, str], token: str) -> int:
    url = f"http://127.0.0.1:{daemon.otlp}{path}"
    request = urllib.request.Request(url, body, headers | {"authorization": f"Bearer {token}"})
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return int(answer.status)
    except urllib.error.HTTPError as error:
        return error.code


def _ask(run: Run, daemon: Daemon) -> None:
    """All that the API and the commands say, and the bundles that they pack."""
    for path in PATHS:
        run.look(f"api {path}", _get(run, daemon, path))
    run.look("api metrics", _get(run, daemon, "metrics", prefix="/"))
    first = [said for (_, encoding), said in run.said.items() if encoding == ENCODINGS[0]]
    traces = [said.trace_id for said in first]
    failed = [said.trace_id for said in first if any(span.error for span in said.spans)]  # of these a diagnosis has something to quote
    for path in (*(f"requests/{ident}/bundle" for ident in traces), *(f"requests/{ident}/diagnosis" for ident in failed)):
        run.look(f"api {path}", _get(run, daemon, path))
    for item in json.loads(_get(run, daemon, "incidents"))["items"]:
        run.look("api incident", _get(run, daemon, f"incidents/{item['incident_id']}"))
        run.look("api incident bundle", _get(run, daemon, f"incidents/{item['incident_id']}/bundle"))
    pack = daemon.folder / "pack.zip"
    for ident in traces[:BY_COMMAND]:
        for command in (("diagnose", ident), ("diagnose", ident, "--json"), ("bundle", ident, "-o", str(pack)), ("requests", "ls")):
            done = daemon.lensd(*command)
            assert done.returncode in ((0,) if command[0] in ("bundle", "requests") else (0, 3, 5)), done.stderr
            run.asked[command[0]] += 1
            run.look(f"command {command[0]}", (done.stdout + done.stderr).encode())
        run.look("bundle", pack.read_bytes())


def _get(run: Run, daemon: Daemon, path: str, prefix: str = "/api/v1/") -> bytes:
    request = urllib.request.Request(f"http://127.0.0.1:{daemon.api}{prefix}{path}", headers={"authorization": f"Bearer {_token(daemon)}"})
    try:
        with urllib.request.urlopen(request, timeout=20) as answer:
            run.asked[path.partition("?")[0].partition("/")[0]] += 1
            return bytes(answer.read())
    except urllib.error.HTTPError as error:
        said = bytes(error.read())
        if error.code >= 500:
            run.faults.append(f"{path}: {error.code} {said.decode()}")
        return said


def _read_store(run: Run, store: Path) -> None:
    """Every public table through the store's own reader, every record of the journal."""
    reader = FolderStore(store, read_only=True)
    try:
        with reader.cursor() as cursor:
            for table in TABLES:
                rows = cursor.execute(f"SELECT * FROM {table}").fetchall()
                run.rows[table] = len(rows)
                run.look(f"table {table}", "\n".join(map(repr, rows)).encode())
            for span in _dicts(cursor, "spans", "trace_id, span_id, name, duration_ms, status, status_message, service, attributes"):
                run.spans[span["trace_id"], span["span_id"]] = span
            for request in _dicts(cursor, "requests", "trace_id, engine, outcome, prompt_tokens, completion_tokens"):
                run.requests[request["trace_id"]].append(request)
    finally:
        reader.close()
    for record in Scan(store / "journal"):
        run.look("journal", record.payload)


def _dicts(cursor: Cursor, table: str, columns: str) -> list[dict[str, Any]]:
    rows = cursor.execute(f"SELECT {columns} FROM {table}").fetchall()
    return [dict(zip(columns.split(", "), row, strict=True)) for row in rows]


def _read_files(run: Run, store: Path, copy: Path) -> None:
    """The bytes of every file, as they are and after a checkpoint; every table of every database, public or not."""
    for file in _files(store):
        run.look(f"file {file.name}", file.read_bytes())
    shutil.copytree(store, copy)
    for file in sorted(copy.glob("*.duckdb")):
        with duckdb.connect(str(file)) as connection:
            for (table,) in connection.execute("SELECT table_name FROM duckdb_tables() WHERE NOT internal").fetchall():
                rows = connection.execute(f'SELECT COLUMNS(*)::VARCHAR FROM "{table}"').fetchall()
                run.look(f"database {file.name} {table}", "\n".join(map(repr, rows)).encode())
            connection.execute("CHECKPOINT")
        run.look(f"file {file.name} after a checkpoint", file.read_bytes())


def _files(store: Path) -> Iterator[Path]:
    return (file for file in sorted(store.rglob("*")) if file.is_file() and not file.name.endswith(".new"))


def _status(daemon: Daemon) -> dict[str, Any]:
    return dict(json.loads(_get(Run(), daemon, "status")))


def _requests(daemon: Daemon) -> list[dict[str, Any]]:
    return list(json.loads(_get(Run(), daemon, "requests?limit=500"))["items"])


def _token(daemon: Daemon) -> str:
    return (daemon.store / "token").read_text().strip()
