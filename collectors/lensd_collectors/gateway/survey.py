"""What the engines serve, each asked once: for a command that runs no gateway. Standard library and msgspec only."""

import contextlib
import http.client
import threading
import time
from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

import msgspec

from lensd_collectors.gateway.cards import read_list
from lensd_collectors.gateway.config import Upstream
from lensd_collectors.gateway.credential import Credential
from lensd_collectors.gateway.routes import MODELS, GatewayError

ASK_TIMEOUT_S: Final = 2.0
MAX_LIST_BYTES: Final = 4 << 20


class Served(msgspec.Struct, frozen=True):
    """Names of models, and each engine that did not give its own, with the reason."""

    models: frozenset[str] = frozenset()
    silent: tuple[str, ...] = ()

    @property
    def is_complete(self) -> bool:
        return not self.silent


def ask_served(upstreams: Sequence[Upstream], timeout_s: float = ASK_TIMEOUT_S) -> Served:
    """All of them at the same time; whatever one does, the answer is there after the timeout."""
    if not upstreams:
        return Served(silent=("no engine is configured: gateway.upstreams is empty",))
    said: list[frozenset[str] | str] = [f"does not answer within {timeout_s:g} s"] * len(upstreams)

    def note(number: int, upstream: Upstream) -> None:
        with contextlib.suppress(TimeoutError):
            said[number] = _ask(upstream, timeout_s)

    asking = [threading.Thread(target=note, args=each, daemon=True) for each in enumerate(upstreams)]
    end = time.monotonic() + timeout_s
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join(max(end - time.monotonic(), 0))
    told = list(zip(upstreams, said, strict=True))
    return Served(
        models=frozenset().union(*(names for _, names in told if not isinstance(names, str))),
        silent=tuple(f"{_name(upstream)} {why}" for upstream, why in told if isinstance(why, str)),
    )


def _ask(upstream: Upstream, timeout_s: float) -> frozenset[str] | str:
    """Its names, or why it gave none. Raises TimeoutError."""
    if upstream.models:
        return frozenset(upstream.models)
    try:
        credential = Credential(upstream.api_key_file, _name(upstream)).header
        status, body = _get(upstream.url, {"Authorization": credential} if credential else {}, timeout_s)
        if status in (401, 403):
            return f"answers {status}: it does not accept {'its api_key_file' if credential else 'a request without a key'}"
        return frozenset(read_list(body).cards) if status == 200 else f"answers {status} when it is asked for its models"
    except GatewayError as error:
        return f"cannot be asked ({error})"
    except TimeoutError:
        raise
    except (OSError, http.client.HTTPException, ValueError, RecursionError, msgspec.MsgspecError) as error:
        return f"cannot be asked ({getattr(error, 'strerror', None) or type(error).__name__})"


def _get(url: str, headers: dict[str, str], timeout_s: float) -> tuple[int, bytes]:
    """Redirects are not followed: they would take the credential elsewhere."""
    parts = urlsplit(url)
    connect = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    connection = connect(parts.hostname or "", parts.port, timeout=timeout_s)
    try:
        connection.request("GET", parts.path.rstrip("/").removesuffix("/v1") + MODELS, headers=headers)
        answer = connection.getresponse()
        body = answer.read(MAX_LIST_BYTES + 1)
    finally:
        connection.close()
    if len(body) > MAX_LIST_BYTES:
        raise ValueError("model list too long")
    return answer.status, body


def _name(upstream: Upstream) -> str:
    return upstream.name or urlsplit(upstream.url).netloc.rpartition("@")[2]
