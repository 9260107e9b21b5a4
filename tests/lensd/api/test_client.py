import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import msgspec
import pytest
from lensd_collectors.rows import DeliveryRow, Instant, RequestRow, Row

from lensd.api.client import Client
from lensd.api.items import DeliveryItem, EngineState, Item, RequestItem
from lensd.errors import (
    IncidentNotFoundError,
    LensdError,
    NoAnswerError,
    RequestNotFoundError,
    ServerError,
    SqlRefusedError,
    UnauthorizedError,
    UsageError,
)
from lensd.records import Confidence, Diagnosis, Incident, Severity, Subject, Verdict

TOKEN = "t0k3n-of-the-store"
ROW = {
    "request_key": 2**64 - 1,
    "revision": 1,
    "request_id": "r1",
    "started_at": "2026-11-29T14:55:30.5Z",
    "outcome": "ok",
    "added_later": 1,
}
INCIDENT = Incident(
    incident_id="inc-1",
    revision=1,
    label="engine-crash",
    state="open",
    severity=Severity.CRITICAL,
    stage="engine",
    confidence=Confidence.CERTAIN,
    cause="c",
    fix="f",
    opened_at=1,
    last_seen_at=2,
)
DIAGNOSIS = Diagnosis(
    subject=Subject(kind="request", request_id="r1"),
    verdict=Verdict(
        label="no-incident", stage="none", severity=Severity.INFO, confidence=Confidence.LIKELY, cause="nothing is wrong", fix="nothing"
    ),
)
RUNBOOK = {
    "id": "engine-crash",
    "label": "engine-crash",
    "title": "t",
    "kind": "cause",
    "severity": "critical",
    "stage": "engine",
    "scope": "window",
    "status": "stable",
    "fix": "f",
    "sections": {"Meaning": "m"},
}
DELIVERY = {
    "delivery_id": "d",
    "incident_id": "inc-1",
    "destination": "ops",
    "reason": "opened",
    "attempt": 1,
    "attempted_at": "2026-11-29T14:55:30Z",
    "status": "sent",
}
STATUS = {"version": "0.1.0", "pid": 7, "lag_s": 0.5, "engines": [{"engine": "e1", "up": True, "running": 2.0}]}


class Fake:
    """A server that gives one answer and keeps what it was asked."""

    def __init__(self) -> None:
        self.status, self.body = 200, b"{}"
        self.asked: tuple[str, str, dict[str, str]] = ("", "", {})
        self.token: str | None = None
        fake = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                target = urlsplit(self.path)
                fake.asked = (self.command, target.path, dict(parse_qsl(target.query)))
                fake.token = self.headers["Authorization"]
                self.send_response(fake.status)
                self.end_headers()
                self.wfile.write(fake.body)

            do_POST = do_GET

            def log_message(self, format: str, *args: object) -> None: ...

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def gives(self, value: Any, status: int = 200) -> None:
        self.status, self.body = status, value if isinstance(value, bytes) else msgspec.json.encode(value)

    def end(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@pytest.fixture(scope="module")
def server() -> Iterator[Fake]:
    fake = Fake()
    yield fake
    fake.end()


@pytest.fixture
def fake(server: Fake) -> Fake:
    server.gives({})
    return server


def page(*items: Any, next: str | None = None) -> dict[str, Any]:
    return {"items": list(items), "next": next}


Call = Callable[[Client], Any]
CALLS: list[tuple[Call, Any, tuple[str, str, dict[str, str]]]] = [
    (lambda c: c.requests(), page(ROW), ("GET", "/requests", {})),
    (
        lambda c: c.requests(
            limit=2, cursor="c", key="k", model="a/b", engine="e", status=504, outcome="ok", since=5, until="2026-01-31T09:00:00Z"
        ),
        page(ROW),
        (
            "GET",
            "/requests",
            {
                "limit": "2",
                "cursor": "c",
                "key": "k",
                "model": "a/b",
                "engine": "e",
                "status": "504",
                "outcome": "ok",
                "since": "5",
                "until": "2026-01-31T09:00:00Z",
            },
        ),
    ),
    (lambda c: c.request("a/b?c d"), page(ROW), ("GET", "/requests/a%2Fb%3Fc%20d", {})),
    (lambda c: c.diagnosis("r1"), DIAGNOSIS, ("GET", "/requests/r1/diagnosis", {})),
    (lambda c: c.diagnosis("r1", wait_s=12.0), DIAGNOSIS, ("GET", "/requests/r1/diagnosis", {"wait": "12"})),
    (lambda c: c.incidents("open"), page(INCIDENT), ("GET", "/incidents", {"state": "open"})),
    (lambda c: c.incident("inc-1"), INCIDENT, ("GET", "/incidents/inc-1", {})),
    (lambda c: c.ack("inc-1"), INCIDENT, ("POST", "/incidents/inc-1/ack", {})),
    (lambda c: c.close("inc-1"), INCIDENT, ("POST", "/incidents/inc-1/close", {})),
    (lambda c: c.status(), STATUS, ("GET", "/status", {})),
    (lambda c: c.runbooks(), page(RUNBOOK), ("GET", "/runbooks", {})),
    (
        lambda c: c.series("engine_samples.waiting", engine="e1", since=1, until=2),
        page({"seen_at": "2026-11-29T14:55:30Z", "engine": "e1", "value": 3}),
        ("GET", "/series", {"name": "engine_samples.waiting", "engine": "e1", "since": "1", "until": "2"}),
    ),
    (
        lambda c: c.series("gpu_samples.util", host="h0", gpu="1"),
        page({"seen_at": "2026-11-29T14:55:30Z", "host": "h0", "gpu": "1", "value": 0.5}),
        ("GET", "/series", {"name": "gpu_samples.util", "host": "h0", "gpu": "1"}),
    ),
    (
        lambda c: c.memory(engine="e1", since=1, until=2),
        {"items": [], "marks": [], "step_s": 10},
        ("GET", "/memory", {"engine": "e1", "since": "1", "until": "2"}),
    ),
    (lambda c: c.gpus(), page({"gpu": "0", "host": "h0"}), ("GET", "/gpus", {})),
    (lambda c: c.deliveries(), page(DELIVERY), ("GET", "/deliveries", {})),
    (lambda c: c.changes(41), {"seq": 42}, ("GET", "/changes", {"since": "41"})),
    (lambda c: c.changes(41, wait_s=5), {"seq": 42}, ("GET", "/changes", {"since": "41", "wait": "5"})),
    (
        lambda c: c.stages(engine="e1", key="k", since=1, until=2),
        page({"stage": "queue", "requests": 3, "p95_ms": 1.5}),
        ("GET", "/stages", {"engine": "e1", "key": "k", "since": "1", "until": "2"}),
    ),
    (
        lambda c: c.refusals(since=1),
        page({"requests": 1, "first_at": "2026-11-29T14:55:30Z", "last_at": "2026-11-29T14:55:30Z"}),
        ("GET", "/refusals", {"since": "1"}),
    ),
    (
        lambda c: c.usage("model", since=1, until=2, limit=3),
        page({"requests": 1, "errors": 0, "refused": 0, "prompt_tokens": 1, "cached_tokens": 0, "completion_tokens": 2}),
        ("GET", "/usage", {"by": "model", "since": "1", "until": "2", "limit": "3"}),
    ),
    (lambda c: c.sql("select 1"), {"columns": [{"name": "1", "type": "INTEGER"}], "items": [[1]]}, ("POST", "/sql", {})),
]


@pytest.mark.parametrize(("call", "answer", "asked"), CALLS)
def test_each_call_asks_for_its_path(fake: Fake, call: Call, answer: Any, asked: tuple[str, str, dict[str, str]]) -> None:
    fake.gives(answer)
    call(Client(fake.url, TOKEN))
    assert fake.asked == (asked[0], f"/api/v1{asked[1]}", asked[2])
    assert fake.token == f"Bearer {TOKEN}"


def test_answers_are_typed(fake: Fake) -> None:
    client = Client(fake.url)
    fake.gives(page(ROW, next="n"))
    got = client.requests()
    assert (got.next, got.items[0].request_key, got.items[0].started_at) == ("n", 2**64 - 1, "2026-11-29T14:55:30.5Z")
    assert client.request("r1") == got.items
    fake.gives(DIAGNOSIS)
    assert client.diagnosis("r1") == DIAGNOSIS
    fake.gives(INCIDENT)
    assert client.ack("inc-1") == INCIDENT
    fake.gives(page(INCIDENT))
    assert client.incidents() == (INCIDENT,)
    fake.gives(STATUS)
    assert client.status().engines == (EngineState(engine="e1", up=True, running=2.0),)
    fake.gives(page(RUNBOOK))
    assert client.runbooks()[0].sections == {"Meaning": "m"}
    fake.gives(page(DELIVERY))
    assert client.deliveries()[0].status == "sent"
    fake.gives({"seq": 42})
    assert client.changes() == 42


def test_without_a_token_no_header_is_sent(fake: Fake) -> None:
    fake.gives({"seq": 1})
    Client(fake.url).changes()
    assert fake.token is None


def test_a_path_before_the_api_is_kept(fake: Fake) -> None:
    fake.gives({"seq": 1})
    Client(fake.url + "/lensd/").changes()
    assert fake.asked[1] == "/lensd/api/v1/changes"


@pytest.mark.parametrize(
    ("status", "code", "kind"),
    [
        (404, "request-not-found", RequestNotFoundError),
        (404, "incident-not-found", IncidentNotFoundError),
        (404, "not-found", ServerError),
        (400, "usage", UsageError),
        (400, "sql-refused", SqlRefusedError),
        (401, "unauthorized", UnauthorizedError),
        (500, "error", LensdError),
        (503, "something-new", ServerError),
    ],
)
def test_errors_are_the_daemons(fake: Fake, status: int, code: str, kind: type[LensdError]) -> None:
    fake.gives({"error": {"code": code, "message": "what it says"}}, status)
    with pytest.raises(kind, match="what it says") as caught:
        Client(fake.url, TOKEN).request("r1")
    assert type(caught.value) is kind
    assert TOKEN not in str(caught.value)


@pytest.mark.parametrize(
    ("status", "body"),
    [(502, b"<html>Bad Gateway</html>"), (404, b""), (200, b"<html>hello</html>"), (200, b"\xff"), (200, b'{"items": 3}')],
)
def test_what_is_no_lensd_answer_is_said_so(fake: Fake, status: int, body: bytes) -> None:
    fake.gives(body, status)
    with pytest.raises(ServerError, match=f"^{fake.url} .*--server"):
        Client(fake.url).requests()


def test_nobody_there() -> None:
    with pytest.raises(NoAnswerError, match=r"^no answer from http://127\.0\.0\.1:1 \(connection refused\): start it"):
        Client("http://user:pass@127.0.0.1:1").requests()


def test_silence_ends_at_the_time_limit(fake: Fake) -> None:
    with socket.create_server(("127.0.0.1", 0)) as deaf:
        url = f"http://127.0.0.1:{deaf.getsockname()[1]}"
        with pytest.raises(NoAnswerError, match=f"^no answer from {url} within 0.05 s$"):
            Client(url, timeout_s=0.05).requests()


@pytest.mark.parametrize("server", ["127.0.0.1:8600", "ftp://h", "http://", "http://h:port", "", "http://[::1"])
def test_server_that_is_none(server: str) -> None:
    with pytest.raises(UsageError, match=r"write http://127\.0\.0\.1:8600"):
        Client(server)


def test_token_that_no_header_carries() -> None:
    with pytest.raises(UsageError) as caught:
        Client("http://h", "abc\ndef")
    assert "abc" not in str(caught.value)


@pytest.mark.parametrize(("item", "row"), [(RequestItem, RequestRow), (DeliveryItem, DeliveryRow)])
def test_items_are_the_rows_with_instants_as_text(item: type[Item], row: type[Row]) -> None:
    def told(kind: type[msgspec.Struct]) -> list[tuple[str, Any, Any]]:
        as_text = {Instant: str, Instant | None: str | None}
        return [(f.name, as_text.get(f.type, f.type), f.default) for f in msgspec.structs.fields(kind)]

    assert told(item) == told(row)


def test_import_is_light() -> None:
    heavy = ("asyncio", "requests", "aiohttp", "duckdb", "pyarrow", "starlette", "yaml")
    code = f"import sys, lensd.api.client; print([name for name in {heavy} if name in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip() == "[]"
