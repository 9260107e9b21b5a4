"""One chat call with a client span around it: the id is made before sending and stands in the exception's text."""

import http.client
import json
import socket
import time
import uuid
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from opentelemetry.trace import SpanKind, Status, StatusCode, Tracer, format_span_id, format_trace_id

from lensd_collectors import conventions as c


class CallError(Exception):
    """The call failed or was given up; the text ends with the request id."""


class Reply(NamedTuple):
    request_id: str
    status: int
    body: bytes  # as it came; SSE frames of a stream


class Caller:
    """Calls one OpenAI-compatible server. `timeout_s` is the whole time a call may take, and is announced to the server."""

    def __init__(self, base_url: str, key: str | None, tracer: Tracer) -> None:
        self._address = urlsplit(base_url)
        self._key = key
        self._tracer = tracer

    def chat(
        self,
        body: Mapping[str, Any],
        *,
        timeout_s: float = 120.0,
        request_id: str | None = None,
        on_chunk: Callable[[bytes], None] | None = None,
    ) -> Reply:
        """POST /v1/chat/completions. Raises CallError on a time-out or a broken connection; an HTTP error is a Reply."""
        request_id = request_id or uuid.uuid4().hex
        with self._tracer.start_as_current_span(c.CLIENT_REQUEST, kind=SpanKind.CLIENT, record_exception=False) as span:
            context = span.get_span_context()
            span.set_attributes({c.REQUEST_ID: request_id, c.REQUEST_MODEL: str(body.get("model")), c.CLIENT_TIMEOUT_MS: timeout_s * 1000})
            headers = {
                "content-type": "application/json",
                "x-request-id": request_id,
                "x-lensd-client-timeout-ms": f"{timeout_s * 1000:.0f}",
                "traceparent": f"00-{format_trace_id(context.trace_id)}-{format_span_id(context.span_id)}-01",
            }
            if self._key is not None:
                headers["authorization"] = f"Bearer {self._key}"
            try:
                status, answer = self._exchange(json.dumps(body).encode(), headers, time.monotonic() + timeout_s, on_chunk)
            except (OSError, http.client.HTTPException) as error:
                kind = "timeout" if isinstance(error, TimeoutError) else type(error).__name__
                span.set_attribute(c.ERROR_TYPE, kind)
                span.set_status(Status(StatusCode.ERROR, kind))
                limit = f" after {timeout_s:g} s" if kind == "timeout" else ""
                raise CallError(f"{kind}{limit}, request {request_id}") from None
            span.set_attribute(c.HTTP_STATUS, status)
            return Reply(request_id, status, answer)

    def _exchange(
        self, body: bytes, headers: Mapping[str, str], deadline: float, on_chunk: Callable[[bytes], None] | None
    ) -> tuple[int, bytes]:
        connection = http.client.HTTPConnection(self._address.hostname or "127.0.0.1", self._address.port or 80, timeout=_left(deadline))
        try:
            connection.request("POST", "/v1/chat/completions", body, dict(headers))
            sock = connection.sock  # the connection lets go of it when the reply says "close"; the reply reads on from it
            sock.settimeout(_left(deadline))
            reply = connection.getresponse()
            received = []
            while chunk := self._read(reply, sock, deadline):
                received.append(chunk)
                if on_chunk is not None:
                    on_chunk(chunk)
            return reply.status, b"".join(received)
        finally:
            connection.close()

    @staticmethod
    def _read(reply: http.client.HTTPResponse, sock: socket.socket, deadline: float) -> bytes:
        if not reply.isclosed():
            sock.settimeout(_left(deadline))
        return reply.read1(65_536)


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError
    return left
