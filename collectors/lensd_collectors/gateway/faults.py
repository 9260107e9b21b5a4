"""What an engine's error reply means: status and shape of the body become a Decision, its text is cut to what may be kept."""

import re
from typing import Any, Final

import msgspec

from lensd_collectors.conventions import Decision, Outcome

MAX_MESSAGE: Final = 500

_ENGINE_DEAD: Final = re.compile(r"EngineCore encountered an issue|EngineDeadError|AsyncEngineDead|Background loop has errored", re.I)
_CONTEXT: Final = re.compile(
    r"maximum context length"  # vLLM, OpenAI
    r"|longer than the maximum model length|exceeds model's maximum context length|cannot be greater than max_model_len"  # vLLM
    r"|model's context length|exceeds the (?:available )?context (?:size|length)",  # SGLang, llama.cpp, Ollama
    re.I,
)
_CONTEXT_PARAMS: Final = frozenset(("input_tokens", "input_text"))
_CONTEXT_TYPES: Final = frozenset(("exceed_context_size_error", "context_length_exceeded"))
_MODEL_TYPES: Final = frozenset(("NotFoundError", "model_not_found"))
_MODEL_TEXT: Final = re.compile(r"\bmodel\b", re.I)
_BY_STATUS: Final = {
    400: Decision.BODY_MALFORMED,
    401: Decision.UPSTREAM_CREDENTIAL_REFUSED,
    404: Decision.PATH_UNKNOWN,
    405: Decision.METHOD_NOT_ALLOWED,
    413: Decision.BODY_TOO_LARGE,
    422: Decision.BODY_MALFORMED,
    429: Decision.RATE_LIMITED,
    503: Decision.ENGINE_BUSY,
}
# Validators quote the caller's own input in their texts: after the first line, or after this word.
_QUOTED_INPUT: Final = re.compile(r"[\"'\s](?:input|input_value|value)[\"']?\s*[:=]\s*['\"\[{(].*", re.S)


class Fault(msgspec.Struct, frozen=True):
    """An error of the engine; `code` is its own word for it."""

    decision: Decision
    outcome: Outcome
    code: str
    message: str


class _Body(msgspec.Struct):
    error: Any = None
    detail: Any = None
    object: Any = None
    message: Any = None
    type: Any = None
    code: Any = None
    param: Any = None


class _Said(msgspec.Struct, frozen=True):
    message: str = ""
    type: str = ""
    code: str = ""
    param: str = ""
    is_detail: bool = False


_decode: Final = msgspec.json.Decoder(_Body).decode


def read_fault(status: int, body: bytes) -> Fault:
    """An error status and its body; an unknown shape is an engine error, without a text."""
    said = _read(body)
    decision = _decide(status, said)
    outcome = Outcome.REFUSED if status < 500 or decision is Decision.ENGINE_BUSY else Outcome.FAILED
    return Fault(decision, outcome, said.type or said.code or str(status), kept_text(said.message))


def read_stream_fault(event: bytes) -> Fault:
    """An error event inside a stream: the engine took the request in, so it failed; old engines give any type and code."""
    said = _read(event)
    decision = Decision.ENGINE_ERROR
    if _ENGINE_DEAD.search(said.message):
        decision = Decision.ENGINE_DEAD
    elif _is_context(said):
        decision = Decision.CONTEXT_TOO_LONG
    elif said.code == "503":
        decision = Decision.ENGINE_BUSY
    return Fault(decision, Outcome.FAILED, said.type or said.code or "stream_error", kept_text(said.message))


def kept_text(message: str) -> str:
    """First line, without what quotes the request, at most 500 characters."""
    line = message.strip().split("\n", 1)[0]
    return _QUOTED_INPUT.sub("", line)[:MAX_MESSAGE].strip()


def _decide(status: int, said: _Said) -> Decision:
    if status >= 500 and _ENGINE_DEAD.search(said.message):
        return Decision.ENGINE_DEAD
    if status in (400, 413, 422) and _is_context(said):
        return Decision.CONTEXT_TOO_LONG
    if status == 404 and not said.is_detail and _is_model(said):
        return Decision.MODEL_UNKNOWN
    return _BY_STATUS.get(status, Decision.ENGINE_ERROR)


def _is_context(said: _Said) -> bool:
    return (
        said.param in _CONTEXT_PARAMS or said.type in _CONTEXT_TYPES or said.code in _CONTEXT_TYPES or bool(_CONTEXT.search(said.message))
    )


def _is_model(said: _Said) -> bool:
    named = said.type in _MODEL_TYPES or said.code in _MODEL_TYPES or said.param == "model"
    return named or bool(_MODEL_TEXT.search(said.message))


def _read(body: bytes) -> _Said:
    """The nested form, the flat one, {"error": text} and {"detail": text}."""
    try:
        outer = _decode(body)
        if isinstance(outer.error, dict):
            outer = msgspec.convert(outer.error, _Body)
        elif isinstance(outer.error, str):
            return _Said(message=outer.error)
        elif isinstance(outer.detail, str):
            return _Said(message=outer.detail, is_detail=True)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return _Said()
    return _Said(message=_word(outer.message), type=_word(outer.type), code=_word(outer.code), param=_word(outer.param))


def _word(value: object) -> str:
    return value if isinstance(value, str) else str(value) if isinstance(value, int) else ""
