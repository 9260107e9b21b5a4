"""Attributes of spans as members of a JSON object, most of them known by the sight of their bytes."""

import struct
from collections.abc import Iterable
from functools import cache
from typing import Final

import msgspec

from lensd.receive import values
from lensd.receive.values import Plain
from lensd.receive.wire import BEFORE_DOUBLE, DOUBLE, INT, TEXT, attribute, value_at

Members = dict[str, str]
"""By name: `"name":value`, as JSON has it."""
_Member = tuple[str, str]
REMEMBERED: Final = 20_000
_LONGEST: Final = 128  # bytes of an attribute that is remembered
_double: Final = struct.Struct("<d").unpack_from
_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder().decode


class MemberReader(dict[bytes, _Member]):
    """Reads attributes from their bytes; itself what is remembered of them: that is short, and forgotten when there is much of it.

    Not for several threads at once.
    """

    def __init__(self) -> None:
        self._names: dict[bytes, _Member] = {}  # an attribute's bytes up to its value's -> its name, and how its member begins

    def read(self, raws: Iterable[bytes]) -> Members:
        """Of a name that comes twice the last counts. Raises BadBodyError where something is no attribute."""
        return dict(map(self.__getitem__, raws))

    def __missing__(self, raw: bytes) -> _Member:
        if raw[-11:-8] == BEFORE_DOUBLE and (known := self._names.get(raw[:-11])):
            return known[0], known[1] + _encode(_double(raw, len(raw) - 8)[0]).decode()
        at = value_at(raw)
        try:
            made = self._scalar(raw, at) if at else _whole(raw)
        except UnicodeDecodeError:
            made = _whole(raw)
        if len(raw) <= _LONGEST and not (at and raw[at] == DOUBLE):
            if len(self) >= REMEMBERED:
                self.clear()
            self[raw] = made
        return made

    def _scalar(self, raw: bytes, at: int) -> _Member:
        kind, (name, begin) = raw[at], self._names.get(raw[: at - 2]) or self._name(raw[: at - 2])
        if kind == DOUBLE:
            return name, begin + _encode(_double(raw, at + 1)[0]).decode()
        if kind == TEXT:
            return name, begin + _encode(raw[at + 2 :].decode()).decode()
        if kind == INT:
            return name, f"{begin}{raw[-1] if len(raw) == at + 2 else raw[-2] & 127 | raw[-1] << 7}"
        return name, begin + ("true" if raw[-1] else "false")

    def _name(self, head: bytes) -> _Member:
        name = head[2:].decode()
        if len(self._names) >= REMEMBERED:
            self._names.clear()
        self._names[head] = made = name, f"{values.json(name)}:"
        return made


def member(name: str, value: Plain) -> str:
    return f"{values.json(str(name))}:{values.json(value)}"  # a name of the conventions is no plain str


def value_of(members: Members, name: str) -> Plain:
    """What an attribute is; None where there is none of the name."""
    made = members.get(name)
    if made is None:
        return None
    value = made[_begin(name) :]
    return value[1:-1] if value[0] == '"' and "\\" not in value else _decode(value)


def text_of(members: Members) -> str | None:
    """The JSON object; None for one without members."""
    return f"{{{','.join(members.values())}}}" if members else None


@cache
def _begin(name: str) -> int:
    """Where the value of a member of that name begins."""
    return len(member(name, None)) - len("null")


def _whole(raw: bytes) -> _Member:
    pair = attribute(raw)
    return pair.key, member(pair.key, values.plain(pair.value))
