"""Which attributes of spans stay as they are, known by the sight of their bytes."""

from collections.abc import Callable, Iterable
from typing import Final

from lensd_collectors.scrub import is_suspect
from lensd_collectors.scrub import scrub as scrub_line

from lensd.receive.wire import BEFORE_DOUBLE, DOUBLE, TEXT, value_at

REMEMBERED: Final = 20_000
_LONGEST: Final = 128  # bytes of an attribute that is remembered
_TOGETHER: Final = 32  # texts that are asked about in one go


class Sight:
    """Tells attributes that stay from those that have to be looked at. Not for several threads at once.

    `is_free`: whether a text, number or truth value under this name may stay, as far as the name goes. `longest`: characters that a
    text may have. What is remembered is short, and forgotten all at once when there is much of it.
    """

    def __init__(self, is_free: Callable[[str], bool], longest: int) -> None:
        self._is_free, self._longest = is_free, longest
        self._stays: set[bytes] = set()
        self._names: dict[bytes, bool] = {}  # an attribute's bytes up to its value's -> whether the name is free

    def doubtful(self, raws: Iterable[Iterable[bytes]]) -> set[bytes]:
        """Of all attributes of some spans those that may have to change, or that are no attributes."""
        unknown = set[bytes]().union(*raws) - self._stays
        doubtful, texts, known = set[bytes](), list[tuple[bytes, str]](), list[bytes]()
        names = self._names
        for raw in unknown:
            if raw[-11:-8] == BEFORE_DOUBLE and names.get(raw[:-11]):
                continue
            at = value_at(raw)
            if not at or not self._has_free_name(raw[: at - 2]):
                doubtful.add(raw)
            elif raw[at] == DOUBLE:
                continue
            elif raw[at] != TEXT:
                known.append(raw)
            elif (text := _text(raw[at + 2 :])) is None or len(text) > self._longest:
                doubtful.add(raw)
            else:
                texts.append((raw, text))
        for low in range(0, len(texts), _TOGETHER):
            some = texts[low : low + _TOGETHER]
            if is_suspect("\n".join([text for _, text in some])):
                doubtful.update(raw for raw, text in some if scrub_line(text) != text)
        known += [raw for raw, _ in texts if raw not in doubtful]
        self.remember(known)
        return doubtful

    def remember(self, stays: Iterable[bytes]) -> None:
        """These attributes stay as they are."""
        if len(self._stays) >= REMEMBERED:
            self._stays.clear()
        self._stays.update([raw for raw in stays if len(raw) <= _LONGEST])

    def _has_free_name(self, head: bytes) -> bool:
        known = self._names.get(head)
        if known is None:
            name = _text(head[2:])
            known = name is not None and self._is_free(name)
            if len(self._names) >= REMEMBERED:
                self._names.clear()
            self._names[head] = known
        return known


def _text(raw: bytes) -> str | None:
    """None: it is not UTF-8."""
    try:
        return raw.decode()
    except UnicodeDecodeError:
        return None
