"""All that is decided before an engine is asked: whose key, which model, within which limits, and what the body becomes."""

import asyncio
from typing import Final

import msgspec

from lensd_collectors.conventions import Decision
from lensd_collectors.gateway.body import Asked, read_body, rewrite
from lensd_collectors.gateway.config import Act, GatewayConfig
from lensd_collectors.gateway.context import ContextCheck, estimate
from lensd_collectors.gateway.decisions import Refused
from lensd_collectors.gateway.degrade import Degraded, Switches
from lensd_collectors.gateway.dispatch import Order
from lensd_collectors.gateway.fleet import Fleet, Target, TargetState
from lensd_collectors.gateway.heads import Heads
from lensd_collectors.gateway.keyring import Key, KeyRing
from lensd_collectors.gateway.meter import Lease, Meter
from lensd_collectors.gateway.prompt import TEMPLATE_TOKENS, PromptLimits, need
from lensd_collectors.gateway.record import Record

MAX_MODEL: Final = 256
NO_LIMITS: Final = PromptLimits()
_NOBODY_HAS_IT: Final = (Decision.NO_UPSTREAM, Decision.MODEL_UNKNOWN, Decision.UPSTREAM_CREDENTIAL_REFUSED)
BIG_BODY: Final = 1 << 20  # read in a thread: it would hold up every other request


class Ticket(msgspec.Struct, frozen=True):
    """A request that was let in, and what it holds until it ends."""

    order: Order
    lease: Lease | None

    def end(self, record: Record) -> None:
        if self.lease is not None:
            self.lease.end(tokens_used(record, self.lease.taken))


def tokens_used(record: Record, estimated: int) -> int:
    """Prompt and completion; where the engine gave no usage, the estimate stands for the one and the chunks for the other."""
    facts = record.facts
    if facts.prompt_tokens is not None:
        return facts.prompt_tokens + (facts.completion_tokens or 0)
    if not record.sent:
        return 0
    return estimated + (record.scanner.chunks if record.scanner is not None else 0)


class Admission:
    """Raises Refused at the first thing that is wrong, in the order in which `lensd keys explain` names them."""

    def __init__(
        self, config: GatewayConfig, keys: KeyRing | None, meter: Meter, fleet: Fleet, switches: Switches, context: ContextCheck
    ) -> None:
        self._config, self._keys, self._meter, self._fleet, self._switches, self._context = config, keys, meter, fleet, switches, context
        self._checks_context = config.check_context

    def authenticate(self, record: Record, heads: Heads, now_ns: int) -> Key | None:
        """Whose request it is; None where nobody needs a key."""
        if self._keys is None:
            return None
        key = self._keys.find(heads.presented)
        record.key_id = key.id
        key.check(now_ns)
        if not key.allows_route(record.route):
            raise Refused(Decision.ROUTE_NOT_ALLOWED, reason=f"key {key.id} may not use {record.route}")
        return key

    def resolve(self, name: str, key: Key | None) -> str:
        """The served model behind a name, where the key may use it."""
        model = self._fleet.resolve(name, key.allows if key is not None else _everything)
        if key is not None and not key.allows(model):
            raise self._hidden(name, model, key)
        return model

    async def admit(self, record: Record, key: Key | None, data: bytes, query: bytes) -> Ticket:
        if len(data) > BIG_BODY:
            asked = await asyncio.to_thread(read_body, data, record.route, query)
        else:
            asked = read_body(data, record.route, query)
        record.model, record.streaming, record.max_tokens = asked.model[:MAX_MODEL], asked.streaming, asked.max_tokens
        record.structured = asked.structured
        models, degraded = self._degrade(record, key, self._models(asked.model, key), asked)
        cap = self._cap(key, asked, degraded)
        lease = self._meter.admit(key, estimate(data)) if key is not None else None
        try:
            capped = asked if cap is None else msgspec.structs.replace(asked, max_tokens=cap, max_tokens_least=cap)
            target = self._fleet.pick(models[0])
            limits = self._prompt_limits(target, _own_limit(key, degraded), models[0], capped, len(data))
            if target is not None and limits is not NO_LIMITS:
                await self._check_prompt(record, target, limits, models[0], capped, data)
            return Ticket(Order(models, _body(record, asked, data, models[0], cap)), lease)
        except BaseException:
            if lease is not None:
                lease.end(0)
            raise

    def _models(self, name: str, key: Key | None) -> tuple[str, ...]:
        """What may answer: the model meant, then its fallback."""
        fallback = self._fleet.fallback(name)
        if fallback is not None and not self._may(fallback, key):
            fallback = None
        try:
            model = self.resolve(name, key)
        except Refused as refusal:
            if fallback is None or refusal.decision not in _NOBODY_HAS_IT or not self._fleet.is_served(fallback):
                raise
            if not self._may(self._fleet.aliases.get(name, name), key):
                raise
            return (fallback,)
        return (model, fallback) if fallback is not None else (model,)

    def _may(self, model: str, key: Key | None) -> bool:
        """Scopes are held against the model that is asked, whatever the caller called it."""
        return key is None or key.allows(model)

    def _hidden(self, name: str, model: str, key: Key) -> Refused:
        """The record tells a model that exists from one that does not; the reply only where the operator wants it to."""
        reason = f"key {key.id} may not use {model}"
        if self._config.deny_as == 403:
            return Refused(Decision.MODEL_NOT_ALLOWED, reason=reason, param="model")
        unknown = self._fleet.unresolved(name, key.allows)
        return Refused(Decision.MODEL_NOT_ALLOWED, unknown.message, reason=reason, param=unknown.param, shown_as=unknown.decision)

    def _degrade(self, record: Record, key: Key | None, models: tuple[str, ...], asked: Asked) -> tuple[tuple[str, ...], Degraded | None]:
        """What load shedding makes of it."""
        degraded = self._switches.decide(models[0], asked.max_tokens)
        if degraded is None:
            return models, None
        if degraded.act is Act.REROUTE:
            target = self._fleet.pick(degraded.model)
            if target is None or target.state is TargetState.OUT or not self._may(degraded.model, key):
                return models, None
            models = (degraded.model,)
        elif degraded.act is Act.CAP and not asked.max_tokens_name and not degraded.max_prompt_tokens:
            return models, None  # nothing of it to cap
        record.degraded = degraded.act.value
        if degraded.act is Act.REFUSE:
            raise Refused(Decision.OVERLOADED, reason=f"load shedding refuses {models[0]}", retry_after_s=degraded.retry_after_s)
        return models, degraded

    def _prompt_limits(self, target: Target | None, own: PromptLimits, model: str, asked: Asked, size: int) -> PromptLimits:
        """What the prompt has to be held against, `own` being the gateway's limit on it."""
        if target is None:
            return NO_LIMITS  # nobody can be asked, and nobody will answer it
        context = self._fleet.max_model_len(model, target) if self._checks_context else None
        if not context:
            return own
        if own is NO_LIMITS and size + TEMPLATE_TOKENS <= context and (asked.max_tokens_least or 0) <= context:
            return NO_LIMITS  # as nearly all: a byte is a token at most
        return msgspec.structs.replace(own, context=context)

    async def _check_prompt(self, record: Record, target: Target, limits: PromptLimits, model: str, asked: Asked, data: bytes) -> None:
        found = None
        if len(data) > BIG_BODY:
            found = await asyncio.to_thread(need, asked, data, record.route, limits, model=model)
        await self._context.check(asked, data, record.route, target.root, limits, model=model, found=found)

    def _cap(self, key: Key | None, asked: Asked, degraded: Degraded | None) -> int | None:
        """The max_tokens to write into the body; None: as it came."""
        cap = degraded.max_tokens if degraded is not None else None
        most = key.entry.max_tokens if key is not None and asked.max_tokens_name else 0
        if most and asked.max_tokens is not None and asked.max_tokens > most:
            raise Refused(
                Decision.MAX_TOKENS_TOO_LARGE,
                f"{asked.max_tokens_name} = {asked.max_tokens} is over the {most} that this API key may ask for",
                param=asked.max_tokens_name,
            )
        if most and asked.max_tokens is None:
            cap = min(most, cap or most)
        return cap if asked.max_tokens_name else None


def _everything(_: str) -> bool:
    return True


def _own_limit(key: Key | None, degraded: Degraded | None) -> PromptLimits:
    most = key.entry.max_prompt_tokens if key is not None else 0
    shed = degraded.max_prompt_tokens if degraded is not None else 0
    if shed and (not most or shed < most):
        return PromptLimits(own=shed, whose="the most that is taken while the engine is overloaded")
    return PromptLimits(own=most) if most else NO_LIMITS


def _body(record: Record, asked: Asked, data: bytes, model: str, cap: int | None) -> bytes:
    """As it came, unless an alias, a limit or load shedding makes it another."""
    is_other = model != asked.model
    if not is_other and cap is None:
        return data
    record.rewritten = tuple(name for name, is_set in (("model", is_other), (asked.max_tokens_name, cap is not None)) if is_set)
    return rewrite(data, model=model if is_other else None, max_tokens=cap, max_tokens_name=asked.max_tokens_name)
