"""A row of the table of decisions: how the caller asks, what comes back, and what the record holds."""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

from gateway_house import KEYS, MODEL, PROMPT
from openai import OpenAI

Ask = Callable[[OpenAI], Any]
CHAT, MODELS = "/v1/chat/completions", "/v1/models"
NARROW = KEYS["narrow"]


@dataclasses.dataclass(frozen=True, kw_only=True)
class Row:
    """`key` is whose request it is; `headers` stand in for the one that it would be in."""

    name: str
    decision: str
    status: int
    code: str
    says: str
    kind: str = "invalid_request_error"
    ask: Ask
    key: str = "narrow"
    headers: tuple[tuple[str, str | bytes], ...] | None = None
    base: str = "/v1"
    param: str | None = None
    stage: str = "auth_routing"
    outcome: str = "refused"
    known: bool = True  # whose key it is, by the time of the decision
    reason: str = ""  # in the record, or a part of it; left out: what the caller hears
    route: str = CHAT
    more: tuple[tuple[str, str], ...] = ()  # headers that some refusals have and others do not
    reached: tuple[str, ...] = ()  # what the engine was asked
    repeats: str = ""  # planted, and in the reply only because the caller wrote it
    body: bytes = b""  # said by the engine, and passed on as it came


def chat(model: str = MODEL, content: str = PROMPT, **more: Any) -> Ask:
    return lambda client: client.chat.completions.create(model=model, messages=[{"role": "user", "content": content}], **more)


def complete(prompt: Any, **more: Any) -> Ask:
    return lambda client: client.completions.create(model=MODEL, prompt=prompt, **more)


def post(content: Any, path: str = "/chat/completions") -> Ask:
    """A body as it is; anything but bytes is sent in parts, without a length."""
    return lambda client: client.post(path, content=content() if callable(content) else content, cast_to=object)


def call(method: str, path: str) -> Ask:
    return lambda client: getattr(client, method)(path, cast_to=object)


def retrieve(model: str) -> Ask:
    return lambda client: client.models.retrieve(model)


def pieces() -> Iterator[bytes]:
    for _ in range(30):
        yield b"x" * 1000


def words(count: int) -> str:
    return "word " * count


def unknown(name: str, wanted: str, hint: str = "", **more: Any) -> Row:
    return Row(
        name=name,
        decision="model_unknown",
        status=404,
        code="model_not_found",
        says=f"the model `{wanted}` is not served here{hint}",
        param="model",
        **{"ask": chat(wanted), "reason": f"no engine serves `{wanted}`", **more},
    )
