"""The caller's headers, read once: what the gateway needs of them, and what goes on to the engine."""

import math
from typing import Final

import msgspec

from lensd_collectors.gateway.keyring import Presented

Header = tuple[bytes, bytes]

HOP_BY_HOP: Final = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"proxy-authenticate", b"proxy-authorization", b"te", b"trailer",
     b"transfer-encoding", b"upgrade")
)  # fmt: skip
_KEY_HEADERS: Final = (  # where keys are sent by mistake
    b"x-api-key", b"api-key", b"apikey", b"openai-api-key", b"x-openai-api-key", b"x-litellm-api-key", b"x-goog-api-key", b"x-auth-token",
)  # fmt: skip
_KEPT_BACK: Final = HOP_BY_HOP | set(_KEY_HEADERS) | {
    b"host", b"content-length", b"expect", b"accept-encoding",
    b"authorization", b"cookie",  # the caller's credentials are for the gateway
    b"x-request-id", b"traceparent",  # replaced by ours
}  # fmt: skip
_CLIENT_TIMEOUTS: Final = (
    (b"x-lensd-client-timeout-ms", 1.0),
    (b"x-stainless-read-timeout", 1000.0),  # SDKs of OpenAI's make, seconds
    (b"x-stainless-timeout", 1000.0),
)


class Heads(msgspec.Struct, frozen=True, kw_only=True):
    presented: Presented
    request_id: bytes | None
    traceparent: bytes | None
    session_id: bytes | None
    content_length: int | None
    client_timeout_ms: float | None
    forwarded: list[Header]


def read_heads(raw: list[Header]) -> Heads:
    """Of a header sent twice, the first counts for us; all that may go on goes on, in order."""
    named: dict[bytes, bytes] = {}
    times = 0
    for name, value in raw:
        named.setdefault(name, value)
        times += name == b"authorization"
    elsewhere = "" if times else next((name.decode() for name in _KEY_HEADERS if name in named), "")
    dropped = _KEPT_BACK
    if nominated := named.get(b"connection"):
        dropped = dropped | {each.strip().lower() for each in nominated.split(b",")}
    return Heads(
        presented=Presented(authorization=named.get(b"authorization"), times=times, elsewhere=elsewhere),
        request_id=named.get(b"x-request-id"),
        traceparent=named.get(b"traceparent"),
        session_id=named.get(b"x-session-id"),
        content_length=_length(named.get(b"content-length")),
        client_timeout_ms=_client_timeout_ms(named),
        forwarded=[each for each in raw if each[0] not in dropped],
    )


def _length(value: bytes | None) -> int | None:
    return int(value) if value is not None and value.isdigit() and len(value) < 20 else None


def _client_timeout_ms(named: dict[bytes, bytes]) -> float | None:
    for name, scale in _CLIENT_TIMEOUTS:
        if (value := named.get(name)) is not None:
            try:
                limit = float(value) * scale
            except ValueError:
                continue
            if 0 < limit < math.inf:
                return limit
    return None
