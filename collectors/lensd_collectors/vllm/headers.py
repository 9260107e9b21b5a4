"""What a request's headers tell the middleware, and the headers as the app is to see them."""

from collections.abc import Iterable
from typing import Final

import msgspec

from lensd_collectors.gateway.ids import IdSource, Parent, read_client_timeout, read_traceparent, sane_id, write_traceparent

Header = tuple[bytes, bytes]

REQUEST_ID: Final = b"x-request-id"
TRACEPARENT: Final = b"traceparent"
_OURS: Final = frozenset((REQUEST_ID, TRACEPARENT))


class Given(msgspec.Struct, frozen=True, kw_only=True):
    """Ids that hold for the request from here on, and what the caller says of itself."""

    request_id: str  # the caller's without what it may not hold, else the trace id
    trace_id: str  # the caller's trace, else a new one
    span_id: str  # the middleware's span
    parent: Parent | None
    session_id: str
    client_timeout_ms: float | None
    has_key: bool
    headers: list[Header]  # for the app


def read_headers(raw: Iterable[Header], ids: IdSource) -> Given:
    """Of a header sent twice the first counts, as it does for vLLM; the app gets one id and one traceparent, and the rest untouched.

    `traceparent` names our span, sampled: the engine's span is then below ours and is not left out, as that of an unsampled
    parent would be. `tracestate` goes on as it came.
    """
    named: dict[bytes, bytes] = {}
    kept: list[Header] = []
    for pair in raw:
        name, value = pair
        named.setdefault(name, value)
        if name not in _OURS:
            kept.append(pair)
    parent = read_traceparent(named.get(TRACEPARENT))
    trace_id, span_id = parent.trace_id if parent else ids.trace_id(), ids.span_id()
    request_id = sane_id(named.get(REQUEST_ID)) or trace_id
    return Given(
        request_id=request_id,
        trace_id=trace_id,
        span_id=span_id,
        parent=parent,
        session_id=sane_id(named.get(b"x-session-id")),
        client_timeout_ms=read_client_timeout(named),
        has_key=b"authorization" in named,
        headers=[*kept, (REQUEST_ID, request_id.encode()), (TRACEPARENT, write_traceparent(trace_id, span_id).encode())],
    )


def with_request_id(headers: list[Header], request_id: str) -> list[Header]:
    """Headers of a reply that name its request; as they are where the app named one."""
    if any(name.lower() == REQUEST_ID for name, _ in headers):
        return headers
    return [*headers, (REQUEST_ID, request_id.encode())]
