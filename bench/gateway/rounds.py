"""One round: every stack measured in every way, in turns that begin with another one each time."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from gateway import measures
from gateway.figures import percentile
from gateway.process import BenchError
from gateway.stacks import Stack
from gateway.wire import CHUNKS

STREAMS_LONGER: Final = 1.5  # a chunk costs far less than a request, and processor time is counted in ticks
NEEDED: Final = ("direct", "ours")
"""Without these nothing can be said; what another stack cannot do is a problem to tell of, not an end."""


@dataclass(frozen=True, slots=True)
class Size:
    """How much is measured in a round."""

    latencies: int
    seconds: float
    tries: int


FULL: Final = Size(latencies=700, seconds=4.0, tries=20)
QUICK: Final = Size(latencies=300, seconds=2.0, tries=6)


@dataclass(slots=True)
class Rounds:
    """What is measured of these stacks in front of the engine at a port; `problems` grows by a line for each that could not be."""

    stacks: Sequence[Stack]
    engine: int
    size: Size
    problems: set[str]

    async def measure(self, number: int) -> dict[str, dict[str, float]]:
        """Figures by stack. Raises BenchError where ours, or the engine, fails."""
        found: dict[str, dict[str, float]] = {stack.name: {} for stack in self.stacks}
        parts = (self._requests, self._streams, self._behaviour)
        print(f"bench-gateway: round {number + 1}", file=sys.stderr, flush=True)
        for name, times in (await measures.latencies(self.stacks, self.size.latencies, self._failed)).items():
            found[name] |= {f"p{share}": percentile(times, share / 100) / 1e6 for share in (50, 99)}
        for figures in found.values():
            if "direct" in found and figures and figures is not found["direct"]:
                figures |= {f"added_{p}": figures[p] - found["direct"][p] for p in ("p50", "p99")}
        for part in parts:
            for stack in self._in_turn(number):
                try:
                    found[stack.name] |= await part(stack)
                except BenchError as error:
                    self._failed(stack, error)
        return found

    def _failed(self, stack: Stack, error: BenchError) -> None:
        if stack.name in NEEDED:
            raise error
        self.problems.add(str(error))

    def _in_turn(self, number: int) -> Iterator[Stack]:
        at = number % len(self.stacks)
        yield from (*self.stacks[at:], *self.stacks[:at])

    async def _requests(self, stack: Stack) -> dict[str, float]:
        spent = await measures.load(stack, self.engine, self.size.seconds, streaming=False)
        requests = spent.run.requests
        found = {"requests": requests / spent.run.seconds}
        if stack.name == "ours":
            found["recorded"] = 100 * spent.recorded / requests
        if stack.group is not None:
            found |= {"request_cpu": spent.cpu_us / requests, "requests_core": requests / spent.cpu_us * 1e6}
        return found

    async def _streams(self, stack: Stack) -> dict[str, float]:
        if stack.group is None:
            return {}
        spent = await measures.load(stack, self.engine, self.size.seconds * STREAMS_LONGER, streaming=True)
        return {"chunk_cpu": spent.cpu_us / (spent.run.requests * CHUNKS)}

    async def _behaviour(self, stack: Stack) -> dict[str, float]:
        if stack.group is None:
            return {}
        found = {"resident": await measures.resident_bytes(stack) / 2**20}
        for when, kinds in (("mid", (measures.MID_STREAM,)), ("before", measures.NOT_BEGUN)):
            took = await measures.gone_ms(stack, self.engine, self.size.tries, kinds)
            found |= {f"gone_{when}_p50": percentile(took, 0.5), f"gone_{when}_max": max(took)}
        return found
