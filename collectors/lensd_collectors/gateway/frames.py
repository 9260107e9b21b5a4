"""The gateway's own words inside a stream of an engine's: a sign of life, and the error that ends it."""

import itertools
import json
import re
from typing import Final

import msgspec

from lensd_collectors.gateway.decisions import Refused, error_body
from lensd_collectors.gateway.record import Record
from lensd_collectors.gateway.sse import DONE, Half, data_value

HEARTBEAT: Final = b": keep-alive\n\n"

_MOST_MENDED: Final = 1 << 16  # bytes of a half event that are looked through

_STRING: Final = re.compile(rb'"(?:[^"\\]|\\.)*(?:"|\\?\Z)', re.DOTALL)  # the last one may be open
_CLOSING: Final = {ord("{"): ord("}"), ord("["): ord("]")}
_STRING_ENDS: Final = tuple(each + b'"' for each in (b"", b"\\", b"0", b"00", b"000", b"0000"))  # after a half escape too
# What may be missing where JSON broke off: the rest of a string or a key, a member's value, the rest of a literal or number
_REMAINDERS: Final = (
    b"", *_STRING_ENDS, *(each + b":null" for each in _STRING_ENDS), b":null", b"null", b'"":null',
    b"rue", b"ue", b"alse", b"lse", b"se", b"e", b"ull", b"ll", b"l", b"0",
)  # fmt: skip
_CHARACTER_REMAINDERS: Final = (b"", b"\x80", b"\x80\x80", b"\x80\x80\x80", b"\xa0\x80", b"\x90\x80\x80")


class _Code(msgspec.Struct):
    code: str
    message: str


class _Response(msgspec.Struct):
    id: str
    created_at: int
    model: str | None
    error: _Code
    object: str = "response"
    status: str = "failed"
    incomplete_details: None = None
    output: tuple[()] = ()


class _Failed(msgspec.Struct, tag="response.failed", tag_field="type"):
    sequence_number: int
    response: _Response


class _Told(_Code):
    param: str | None
    sequence_number: int


def error_frames(refusal: Refused, record: Record) -> bytes:
    """Ends a stream so that a client of its API raises the error; says nothing more where the closing event has gone out already.

    Never with a finish reason: a client that knows nothing of errors sees a stream that was cut.
    """
    scanner = record.scanner
    if scanner is None:
        return _error_events(refusal, record, 0)
    scanner.finish()
    mended = _mend(scanner.half, _member(refusal))
    if scanner.done_seen:
        return mended
    return mended + _error_events(refusal, record, scanner.chunks + bool(mended))


def _member(refusal: Refused) -> bytes:
    """`"error": {...}`, without the braces around it."""
    return error_body(refusal)[1:-1]


def _error_events(refusal: Refused, record: Record, number: int) -> bytes:
    """The error in the form of the API, at the boundary of an event; `number` is its place in a stream that counts."""
    if record.route.endswith("/responses"):
        return _failed_response(refusal, record, number)
    if record.route.endswith("/messages"):
        return b'event: error\ndata: {"type":"error",%b}\n\n' % _member(refusal)
    return b"data: {%b}\n\ndata: %b\n\n" % (_member(refusal), DONE)


def _failed_response(refusal: Refused, record: Record, number: int) -> bytes:
    """OpenAI's clients hand out `response.failed` like any other event, and raise at a top-level "error".

    Where no response was begun there is none to fail, and the same clients would stumble over one.
    """
    facts, failed = record.facts, b""
    if facts.response_id is not None:
        error = _Code(refusal.code, refusal.message)
        response = _Response(facts.response_id, record.wall_ns // 10**9, facts.model, error)
        failed = b"event: response.failed\ndata: %b\n\n" % msgspec.json.encode(_Failed(number, response))
        number += 1
    told = msgspec.json.encode(_Told(refusal.code, refusal.message, refusal.param, number))
    return failed + b'event: error\ndata: {"type":"error",%b,%b\n\n' % (_member(refusal), told[1:])


def _mend(half: Half, member: bytes) -> bytes:
    """Ends what the engine has half sent.

    It can't be taken back, and to close it as it is would make a client fail on broken JSON, or worse, read it. So where its
    JSON is not whole it is made an event that is the error: `member` becomes its last member.
    """
    start = b"\n" if half.after_cr else b""  # the LF that the CR may be part of
    value = data_value(half.line)
    if half.line and value is None:
        start += _rest_of_character(half.line) + b"\n"
    if value is not None:
        colon = b":" if half.line == b"data" else b""
        return start + colon + _rest(half, (*half.data, value), member) + b"\n\n"
    if not half.data:
        return start  # a name without data, at most: the next event of ours takes its place
    rest = _rest(half, (*half.data, b""), member)
    return start + (b"data: %b\n\n" % rest if rest else b"\n")


def _rest(half: Half, values: tuple[bytes, ...], member: bytes) -> bytes:
    """What the data of a half event lacks; nothing where it is whole, or is nothing that can be mended."""
    text = b"\n".join(values)
    if not half.is_held or len(text) > _MOST_MENDED or text.startswith(DONE) or _parse(text) is not None:
        return b""
    if not text.strip():
        return b"{%b}" % member
    if DONE.startswith(text):
        return DONE[len(text) :]  # the engine had said all there was to say
    return _rest_of_object(text, member)


def _rest_of_object(text: bytes, member: bytes) -> bytes:
    character = _rest_of_character(text)
    opened = bytearray()
    for byte in _STRING.sub(b"", text):
        if byte in _CLOSING:
            opened.append(_CLOSING[byte])
        elif opened and byte == opened[-1]:
            opened.pop()
    if not opened or not text.lstrip().startswith(b"{"):
        return b""
    closing = bytes(reversed(opened[1:]))
    for remainder, comma in itertools.product(_REMAINDERS, (b",", b"")):
        rest = b"%b%b%b%b%b}" % (character, remainder, closing, comma, member)
        whole = _parse(text + rest)
        if isinstance(whole, dict) and whole.get("error"):
            return rest
    return b""


def _rest_of_character(text: bytes) -> bytes:
    """What makes UTF-8 whole that broke off inside a character."""
    for rest in _CHARACTER_REMAINDERS:
        try:
            (text + rest).decode()
        except UnicodeDecodeError:
            continue
        return rest
    return b""


def _parse(text: bytes) -> object:
    """A JSON value as clients read it, who are more lenient than msgspec; None where it is none."""
    try:
        value: object = json.loads(text.decode())
    except (ValueError, RecursionError):
        return None
    return value
