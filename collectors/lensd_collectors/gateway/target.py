"""One engine: where it is, what it serves, and whether it makes progress."""

import asyncio
from collections.abc import Callable, Collection
from enum import StrEnum
from typing import Final
from urllib.parse import urlsplit

import msgspec

from lensd_collectors.gateway.cards import ModelCard, ModelList
from lensd_collectors.gateway.config import Upstream
from lensd_collectors.gateway.credential import Credential
from lensd_collectors.gateway.routes import GatewayError

FIRST_HOLD_NS: Final = 1_000_000_000
LONGEST_HOLD_NS: Final = 30_000_000_000

Report = Callable[[str, str, str], None]  # act, engine's name, what happened


class TargetState(StrEnum):
    """What can be expected of an engine. All but LOADING is a preference only."""

    LOADING = "loading"  # has never said what it serves; gets no request
    READY = "ready"
    STALLED = "stalled"  # has requests and gives no byte: others are preferred, and any byte makes it ready
    OUT = "out"  # was ready, and takes no connections or fails; or refuses the gateway's own key


LOADING_RANK: Final = 3
_RANKS: Final = {TargetState.READY: 0, TargetState.STALLED: 1, TargetState.OUT: 2, TargetState.LOADING: LOADING_RANK}
_ACTS: Final = {
    TargetState.LOADING: "upstream_loading",
    TargetState.READY: "upstream_in",
    TargetState.STALLED: "upstream_stalled",
    TargetState.OUT: "upstream_out",
}


class Target:
    """Times are nanoseconds of the gateway's clock. Whoever calls `begin` calls `end`, whatever happens in between."""

    __slots__ = (
        "_credential", "_held_until", "_idle_since", "_out_since", "_report", "_strikes", "_told", "adapters", "begun",
        "busy_since", "cards", "configured", "has_answered", "hurry", "in_flight", "key_refused", "kind", "last_byte", "name", "place",
        "rank", "root", "state", "why",
    )  # fmt: skip

    def __init__(self, upstream: Upstream, report: Report) -> None:
        """Raises GatewayError for a URL or credential file that cannot be used."""
        self.place, self.root = read_url(upstream.url)
        self.name = upstream.name or self.place
        self.kind = upstream.kind
        self.configured = frozenset(upstream.models)
        self.cards: dict[str, ModelCard] = {}  # as it last said itself
        self.adapters: dict[str, str] = {}
        self.state = TargetState.LOADING
        self.rank = _RANKS[self.state]  # lower is better
        self.why = "not asked yet"
        self.has_answered = False
        self.key_refused = False
        self.in_flight = self.begun = self.busy_since = self.last_byte = 0
        self.hurry = asyncio.Event()  # ask it soon
        self._credential = Credential(upstream.api_key_file, self.name)
        self._report = report
        self._told: tuple[TargetState, bool] | None = None
        self._strikes = self._held_until = self._idle_since = self._out_since = 0

    @property
    def credential(self) -> str:
        """Value of Authorization; may be empty."""
        return self._credential.header

    def reload_credential(self) -> bool:
        """Whether there is a new key. Raises GatewayError, once a change, for a file that cannot be used."""
        return self._credential.reload()

    @property
    def names(self) -> Collection[str]:
        """Served names: those configured, or all that it lists."""
        return self.configured or self.cards.keys()

    def card(self, model: str) -> ModelCard:
        """What it says of a model. A configured name that it does not list stands for the only one it has."""
        card = self.cards.get(model)
        if card is None and len(self.cards) == 1:
            card = msgspec.structs.replace(next(iter(self.cards.values())), id=model)
        return card or ModelCard(model)

    def learn(self, models: ModelList) -> bool:
        """Whether other names are served now."""
        before = set(self.names)
        self.cards, self.adapters = models.cards, models.adapters
        return before != set(self.names)

    def begin(self, now: int) -> None:
        if not self.in_flight:
            self.busy_since = now
        self.in_flight += 1
        self.begun = now
        if self.state is TargetState.STALLED:
            self.rank = _RANKS[TargetState.STALLED]  # the one request it is tried with is on its way

    def byte(self, now: int) -> None:
        """A body byte came. Response headers are no progress: an engine may send them before it has begun."""
        self.last_byte = now
        if self.state is TargetState.STALLED:
            self._move(TargetState.READY, "gives bytes again")

    def end(self, now: int) -> None:
        self.in_flight -= 1
        if not self.in_flight:
            self._idle_since = now

    @property
    def waits_since(self) -> int:
        """The last sign of progress while requests are in flight: a byte, or the first request after it had none."""
        return max(self.last_byte, self.busy_since)

    def check_progress(self, now: int, stall_after: int) -> None:
        """Finds a stall. An engine that lost its requests without a byte is tried again after as long, with one request."""
        if self.state is TargetState.READY:
            if self.in_flight and now - self.waits_since >= stall_after:
                self._move(TargetState.STALLED, f"no byte for {(now - self.waits_since) / 1e9:.0f} s with {self.in_flight} in flight")
        elif self.state is TargetState.STALLED and not self.in_flight and now - self._idle_since >= stall_after:
            self.rank = _RANKS[TargetState.READY]

    def succeed(self, asked_at: int, why: str) -> None:
        """Its model list came. That brings it back unless it failed a request since, or does so again and again; a stall only bytes end."""
        self.has_answered, self.key_refused = True, False
        if self.state is not TargetState.STALLED and (self.state is not TargetState.OUT or asked_at >= self._held_until):
            self._move(TargetState.READY, why)

    def fail(self, now: int, why: str, *, key_refused: bool = False) -> None:
        """It cannot be used now."""
        state = TargetState.OUT if self.has_answered or key_refused else TargetState.LOADING
        if state is not self.state:
            self._out_since = now
        self._move(state, why, key_refused=key_refused)

    def strike(self, now: int, why: str) -> None:
        """A request failed on it. Its model list may bring it back at once the first time; then it stays out longer and longer."""
        if self.state is not TargetState.OUT:
            hold = min(FIRST_HOLD_NS << min(self._strikes - 1, 10), LONGEST_HOLD_NS) if self._strikes else 0
            self._held_until = now + hold
            self._strikes += 1
        self.fail(now, why)

    def answered(self, began: int | None) -> None:
        """A request got a response. One that began before the engine went out says nothing of now."""
        if self.state is TargetState.OUT or self._strikes:
            if began is not None and began < self._out_since:
                return
            self._strikes = self._held_until = 0
            if self.state is TargetState.OUT and not self.key_refused:
                self._move(TargetState.READY, "answers again")

    def _move(self, state: TargetState, why: str, *, key_refused: bool = False) -> None:
        self.state, self.rank, self.why, self.key_refused = state, _RANKS[state], why, key_refused
        if self._told != (state, key_refused):
            self._told = (state, key_refused)
            self._report(_ACTS[state], self.name, why)


def read_url(url: str) -> tuple[str, str]:
    """`host:port`, and what paths are put after. Raises GatewayError, which repeats nothing that could be a secret."""
    try:
        parts = urlsplit(url)
        host, port = parts.hostname or "", parts.port
    except ValueError as error:
        raise GatewayError("an upstream url has no valid host and port: it must be http://HOST:PORT or https://HOST:PORT") from error
    if parts.scheme not in ("http", "https") or not host:
        raise GatewayError(f"upstream url '{parts.scheme}://{host}' must be http://HOST:PORT or https://HOST:PORT")
    if port == 0:
        raise GatewayError(f"upstream url with host '{host}' has no valid port")
    if "@" in parts.netloc:
        raise GatewayError(f"upstream url with host '{host}' holds a user: the engine's key belongs into api_key_file")
    if parts.query or parts.fragment:
        raise GatewayError(f"upstream url with host '{host}' must have no query")
    place = f"{f'[{host}]' if ':' in host else host}:{port or (443 if parts.scheme == 'https' else 80)}"
    return place, f"{parts.scheme}://{place}{parts.path.rstrip('/').removesuffix('/v1')}"
