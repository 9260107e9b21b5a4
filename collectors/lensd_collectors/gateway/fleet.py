"""All engines: which model is served where, which engine gets a request, and what each says that it serves."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Final

import msgspec

from lensd_collectors.conventions import Decision
from lensd_collectors.gateway.cards import ModelCard, ModelList, read_list
from lensd_collectors.gateway.config import GatewayConfig
from lensd_collectors.gateway.decisions import Refused
from lensd_collectors.gateway.http1 import BrokenError
from lensd_collectors.gateway.names import Names, nearest
from lensd_collectors.gateway.routes import MODELS, GatewayError, shown
from lensd_collectors.gateway.target import LOADING_RANK, Report, Target, TargetState
from lensd_collectors.gateway.upstream import Client, Clock, NotTakenError

__all__ = ["Fleet", "ModelCard", "Target", "TargetState", "TargetStatus", "Visible"]

log = logging.getLogger("lensd.gateway")

REFRESH_S: Final = 5.0
RETRY_S: Final = 1.0
ASK_TIMEOUT_S: Final = 2.0
MAX_LIST_BYTES: Final = 4 << 20
MAX_VANISHED: Final = 256
MAX_TOLD: Final = 5

Visible = Callable[[str], bool]  # whether the caller may know of a served model


class TargetStatus(msgspec.Struct, frozen=True):
    """How an engine stands, for metrics and readiness."""

    name: str
    state: TargetState
    why: str
    in_flight: int
    models: tuple[str, ...]


class Fleet:
    """`resolve` and `pick` are on every request's way; all else happens beside it."""

    def __init__(self, config: GatewayConfig, report: Report, clock: Clock) -> None:
        """Raises GatewayError for engines or names that cannot work."""
        self.targets = tuple(Target(each, report) for each in config.upstreams)
        engines = [target.name for target in self.targets]
        if len(set(engines)) != len(engines):
            raise GatewayError(f"upstream name '{max(engines, key=engines.count)}' is used twice")
        self._names = Names(config)
        self.aliases = self._names.aliases
        self._stall_after = int(config.stall_after_s * 1e9)
        self._report, self._clock = report, clock
        self._serving: dict[str, tuple[Target, ...]] = {}
        self._vanished: dict[str, str] = {}  # model -> who served it
        self._index()

    def resolve(self, name: str, visible: Visible | None = None) -> str:
        """The served model behind a name. Raises Refused where no engine serves it, or where that cannot be told yet.

        The message may propose another name, of those that are `visible`; None: it proposes none.
        """
        model = self.aliases.get(name, name)
        if model in self._serving:
            return model
        raise self.unresolved(name, visible)

    def pick(self, model: str, tried: Collection[Target] = ()) -> Target | None:
        """The best engine for a model that was not tried: READY, else STALLED, else OUT, never LOADING; then the least in flight.

        Of equals it is the one that was idle longest, so that they take turns.
        """
        best: Target | None = None
        least: tuple[int, ...] = (LOADING_RANK,)  # an engine that is loading is no better than none
        for target in self._serving.get(model, ()):
            rank = (target.rank, target.in_flight, target.begun)
            if rank < least and target not in tried:
                best, least = target, rank
        return best

    def fallback(self, name: str) -> str | None:
        """The model that answers while no engine has this one."""
        return self._names.fallback(name)

    def unknown(self, name: str, visible: Visible | None = None) -> Refused:
        """What a caller hears of a model that is not served, and of one that is hidden from it: the same."""
        model = self.aliases.get(name, name)
        near = nearest(name, (each for each, _ in self._named(visible))) if visible is not None else None
        reason = f"no engine serves `{shown(model)}`" + (f", which `{shown(name)}` stands for" if model != name else "")
        if before := self._vanished.get(model):
            reason += f"; {before} before"
        hint = f"; did you mean `{near}`?" if near is not None else ""
        return Refused(Decision.MODEL_UNKNOWN, f"the model `{shown(name)}` is not served here{hint}", reason=reason, param="model")

    def unavailable(self, model: str) -> Refused:
        """Where `pick` has nobody for a model that is served: how each of its engines stands, for the record."""
        return Refused(Decision.NO_UPSTREAM, reason=f"no engine for `{shown(model)}`: {_standing(self.serving(model))}")

    def refused(self, target: Target, why: str) -> None:
        """A connection failed, or the engine died on a request: others are preferred, and it is asked soon how it is."""
        target.strike(self._clock(), why)
        target.hurry.set()

    def answered(self, target: Target, began: int | None = None) -> None:
        """A response came. `began`: when its attempt did; one from before the engine went out does not bring it back."""
        target.answered(began)

    def gone(self, target: Target, model: str) -> None:
        """The engine answered that it has no such model. A configured name stays: the operator says that it is served."""
        if not target.configured:
            cards = {name: card for name, card in target.cards.items() if name != model}
            self._learn(target, ModelList(cards, target.adapters))
        target.hurry.set()

    def tick(self, now: int) -> None:
        """Finds engines that make no progress; called a few times a second."""
        for target in self.targets:
            target.check_progress(now, self._stall_after)

    def models(self) -> Collection[str]:
        """Served names, without aliases."""
        return self._serving.keys()

    def is_served(self, model: str) -> bool:
        return model in self._serving

    def serving(self, model: str) -> tuple[Target, ...]:
        """The engines that serve a model, whatever their state."""
        return self._serving.get(model, ())

    def in_flight(self, model: str) -> int:
        """Requests with the engines that serve the model; an adapter's weigh on its base model's engine like any other."""
        return sum(target.in_flight for target in self.serving(model))

    def max_model_len(self, model: str, target: Target) -> int | None:
        """The context of a model as the engine says, in tokens."""
        return target.card(model).max_model_len

    def cards(self, visible: Visible) -> list[ModelCard]:
        """Each name once, aliases too where their model is served. `visible` is asked about the served model behind a name."""
        return [msgspec.structs.replace(self._card(model), id=name) for name, model in self._named(visible)]

    def any_ready(self) -> bool:
        """Some engine takes requests; one that is silent for long may be at work."""
        return any(target.state in (TargetState.READY, TargetState.STALLED) for target in self.targets)

    def status(self) -> list[TargetStatus]:
        return [TargetStatus(each.name, each.state, each.why, each.in_flight, tuple(sorted(each.names))) for each in self.targets]

    async def refresh(self, client: Client) -> None:
        """Asks every engine once what it serves."""
        await asyncio.gather(*(self._ask(target, client) for target in self.targets))

    async def keep_fresh(self, client: Client, *, every_s: float = REFRESH_S, soon_s: float = RETRY_S) -> None:
        """Asks each for ever: every few seconds, more often while it is loading or out, and soon after a request failed on it."""
        await asyncio.gather(*(self._watch(target, client, every_s, soon_s) for target in self.targets))

    async def _watch(self, target: Target, client: Client, every_s: float, soon_s: float) -> None:
        while True:
            is_there = target.state in (TargetState.READY, TargetState.STALLED)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(target.hurry.wait(), every_s if is_there else soon_s)
                await asyncio.sleep(soon_s / 4)  # many requests fail at once; one question answers for all
            target.hurry.clear()
            try:
                await self._ask(target, client)
            except Exception:  # without this loop the engine would stay as it is for ever
                log.exception("engine %s could not be asked once", target.name)

    async def _ask(self, target: Target, client: Client) -> None:
        self._reload_credential(target)
        headers = [("Authorization", target.credential)] if target.credential else []
        url, asked_at = target.root + MODELS, self._clock()
        try:
            status, body = await client.ask("GET", url, headers=headers, body=None, timeout_s=ASK_TIMEOUT_S, most=MAX_LIST_BYTES)
        except TimeoutError:
            if target.last_byte < asked_at:  # else it is busy, and at work
                target.fail(self._clock(), f"its model list did not come within {ASK_TIMEOUT_S:g} s")
        except (NotTakenError, BrokenError, ValueError) as error:
            target.fail(self._clock(), f"its model list cannot be had: {error}")
        else:
            self._hear(target, asked_at, status, body)

    def _hear(self, target: Target, asked_at: int, status: int, body: bytes) -> None:
        """A configured engine need not have a list: any answer that is no failure shows that it is there."""
        if status in (401, 403):
            own = "the gateway's API key is refused" if target.credential else "it wants an API key, and no api_key_file is configured"
            target.fail(self._clock(), f"{own}: its model list answers {status}", key_refused=True)
            return
        why = f"its model list answers {status}"
        if status == 200:
            try:
                self._learn(target, read_list(body))
            except msgspec.MsgspecError:
                why = "its model list cannot be read"
            else:
                target.succeed(asked_at, f"serves {_some(target.names) or 'no model'}")
                return
        if target.configured and status < 500:
            target.succeed(asked_at, why)
        else:
            target.fail(self._clock(), why)

    def _learn(self, target: Target, models: ModelList) -> None:
        before, adapters = set(target.names), target.adapters
        if not target.learn(models):
            return
        self._index()
        came, went = set(target.names) - before, before - set(target.names)
        for name in went:
            self._vanished[name] = f"{target.name} served it{' as an adapter' if name in adapters else ''}"
        while len(self._vanished) > MAX_VANISHED:
            del self._vanished[next(iter(self._vanished))]
        if target.has_answered:
            changes = [f"{how} {_some(names)}" for how, names in (("new:", came), ("gone:", went)) if names]
            self._report("upstream_models", target.name, f"serves other models now; {'; '.join(changes)}")

    def _reload_credential(self, target: Target) -> None:
        try:
            if target.reload_credential():
                self._report("credential_reloaded", target.name, "the API key for it was read again")
        except GatewayError as error:
            self._report("credential_rejected", target.name, f"{error}; the one before stays in use")

    def _index(self) -> None:
        serving: dict[str, list[Target]] = {}
        for target in self.targets:
            for name in sorted(target.names):
                serving.setdefault(name, []).append(target)
        self._serving = {name: tuple(targets) for name, targets in serving.items()}

    def _card(self, model: str) -> ModelCard:
        """As the first engine that knows more than the name says."""
        serving = self._serving[model]
        return next((each for each in serving if model in each.cards), serving[0]).card(model)

    def _named(self, visible: Visible) -> Iterator[tuple[str, str]]:
        """What may be called, and the served model that it is; an alias goes before a model of the same name."""
        for model in self._serving:
            if model not in self.aliases and visible(model):
                yield model, model
        for alias, model in self.aliases.items():
            if model in self._serving and visible(model):
                yield alias, model

    def unresolved(self, name: str, visible: Visible | None) -> Refused:
        """What a caller hears of a name that no engine is known to serve: unknown only when every engine has said what it serves."""
        model = self.aliases.get(name, name)
        silent = [target for target in self.targets if not target.configured and not target.has_answered]
        if self.targets and not silent:
            return self.unknown(name, visible)
        reason = f"no engine that has answered serves `{shown(model)}`; {_standing(silent)}"
        if silent and all(target.key_refused for target in silent):
            return Refused(Decision.UPSTREAM_CREDENTIAL_REFUSED, reason=reason)
        message = f"whether the model `{shown(name)}` is served here cannot be told yet; try again"
        return Refused(Decision.NO_UPSTREAM, message, reason=reason, param="model")


def _standing(targets: Iterable[Target]) -> str:
    return "; ".join(f"{target.name} is {target.state}: {target.why}" for target in targets) or "no upstreams are configured"


def _some(names: Collection[str]) -> str:
    """Names for a message: the first few, and how many more."""
    listed = ", ".join(shown(name) for name in sorted(names)[:MAX_TOLD])
    return f"{listed} and {len(names) - MAX_TOLD} more" if len(names) > MAX_TOLD else listed
