"""Pairs of slices of one steady load, with plugin and middleware switched on and off between them, in rounds of two pairs."""

import asyncio
import random
import sys
import time
from dataclasses import dataclass, field
from typing import Final

from gateway.load import callers
from gateway.measures import within
from gateway.process import BenchError

from overhead.figures import PLAIN, PLUGGED, Pair
from overhead.load import Steady
from overhead.processor import spent_us
from overhead.servers import TOKENS, Server
from overhead.sink import Told

CALLERS: Final = 8  # more than the engine has slots: none is ever free
WARM_UP_S: Final = 6.0
SETTLES_S: Final = 1.3  # longer than the exporter holds a record
MOST_S: Final = 120.0
ROUNDS: Final = ((PLAIN, PLUGGED, PLUGGED, PLAIN), (PLUGGED, PLAIN, PLAIN, PLUGGED))


@dataclass(slots=True)
class Pairs:
    """What is measured of a server; `alike`: it is never switched on.

    Which arm a round begins with is drawn by lot: whatever the machine does from slice to slice, the errors of any two rounds are
    then uncorrelated and as likely up as down. A slice begins when the records of the slice before have been sent, so that what
    the exporter does meanwhile belongs to it; no request spans a switch.
    """

    server: Server
    told: Told
    seconds: float
    """Of a slice."""
    lots: random.Random
    alike: bool = False
    recorded: float | None = None
    """% of the requests that were sent while it was switched on; None where it never was."""
    _arm: str = ""
    _begun: "_Phase" = field(init=False)
    _to_tell: int = 0
    _counted: dict[str, "_Counted"] = field(default_factory=lambda: {arm: _Counted() for arm in (PLAIN, PLUGGED)})

    async def measure(self, number: int) -> list[Pair]:
        """So many pairs, an even number. Raises BenchError where the server fails, or tells too little or too much."""
        found: list[dict[str, _Slice]] = []
        async with callers(self.server.engine.port, CALLERS) as made:
            load = Steady(made, self.server.request())
            await self._warm_up(load)
            spans, records, self._to_tell = self.told.spans, self.told.records, 0
            for each in range(0, number, 2):
                arms = self.lots.choice(ROUNDS)
                slices = [(arm, await self._slice(load, arm)) for arm in arms]
                found += [dict(slices[:2]), dict(slices[2:])]
                shown = " ".join(f"{pair[PLUGGED].rate / pair[PLAIN].rate:.3f}" for pair in found[-2:])
                print(f"bench-overhead: pairs {each + 1} and {each + 2} of {number}: {shown}", file=sys.stderr, flush=True)
            await self._end_phase(load)
            await asyncio.sleep(SETTLES_S)
        if self._to_tell:
            self.recorded = 100 * min(self.told.spans - spans, self.told.records - records) / self._to_tell
        return [{arm: self._counted[arm].figures(taken) for arm, taken in pair.items()} for pair in found]

    async def _warm_up(self, load: Steady) -> None:
        for arm in (PLAIN, PLUGGED, PLAIN):
            await self._turn(load, arm)
            await asyncio.sleep(WARM_UP_S / 3)
        if not self.alike and not self.told.least():
            silent = "plugin" if self.told.spans else "middleware"
            raise BenchError(f"the engine's {silent} told of no request (log: {self.server.engine.log})")

    async def _slice(self, load: Steady, arm: str) -> "_Slice":
        if arm != self._arm:
            await self._turn(load, arm)
        before, events, began = self.server.threads(), load.events(), time.perf_counter()
        await asyncio.sleep(self.seconds)
        seconds, more, after = time.perf_counter() - began, load.events() - events, self.server.threads()
        return _Slice(more / seconds, spent_us(before, after) / more, spent_us(before, after, self.server.engine.pid) / more)

    async def _turn(self, load: Steady, arm: str) -> None:
        """From one arm to the other, with nothing under way in between."""
        if self._arm:
            await self._end_phase(load)
        self._arm = arm
        await asyncio.to_thread(self.server.switch, on=self._is_on)
        generated, requests, events = await asyncio.to_thread(self.server.generated), load.requests, load.events()
        load.start()
        await asyncio.sleep(SETTLES_S)
        self._begun = _Phase(generated, requests, events, self.told.spans, self.told.records)

    async def _end_phase(self, load: Steady) -> None:
        async with within(MOST_S, "the engine did not serve what it was asked"):
            await load.pause()
        begun, requests = self._begun, load.requests - self._begun.requests
        made = await asyncio.to_thread(self.server.generated) - begun.generated
        if made != requests * TOKENS:
            raise BenchError(f"the engine made {made} tokens of the {requests * TOKENS} that {requests} requests asked for")
        self._counted[self._arm].tokens += made
        self._counted[self._arm].events += load.events() - begun.events
        if self._is_on:
            self._to_tell += requests
        elif (self.told.spans, self.told.records) != (begun.spans, begun.records):
            raise BenchError("plugin or middleware told of requests while they were switched off")

    @property
    def _is_on(self) -> bool:
        return self._arm == PLUGGED and not self.alike


@dataclass(frozen=True, slots=True)
class _Phase:
    """What had been counted when a phase began; `spans` and `records` when it had settled."""

    generated: int
    requests: int
    events: int
    spans: int
    records: int


@dataclass(frozen=True, slots=True)
class _Slice:
    rate: float
    """Events of the streams, a second."""
    cpu_us: float
    """An event, of all processes."""
    api_cpu_us: float


@dataclass(slots=True)
class _Counted:
    """Of an arm's phases, which are whole: how many events its tokens came in."""

    tokens: int = 0
    events: int = 0

    def figures(self, taken: _Slice) -> dict[str, float]:
        events = self.events / self.tokens
        return {"tokens": taken.rate / events, "cpu": taken.cpu_us * events, "api_cpu": taken.api_cpu_us * events, "events": events}
