"""What the gateway needs to know of a request's body: model, streaming, token limit. The rest stays unread."""

import json
from typing import Any, Final

import msgspec


class MalformedBodyError(ValueError):
    """A body that cannot be routed; `param` is the key at fault, where it is one."""

    def __init__(self, message: str, param: str | None = None) -> None:
        super().__init__(message)
        self.param = param


class Asked(msgspec.Struct, frozen=True, kw_only=True):
    model: str
    streaming: bool
    max_tokens: int | None


class _Body(msgspec.Struct):
    """Values as they come: whether they are of the right type is for the engine to say, except the model's name."""

    model: Any = None
    stream: Any = None
    max_tokens: Any = None
    max_completion_tokens: Any = None


_decode: Final = msgspec.json.Decoder(_Body).decode


def read_body(data: bytes) -> Asked:
    """Raises MalformedBodyError for what is not a JSON object that names exactly one model."""
    if not data.strip():
        raise MalformedBodyError("the request has no body")
    try:
        body = _decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        # The parser's own text can quote the body; where it broke off is all that may be told.
        raise MalformedBodyError("the body is not a JSON object") from error
    if body.model is None:
        raise MalformedBodyError("the body names no model", "model")
    if not isinstance(body.model, str) or not body.model:
        raise MalformedBodyError("model must be a non-empty string", "model")
    if _maybe_twice(data) and _named_twice(data):
        raise MalformedBodyError("the body names model more than once", "model")
    limit = body.max_completion_tokens if isinstance(body.max_completion_tokens, int) else body.max_tokens
    return Asked(
        model=body.model,
        streaming=body.stream is True,
        max_tokens=limit if isinstance(limit, int) and not isinstance(limit, bool) and abs(limit) < 2**63 else None,
    )


def _maybe_twice(data: bytes) -> bool:
    r"""Cheap check that is only ever wrong in saying yes: a key is spelled out, or has a letter of it as \u006x."""
    return data.count(b'"model"') != 1 or b"\\u006" in data


def _named_twice(data: bytes) -> bool:
    """Parsers differ in which of two equal keys they take: the one checked here might not be the one served."""
    outermost: list[list[tuple[str, Any]]] = [[]]

    def keep(pairs: list[tuple[str, Any]]) -> None:
        outermost[0] = pairs  # objects end from the inside out, so the last one is the body itself

    try:
        json.loads(data, object_pairs_hook=keep)
    except (ValueError, RecursionError) as error:
        raise MalformedBodyError("the body is not a JSON object") from error
    return sum(name == "model" for name, _ in outermost[0]) > 1
