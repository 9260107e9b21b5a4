"""Request and trace ids, and the caller's own time limit: what it sent where that is sane; ids else made here."""

import functools
import math
import random
import re
from collections.abc import Iterator, Mapping
from typing import Final, NamedTuple

MAX_REQUEST_ID: Final = 128

_CLIENT_TIMEOUTS: Final = (
    (b"x-lensd-client-timeout-ms", 1.0),
    (b"x-stainless-read-timeout", 1000.0),  # SDKs of OpenAI's make, seconds
    (b"x-stainless-timeout", 1000.0),
)
TIMEOUT_NAMES: Final = frozenset(name for name, _ in _CLIENT_TIMEOUTS)
_TRACEPARENT: Final = re.compile(r"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(-.*)?")
_NOT_SANE: Final = re.compile(r"[^\x21-\x7e]|[\"'`\\<>]")


class Parent(NamedTuple):
    """Trace the caller is in and its span, which ours becomes a child of."""

    trace_id: str
    span_id: str


class IdSource:
    """New trace and span ids, 32 and 16 hex digits, never all zero."""

    def __init__(self, source: random.Random) -> None:
        self.trace_id = functools.partial(next, _new_ids(source, 32))
        self.span_id = functools.partial(next, _new_ids(source, 16))


def _new_ids(source: random.Random, length: int) -> Iterator[str]:
    """For ever; many made at once, since a few are made for every request, and all of them left out where one is zero."""
    while True:
        made = source.randbytes(4096).hex(" ", length // 2).split()
        if "0" * length not in made:
            yield from made


def read_traceparent(value: bytes | None) -> Parent | None:
    """The W3C header's trace and span id; None where it is absent or not valid."""
    if not value:
        return None
    found = _TRACEPARENT.fullmatch(value.decode("latin-1").strip())
    if found is None or found[1] == "ff" or (found[1] == "00" and found[4]):
        return None
    if not found[2].strip("0") or not found[3].strip("0"):
        return None
    return Parent(found[2], found[3])


def write_traceparent(trace_id: str, span_id: str) -> str:
    """The header, always with the sampled flag: an engine drops its span of a request that is not sampled."""
    return f"00-{trace_id}-{span_id}-01"


def sane_id(value: bytes | None) -> str:
    """An id sent by a caller without blanks, quotes and unprintable characters, at most 128 long; empty where nothing is left."""
    if not value:
        return ""
    return _NOT_SANE.sub("", value[: 4 * MAX_REQUEST_ID].decode("latin-1"))[:MAX_REQUEST_ID]


def read_client_timeout(named: Mapping[bytes, bytes]) -> float | None:
    """Milliseconds after which the caller gives up by its own word, from headers by name in lower case; None where it does not say."""
    if TIMEOUT_NAMES.isdisjoint(named):
        return None
    for name, scale in _CLIENT_TIMEOUTS:
        if (value := named.get(name)) is not None:
            try:
                limit = float(value) * scale
            except ValueError:
                continue
            if 0 < limit < math.inf:
                return limit
    return None
