"""Model cards: what an engine's `/v1/models` says, and what a caller is told of it."""

from typing import Any

import msgspec


class ModelCard(msgspec.Struct, frozen=True):
    """One model as a caller sees it. An engine says more, such as the folder it lies in, which nobody outside needs."""

    id: str
    object: str = "model"
    created: int = 0
    owned_by: str = "lensd"
    max_model_len: int | None = None  # tokens, prompt and completion together


class ModelList(msgspec.Struct, frozen=True):
    """What an engine serves, by name, adapters among it."""

    cards: dict[str, ModelCard] = {}
    adapters: dict[str, str] = {}  # adapter -> the model it belongs to


class _Card(msgspec.Struct):
    id: str
    created: Any = None
    owned_by: Any = None
    parent: Any = None  # vLLM: base model of an adapter
    max_model_len: Any = None  # vLLM, SGLang
    meta: Any = None  # llama.cpp: n_ctx, the context of one slot


class _List(msgspec.Struct):
    data: list[_Card] | None  # Ollama without a model says null


def read_list(body: bytes) -> ModelList:
    """Raises msgspec.MsgspecError for what is no list of models. An adapter's context is its model's."""
    try:
        listed = msgspec.json.decode(body, type=_List).data or ()
    except RecursionError as error:
        raise msgspec.DecodeError("nested too deeply") from error
    said = {card.id: card for card in listed if card.id}
    adapters = {card.id: card.parent for card in said.values() if isinstance(card.parent, str) and card.parent}
    cards = {}
    for card in said.values():
        parent = said.get(adapters.get(card.id, ""))
        context = _context(card) or (_context(parent) if parent is not None else None)
        owner = card.owned_by if isinstance(card.owned_by, str) else ""
        cards[card.id] = ModelCard(card.id, created=_positive(card.created) or 0, owned_by=owner or "lensd", max_model_len=context)
    return ModelList(cards, adapters)


def _context(card: _Card) -> int | None:
    return _positive(card.max_model_len) or (_positive(card.meta.get("n_ctx")) if isinstance(card.meta, dict) else None)


def _positive(value: Any) -> int | None:
    return value if type(value) is int and value > 0 else None
