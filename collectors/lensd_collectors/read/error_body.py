"""What an error answer says: code and message out of the forms servers use, and what the dialects say it means."""

import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

import msgspec

from lensd_collectors.dialects import Meaning, classify, load
from lensd_collectors.scrub import CONTENT, scrub

LONGEST_BODY: Final = 64 * 1024  # characters of an error's body that are looked at
LONGEST_MESSAGE: Final = 500
_IN_STREAM: Final = re.compile(r'^data: ?(\{"(?:error|object": ?"error)".*\})\s*$', re.MULTILINE)
_INPUT: Final = re.compile(r"(['\"])input\1: .*", re.DOTALL)


class ErrorBody(msgspec.Struct, frozen=True, kw_only=True):
    """An error answer, read. `message` is scrubbed and at most 500 characters long."""

    code: str | None = None
    status: int | None = None  # as the body repeats it, or as an answer with these words comes
    message: str | None = None
    meaning: Meaning | None = None


def read_error(status: int | None, body: str, path: str | None = None) -> ErrorBody | None:
    """The error in a body, also one inside a stream that began with 200; None for an answer without one."""
    if status is None or status < 400:
        match = _IN_STREAM.search(body)
        if match is None and not (status is None and _is_error(body)):
            return None
        body = match[1] if match else body
        status = _int(_error(body).get("code"))
    body = body[:LONGEST_BODY]
    error = _error(body)
    message = error.get("message") or _message(body)
    code = error.get("code")
    meaning = classify(load().values(), status, body, path)
    repeated = _int(code) or (meaning.status if meaning is not None else None)
    if not isinstance(code, str) or code.isdigit():  # vLLM and LiteLLM repeat the status there
        code = error.get("type") or code
    return ErrorBody(
        code=str(code)[:100] if code not in (None, "None", "null") else None,
        status=repeated if repeated is not None and 400 <= repeated <= 599 else None,
        message=shorten(message) if isinstance(message, str) else None,
        meaning=meaning,
    )


@lru_cache(1024)
def meaning_of(status: int | None, message: str) -> Meaning | None:
    """What an error text that stands alone, as a record or a table has it, means; None where no dialect knows it."""
    return classify(load().values(), status, message)


def shorten(message: str) -> str:
    """An error text without keys and without the input it quotes."""
    return _INPUT.sub(lambda match: f"{match[1]}input{match[1]}: {CONTENT}", scrub(message))[:LONGEST_MESSAGE]


def _is_error(body: str) -> bool:
    return bool(_error(body))


def _error(body: str) -> Mapping[str, object]:
    """The forms `{"error": {...}}`, `{"object": "error", ...}`, `{"error": "text"}`, `{"detail": "text"}` as one mapping; else empty."""
    try:
        document = msgspec.json.decode(body.strip() or "null")
    except (msgspec.DecodeError, UnicodeDecodeError):
        return {}
    if not isinstance(document, dict):
        return {}
    error = document.get("error", document.get("detail"))
    if isinstance(error, dict):
        return error
    if isinstance(error, str):
        return {"message": error}
    return document if document.get("object") == "error" or ("message" in document and "code" in document) else {}


def _message(body: str) -> object:
    """Kong's form, `{"message": "text"}`, which only a status tells from an answer."""
    try:
        document = msgspec.json.decode(body.strip() or "null")
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None
    return document.get("message") if isinstance(document, dict) else None


def _int(value: object) -> int | None:
    return int(value) if isinstance(value, int | str) and str(value).isdigit() else None
