"""Hands an admitted request to an engine: which one, how often, after what wait, and with which model in the end."""

import asyncio
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Final

import msgspec

from lensd_collectors.conventions import Decision
from lensd_collectors.gateway.body import rewrite
from lensd_collectors.gateway.config import Retry
from lensd_collectors.gateway.decisions import Refused
from lensd_collectors.gateway.fleet import Fleet, Target, TargetState
from lensd_collectors.gateway.heads import Header, Heads
from lensd_collectors.gateway.http1 import BrokenError, StaleError
from lensd_collectors.gateway.ids import IdSource, write_traceparent
from lensd_collectors.gateway.record import Record, Stop
from lensd_collectors.gateway.relay import EngineError, Relay
from lensd_collectors.gateway.reply import Sender
from lensd_collectors.gateway.upstream import Address, Client, Clock, NotTakenError, Reply
from lensd_collectors.post import parse_retry_after

MAX_STALE: Final = 3  # attempts at one engine over connections that were just being closed
_AGAIN: Final = frozenset((429, 502, 503))  # another attempt, also at the same engine, may well succeed
_BUSY: Final = frozenset((429, 503))


class Order(msgspec.Struct, frozen=True):
    """An admitted request: the body as it goes out, and the models that may answer it, in order."""

    models: tuple[str, ...]
    body: bytes


class Failure(msgspec.Struct, frozen=True):
    """Why an attempt gave no answer: the gateway's own refusal or the engine's error, passed on if it was the last."""

    answer: Refused | EngineError
    code: str
    status: int = 0
    elsewhere: bool = True  # another engine may do better, at once
    again: bool = True  # so may this one, after a wait
    least_wait_s: float = 0.0


class Dispatcher:
    """Attempts until one answers, as long as no byte has reached the caller. Raises Refused for what the gateway answers itself."""

    def __init__(self, retry: Retry, fleet: Fleet, client: Client, ids: IdSource, clock: Clock, jitter: Callable[[], float]) -> None:
        """`jitter` lies in 0..1."""
        self._retry, self._fleet, self._client, self._ids, self._clock, self._jitter = retry, fleet, client, ids, clock, jitter
        self._addresses: dict[tuple[Target, str], Address] = {}

    async def run(self, record: Record, order: Order, heads: Heads, send: Sender) -> None:
        failure: Failure | None = None
        body = order.body
        for model in order.models:
            if failure is not None:
                if not failure.elsewhere:
                    break
                record.give_up_attempt(self._clock(), failure.status, failure.code)
                body = rewrite(body, model=model, max_tokens=None, max_tokens_name="")
                record.rewritten = tuple(dict.fromkeys((*record.rewritten, "model")))
            record.dispatched_model = model
            failed = await self._with(model, record, body, heads, send)
            if failed is None:
                return
            failure = failed
        assert failure is not None
        if isinstance(failure.answer, Refused):
            raise failure.answer
        await Relay(record, send, self._clock, _ignore).deliver_error(failure.answer)

    async def _with(self, model: str, record: Record, body: bytes, heads: Heads, send: Sender) -> Failure | None:
        """All attempts with one model, each engine once before the first wait; None when one of them answered."""
        made = rounds = 0
        hopeless = False
        failure: Failure | None = None
        told: Failure | None = None  # the one that says most: one that took the request in knows more than one that is not there
        while True:
            tried: list[Target] = []
            rest_s = 0.0
            again = False
            while (target := self._fleet.pick(model, tried)) is not None:
                if target.state is TargetState.OUT:
                    if tried:
                        break  # the last resort, only where there was nothing else
                    hopeless = not made  # known to be out before: the caller can wait for it as well as we can
                if failure is not None and tried:
                    record.give_up_attempt(self._clock(), failure.status, failure.code)
                others = [*tried, target] if made < self._retry.most else None
                failure = await self._attempt(target, record, body, heads, send, others)
                if failure is None:
                    return None
                if told is None or failure.code != Decision.NO_UPSTREAM:
                    told = failure
                made += 1
                tried.append(target)
                rest_s, again = max(rest_s, failure.least_wait_s), again or failure.again
                if not failure.elsewhere or made > self._retry.most:
                    return told
            if failure is None or not tried:
                return told or Failure(self._fleet.unavailable(model), Decision.NO_UPSTREAM)
            wait_s = max(rest_s, self._retry.first_s * 2.0**rounds * (0.75 + self._jitter() / 2))
            if hopeless or not again or not self._has_time(record, wait_s, rest_s):
                return told
            record.give_up_attempt(self._clock(), failure.status, failure.code)
            record.waited = True
            rounds += 1
            await asyncio.sleep(wait_s)

    def _has_time(self, record: Record, wait_s: float, rest_s: float) -> bool:
        """No wait that is too long, or that the caller by its own word will not sit out."""
        spent_ms = (self._clock() - record.received) / 1e6
        return rest_s <= self._retry.longest_s and (record.client_timeout_ms is None or spent_ms + wait_s * 1e3 < record.client_timeout_ms)

    async def _attempt(
        self, target: Target, record: Record, body: bytes, heads: Heads, send: Sender, tried: Sequence[Target] | None
    ) -> Failure | None:
        """`tried`: this engine and those before it; None where no other may be tried any more."""
        record.engine, record.upstream, record.upstream_span_id = target.name, target.place, self._ids.span_id()
        now = record.connecting = self._clock()
        target.begin(now)
        reply: Reply | None = None
        try:
            reply = await self._post(target, record, body, self._headers(target, record, heads))
            record.waits_since = self._clock()
            if reply.status < 500 and reply.status != 401:  # one that is dead, or not ours to use, is no better for saying so
                self._fleet.answered(target, now)
            error = await Relay(record, send, self._clock, target.byte).run(reply)
        except NotTakenError as refused:
            self._fleet.refused(target, "does not take connections")
            return _failed(Decision.NO_UPSTREAM, f"{target.name} does not take connections ({refused})")
        except BrokenError as broken:
            return _failed(Decision.ENGINE_ERROR, f"{target.name}: {broken}", "the engine closed the connection before it answered")
        except Refused as refusal:
            return Failure(refusal, refusal.decision)
        except asyncio.CancelledError:
            if record.connecting and not record.sent and record.stop is Stop.CONNECT:
                self._fleet.refused(target, "does not take connections in time")
                other = self._fleet.pick(record.dispatched_model, tried) if tried is not None else None
                if other is not None and other.state is not TargetState.OUT:
                    record.go_on()
                    return _failed(Decision.NO_UPSTREAM, f"{target.name} does not take connections in time", again=False)
            raise
        finally:
            target.end(self._clock())
            if reply is not None:
                reply.close()
        return None if error is None else self._judge(target, record, error)

    def _judge(self, target: Target, record: Record, error: EngineError) -> Failure:
        """An engine's error reply: whether somebody else, or the same one later, may do better."""
        status, decision = error.reply.status, error.fault.decision
        if decision is Decision.UPSTREAM_CREDENTIAL_REFUSED:
            self._fleet.refused(target, "refuses the gateway's API key")
            return _failed(decision, f"{target.name} answered {status} to the gateway's own API key", status=status, again=False)
        if status == 403:  # engines have no rights to withhold: it is whatever guards this one
            said = "between gateway and engine: the gateway is not let through to the engine"
            answer = Refused(Decision.UPSTREAM_CREDENTIAL_REFUSED, said, reason=f"{target.name} answered 403 to the gateway")
            return Failure(answer, answer.decision, status, again=False)
        if status < 400:
            said = "the engine answered with a redirect, which is not followed"
            answer = Refused(Decision.ENGINE_ERROR, said, reason=f"{target.name} answered {status}, a redirect, which is not followed")
            return Failure(answer, answer.decision, status, again=False)
        if decision is Decision.MODEL_UNKNOWN:
            self._fleet.gone(target, record.dispatched_model)
            unknown = self._fleet.unknown(record.model)
            answer = Refused(decision, unknown.message, reason=f"{target.name} answered {status}: {error.fault.message}", param="model")
            return Failure(answer, decision, status, again=False)
        if decision is Decision.ENGINE_DEAD:
            self._fleet.refused(target, "answers that it is dead")
            return Failure(error, decision, status, again=False)  # it will not be back within our waits
        if status in _AGAIN:
            asked_s = _retry_after(error.reply, record.wall(self._clock()))
            return Failure(error, decision, status, least_wait_s=max(asked_s, self._retry.busy_s) if status in _BUSY else asked_s)
        return Failure(error, decision, status, elsewhere=False, again=False)

    async def _post(self, target: Target, record: Record, body: bytes, headers: Sequence[Header]) -> Reply:
        """The reply's head. An idle connection may be closed by the engine just as it is used again: then it is asked once more."""
        address = self._address(target, record.route)
        stale = 0
        while True:
            record.attempts, record.reused = record.attempts + 1, False
            try:
                return await self._client.post(address, headers, body, record)
            except StaleError:
                stale += 1
                if not record.reused or stale >= MAX_STALE:
                    raise
                record.connecting, record.sent = self._clock(), 0  # nothing has been handed over yet

    def _address(self, target: Target, route: str) -> Address:
        address = self._addresses.get((target, route))
        if address is None:
            address = self._addresses[target, route] = Address.of(target.root + route)
        return address

    def _headers(self, target: Target, record: Record, heads: Heads) -> list[Header]:
        headers = [
            *heads.forwarded,
            (b"x-request-id", record.request_id.encode()),
            (b"traceparent", write_traceparent(record.trace_id, record.upstream_span_id).encode()),
        ]
        if target.credential:
            headers.append((b"authorization", target.credential.encode()))
        return headers


def _failed(decision: Decision, reason: str, message: str = "", *, status: int = 0, again: bool = True) -> Failure:
    return Failure(Refused(decision, message, reason=reason), decision, status, again=again)


def _retry_after(reply: Reply, now_ns: int) -> float:
    """How many seconds an engine wants to be left alone; 0 where it does not say."""
    value = next((value for name, value in reply.headers if name == b"retry-after"), b"")
    return parse_retry_after(value.decode("latin-1"), datetime.fromtimestamp(now_ns / 1e9, UTC)) or 0.0


def _ignore(_: int) -> None:
    """An answer that has come already is no progress of the engine's."""
