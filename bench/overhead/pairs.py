"""Pairs of halves: the same requests to a server with plugin and middleware switched on and off, the order swapped each pair."""

import asyncio
import sys
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
    """What is measured of a server; `alike`: it is never switched on."""

    server: Server
    told: Told
    seconds: float
    """About so long is a half pair."""
    alike: bool = False

    async def measure(self, number: int) -> list[Pair]:
        """So many pairs, after some that are thrown away. Raises BenchError where the server fails, or tells too little or too much."""
        requests = FIRST_REQUESTS
        for each in range(WARM_UPS):
            requests = fitting(await self._pair(each, requests), self.seconds)
        if not self.alike and not self.told.least():
            silent = "plugin" if self.told.spans else "middleware"
            raise BenchError(f"the engine's {silent} told of no request (log: {self.server.engine.log})")
        found: list[Pair] = []
        for each in range(number):
            pair = await self._pair(each, requests)
            found.append(pair)
            ratio = pair[PLUGGED]["tokens"] / pair[PLAIN]["tokens"]
            print(f"bench-overhead: pair {each + 1} of {number}, {requests} requests each: {ratio:.3f}", file=sys.stderr, flush=True)
        return found

    async def _pair(self, number: int, requests: int) -> Pair:
        order = (PLAIN, PLUGGED) if number % 2 == 0 else (PLUGGED, PLAIN)
        return {arm: await self._half(arm, requests) for arm in order}

    async def _half(self, arm: str, requests: int) -> dict[str, float]:
        """The processor's time includes that for the records, which are on their way a moment after the last reply."""
        server, is_on = self.server, arm == PLUGGED and not self.alike
        await asyncio.to_thread(server.switch, on=is_on)
        expected = server.generated() + requests * TOKENS
        spans, records, least = self.told.spans, self.told.records, self.told.least()
        async with callers(server.engine.port, CALLERS) as made:
            before = server.threads()
            async with within(MOST_S, f"the engine did not serve {requests} requests"):
                seconds, events = await served(made, server.request(), requests)
            await asyncio.sleep(SETTLES_S)
            after = server.threads()
        if (generated := server.generated()) != expected:
            raise BenchError(f"the engine made {generated - expected:+d} tokens beside those that {requests} requests asked for")
        if not is_on and (self.told.spans, self.told.records) != (spans, records):
            raise BenchError("plugin or middleware told of requests while they were switched off")
        tokens = requests * TOKENS
        found = {
            "tokens": tokens / seconds,
            "cpu": spent_us(before, after) / tokens,
            "api_cpu": spent_us(before, after, server.engine.pid) / tokens,
            "events": events / tokens,
        }
        if is_on:
            found["recorded"] = 100 * (self.told.least() - least) / requests
        return found


def fitting(pair: Pair, seconds: float) -> int:
    """How many requests take about so long by what a pair has shown: whole rounds of all callers, one at least."""
    tokens = seconds * (pair[PLAIN]["tokens"] + pair[PLUGGED]["tokens"]) / 2
    return CALLERS * max(1, round(tokens / TOKENS / CALLERS))
