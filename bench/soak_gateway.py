"""Whether our gateway leaks: very many requests with callers that leave or do not read, engines that die, records that nobody takes.

usage: soak_gateway.py [--requests N] [--dev N] [--together N] [--seed N]

A real gateway process before three fake engines. Afterwards nothing may be left of it all: no open request, task, socket or counter,
and memory must not have grown. A second, shorter part runs it under `python -X dev`, which tells of what was never closed. Prints a
table and, as its last line, one JSON object; a full run is also kept in bench/results/soak.json. Exits 0 only if every budget holds.
"""

import argparse
import asyncio
import contextlib
import json
import random
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any, Final

import uvloop
from gateway.process import BenchError
from gateway.soak import house, probe, verdict, weather
from gateway.soak.callers import Book, Callers
from gateway.soak.house import House
from gateway.soak.mix import deal
from gateway.soak.probe import Held
from gateway.soak.verdict import Budget, Found, Sample
from origin import origin

ROOT: Final = Path(__file__).resolve().parent.parent
REQUESTS: Final = 200_000
DEV_SHARE: Final = 20
TOGETHER: Final = 128
SAMPLE_EVERY_S: Final = 0.05
TELL_EVERY_S: Final = 5.0
QUIET_WITHIN_S: Final = 45.0
LEAST_LOOKS: Final = 3  # of which the best counts: a few tasks of its own come and go
COMPLAINTS_SHOWN: Final = 12


class Part:
    """One gateway process and what it was put through."""

    def __init__(self, name: str, at: House, number: int, together: int, source: random.Random) -> None:
        self.name, self.at, self._source = name, at, source
        kinds = deal(source, number)
        self._number = len(kinds)
        self._callers = Callers(at.port, at.keys.secrets, kinds, together, source)
        self._samples: list[Sample] = []
        self.seconds = self.cpu_us = 0.0
        self.twice = 0
        self.complaints: list[str] = []
        self.after: Held | None = None

    @property
    def book(self) -> Book:
        return self._callers.book

    async def run(self) -> Found:
        before = self._least(await self._looks())
        began, cpu = time.monotonic(), self.at.gateway.cpu_us()
        await self._call()
        self.seconds, self.cpu_us = time.monotonic() - began, self.at.gateway.cpu_us() - cpu
        self._sample()
        after = self.after = await self._until_quiet(before)
        self._callers.let_go()
        exit_status = await asyncio.to_thread(self.at.stop_gateway)
        recorded, self.twice = await asyncio.to_thread(self.at.door.count)
        self.complaints = self.at.complaints()
        early, late = verdict.memory(self._samples)
        return Found(
            sent=self.book.requests,
            counted=after.ended,
            silent=self.book.silent.total(),
            broken=self.book.broken.total(),
            wrong=self.book.wrong.total(),
            open_requests=after.open_requests,
            in_flight=after.in_flight + after.upstream_in_flight,
            key_in_flight=after.key_in_flight,
            tasks=after.tasks - before.tasks,
            files=after.files - before.files,
            early_mib=early,
            late_mib=late,
            recorded=recorded,
            dropped=after.dropped,
            complaints=len(self.complaints),
            exit_status=exit_status,
        )

    async def _call(self) -> None:
        """Until the callers are done; what else goes on ends with them, or ends all this where it fails."""
        tasks = [asyncio.create_task(each) for each in (self._callers.run(), self._watch(), weather.run(self.at, self._source))]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        for task in done:
            task.result()

    async def _look(self) -> Held:
        return await asyncio.to_thread(probe.look, self.at.port, self.at.gateway.process.pid)

    async def _looks(self) -> list[Held]:
        found = []
        for _ in range(LEAST_LOOKS):
            found.append(await self._look())
            await asyncio.sleep(0.3)
        return found

    @staticmethod
    def _least(looks: Sequence[Held]) -> Held:
        return min(looks, key=lambda each: (each.tasks, each.files))

    async def _until_quiet(self, before: Held) -> Held:
        """As it is when nothing is left, or when that has not come about in time. Callers that are stuck are still there."""
        deadline = time.monotonic() + QUIET_WITHIN_S
        while True:
            held = await self._look()
            recorded, _ = await asyncio.to_thread(self.at.door.count)
            is_told = recorded + held.dropped >= held.ended
            if held.is_quiet and held.tasks <= before.tasks and held.files <= before.files and is_told:
                return held
            if time.monotonic() > deadline:
                return self._least(await self._looks())
            await asyncio.sleep(0.25)

    async def _watch(self) -> None:
        told, told_at = 0, time.monotonic()
        while True:
            await asyncio.sleep(SAMPLE_EVERY_S)
            self.at.gateway.check()
            self._sample()
            if (passed := time.monotonic() - told_at) >= TELL_EVERY_S:
                await self._tell((self.book.ended - told) / passed)
                told, told_at = self.book.ended, time.monotonic()

    def _sample(self) -> None:
        self._samples.append(Sample(self.book.ended / self._number, probe.resident(self.at.gateway.process.pid)))

    async def _tell(self, rate: float) -> None:
        with contextlib.suppress(OSError):
            held = await self._look()
            print(
                f"soak-gateway: {self.name}: {self.book.ended:>7,} of {self._number:,}, {rate:,.0f}/s, "
                f"{held.open_requests} open, {held.tasks} tasks, {held.files} files, {held.resident / verdict.MIB:.1f} MiB, "
                f"{self.at.engines.deaths} engines died, {held.dropped} records dropped",
                file=sys.stderr,
                flush=True,
            )


def figures(part: Part, found: Found) -> Iterator[tuple[str, float, str]]:
    """What is worth knowing beside the budgets."""
    assert part.after is not None
    yield "requests", found.sent, "requests"
    yield "rate", round(part.book.ended / part.seconds), "requests/s"
    yield "request_cpu", round(part.cpu_us / max(1, found.counted)), "us"
    yield "memory_early", round(found.early_mib, 1), "MiB"
    yield "memory_late", round(found.late_mib, 1), "MiB"
    yield "memory_quiet", round(part.after.resident / verdict.MIB, 1), "MiB"
    yield "engines_killed", part.at.engines.deaths, "times"
    yield "engines_frozen", part.at.engines.freezes, "times"
    yield "keys_written", part.at.keys.writes, "times"
    yield "callers_stuck", part.book.stuck, "callers"
    yield "records_dropped", found.dropped, "requests"
    yield "records_twice", part.twice, "requests"
    for outcome, number in sorted(part.after.outcomes.items()):
        yield f"outcome_{outcome}", number, "requests"


def tell(part: Part, found: Found) -> list[Budget]:
    """Prints a part's figures and budgets."""
    print(f"\n{part.name}")
    for name, value, unit in figures(part, found):
        print(f"  {name.replace('_', ' '):<58}{value:>12,} {unit}")
    decided = list(verdict.budgets(found))
    for budget in decided:
        print(f"  {budget.name:<62}{budget.limit:>8g}{budget.value:>10g}  {'held' if budget.held else 'NOT HELD'}")
    for what, counts in (("wrong", part.book.wrong), ("broken", part.book.broken), ("silent", part.book.silent)):
        for key, number in counts.most_common(COMPLAINTS_SHOWN):
            print(f"  {what}: {key}: {number}")
    for line in part.complaints[:COMPLAINTS_SHOWN]:
        print(f"  log: {line[:200]}")
    return decided


def document(told: Sequence[tuple[Part, Found, Sequence[Budget]]]) -> dict[str, Any]:
    found = {f"{part.name}_{name}": {"value": value, "unit": unit} for part, each, _ in told for name, value, unit in figures(part, each)}
    decided = [
        {"name": f"{part.name}: {budget.name}", "limit": budget.limit, "value": budget.value, "held": budget.held}
        for part, _, of_part in told
        for budget in of_part
    ]
    return {**origin("soak"), "figures": found, "ratios": {}, "budgets": decided}


def soak(name: str, number: int, together: int, seed: int) -> tuple[Part, Found]:
    with contextlib.ExitStack() as held:
        folder = Path(held.enter_context(tempfile.TemporaryDirectory(prefix="soak-gateway-")))
        at = held.enter_context(house.opened(folder, together, is_dev=name == "dev"))
        part = Part(name, at, number, together, random.Random(seed))
        return part, uvloop.run(part.run())


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Whether our gateway leaks.")
    parser.add_argument("--requests", type=int, default=REQUESTS, metavar="N", help=f"default: {REQUESTS}")
    parser.add_argument("--dev", type=int, default=None, metavar="N", help=f"requests under -X dev; default: 1 for {DEV_SHARE}; 0: none")
    parser.add_argument("--together", type=int, default=TOGETHER, metavar="N", help=f"callers at a time; default: {TOGETHER}")
    parser.add_argument("--seed", type=int, default=1, metavar="N", help="another order of events")
    arguments = parser.parse_args()
    if arguments.dev is None:
        arguments.dev = arguments.requests // DEV_SHARE
    return arguments


def end_in_order(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main() -> int:
    arguments = read_arguments()
    signal.signal(signal.SIGTERM, end_in_order)
    told: list[tuple[Part, Found, Sequence[Budget]]] = []
    try:
        for name, number in (("plain", arguments.requests), ("dev", arguments.dev)):
            if number:
                part, found = soak(name, number, arguments.together, arguments.seed)
                told.append((part, found, tell(part, found)))
    except (BenchError, OSError) as error:
        print(f"soak-gateway: {error}", file=sys.stderr)
        return 1
    except (KeyboardInterrupt, asyncio.CancelledError):
        return 130
    line = json.dumps(document(told))
    if arguments.requests >= REQUESTS and arguments.dev:
        (ROOT / "bench" / "results" / "soak.json").write_text(line + "\n")
    print(line)
    return 0 if all(budget.held for _, _, decided in told for budget in decided) else 1


if __name__ == "__main__":
    sys.exit(main())
