"""One request through the middleware: what is stamped while it passes, and what is said of it afterwards."""

import re
from typing import Any, Final

import msgspec

from lensd_collectors import conventions
from lensd_collectors.conventions import Outcome, SaidBy
from lensd_collectors.otlp import Value
from lensd_collectors.scrub import scrub

MOST_ERROR_BYTES: Final = 4096
MOST_MESSAGE_CHARS: Final = 500
ENDS_WITH_DONE: Final = ("/v1/chat/completions", "/v1/completions")
GONE_STATUS: Final = 499

_ID: Final = re.compile(rb'"id":\s?"([\x20-\x21\x23-\x5b\x5d-\x7e]{1,256})"')
_MODEL: Final = re.compile(rb'"model":\s?"([\x20-\x21\x23-\x5b\x5d-\x7e]{1,256})"')
_ERROR_EVENT: Final = (b'data: {"error"', b'data: {"object":"error"', b'data: {"object": "error"')


class Exchange(msgspec.Struct, eq=False, kw_only=True):
    """Stamps are monotonic nanoseconds, 0 where it never happened; `wall_ns` is the one wall clock, at `received`."""

    wall_ns: int
    received: int
    method: str
    path: str
    request_id: str
    trace_id: str
    span_id: str
    parent_span_id: str | None
    status: int = 0
    is_sse: bool = False
    first_byte: int = 0
    last_byte: int = 0
    max_gap: int = 0
    chunks: int = 0
    bytes_sent: int = 0
    done_seen: bool = False
    finished: bool = False  # the last body message has been sent
    caller_gone: bool = False
    head: bytes = b""  # first body bytes of a good answer, for the reply's id; the whole of an error's
    error_event: bytes = b""
    raised: str = ""
    reported_stage: str = ""  # of the last event sent while open
    reported: int = 0

    def start(self, status: int, headers: Any) -> None:
        self.status = status
        for name, value in headers:
            if name == b"content-type":
                self.is_sse = value.startswith(b"text/event-stream")

    def body(self, data: bytes, more: bool, now: int) -> None:
        """Takes note of a body message; the data itself is not kept, but for an error's."""
        if data:
            if not self.first_byte:
                self.first_byte = now
            elif now - self.last_byte > self.max_gap:
                self.max_gap = now - self.last_byte
            self.last_byte = now
            self.bytes_sent += len(data)
            if self.status >= 400:
                self.head += data[: MOST_ERROR_BYTES - len(self.head)]
            elif not self.head:
                self.head = data[:512]
            if self.is_sse:
                self._events(data)
        if not more:
            self.finished = True

    def _events(self, data: bytes) -> None:
        """Counts data events; an engine sends whole ones, and a line break in their JSON is escaped."""
        self.chunks += data.startswith(b"data:") + data.count(b"\ndata:")
        if data.rstrip().endswith(b"data: [DONE]"):
            self.done_seen = True
            self.chunks -= 1
        if not self.error_event and data.startswith(_ERROR_EVENT):
            self.error_event = data[:MOST_ERROR_BYTES]

    def gone(self) -> None:
        """The server told of a disconnect; after the last body message that is only the end."""
        if not self.finished:
            self.caller_gone = True

    def wall(self, stamp: int) -> int:
        return self.wall_ns + stamp - self.received

    def outcome(self) -> Outcome:
        if self.caller_gone:
            return Outcome.CALLER_GONE
        if self.raised or self.error_event or (self.status >= 500 and self.status != 503) or not self.status:
            return Outcome.FAILED
        if self.status >= 400:
            return Outcome.REFUSED
        if not self.finished or (self.is_sse and not self.done_seen and self.path.endswith(ENDS_WITH_DONE)):
            return Outcome.CUT
        return Outcome.OK

    def identity(self) -> dict[str, Value | None]:
        found, model = (_ID.search(self.head), _MODEL.search(self.head)) if self.status < 400 else (None, None)
        return {
            conventions.REQUEST_ID: self.request_id,
            conventions.HTTP_METHOD: self.method,
            conventions.RESPONSE_ID: found[1].decode() if found else None,
            conventions.RESPONSE_MODEL: model[1].decode() if model else None,
            conventions.BYTES_SENT: self.bytes_sent,
            conventions.CHUNKS: self.chunks if self.is_sse else None,
        }

    def attributes(self, scope: Any) -> dict[str, Value | None]:
        """All that is known at the end; `scope` is the request's, in which the engine has left its route and token counts."""
        outcome = self.outcome()
        code, message = _error(self.error_event.removeprefix(b"data: ") or (self.head if self.status >= 400 else b""))
        usage = getattr(_metadata(scope), "final_usage_info", None)
        return self.identity() | {
            conventions.HTTP_ROUTE: route(scope, self.path),
            conventions.HTTP_STATUS: GONE_STATUS if self.caller_gone else self.status or 500,
            conventions.OUTCOME: outcome.value,
            conventions.SAID_BY: SaidBy.CLIENT.value if self.caller_gone else SaidBy.ENGINE.value,
            conventions.ERROR_TYPE: None if outcome is Outcome.OK else code or self.raised or _code(outcome, self.status),
            conventions.ERROR_MESSAGE: message or None,
            conventions.IS_STREAMING: self.is_sse if self.status and self.status < 400 else None,
            conventions.FIRST_BYTE_MS: _since(self.received, self.first_byte),
            conventions.LAST_BYTE_MS: _since(self.received, self.last_byte),
            conventions.MAX_GAP_MS: self.max_gap / 1e6 if self.is_sse and self.chunks > 1 else None,
            conventions.DONE_SEEN: self.done_seen if self.is_sse else None,
            conventions.INPUT_TOKENS: _tokens(usage, "prompt_tokens"),
            conventions.OUTPUT_TOKENS: _tokens(usage, "completion_tokens"),
        }


def route(scope: Any, path: str) -> str:
    """The path template the engine's router matched, else the path itself, shortened."""
    template = getattr(scope.get("route"), "path", None)
    return template if isinstance(template, str) else path[:256]


class _Detail(msgspec.Struct):
    message: Any = None
    type: Any = None


class _ErrorBody(msgspec.Struct):
    error: _Detail | str | None = None
    message: Any = None  # vLLM before 0.10 has the fields at the top
    type: Any = None
    detail: Any = None  # the router's own 404 and 405


def _error(body: bytes) -> tuple[str, str]:
    """Code and scrubbed message in an error body or event; empty where it has none."""
    if not body:
        return "", ""
    try:
        read = msgspec.json.decode(body.split(b"\n", 1)[0].strip() or body, type=_ErrorBody)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return "", ""
    detail = read.error if isinstance(read.error, _Detail) else _Detail(read.error or read.message or read.detail, read.type)
    message = " ".join(detail.message.split()) if isinstance(detail.message, str) else ""
    return (detail.type if isinstance(detail.type, str) else ""), scrub(message)[:MOST_MESSAGE_CHARS]


def _code(outcome: Outcome, status: int) -> str:
    return str(status) if outcome in (Outcome.REFUSED, Outcome.FAILED) and status >= 400 else outcome.value


def _metadata(scope: Any) -> Any:
    state = scope.get("state")
    return state.get("request_metadata") if isinstance(state, dict) else None


def _tokens(usage: Any, name: str) -> int | None:
    value = getattr(usage, name, None)
    return value if isinstance(value, int) else None


def _since(start: int, stamp: int) -> float | None:
    return (stamp - start) / 1e6 if stamp else None
