"""What passes between the outbox and a destination: the reason, the request, the answer or why there is none.

Nothing here shows a secret: a URL's path, query and user are where webhooks carry theirs, so `shown_url` is the only form
that messages, rows and `repr` use.
"""

import hashlib
from collections.abc import Callable
from enum import StrEnum
from typing import Protocol
from urllib.parse import urlsplit

import msgspec

from lensd.records import Incident


class Reason(StrEnum):
    """Why a destination is told."""

    OPENED = "opened"
    RESOLVED = "resolved"
    TEST = "test"


class Failure(StrEnum):
    """Why a destination could not be told."""

    AUTH = "auth"
    RATE_LIMITED = "rate_limited"
    CLIENT_ERROR = "client_error"
    SERVER_ERROR = "server_error"
    UNREACHABLE = "unreachable"
    TIMEOUT = "timeout"


class Status(StrEnum):
    """How an attempt ended: the column `status` of `deliveries`."""

    QUEUED = "queued"  # attempt 0: written before the first try, so that a restart does not forget it
    SENT = "sent"
    FAILED = "failed"  # will be tried again
    GAVE_UP = "gave_up"


class HttpRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One POST. `url` and `headers` may hold secrets: they never leave this struct but for the wire."""

    url: str
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()
    timeout_s: float = 10.0

    def __repr__(self) -> str:
        return f"HttpRequest({shown_url(self.url)}, {len(self.body)} bytes)"


class HttpAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The part of an answer that decides what happens next; never its body, which may echo a secret."""

    status: int
    retry_after: str | None = None


class SendError(Exception):
    """No answer, or nothing to send; the text names no secret."""

    def __init__(self, failure: Failure, text: str) -> None:
        super().__init__(text)
        self.failure = failure


Post = Callable[[HttpRequest], HttpAnswer]
"""Sends one request and gives its answer; raises SendError where there is none. Follows no redirect."""


class Destination(Protocol):
    """Somewhere to tell people of incidents; one module each in `destinations/`."""

    @property
    def name(self) -> str:
        """Name from the configuration; deliveries are kept by it, so it must not change."""
        ...

    @property
    def send_resolved(self) -> bool: ...

    def render(self, incident: Incident, reason: Reason, delivery_id: str) -> HttpRequest:
        """The request that tells of this incident. Raises SendError where a secret's file cannot be read."""
        ...


def shown_url(url: str) -> str:
    """Scheme, host and port of a URL, the rest as an ellipsis: what may be shown or stored."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname, parts.port
    except ValueError:
        return "a malformed url"
    if parts.scheme not in ("http", "https") or not host:
        return "a malformed url"
    host = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{host}{f':{port}' if port else ''}/…"


def delivery_id(incident: Incident, destination: str, reason: Reason) -> str:
    """Id that stays the same over retries and restarts; a test is new each time its incident is."""
    subject = f"{incident.incident_id}\n{destination}\n{reason}"
    return "dlv-" + hashlib.blake2b(subject.encode(), digest_size=10).hexdigest()
