"""The memory of the cards as the API tells it: its parts over time, what happened meanwhile, and each card as it is now."""

from datetime import datetime, timedelta
from typing import Any, Final

import msgspec

from lensd.api.items import GpuItem, Memory, MemoryCard, MemoryMark, MemoryPart, MemoryPoint, text_of
from lensd.memory.composition import Device, compose
from lensd.store import cards, memory_parts
from lensd.store.interface import Cursor
from lensd.store.memory_parts import Card, Moment

S: Final = 1_000_000
_EPOCH: Final = datetime(1970, 1, 1)


def document(cursor: Cursor, engine: str | None, since: int, until: int) -> Memory:
    """Where the memory went from `since` to `until` (microseconds since the epoch), on the cards of one engine or of all."""
    return Memory(
        items=tuple(_card(card) for card in memory_parts.cards(cursor, engine, since, until)),
        marks=tuple(_mark(row) for row in memory_parts.marks(cursor, engine, since, until)),
        step_s=memory_parts.step_us(since, until) / S,
    )


def gpus(cursor: Cursor) -> list[GpuItem]:
    """The last that is known of each card."""
    return [msgspec.convert(_texts(row), GpuItem) for row in cards.cards(cursor)]


def _card(card: Card) -> MemoryCard:
    points = tuple(_point(moment) for moment in card.moments)
    return MemoryCard(host=card.host, gpu=card.gpu, engines=card.engines, assumed=card.assumed, points=points)


def _point(moment: Moment) -> MemoryPoint:
    made = compose(moment.known)
    device = moment.known.device or Device()
    return MemoryPoint(
        seen_at=_instant(moment.at),
        parts=tuple(MemoryPart(band=part.band, bytes=part.bytes, engine=part.engine) for part in made.parts),
        used_bytes=device.used_bytes,
        total_bytes=device.total_bytes,
        limit_bytes=made.limit_bytes,
        over_bytes=made.over_bytes,
    )


class _Told(msgspec.Struct):
    """What marks tell in their fields, each kind its own."""

    over_budget: bool | None = None
    version: str | None = None


def _mark(row: dict[str, Any]) -> MemoryMark:
    try:
        told = msgspec.json.decode(row["fields"] or "{}", type=_Told, strict=False)
    except msgspec.DecodeError:
        told = _Told()
    text = {
        "config": row["line"] or "configuration changed",
        "start": f"started, version {told.version}" if told.version else "started",
        "oom": "out of memory",
    }[row["kind"]]
    return MemoryMark(
        at=_instant(row["at"]), kind=row["kind"], text=text, engine=row["engine"], host=row["host"], over_budget=told.over_budget
    )


def _instant(at: int) -> str:
    return text_of(_EPOCH + timedelta(microseconds=at))


def _texts(row: dict[str, Any]) -> dict[str, Any]:
    return {name: text_of(value) if isinstance(value, datetime) else value for name, value in row.items()}
