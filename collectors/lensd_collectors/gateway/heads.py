"""The caller's headers, read once: what the gateway needs of them, and what goes on to the engine."""

from collections.abc import Mapping
from typing import Final

import msgspec

from lensd_collectors.gateway.ids import read_client_timeout
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
    named = dict(reversed(raw))
    times = 0
    if b"authorization" in named:
        times = 1 if len(named) == len(raw) else sum(name == b"authorization" for name, _ in raw)
    forwarded = [each for each in raw if each[0] not in _KEPT_BACK]
    if b"connection" in named:
        nominated = {each.strip().lower() for each in named[b"connection"].split(b",")}
        forwarded = [each for each in forwarded if each[0] not in nominated]
    get = named.get
    return Heads(
        presented=Presented(authorization=get(b"authorization"), times=times, elsewhere="" if times else _elsewhere(named)),
        request_id=get(b"x-request-id"),
        traceparent=get(b"traceparent"),
        session_id=get(b"x-session-id"),
        content_length=_length(get(b"content-length")),
        client_timeout_ms=read_client_timeout(named),
        forwarded=forwarded,
    )


def _elsewhere(named: Mapping[bytes, bytes]) -> str:
    return next((name.decode() for name in _KEY_HEADERS if name in named), "")


def _length(value: bytes | None) -> int | None:
    return int(value) if value is not None and value.isdigit() and len(value) < 20 else None
