"""What is told of requests: spans, and events of those who saw them."""

from dataclasses import dataclass
from typing import Any, Final, NamedTuple, TypeGuard

import msgspec
from lensd_collectors import conventions as c

LONGEST_AGO_MS = 7 * 86_400_000.0
"""A time that a sender gives is believed up to here."""
_NUMBERS: Final = frozenset({int, float})


class Span(msgspec.Struct, gc=False):
    """A stored span with its attributes decoded; times in microseconds since the epoch."""

    trace_id: str
    span_id: str
    parent_span_id: str | None
    name: str
    kind: str | None
    scope: str | None
    service: str | None
    instance: str | None
    engine: str | None
    request_id: str | None
    start: int
    end: int
    status: str | None
    status_message: str | None
    attributes: dict[str, Any]
    src: str | None

    def number(self, name: str) -> float | None:
        value = self.attributes.get(name)
        return float(value) if is_number(value) else None

    def count(self, name: str) -> int | None:
        value = self.number(name)
        return None if value is None else int(value)

    def text(self, name: str) -> str | None:
        value = self.attributes.get(name)
        if isinstance(value, list):
            return str(value[0]) if value else None
        return None if value is None else str(value)

    def flag(self, name: str) -> bool | None:
        value = self.attributes.get(name)
        return value if isinstance(value, bool) else None


class Sender(NamedTuple):
    """The process that tells of a request. `listen` (HOST:PORT) and `engine` say where it stands, as far as its events do."""

    service: str
    instance: str
    host: str | None
    listen: str | None
    engine: str | None


@dataclass(slots=True)
class Signal:
    """An event (a request's start or progress, the engine's record, a sender's start); `at` in microseconds since the epoch."""

    name: str
    at: int
    fields: dict[str, Any]
    src: str | None

    def ago(self, name: str) -> int:
        """The instant that lies as many milliseconds before the signal as this field says."""
        ms = self.fields.get(name)
        return self.at - int(1000 * min(max(float(ms), 0.0), LONGEST_AGO_MS)) if is_number(ms) else self.at

    @property
    def sender(self) -> Sender | None:
        """Who sent it; None where that is not told."""
        service, instance, *place = map(self._text, (c.SERVICE_NAME, c.SERVICE_INSTANCE_ID, c.HOST_NAME, c.LISTEN, c.ENGINE))
        return Sender(service, instance, *place) if service and instance else None

    def _text(self, name: str) -> str | None:
        value = self.fields.get(name)
        return value if isinstance(value, str) else None


def reached(value: Any, scale: float = 1.0) -> float | None:
    """Milliseconds, or None where the engine never got there: vLLM then gives a negative number."""
    return float(value) * scale if is_number(value) and 0 <= value * scale <= LONGEST_AGO_MS else None


def is_number(value: Any) -> TypeGuard[int | float]:
    return type(value) in _NUMBERS
