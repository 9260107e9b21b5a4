"""The caller's headers, read once: what the gateway needs of them, and what goes on to the engine."""

import math
from typing import Final

import msgspec

Header = tuple[bytes, bytes]

HOP_BY_HOP: Final = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"proxy-authenticate", b"proxy-authorization", b"te", b"trailer",
     b"transfer-encoding", b"upgrade")
)  # fmt: skip
_KEPT_BACK: Final = HOP_BY_HOP | {
    b"host", b"content-length", b"expect", b"accept-encoding",
    b"authorization", b"cookie", b"x-api-key", b"api-key",  # the caller's credentials are for the gateway
    b"x-request-id", b"traceparent",  # replaced by ours
}  # fmt: skip
_CLIENT_TIMEOUTS: Final = (
    (b"x-lensd-client-timeout-ms", 1.0),
    (b"x-stainless-read-timeout", 1000.0),  # SDKs of OpenAI's make, seconds
    (b"x-stainless-timeout", 1000.0),
)


class Heads(msgspec.Struct, frozen=True, kw_only=True):
    authorization: bytes | None
    request_id: bytes | None
    traceparent: bytes | None
    session_id: bytes | None
    content_length: int | None
    client_timeout_ms: float | None
    forwarded: tuple[tuple[str, str], ...]


def read_heads(raw: list[Header]) -> Heads:
    """Of a header sent twice, the first counts for us; all that may go on goes on, in order."""
    named: dict[bytes, bytes] = {}
    for name, value in raw:
        named.setdefault(name, value)
    dropped = _KEPT_BACK
    if nominated := named.get(b"connection"):
        dropped = dropped | {each.strip().lower() for each in nominated.split(b",")}
    return Heads(
        authorization=named.get(b"authorization"),
        request_id=named.get(b"x-request-id"),
        traceparent=named.get(b"traceparent"),
        session_id=named.get(b"x-session-id"),
        content_length=_length(named.get(b"content-length")),
        client_timeout_ms=_client_timeout_ms(named),
        forwarded=tuple((name.decode("latin-1"), _text(value)) for name, value in raw if name not in dropped),
    )


def _text(value: bytes) -> str:
    """As UTF-8, which is what the client library writes; other bytes come out as the characters they are in Latin-1."""
    try:
        return value.decode()
    except UnicodeDecodeError:
        return value.decode("latin-1")


def _length(value: bytes | None) -> int | None:
    return int(value) if value is not None and value.isdigit() and len(value) < 20 else None


def _client_timeout_ms(named: dict[bytes, bytes]) -> float | None:
    for name, scale in _CLIENT_TIMEOUTS:
        try:
            limit = float(named.get(name, b"")) * scale
        except ValueError:
            continue
        if 0 < limit < math.inf:
            return limit
    return None
