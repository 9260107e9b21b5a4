"""What an engine's reply says of itself, read while its bytes pass: tokens, finish reasons, errors, the closing [DONE].

Texts are decoded in passing and never kept.
"""

import contextlib
from typing import Any, Final

import msgspec

MAX_EVENT_BYTES: Final = 1 << 20
MAX_TEXT: Final = 256


class Facts(msgspec.Struct, eq=False):
    """Known of the reply so far."""

    response_id: str | None = None
    model: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    cached_tokens: int | None = None
    finish_reasons: tuple[str, ...] = ()
    has_content: bool = False
    error: bytes | None = None  # the first event that is an error, as it came

    def take(self, reply: "_Reply") -> None:
        if self.response_id is None:
            self.response_id, self.model = _text(reply.id), _text(reply.model)
        for choice in reply.choices or ():
            reason = _text(choice.finish_reason)
            if reason and len(self.finish_reasons) < 16:
                self.finish_reasons += (reason,)
            self.has_content = self.has_content or choice.has_content()
        if reply.usage is not None:
            self._take_usage(reply.usage)

    def _take_usage(self, usage: "_Usage") -> None:
        self.prompt_tokens = _count(usage.prompt_tokens, self.prompt_tokens)
        self.completion_tokens = _count(usage.completion_tokens, self.completion_tokens)
        if usage.prompt_tokens_details is not None:
            self.cached_tokens = _count(usage.prompt_tokens_details.cached_tokens, self.cached_tokens)


class _TokenDetails(msgspec.Struct):
    cached_tokens: Any = None


class _Usage(msgspec.Struct):
    prompt_tokens: Any = None
    completion_tokens: Any = None
    prompt_tokens_details: _TokenDetails | None = None


class _Delta(msgspec.Struct):
    content: Any = None
    reasoning: Any = None
    reasoning_content: Any = None
    tool_calls: Any = None


class _Choice(msgspec.Struct):
    finish_reason: Any = None
    text: Any = None
    delta: _Delta | None = None

    def has_content(self) -> bool:
        delta = self.delta
        return bool(self.text or (delta and (delta.content or delta.reasoning or delta.reasoning_content or delta.tool_calls)))


class _Reply(msgspec.Struct):
    id: Any = None
    model: Any = None
    object: Any = None
    error: Any = None
    usage: _Usage | None = None
    choices: list[_Choice] | None = None


_decode: Final = msgspec.json.Decoder(_Reply).decode


def _text(value: object) -> str | None:
    return value[:MAX_TEXT] if isinstance(value, str) else None


def _count(value: object, known: int | None) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**63 else known


def read_reply(body: bytes) -> Facts:
    """Facts of a reply that is one JSON object; nothing known where it is not."""
    facts = Facts()
    with contextlib.suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        facts.take(_decode(body))
    return facts


class Scanner:
    """Reads server-sent events across any cut of the bytes; the bytes themselves are passed on by the caller, unchanged."""

    __slots__ = ("_carry", "_pending", "_skipping", "chunks", "done_seen", "facts")

    def __init__(self) -> None:
        self.facts = Facts()
        self.chunks = 0  # data events, [DONE] not counted
        self.done_seen = False
        self._carry = b""  # a line whose end has not come
        self._pending: bytes | None = None  # data of an event whose closing blank line has not come
        self._skipping = False  # inside a line that grew over the limit

    @property
    def at_boundary(self) -> bool:
        """No event is half sent: another one can be written."""
        return not self._carry and self._pending is None and not self._skipping

    def feed(self, data: bytes) -> None:
        lines = data.split(b"\n")
        if self._carry:
            lines[0] = self._carry + lines[0]
        self._carry = lines.pop()
        for line in lines:
            if self._skipping:
                self._skipping, line = False, b"data: "
            self._line(line)
        if len(self._carry) > MAX_EVENT_BYTES:
            self._skipping = self._skipping or self._carry.startswith(b"data:")
            self._carry = b":"

    def finish(self) -> None:
        """At the end of the bytes: an event without its blank line is read all the same, as clients do."""
        if self._carry:
            self._line(self._carry)
            self._carry = b""
        self._dispatch()

    def _line(self, line: bytes) -> None:
        line = line.rstrip(b"\r")
        if not line:
            self._dispatch()
        elif line.startswith(b"data:"):
            value = line[5:].strip()
            if self._pending is None:
                self._pending = value
            elif len(self._pending) < MAX_EVENT_BYTES:
                self._pending += b"\n" + value

    def _dispatch(self) -> None:
        data, self._pending = self._pending, None
        if data is None:
            return
        if data == b"[DONE]":
            self.done_seen = True
            return
        self.chunks += 1
        try:
            reply = _decode(data)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return
        if self.facts.error is None and (reply.error or reply.object == "error"):
            self.facts.error = data
        self.facts.take(reply)
