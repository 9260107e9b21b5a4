"""What a request says of itself; of its body the model, the token limit and whether it streams, never a text."""

from typing import Any, Final, NamedTuple

import msgspec

MOST_READ_BYTES: Final = 8 << 20
MAX_TEXT: Final = 256


class Limits(NamedTuple):
    """The limits that a library was given for a request, in seconds; None: none. `total_s` holds for all of it."""

    connect_s: float | None = None
    read_s: float | None = None
    total_s: float | None = None

    @property
    def shortest_s(self) -> float | None:
        """The one that ends a request the server is silent on."""
        return min((each for each in (self.read_s, self.total_s) if each is not None), default=None)

    def fired_s(self, kind: str) -> float | None:
        """The limit behind a failure of this kind; where it was none of them, the one in force."""
        if kind == "connect_timeout":
            return self.connect_s
        if kind == "read_timeout":
            return self.read_s if self.read_s is not None else self.total_s
        if kind == "timeout":
            return self.total_s if self.total_s is not None else self.read_s
        return self.shortest_s


def seconds(value: object) -> float | None:
    """A limit as libraries take it: a number of seconds, or none."""
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and value > 0 else None


class Asked(msgspec.Struct):
    """The members of a request's body that are read."""

    model: Any = None
    stream: Any = None
    max_tokens: Any = None
    max_completion_tokens: Any = None
    max_output_tokens: Any = None

    @property
    def model_name(self) -> str | None:
        return self.model[:MAX_TEXT] if isinstance(self.model, str) else None

    @property
    def token_limit(self) -> int | None:
        given = (self.max_completion_tokens, self.max_tokens, self.max_output_tokens)
        return next((each for each in given if isinstance(each, int) and not isinstance(each, bool) and each >= 0), None)


_decode = msgspec.json.Decoder(Asked).decode
_NOTHING: Final = Asked()


def read_asked(body: object) -> Asked:
    """Reads a body that is JSON, as bytes or text, or a mapping still to be written as JSON; nothing of any other."""
    if isinstance(body, dict):
        return Asked(**{name: body[name] for name in Asked.__struct_fields__ if name in body})
    if not isinstance(body, bytes | bytearray | str) or len(body) > MOST_READ_BYTES:
        return _NOTHING
    try:
        return _decode(body)
    except (msgspec.MsgspecError, UnicodeError, RecursionError):
        return _NOTHING
