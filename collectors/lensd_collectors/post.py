"""One attempt to hand a body to an OTLP/HTTP receiver, and what came of it."""

import gzip
import http.client
import re
import ssl
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from enum import StrEnum
from typing import Final
from urllib.parse import urlsplit

import msgspec

from lensd_collectors import otlp

TEMPORARY: Final = frozenset({408, 429, 502, 503, 504})
MOST_ANSWER_BYTES: Final = 64 * 1024

_LOOPBACK: Final = re.compile(r"localhost|127(\.\d{1,3}){3}|::1")


class Result(StrEnum):
    TAKEN = "taken"
    REFUSED = "refused"  # asking again changes nothing
    BUSY = "busy"  # not taken; ask again
    ERROR = "error"  # the receiver failed over it; ask again, but not for ever
    UNREACHED = "unreached"  # nothing was sent
    UNCERTAIN = "uncertain"  # sent, and no answer came


class Reply(msgspec.Struct, frozen=True):
    result: Result
    reason: str = ""
    retry_after_s: float | None = None
    rejected: int = 0  # records of a taken body that the receiver left out


class Post:
    """Posts JSON with a bearer token to `endpoint`; never raises for what the network or the receiver do.

    What leaves the machine is gzipped. A new connection each time: a kept one that the receiver closes meanwhile leaves it open
    whether the body arrived.
    """

    def __init__(self, endpoint: str, token: str | None, timeout_s: float) -> None:
        parts = urlsplit(endpoint if "://" in endpoint else f"http://{endpoint}")
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"endpoint {endpoint!r} is no http or https URL")
        self._host, self._https = parts.hostname, parts.scheme == "https"
        self._port = parts.port or (443 if self._https else 80)
        self.place: Final = f"{parts.scheme}://{parts.hostname}:{self._port}{parts.path.rstrip('/')}"
        self._prefix, self._timeout_s = parts.path.rstrip("/"), timeout_s
        self._headers = {"Content-Type": "application/json", "Connection": "close", "User-Agent": "lensd"}
        self._gzips = not _LOOPBACK.fullmatch(parts.hostname)  # which costs as much as all else about a record
        if self._gzips:
            self._headers["Content-Encoding"] = "gzip"
        if token and token.strip():
            self._headers["Authorization"] = f"Bearer {token.strip()}"

    def send(self, path: str, data: bytes, now: Callable[[], datetime] = lambda: datetime.now(UTC)) -> Reply:
        connection = self._connection()
        try:
            connection.connect()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            return Reply(Result.UNREACHED, _reason(error))
        try:
            connection.request("POST", self._prefix + path, gzip.compress(data, 1) if self._gzips else data, self._headers)
            response = connection.getresponse()
            return judge(response.status, response.headers.get("Retry-After"), response.read(MOST_ANSWER_BYTES), now())
        except (OSError, http.client.HTTPException, ValueError) as error:
            return Reply(Result.UNCERTAIN, _reason(error))
        finally:
            connection.close()

    def _connection(self) -> http.client.HTTPConnection:
        if self._https:
            return http.client.HTTPSConnection(self._host, self._port, timeout=self._timeout_s, context=ssl.create_default_context())
        return http.client.HTTPConnection(self._host, self._port, timeout=self._timeout_s)


def judge(status: int, retry_after: str | None, body: bytes, now: datetime) -> Reply:
    """What an answer means for the body that was posted; statuses as in the OTLP specification."""
    if 200 <= status < 300:
        try:
            rejected = msgspec.json.decode(body, type=otlp.Answer).rejected() if body else 0
        except (msgspec.DecodeError, ValueError):
            rejected = 0
        return Reply(Result.TAKEN, rejected=max(0, rejected))
    reason = f"it answered {status}" + (", check the token" if status in (401, 403) else "")
    if status in TEMPORARY:
        return Reply(Result.BUSY, reason, parse_retry_after(retry_after, now))
    return Reply(Result.ERROR if status >= 500 else Result.REFUSED, reason)


def parse_retry_after(value: str | None, now: datetime) -> float | None:
    """Seconds to wait by a Retry-After header (a number or an HTTP date), or None where it says nothing usable."""
    if value is None:
        return None
    try:
        return max(0.0, float(value))
    except ValueError:
        pass
    try:
        return max(0.0, (parsedate_to_datetime(value) - now).total_seconds())
    except (ValueError, TypeError):
        return None


def _reason(error: Exception) -> str:
    """The kind of failure and the system's words for it; never the request, which holds the token."""
    detail = error.strerror if isinstance(error, OSError) and error.strerror else ""
    return f"{type(error).__name__}{': ' + detail if detail else ''}"
