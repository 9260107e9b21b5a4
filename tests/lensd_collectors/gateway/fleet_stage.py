"""A fleet of engines that answer as a test says, with a clock that the test moves."""

import asyncio
import json

import pytest
from lensd_collectors.gateway.config import GatewayConfig, Upstream
from lensd_collectors.gateway.decisions import Refused
from lensd_collectors.gateway.fleet import Fleet, TargetState

LOADING, READY, STALLED, OUT = TargetState.LOADING, TargetState.READY, TargetState.STALLED, TargetState.OUT
S = 1_000_000_000


def models(*cards):
    """A model list; a string is a name, a pair an adapter and its model."""
    listed = [
        {"id": card, "max_model_len": 512, "root": "/srv/secret"} if isinstance(card, str) else {"id": card[0], "parent": card[1]}
        for card in cards
    ]
    return 200, json.dumps({"object": "list", "data": listed}).encode()


class Engines:
    """A client whose engines answer as the test says: a status and body, or an exception. Port 1 is engine a, and so on."""

    def __init__(self, **answers):
        self.answers = answers
        self.asked = []
        self.meanwhile = lambda: None

    async def ask(self, method, url, *, headers, body, timeout_s, most):
        assert (method, body) == ("GET", None)
        assert timeout_s <= 2
        assert most == 4 << 20
        name = "abcd"[int(url.removesuffix("/v1/models").removeprefix("http://h:")) - 1]
        self.asked.append((name, dict(headers)))
        self.meanwhile()
        answer = self.answers[name]
        if isinstance(answer, Exception):
            raise answer
        return answer


class Stage:
    """A fleet with a clock that the test moves, and all that it reported."""

    def __init__(self, engines="ab", configured=(), **settings):
        self.now = 100 * S
        self.acts = []
        upstreams = tuple(Upstream(url=f"http://h:{number}", name=name, models=configured) for number, name in enumerate(engines, 1))
        config = GatewayConfig(**{"upstreams": upstreams, "stall_after_s": 30, **settings})
        self.fleet = Fleet(config, lambda act, engine, why: self.acts.append((act, engine, why)), lambda: self.now)
        self.client = Engines(**{name: models("m") for name in engines})

    def __getattr__(self, name):
        return next(target for target in self.fleet.targets if target.name == name)

    def refresh(self, **answers):
        self.client.answers |= answers
        asyncio.run(self.fleet.refresh(self.client))
        return self

    def told(self):
        """The acts since the last call, without their texts."""
        told, self.acts = [(act, engine) for act, engine, _ in self.acts], []
        return told

    def pick(self, model="m", tried=()):
        target = self.fleet.pick(model, tried)
        return target.name if target is not None else None

    def refusal(self, name, visible=None):
        with pytest.raises(Refused) as caught:
            self.fleet.resolve(name, visible)
        return caught.value
