"""The gateway alone, as a process of its own before a real engine, a receiver that keeps what is exported, and callers that can leave."""

import gzip
import http.client
import io
import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

from checkout import serving
from lensd_collectors.gateway import keys
from recorded import Body, body_of

from lensd.supervise import Part, Supervisor, answers

GATEWAY, ENGINE = "lensd-gateway", "lensd-vllm"
SERVER_KIND = 2


class Span(NamedTuple):
    """One span as it came over the wire, with plain values."""

    service: str
    name: str
    kind: int
    trace_id: str
    span_id: str
    parent_span_id: str
    attributes: dict[str, Any]


class Receiver:
    """An OTLP/HTTP door on a free port that keeps spans and what the gateway did to itself."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.acts: list[str] = []
        self.bodies: list[Body] = []  # all that came, as the daemon would keep it
        self._came = threading.Condition()
        receiver = self

        class Door(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.bodies.append(body_of(self.path, self.headers["Content-Type"], self.headers["Content-Encoding"], body))
                receiver._take(json.loads(gzip.decompress(body) if self.headers["Content-Encoding"] == "gzip" else body))
                self.send_response(200)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Door)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def _take(self, body: dict[str, Any]) -> None:
        with self._came:
            for of_resource in body.get("resourceSpans", ()):
                service = _plain(of_resource["resource"]["attributes"])["service.name"]
                for scope in of_resource["scopeSpans"]:
                    self.spans += [_span(service, sent) for sent in scope["spans"]]
            for of_resource in body.get("resourceLogs", ()):
                for scope in of_resource["scopeLogs"]:
                    named = [_plain(sent["attributes"]) for sent in scope["logRecords"]]
                    self.acts += [each["lensd.gateway.act"] for each in named if "lensd.gateway.act" in each]
            self._came.notify_all()

    def of(self, request_id: str, service: str = GATEWAY, within_s: float = 15.0) -> dict[str, Span]:
        """A request's spans of one service by name, once the server's own is there, which is called "server" here."""

        def found() -> dict[str, Span]:
            mine = [each for each in self.spans if each.service == service and each.attributes.get("lensd.request.id") == request_id]
            return {"server" if each.kind == SERVER_KIND else each.name: each for each in mine}

        with self._came:
            assert self._came.wait_for(lambda: "server" in found(), within_s), f"no span of {request_id} from {service}"
            return found()

    def record(self, request_id: str, service: str = GATEWAY) -> dict[str, Any]:
        """What a request's server span says."""
        return self.of(request_id, service)["server"].attributes


def _span(service: str, sent: dict[str, Any]) -> Span:
    parent = sent.get("parentSpanId") or ""
    return Span(service, sent["name"], sent["kind"], sent["traceId"], sent["spanId"], parent, _plain(sent["attributes"]))


def _plain(pairs: list[dict[str, Any]]) -> dict[str, Any]:
    return {pair["key"]: _value(pair["value"]) for pair in pairs}


def _value(sent: dict[str, Any]) -> Any:
    ((kind, value),) = sent.items()
    if kind == "arrayValue":
        return [_value(each) for each in value["values"]]
    return int(value) if kind == "intValue" else value


class GatewayHouse:
    """`lensd gateway` before one engine; `key` may call every model that the engine serves."""

    def __init__(self, folder: Path, engine: Any, export_url: str, settings: str = "", *, knows_engine_key: bool = True) -> None:
        """`settings` are more lines of its table in lensd.toml."""
        folder.mkdir(parents=True, exist_ok=True)
        self.listen = f"127.0.0.1:{serving.free_port()}"
        self.url = f"http://{self.listen}"
        self.output = io.StringIO()
        self._supervisor = Supervisor(self.output)
        self.key, entry = keys.new_key("team-a", ("tiny-*",))
        keys.append(folder / "keys.toml", entry)
        upstream = f'name = "e0", url = "{engine.url}"'
        if engine.api_key and knows_engine_key:
            (folder / "engine.key").write_text(engine.api_key)
            upstream += f', api_key_file = "{folder}/engine.key"'
        self.config = folder / "lensd.toml"
        self.config.write_text(
            f'[gateway]\nlisten = "{self.listen}"\nkeys_file = "{folder}/keys.toml"\nupstreams = [{{ {upstream} }}]\n'
            f'export_url = "{export_url}"\naliases = {{ tiny-alias = "{engine.model}" }}\n{settings}'
        )

    def __enter__(self) -> "GatewayHouse":
        self._supervisor.start(Part("gateway", ("gateway", "--config", str(self.config)), answers(f"{self.url}/healthz")))
        return self

    def __exit__(self, *_: object) -> None:
        self._supervisor.stop()

    def is_ready(self) -> bool:
        return ask(self, "/readyz").status == 200


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Caller:
    """One request that has been sent to a gateway or an engine; the answer is read as the caller likes, or never."""

    def __init__(
        self, place: Any, path: str, body: Any = None, *, key: str | None = None, method: str = "", headers: dict[str, str] | None = None
    ) -> None:
        """`place` has a `url` and a key; `key` is another, "" none."""
        key = _key(place) if key is None else key
        self.connection = http.client.HTTPConnection(place.url.removeprefix("http://"), timeout=120)
        data = None if body is None else json.dumps(body).encode()
        sent = {"Authorization": f"Bearer {key}"} if key else {}
        sent |= {"Content-Type": "application/json"} if data else {}
        self.sent = time.monotonic()
        self.connection.request(method or ("POST" if data else "GET"), path, data, sent | (headers or {}))
        self._reply: http.client.HTTPResponse | None = None

    def read(self) -> Answer:
        reply = self._reply = self.connection.getresponse()
        answer = Answer(reply.status, {name.lower(): value for name, value in reply.getheaders()}, reply.read())
        self.leave()
        return answer

    def events(self) -> Iterator[bytes]:
        """The data lines of a stream, as they come."""
        reply = self._reply = self.connection.getresponse()
        assert reply.status == 200, reply.read()
        for line in reply:
            if line.startswith(b"data:"):
                yield line

    def leave(self) -> float:
        """Closes the connection, whatever of the answer is still to come; the instant of it."""
        now = time.monotonic()
        if self._reply is not None:
            self._reply.close()
        self.connection.close()
        return now


def _key(place: Any) -> str:
    return place.key if isinstance(place, GatewayHouse) else place.api_key


def ask(place: Any, path: str, body: Any = None, **how: Any) -> Answer:
    """The whole answer of a gateway or an engine."""
    return Caller(place, path, body, **how).read()


def count(engine: Any, name: str, **labels: str) -> float:
    """The sum of a metric of the engine's over all series that have these labels."""
    text = ask(engine, "/metrics").body.decode()
    wanted = [f'{label}="{value}"' for label, value in labels.items()]
    rows = re.findall(rf"^{re.escape(name)}(\{{[^\n]*\}})? (\S+)$", text, re.M)
    return sum(float(value) for found, value in rows if all(each in found for each in wanted))


def running(engine: Any) -> int:
    return int(count(engine, "vllm:num_requests_running"))


def waiting(engine: Any) -> int:
    return int(count(engine, "vllm:num_requests_waiting"))


def seconds_until(done: Callable[[], bool], since: float | None = None, limit_s: float = 20.0) -> float:
    """How long after `since`, else after now, something of another process was seen to be true."""
    since = time.monotonic() if since is None else since
    while not done():
        assert time.monotonic() - since < limit_s, f"it had not happened after {limit_s:g} s"
        time.sleep(0.01)
    return time.monotonic() - since
