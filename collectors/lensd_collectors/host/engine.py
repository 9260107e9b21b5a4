"""One watched engine with its settings resolved, and how it is asked over HTTP."""

import http.client
import socket
from collections.abc import Callable
from enum import StrEnum
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import msgspec

from lensd_collectors import conventions
from lensd_collectors.host.config import WatchedEngine

MOST_BODY_BYTES: Final = 32 * 1024 * 1024


class AgentError(Exception):
    """A setting of the agent that can't be used; the text is one line for the person who wrote it."""


class FetchFailure(StrEnum):
    REFUSED = "refused"  # nothing listens
    TIMEOUT = "timeout"
    STATUS = "status"  # an answer other than 200
    BROKEN = "broken"  # anything else on the way


class FetchError(Exception):
    """An engine did not give a 200; `why` says how, `status` what it answered instead."""

    def __init__(self, why: FetchFailure, status: int | None = None) -> None:
        super().__init__(why if status is None else f"{why} {status}")
        self.why, self.status = why, status


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
        return f"{'https' if self.https else 'http'}://{self.host}:{self.port}{self.path}"

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
        raise AgentError(f"engine url {watched.url!r} is no URL") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise AgentError(f"engine url {watched.url!r} is no http or https URL")
    return Engine(
        name=watched.name or f"{parts.hostname}:{port}",
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
    """A fetch over HTTP; `timeout_s` limits the connection and each wait for data."""

    def fetch(engine: Engine, path: str) -> bytes:
        kind = http.client.HTTPSConnection if engine.https else http.client.HTTPConnection
        connection = kind(engine.host, engine.port, timeout=timeout_s)
        headers = {"User-Agent": "lensd", "Connection": "close"} | ({"Authorization": f"Bearer {engine.api_key}"} if engine.api_key else {})
        try:
            connection.request("GET", engine.path + path, headers=headers)
            response = connection.getresponse()
            if response.status != 200:
                raise FetchError(FetchFailure.STATUS, response.status)
            return response.read(MOST_BODY_BYTES)
        except (TimeoutError, socket.gaierror, ConnectionRefusedError) as error:
            raise FetchError(FetchFailure.TIMEOUT if isinstance(error, TimeoutError) else FetchFailure.REFUSED) from None
        except (OSError, http.client.HTTPException, ValueError):
            raise FetchError(FetchFailure.BROKEN) from None
        finally:
            connection.close()

    return fetch


def _key(path: str) -> str:
    if not path:
        return ""
    try:
        return Path(path).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not text"
        raise AgentError(f"api_key_file {path}: {reason}") from None
