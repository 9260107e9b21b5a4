"""One watched engine with its settings resolved, and how it is asked over HTTP."""

import http.client
import re
import socket
import ssl
import time
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec

from lensd_collectors import conventions
from lensd_collectors.host.config import WatchedEngine

MOST_BODY_BYTES: Final = 32 * 1024 * 1024
CHUNK_BYTES: Final = 256 * 1024
WHOLE_S: Final = 10.0  # for all of an answer: one that is streamed never ends


class AgentError(Exception):
    """A setting of the agent that can't be used; the text is one line for the person who wrote it."""


class FetchFailure(StrEnum):
    REFUSED = "refused"  # nothing listens
    TIMEOUT = "timeout"
    STATUS = "status"  # an answer other than 200
    BROKEN = "broken"  # anything else on the way


class FetchError(Exception):
    """An engine did not give a 200; `why` says how, `status` what it answered instead, `said` more for people where there is more."""

    def __init__(self, why: FetchFailure, status: int | None = None, said: str = "") -> None:
        super().__init__(why if status is None else f"{why} {status}")
        self.why, self.status, self.said = why, status, said


class Engine(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    kind: str
    host: str
    port: int
    https: bool = False
    path: str = ""  # prefix before /metrics and /v1/models
    log: str = ""
    model_dir: str = ""
    pid: int = 0
    api_key: str = ""

    @property
    def url(self) -> str:
        """Without credentials."""
        return f"{'https' if self.https else 'http'}://{_authority(self.host, self.port)}{self.path}"

    @property
    def attributes(self) -> dict[str, str]:
        """What every record about this engine carries."""
        return {conventions.ENGINE: self.name, conventions.ENGINE_KIND: self.kind}


Fetch = Callable[[Engine, str], bytes]
"""Asks an engine for a path; returns the body of a 200 or raises FetchError."""


def resolve(watched: WatchedEngine) -> Engine:
    """The engine as configured, its name defaulting to host:port. Raises AgentError for a URL or key file of no use."""
    try:
        parts = urlsplit(watched.url if "://" in watched.url else f"http://{watched.url}")
        port = parts.port or (443 if parts.scheme == "https" else 80)
    except ValueError:
        raise AgentError(f"engine url {without_secrets(watched.url)!r} is no URL") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise AgentError(f"engine url {without_secrets(watched.url)!r} is no http or https URL")
    return Engine(
        name=watched.name or _authority(parts.hostname, port),
        kind=watched.kind,
        host=parts.hostname,
        port=port,
        https=parts.scheme == "https",
        path=parts.path.rstrip("/").removesuffix("/v1"),
        log=watched.log,
        model_dir=watched.model_dir,
        pid=watched.pid,
        api_key=_key(watched.api_key_file),
    )


def fetch_with(timeout_s: float) -> Fetch:
    """A fetch over HTTP; `timeout_s` limits the connection and each wait for data, 10 s (or `timeout_s`, if that is more) all of it."""

    def fetch(engine: Engine, path: str) -> bytes:
        kind = http.client.HTTPSConnection if engine.https else http.client.HTTPConnection
        until_s = time.monotonic() + max(WHOLE_S, timeout_s)
        connection = kind(engine.host, engine.port, timeout=timeout_s)
        headers = {"User-Agent": "lensd", "Connection": "close"} | ({"Authorization": f"Bearer {engine.api_key}"} if engine.api_key else {})
        try:
            connection.request("GET", engine.path + path, headers=headers)
            response = connection.getresponse()
            if response.status != 200:
                raise FetchError(FetchFailure.STATUS, response.status)
            return _body(response, until_s)
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise _failed(error, engine) from None
        finally:
            connection.close()

    return fetch


def _body(response: http.client.HTTPResponse, until_s: float) -> bytes:
    parts, left = [], MOST_BODY_BYTES
    while left > 0 and (part := response.read1(min(left, CHUNK_BYTES))):
        parts.append(part)
        left -= len(part)
        if time.monotonic() > until_s:
            raise TimeoutError
    return b"".join(parts)


def _failed(error: Exception, engine: Engine) -> FetchError:
    match error:
        case TimeoutError():
            return FetchError(FetchFailure.TIMEOUT)
        case ConnectionRefusedError():
            return FetchError(FetchFailure.REFUSED)
        case socket.gaierror():  # also while the resolver is out of order: nothing has refused
            said = f"nobody knows the name {engine.host}"
        case ssl.SSLCertVerificationError():
            said = f"its certificate is not trusted here ({error.verify_message}); SSL_CERT_FILE names a file of those that are"
        case ssl.SSLError():
            said = "what answers there speaks no TLS"
        case http.client.BadStatusLine() if not isinstance(error, http.client.RemoteDisconnected):
            said = "what answers there speaks no plain HTTP"
        case _:
            said = ""
    return FetchError(FetchFailure.BROKEN, said=said)


def without_secrets(url: str) -> str:
    """A URL as it was given, without user, password, query and fragment.

    >>> without_secrets("http://joe:secret@host:4318/v1?key=secret"), without_secrets("joe:secret@host:4317")
    ('http://host:4318/v1', 'host:4317')
    """
    return re.sub(r"[?#].*", "", re.sub(r"^([A-Za-z][A-Za-z0-9+.-]*://)?.*@", r"\1", url, flags=re.DOTALL), flags=re.DOTALL)


def _authority(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _key(path: str) -> str:
    if not path:
        return ""
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not text"
        raise AgentError(f"api_key_file {path}: {reason}") from None
