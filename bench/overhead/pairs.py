"""Pairs of halves: the same requests to one server and then to the other, the order swapped each pair."""

import asyncio
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from gateway.load import callers
from gateway.measures import within
from gateway.process import BenchError

from overhead.figures import PLAIN, PLUGGED, Pair
from overhead.load import served
from overhead.processor import spent_us
from overhead.servers import TOKENS, Server
from overhead.sink import Told

CALLERS: Final = 8  # more than the engine has slots: none is ever free
WARM_UPS: Final = 2
FIRST_REQUESTS: Final = 8 * CALLERS
SETTLES_S: Final = 1.3  # longer than the exporter holds a record
MOST_S: Final = 120.0


@dataclass(slots=True)
class Pairs:
    """What is measured of two servers; `told` is None where neither has a plugin."""

    servers: Mapping[str, Server]
    told: Told | None
    seconds: float
    """About so long is a half pair."""

    async def measure(self, number: int) -> list[Pair]:
        """So many pairs, after some that are thrown away. Raises BenchError where a server fails, or the plugged one tells nothing."""
        requests = FIRST_REQUESTS
        for each in range(WARM_UPS):
            requests = fitting(await self._pair(each, requests), self.seconds)
        if self.told is not None and not self.told.least():
            silent = "plugin" if self.told.spans else "middleware"
            raise BenchError(f"the {silent} of the plugged engine told of no request (log: {self.servers[PLUGGED].engine.log})")
        found: list[Pair] = []
        for each in range(number):
            pair = await self._pair(each, requests)
            found.append(pair)
            ratio = pair[PLUGGED]["tokens"] / pair[PLAIN]["tokens"]
            print(f"bench-overhead: pair {each + 1} of {number}, {requests} requests each: {ratio:.3f}", file=sys.stderr, flush=True)
        return found

    async def _pair(self, number: int, requests: int) -> Pair:
        order = (PLAIN, PLUGGED) if number % 2 == 0 else (PLUGGED, PLAIN)
        return {
            arm: await self._half(self.servers[arm], self.servers[other], requests) for arm, other in zip(order, order[::-1], strict=True)
        }

    async def _half(self, server: Server, idle: Server, requests: int) -> dict[str, float]:
        """The processor's time includes that for the records, which are on their way a moment after the last reply."""
        expected = server.generated() + requests * TOKENS
        recorded = self.told.least() if self.told else 0
        async with callers(server.engine.port, CALLERS) as made:
            of_idle, before = idle.threads(), server.threads()
            async with within(MOST_S, f"the {server.arm} engine did not serve {requests} requests"):
                seconds, events = await served(made, server.request(), requests)
            await asyncio.sleep(SETTLES_S)
            after, idle_after = server.threads(), idle.threads()
        if (generated := server.generated()) != expected:
            raise BenchError(
                f"the {server.arm} engine made {generated - expected:+d} tokens beside those that {requests} requests asked for"
            )
        tokens = requests * TOKENS
        found = {
            "tokens": tokens / seconds,
            "cpu": spent_us(before, after) / tokens,
            "api_cpu": spent_us(before, after, server.engine.pid) / tokens,
            "events": events / tokens,
            "idle": 100 * spent_us(of_idle, idle_after) / 1e6 / (seconds + SETTLES_S),
        }
        if self.told is not None and server.arm == PLUGGED:
            found["recorded"] = 100 * (self.told.least() - recorded) / requests
        return found


def fitting(pair: Pair, seconds: float) -> int:
    """How many requests take about so long by what a pair has shown: whole rounds of all callers, one at least."""
    tokens = seconds * (pair[PLAIN]["tokens"] + pair[PLUGGED]["tokens"]) / 2
    return CALLERS * max(1, round(tokens / TOKENS / CALLERS))
