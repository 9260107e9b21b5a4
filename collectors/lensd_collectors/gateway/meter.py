"""Each key's limits in force: requests and tokens a minute as buckets that fill evenly, and requests at the same time.

A bucket holds a minute's worth, so a key that was quiet may use all of it at once; over a longer time its limit is what passes.
What is in a bucket is counted in 1 / 60e9 of a request or token: then what a nanosecond adds is the limit itself, a whole number,
and nothing is lost to rounding.
"""

from collections.abc import Callable, Container
from typing import Final

from lensd_collectors.conventions import Decision
from lensd_collectors.gateway.decisions import Refused
from lensd_collectors.gateway.keyring import Key

MINUTE_NS: Final = 60_000_000_000
BUSY_WAIT_NS: Final = 1_000_000_000  # until another request of the key may have ended: nobody can know
_MS: Final = 1_000_000


class _Bucket:
    """Fills with `limit` a minute up to `limit`. Its level may lie below zero: it is owed then."""

    __slots__ = ("level", "limit", "seen")

    def __init__(self, limit: int, now: int) -> None:
        self.limit, self.seen = limit, now
        self.level = limit * MINUTE_NS

    def fill(self, limit: int, now: int) -> None:
        """Up to `now`, under a limit that may have been changed since."""
        level, most = self.level + (now - self.seen) * self.limit, limit * MINUTE_NS
        self.level = level if level < most else most
        self.limit, self.seen = limit, now

    def wait_ns(self, level: int) -> int:
        """How long until it holds `level`; none or less than none: it does already."""
        return -((self.level - level) // self.limit)


class _Use:
    """What one key has in use and in its buckets."""

    __slots__ = ("in_flight", "requests", "tokens")

    def __init__(self) -> None:
        self.in_flight = 0
        self.requests: _Bucket | None = None
        self.tokens: _Bucket | None = None


class Lease:
    """One admitted request. `end` gives its place back, however often it is called."""

    __slots__ = ("_clock_ns", "_tokens", "_use", "taken")

    def __init__(self, use: _Use, tokens: _Bucket | None, taken: int, clock_ns: Callable[[], int]) -> None:
        self._use: _Use | None = use
        self._tokens, self._clock_ns = tokens, clock_ns
        self.taken = taken  # tokens that it was estimated at

    def end(self, tokens_used: int | None) -> None:
        """What it used in place of what it was estimated at; None: the estimate stands."""
        use, self._use = self._use, None
        if use is None:
            return
        use.in_flight -= 1
        if (bucket := self._tokens) is not None and tokens_used is not None:
            bucket.fill(bucket.limit, self._clock_ns())
            bucket.level += (self.taken - tokens_used) * MINUTE_NS


class Meter:
    """Kept by key id, so that a new keys file with other limits changes nothing about what was used."""

    def __init__(self, clock_ns: Callable[[], int]) -> None:
        self._clock_ns = clock_ns
        self._uses: dict[str, _Use] = {}

    def admit(self, key: Key, tokens: int) -> Lease:
        """Room for one request that is estimated at so many tokens; raises Refused(RATE_LIMITED) with the time until one can pass."""
        entry, now = key.entry, self._clock_ns()
        use = self._uses.get(key.id)
        if use is None:
            use = self._uses[key.id] = _Use()
        requests = use.requests = _filled(use.requests, entry.requests_per_min, now)
        bucket = use.tokens = _filled(use.tokens, entry.tokens_per_min, now)
        if (
            (requests is not None and requests.level < MINUTE_NS)
            or (bucket is not None and bucket.level <= 0)
            or 0 < entry.concurrency <= use.in_flight
        ):
            raise _refusal(key, use)
        if requests is not None:
            requests.level -= MINUTE_NS
        if bucket is not None:
            bucket.level -= tokens * MINUTE_NS
        use.in_flight += 1
        return Lease(use, bucket, tokens, self._clock_ns)

    def in_flight(self, key_id: str) -> int:
        use = self._uses.get(key_id)
        return 0 if use is None else use.in_flight

    @property
    def all_in_flight(self) -> int:
        return sum(use.in_flight for use in self._uses.values())

    def keep(self, ids: Container[str]) -> None:
        """Forgets the keys that are gone, but for those that still have a request in flight."""
        self._uses = {key_id: use for key_id, use in self._uses.items() if key_id in ids or use.in_flight}


def _filled(bucket: _Bucket | None, limit: int, now: int) -> _Bucket | None:
    if not limit:
        return None
    if bucket is None:
        return _Bucket(limit, now)
    bucket.fill(limit, now)
    return bucket


def _refusal(key: Key, use: _Use) -> Refused:
    """The limit that holds longest, since until then none can pass."""
    waits: list[tuple[int, str]] = []
    if use.requests is not None:
        waits.append((use.requests.wait_ns(MINUTE_NS), "requests_per_min"))
    if use.tokens is not None:
        waits.append((use.tokens.wait_ns(1), "tokens_per_min"))
    if 0 < key.entry.concurrency <= use.in_flight:
        waits.append((BUSY_WAIT_NS, "concurrency"))
    wait_ns, name = max(waits)
    limit = key.entry.limit(name)
    return Refused(
        Decision.RATE_LIMITED,
        f"this API key is over its limit of {limit}",
        reason=f"key {key.id} is over its limit of {limit}",
        code=name,
        retry_after_s=-(-wait_ns // _MS) / 1000,
    )
