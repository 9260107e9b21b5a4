"""How long a request's prompt can be, as far as its body tells, and what to ask the engine where that is not enough.

A tokenizer makes at most one token of a byte, but one token can be many bytes: from its bytes a prompt can be proven short,
never long. Images, audio and files are not counted.
"""

from enum import StrEnum
from typing import Any, Final

import msgspec
from msgspec import Raw

from lensd_collectors.gateway.body import Asked, Fields, read_fields
from lensd_collectors.gateway.routes import CHAT, COMPLETIONS, EMBEDDINGS, RESPONSES

TEMPLATE_TOKENS: Final = 64  # most that a chat template adds once
MESSAGE_TOKENS: Final = 16  # most that it adds for each message
NEAR: Final = 1.5
"""Bytes per token of the context from which the engine is asked. Text comes at 3 to 5 bytes a token, digits and noise near 1:
a prompt denser than this that is still too long is left to the engine, which refuses it itself."""
ASKED_BYTES_PER_TOKEN: Final = 8
"""At most so many bytes per token of the limit are sent to be counted: an engine tokenizes all that it is given, for /tokenize
without any limit."""

_SHARED: Final = (
    # keys that mean the same to /tokenize
    "add_generation_prompt", "continue_final_message", "add_special_tokens", "chat_template", "chat_template_kwargs",
)  # fmt: skip
_SHAPING: Final = frozenset({"reasoning_effort", "documents", "response_format", "mm_processor_kwargs"})
_THOUGHTS: Final = frozenset({"reasoning", "reasoning_content"})  # of earlier turns: some templates leave them out
_TEXT: Final = (b'"text"', b'"input_text"', b'"output_text"')
_CHAT_DOUBT: Final = 1 / 64  # gpt-oss renders a chat by other code than the one that counts it
_SHAPED_DOUBT: Final = 1 / 16


class Verdict(StrEnum):
    FITS = "fits"  # surely, or it cannot be told: either way the request goes on
    KNOWN = "known"  # counted: the prompt came as token ids
    ASK = "ask"


class PromptLimits(msgspec.Struct, frozen=True):
    """In tokens, 0: none. `own` is a limit that the gateway itself holds, and `whose` names it in a message."""

    context: int = 0  # the engine's max_model_len
    own: int = 0
    whose: str = "this key's max_prompt_tokens"


class Need(msgspec.Struct, frozen=True):
    verdict: Verdict
    tokens: int = 0  # KNOWN
    question: bytes = b""  # ASK: a body for the engine's /tokenize
    param: str = ""  # the key that holds the prompt
    context: int = 0  # the engine surely refuses a prompt of so many tokens; 0: there is no such number
    at_least: bool = False  # the question leaves some of the prompt out
    doubt: float = 0.0  # share of the context by which the answer may be off
    shortened_to: int | None = None  # the engine cuts the prompt to so many tokens, as the caller wishes; -1: to its context


FITS: Final = Need(Verdict.FITS)


class _Message(msgspec.Struct):
    fields: dict[str, Any]  # for the question: its texts, and what else shapes them; empty where it cannot be asked about
    texts: list[Raw]
    size: int  # bytes of everything in it that may become tokens
    whole: bool  # nothing of it was left out of `fields`


class _Prompt(msgspec.Struct):
    """Messages, or text, or the count of token ids."""

    param: str
    messages: list[_Message] = []
    text: str = ""
    tokens: int | None = None
    tools: Raw = Raw()
    doubt: float = 0.0

    def most_tokens(self) -> int:
        messages = sum(each.size for each in self.messages) + MESSAGE_TOKENS * len(self.messages)
        return messages + len(self.text.encode()) + len(self.tools) + TEMPLATE_TOKENS


def need(asked: Asked, data: bytes, route: str, limits: PromptLimits, *, model: str = "") -> Need:
    """What has to be known of the prompt before the request may go on. `model`: what the engine is asked for, if not `asked.model`.

    Pure. A body shorter than the limits is not decoded; of others, one over a megabyte is for a thread.
    """
    least = min(limits.context or limits.own, limits.own or limits.context)
    if not least or len(data) + TEMPLATE_TOKENS <= least or route not in _READERS:
        return FITS
    try:
        return _judge(read_fields(data), route, limits, model or asked.model)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return FITS  # not of the form that the route takes: the engine says so better


def _judge(fields: Fields, route: str, limits: PromptLimits, model: str) -> Need:
    shortened_to = _shortened_to(fields)
    # An embedding model may take more than its max_model_len, piece by piece; with kv_transfer_params the prompt lies elsewhere.
    sure = route != EMBEDDINGS and shortened_to is None and "kv_transfer_params" not in fields
    context = limits.context if sure else 0
    prompt = _READERS[route](fields) if context or limits.own else None
    if prompt is None:
        return FITS
    found = Need(Verdict.KNOWN, param=prompt.param, context=context, doubt=prompt.doubt, shortened_to=shortened_to)
    if prompt.tokens is not None:
        return msgspec.structs.replace(found, tokens=prompt.tokens)
    most = prompt.most_tokens()
    if (limits.own and most > limits.own) or (context and most >= NEAR * context):
        question, whole = _write_question(prompt, fields, model, max(limits.own, context) * ASKED_BYTES_PER_TOKEN)
        return msgspec.structs.replace(found, verdict=Verdict.ASK, question=question, at_least=not whole)
    return FITS


def _shortened_to(fields: Fields) -> int | None:
    if bytes(fields.get("truncation", b"null")) not in (b"null", b'"disabled"'):
        return -1
    return msgspec.json.decode(fields.get("truncate_prompt_tokens", b"null"), type=int | None)


def _read_chat(fields: Fields) -> _Prompt | None:
    messages = [_read_message(each) for each in msgspec.json.decode(fields.get("messages", b"[]"), type=list[Fields])]
    if not messages:
        return None
    return _Prompt(
        "messages",
        messages=messages,
        tools=fields.get("tools", Raw()),
        doubt=_SHAPED_DOUBT if _SHAPING & fields.keys() else _CHAT_DOUBT,
    )


def _read_responses(fields: Fields) -> _Prompt | None:
    """As the chat that the engine makes of it; calls of tools and what they answered are measured, not asked about."""
    given = fields.get("input", Raw(b"null"))
    items: list[Fields] = []
    if _is_text(instructions := fields.get("instructions", Raw())):
        items.append({"role": Raw(b'"system"'), "content": instructions})
    if _is_text(given):
        items.append({"role": Raw(b'"user"'), "content": given})
    else:
        items += msgspec.json.decode(given, type=list[Fields] | None) or ()
    if not items:
        return None
    messages = [_read_message(each) for each in items]
    for message in messages:
        asked = {name: value for name, value in message.fields.items() if name in ("role", "content")}
        message.fields = asked if len(asked) == 2 else {}
        message.whole = message.whole and len(asked) == 2
    return _Prompt("input", messages=messages, tools=fields.get("tools", Raw()), doubt=_SHAPED_DOUBT)


def _read_completion(fields: Fields) -> _Prompt | None:
    return _read_texts(fields, "prompt")


def _read_embedding(fields: Fields) -> _Prompt | None:
    return _read_texts(fields, "input") or _read_chat(fields)


def _read_texts(fields: Fields, param: str) -> _Prompt | None:
    """The longest of several: each is a prompt of its own."""
    given = msgspec.json.decode(fields.get(param, b"null"), type=str | list[int | str | list[int]] | None)
    if not given:
        return None
    if isinstance(given, str):
        return _Prompt(param, text=given)
    if isinstance(given[0], int):
        return _Prompt(param, tokens=len(given))
    if isinstance(given[0], list):
        return _Prompt(param, tokens=max(len(each) for each in given if isinstance(each, list)))
    return _Prompt(param, text=max((each for each in given if isinstance(each, str)), key=len))


_READERS: Final = {
    CHAT: _read_chat,
    COMPLETIONS: _read_completion,
    RESPONSES: _read_responses,
    EMBEDDINGS: _read_embedding,
}


def _read_message(fields: Fields) -> _Message:
    content = fields.get("content", Raw())
    kept: dict[str, Any] = {name: value for name, value in fields.items() if name not in _THOUGHTS}
    whole = len(kept) == len(fields)
    texts = [content]
    if _starts(content) == b"[":
        parts = msgspec.json.decode(content, type=list[Fields])
        texts = [part["text"] for part in parts if "text" in part and bytes(part.get("type", b"")) in _TEXT]
        whole = whole and len(texts) == len(parts)
        kept["content"] = [{"type": "text", "text": text} for text in texts]
    beside = sum(len(value) for name, value in fields.items() if name not in ("role", "content"))
    return _Message(kept, texts, beside + sum(len(text) for text in texts), whole)


def _starts(raw: Raw) -> bytes:
    return bytes(memoryview(raw)[:1])


def _is_text(raw: Raw) -> bool:
    return _starts(raw) == b'"'


def _write_question(prompt: _Prompt, fields: Fields, model: str, most_bytes: int) -> tuple[bytes, bool]:
    """The body for /tokenize, and whether the whole of the prompt is in it."""
    asked: dict[str, Any] = {"model": model}
    asked.update((name, fields[name]) for name in _SHARED if name in fields)
    if not prompt.messages:
        asked["prompt"] = text = _cut(prompt.text, most_bytes)
        return msgspec.json.encode(asked), len(text) == len(prompt.text)
    asked["messages"], whole = _fit(prompt.messages, most_bytes)
    if "continue_final_message" not in fields:
        asked.setdefault("add_generation_prompt", True)
    if prompt.tools:
        # Some servers leave the tools out where none may be chosen; those of a response have another form.
        if prompt.param == "messages" and bytes(fields.get("tool_choice", b"")) != b'"none"':
            asked["tools"] = prompt.tools
        else:
            whole = False
    return msgspec.json.encode(asked), whole


def _fit(messages: list[_Message], most_bytes: int) -> tuple[list[dict[str, Any]], bool]:
    """The first messages, as far as there is room, and what fits of the next; whether that is all."""
    kept: list[dict[str, Any]] = []
    for message in messages:
        if message.size > most_bytes:
            if message.fields:
                text = "".join(msgspec.json.decode(each, type=str) for each in message.texts if _is_text(each))
                kept.append({"role": message.fields.get("role"), "content": _cut(text, most_bytes)})
            return kept, False
        most_bytes -= message.size
        if message.fields:
            kept.append(message.fields)
    return kept, all(message.whole for message in messages)


def _cut(text: str, most_bytes: int) -> str:
    data = text.encode()
    return text if len(data) <= most_bytes else data[:most_bytes].decode(errors="ignore")
