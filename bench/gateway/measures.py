"""What is measured of each stack: latency, processor time, memory, and how soon the engine learns that a caller has left."""

import asyncio
import contextlib
import http.client
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass
from typing import Final

from gateway import wire
from gateway.load import Caller, Run, ask, callers, take_turns
from gateway.process import BenchError
from gateway.stacks import Stack

BLOCK: Final = 10  # requests to one stack before the next has its turn
CONCURRENCY: Final = 32
OPEN_STREAMS: Final = 256
SETTLES_S: Final = 1.5  # longer than records wait in any proxy
ANSWERS_WITHIN_S: Final = 60.0
GONE_WITHIN_S: Final = 1.0
GIVE_UP_AFTER: Final = 3  # tries in which the engine was told nothing

MID_STREAM: Final = (wire.wish(chunks=1_000_000, tag="{}"), True)
NOT_BEGUN: Final = ((wire.wish(hold=True, tag="{}"), True), (wire.wish(hold=True, tag="{}"), False))


@dataclass(frozen=True, slots=True)
class Spent:
    """A run of callers and the proxy's processor time for it."""

    run: Run
    cpu_us: float
    recorded: int  # requests of which the sink was told meanwhile


@contextlib.asynccontextmanager
async def within(seconds: float, failure: str) -> AsyncIterator[None]:
    """Raises BenchError, saying `failure`, where the block takes longer."""
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise BenchError(f"{failure} within {seconds:.0f} s") from None


async def latencies(stacks: Sequence[Stack], number: int, failed: Callable[[Stack, BenchError], None]) -> dict[str, list[int]]:
    """Nanoseconds of `number` requests to each stack at concurrency 1, in small blocks that take turns, so that noise hits all.

    A stack that fails a request is handed to `failed` and has no more turns.
    """
    took: dict[str, list[int]] = {}
    requests = {stack.name: stack.request() for stack in stacks}
    async with contextlib.AsyncExitStack() as held:
        made = {stack.name: (await held.enter_async_context(callers(stack.port, 1)))[0] for stack in stacks}
        left = list(stacks)
        for block in range(-1, -(-number // BLOCK)):  # the first one warms up
            for stack in list(left):
                try:
                    times = await _block(stack, made[stack.name], requests[stack.name])
                except BenchError as error:
                    failed(stack, error)
                    left.remove(stack)
                    took.pop(stack.name, None)
                    continue
                if block >= 0:
                    took.setdefault(stack.name, []).extend(times)
    return took


async def _block(stack: Stack, caller: Caller, request: bytes) -> list[int]:
    async with within(ANSWERS_WITHIN_S, f"{stack.name} did not answer {BLOCK} requests"):
        times = [await ask(caller, request) for _ in range(BLOCK)]
    if not all(times):
        raise BenchError(f"{stack.name} failed a request at concurrency 1: status {caller.status}")
    return times


async def load(stack: Stack, engine: int, seconds: float, *, streaming: bool) -> Spent:
    """As many requests, or streams, as 32 callers get done; their streams begin apart, as those of strangers do.

    Before and after it the proxy has time to send off its records: their cost belongs to the requests they tell of.
    """
    request = stack.request(streaming=streaming, wish=wire.wish() if streaming else "")
    await asyncio.sleep(SETTLES_S)
    async with callers(stack.port, CONCURRENCY) as made:
        told, before = records(engine), stack.cpu_us()
        async with within(seconds + ANSWERS_WITHIN_S, f"{stack.name} did not end what {CONCURRENCY} callers asked"):
            run = await take_turns(made, request, seconds, spread_s=wire.GAP_MS / 1000 if streaming else 0.0)
        await asyncio.sleep(SETTLES_S)
        spent = Spent(run, stack.cpu_us() - before, records(engine) - told)
    if run.failed * 100 > run.requests:
        raise BenchError(f"{stack.name} failed {run.failed} of {run.requests} {'streams' if streaming else 'requests'}")
    if streaming and run.frames * 10 < run.requests * wire.CHUNKS * 9:
        raise BenchError(f"{stack.name} passed {run.frames} chunks of {run.requests} streams of {wire.CHUNKS}")
    return spent


async def resident_bytes(stack: Stack) -> int:
    """Memory of the proxy while 256 streams are open."""
    assert stack.group is not None
    request = stack.request(streaming=True, wish=wire.wish(gap_ms=1000, chunks=1000))
    opened = asyncio.Semaphore(0)
    async with callers(stack.port, OPEN_STREAMS) as made:
        for caller in made:
            caller.begun = opened.release
            caller.send(request)
        async with within(ANSWERS_WITHIN_S, f"{stack.name} did not open {OPEN_STREAMS} streams"):
            for _ in made:
                await opened.acquire()
        await asyncio.sleep(1.0)
        wrong = [caller.status for caller in made if caller.status != 200]
        if wrong:
            raise BenchError(f"{stack.name} answered {len(wrong)} of {OPEN_STREAMS} streams with {wrong[0]}")
        return stack.group.resident_bytes()


class Events:
    """What the engine tells of tagged requests: (what, tag) → the instant, on the clock that all processes share."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        self._reader = reader

    async def until(self, what: str, tag: str) -> int:
        while line := await self._reader.readline():
            kind, about, at = line.decode().split()
            if (kind, about) == (what, tag):
                return int(at)
        raise BenchError("the fake engine has ended")


@contextlib.asynccontextmanager
async def events(engine: int) -> AsyncIterator[Events]:
    reader, writer = await asyncio.open_connection("127.0.0.1", engine)
    writer.write(b"GET /bench/events HTTP/1.1\r\n\r\n")
    try:
        yield Events(reader)
    finally:
        writer.close()


async def gone_ms(stack: Stack, engine: int, tries: int, kinds: Sequence[tuple[str, bool]]) -> list[float]:
    """From the caller's leaving to the lost connection at the engine's socket, a try each; infinite where the engine was told nothing."""
    took: list[float] = []
    async with events(engine) as told:
        for number in range(tries):
            wish, streaming = kinds[number % len(kinds)]
            tag = f"{stack.name}-{time.monotonic_ns()}"
            request = stack.request(wish=wish.replace("{}", tag), streaming=streaming)
            async with callers(stack.port, 1) as made:
                async with within(ANSWERS_WITHIN_S, f"{stack.name} did not pass on a request that is to be broken off"):
                    await _begin(made[0], request, told, tag, is_held="hold=1" in wish)
                left = time.monotonic_ns()
            try:
                async with asyncio.timeout(GONE_WITHIN_S):
                    took.append((await told.until("gone", tag) - left) / 1e6)
            except TimeoutError:
                took.append(float("inf"))
            if took.count(float("inf")) >= GIVE_UP_AFTER:
                break
    return took


async def _begin(caller: Caller, request: bytes, told: Events, tag: str, *, is_held: bool) -> None:
    """Returns when the request is with the engine, and its first bytes with the caller where it is to answer."""
    begun = asyncio.Event()
    caller.begun = begun.set
    caller.send(request)
    await told.until("begun", tag)
    if not is_held:
        await begun.wait()
    await asyncio.sleep(0.03)  # into the middle of it


def records(engine: int) -> int:
    """Requests whose records have reached the sink so far."""
    connection = http.client.HTTPConnection("127.0.0.1", engine, timeout=30)
    try:
        connection.request("GET", "/bench/records")
        return int(connection.getresponse().read())
    finally:
        connection.close()
