"""What every destination holds: when it is tried again, and that no error, row, log line or repr shows its secret.

A new kind of destination joins by a row in DESTINATIONS.
"""

import logging
import socket
import ssl
import threading
import urllib.error
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest
from lensd_collectors.rows import DeliveryRow

from lensd.alerts.delivery import Destination, Failure, HttpAnswer, HttpRequest, Reason, SendError, shown_url
from lensd.alerts.destinations.alertmanager_webhook import AlertmanagerWebhook, Webhook
from lensd.alerts.outbox import Outbox
from lensd.alerts.post import post
from lensd.records import Confidence, Incident, Severity

SECRETS = ("s3cr3t-path", "s3cr3t-query", "s3cr3t-user", "s3cr3t-word")
TAIL = f"/{SECRETS[0]}?k={SECRETS[1]}"
DESTINATIONS: dict[str, Callable[[str], Destination]] = {
    "alertmanager_webhook": lambda host: AlertmanagerWebhook(
        Webhook(name="ops", url=f"http://{SECRETS[2]}:{SECRETS[3]}@{host}{TAIL}"), "http://l"
    ),
}
S = 1_000_000
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
    opened_at=S,
    last_seen_at=S,
)
# status, failure, tried again
RETRIES = [
    (200, None, False),
    (202, None, False),
    (204, None, False),
    (301, Failure.CLIENT_ERROR, False),
    (302, Failure.CLIENT_ERROR, False),
    (400, Failure.CLIENT_ERROR, False),
    (401, Failure.AUTH, False),
    (403, Failure.AUTH, False),
    (404, Failure.CLIENT_ERROR, False),
    (407, Failure.AUTH, False),
    (408, Failure.TIMEOUT, True),
    (410, Failure.CLIENT_ERROR, False),
    (413, Failure.CLIENT_ERROR, False),
    (422, Failure.CLIENT_ERROR, False),
    (429, Failure.RATE_LIMITED, True),
    (499, Failure.CLIENT_ERROR, False),
    (500, Failure.SERVER_ERROR, True),
    (502, Failure.SERVER_ERROR, True),
    (503, Failure.SERVER_ERROR, True),
    (504, Failure.SERVER_ERROR, True),
    (599, Failure.SERVER_ERROR, True),
]


@pytest.fixture(params=DESTINATIONS)
def make(request: pytest.FixtureRequest) -> Callable[[str], Destination]:
    return DESTINATIONS[request.param]


def attempt(destination: Destination, post: Callable[[HttpRequest], HttpAnswer]) -> tuple[list[DeliveryRow], int | None]:
    """The rows of one attempt, and when the next is due."""
    rows: list[DeliveryRow] = []
    outbox = Outbox(rows.extend, [destination], lambda: S, chance=lambda: 0.5, post=post)
    outbox.offer(INCIDENT, Reason.OPENED)
    due = outbox.step(S)
    return rows, due


@pytest.mark.parametrize(("status", "failure", "again"), RETRIES)
def test_retries(make: Callable[[str], Destination], status: int, failure: Failure | None, again: bool) -> None:
    rows, due = attempt(make("h.example"), lambda request: HttpAnswer(status=status))
    row = rows[-1]
    assert (row.attempt, row.http_status) == (1, status)
    assert row.status == ("sent" if failure is None else "failed" if again else "gave_up")
    assert (row.error or "").split(":")[0] == (failure or "")
    assert (due is not None) is again


@pytest.mark.parametrize("failure", [Failure.UNREACHABLE, Failure.TIMEOUT])
def test_silence_is_tried_again(make: Callable[[str], Destination], failure: Failure) -> None:
    def silent(request: HttpRequest) -> HttpAnswer:
        raise SendError(failure, "is silent")

    rows, due = attempt(make("h.example"), silent)
    assert (rows[-1].status, rows[-1].error) == ("failed", f"{failure}: http://h.example/… is silent")
    assert due is not None


def raising(error: Exception) -> Callable[[HttpRequest], HttpAnswer]:
    def send(request: HttpRequest) -> HttpAnswer:
        raise error

    return send


@pytest.mark.parametrize("status", [status for status, failure, _ in RETRIES if failure])
def test_no_secret_after_an_answer(make: Callable[[str], Destination], status: int, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG), echo_server(status) as host:
        rows, _ = attempt(make(host), post)
    assert_no_secret(rows, caplog)
    assert f"http://{host}/… answered {status}" in str(rows[-1].error)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError(TAIL + SECRETS[2] + SECRETS[3]),
        SendError(Failure.UNREACHABLE, "refused the connection"),
    ],
)
def test_no_secret_after_an_error(make: Callable[[str], Destination], error: Exception, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.DEBUG):
        rows, _ = attempt(make("h.example"), raising(error))
    assert_no_secret(rows, caplog)
    assert "http://h.example/…" in str(rows[-1].error)


def test_no_secret_when_it_cannot_be_written(make: Callable[[str], Destination], caplog: pytest.LogCaptureFixture) -> None:
    destination = make("h.example")
    destination.render = raising(ValueError(TAIL))  # type: ignore[method-assign, assignment]
    rows, _ = attempt(destination, lambda request: HttpAnswer(status=200))
    assert_no_secret(rows, caplog)
    assert rows[-1].status == "gave_up"


def test_no_secret_in_a_request(make: Callable[[str], Destination]) -> None:
    shown = repr(make("h.example").render(INCIDENT, Reason.OPENED, "dlv-1"))
    assert not [secret for secret in SECRETS if secret in shown]


@pytest.mark.parametrize(
    ("error", "failure"),
    [
        (TimeoutError("t"), Failure.TIMEOUT),
        (urllib.error.URLError(TimeoutError(TAIL)), Failure.TIMEOUT),
        (urllib.error.URLError(socket.gaierror(-2, TAIL)), Failure.UNREACHABLE),
        (urllib.error.URLError(ssl.SSLCertVerificationError(1, TAIL)), Failure.UNREACHABLE),
        (urllib.error.URLError(ssl.SSLError(1, TAIL)), Failure.UNREACHABLE),
        (urllib.error.URLError(TAIL), Failure.UNREACHABLE),
        (ConnectionResetError(TAIL), Failure.UNREACHABLE),
    ],
)
def test_no_secret_of_the_library(error: Exception, failure: Failure, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("urllib.request.OpenerDirector.open", lambda *args, **more: (_ for _ in ()).throw(error))
    with pytest.raises(SendError) as caught:
        post(HttpRequest(url=f"http://h{TAIL}", body=b""))
    assert caught.value.failure is failure
    assert not [secret for secret in SECRETS if secret in str(caught.value)]
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("url", [f"http://127.0.0.1:1{TAIL}", f"http://127.0.0.1:1/{SECRETS[0]} x", f"http://127.0.0.1:bad{TAIL}"])
def test_no_secret_where_nobody_listens(url: str) -> None:
    with pytest.raises(SendError) as caught:
        post(HttpRequest(url=url, body=b"", timeout_s=2))
    assert not [secret for secret in SECRETS if secret in str(caught.value)]


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("https://u:p@h.example:8443/a?b#c", "https://h.example:8443/…"),
        ("http://[::1]:9/x", "http://[::1]:9/…"),
        ("https://h", "https://h/…"),
        ("h.example/secret", "a malformed url"),
        ("https://h:port/secret", "a malformed url"),
        ("", "a malformed url"),
    ],
)
def test_shown_url(url: str, shown: str) -> None:
    assert shown_url(url) == shown


def assert_no_secret(rows: list[DeliveryRow], caplog: pytest.LogCaptureFixture) -> None:
    told = repr(rows) + caplog.text + "".join(str(record.exc_info) for record in caplog.records)
    assert rows[-1].error
    assert not [secret for secret in SECRETS if secret in told]


class echo_server:
    """A receiver that answers every POST with one status and the request's own path and headers as its body."""

    def __init__(self, status: int) -> None:
        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                echo = f"{self.path} {self.headers}".encode()
                self.send_response(status, echo.decode("latin-1").replace("\n", " ").replace("\r", " "))
                self.send_header("Location", f"/elsewhere{self.path}")
                self.send_header("Content-Length", str(len(echo)))
                self.end_headers()
                self.wfile.write(echo)

            def log_message(self, format: str, *args: object) -> None: ...

        self._server = HTTPServer(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})

    def __enter__(self) -> str:
        self._thread.start()
        return f"127.0.0.1:{self._server.server_port}"

    def __exit__(self, *error: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
