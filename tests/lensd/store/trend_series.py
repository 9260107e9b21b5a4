"""Courses of memory over time, made up: each of a known shape, each either healthy or a leak, all from one seed.

A course of `kv` is what an engine says of its KV cache and its load every 15 s; one of `gpu` what a card says of the engine's
process every 30 s, with the engine's load beside it. Each has an engine, a host and a card of its own, so that all of them can lie
in one store. Sizes of `gpu` are MiB until they become rows.
"""

import math
import random
from collections.abc import Callable, Iterator
from typing import Final, NamedTuple

from lensd_collectors.rows import EngineSample, GpuSample, Instant

S: Final = 1_000_000
MIB: Final = 1 << 20
T0: Final = 1_790_000_000 * S
BEFORE_S: Final = 86_400  # how long before the course's first reading the engine had been started
KV_EVERY_S, KV_FOR_S = 15, 5400
GPU_EVERY_S, GPU_FOR_S = 30, 18_000
CARD_MIB: Final = 81_559


class Reading(NamedTuple):
    """`held` is a share of the KV cache, or MiB of the card; `since_s` when the process began."""

    at_s: float
    held: float
    running: int
    made: float
    since_s: float = -BEFORE_S


class Course(NamedTuple):
    """`leak_s`: when the first block or byte was lost, None where nothing leaks."""

    name: str
    kind: str
    shape: str
    readings: tuple[Reading, ...]
    leak_s: float | None = None


Make = Callable[[random.Random], tuple[list[Reading], float | None]]


def courses(seed: int, each: int = 8) -> list[Course]:
    """`each` of every shape: 208 at 8, of 26 shapes."""
    chance = random.Random(seed)
    made = []
    for kind, shapes in (("kv", KV), ("gpu", GPU)):
        for shape, make in shapes.items():
            for number in range(each):
                readings, leak_s = make(chance)
                made.append(Course(f"{kind}-{shape.replace(' ', '-')}-{number}", kind, shape, tuple(readings), leak_s))
    return made


def rows(course: Course) -> Iterator[EngineSample | GpuSample]:
    """The course as a scrape and the agent would have stored it."""
    for reading in course.readings:
        at = Instant(T0 + round(reading.at_s * S))
        start = Instant(T0 + round(reading.since_s * S))
        yield EngineSample(
            seen_at=at, engine=course.name, model="m", running=reading.running, waiting=0, generation_tokens_total=reading.made,
            kv_usage=min(reading.held, 1.0) if course.kind == "kv" else 0.1, start_at=start, up=True, src=f"scrape:{course.name}@{at}",
        )  # fmt: skip
        if course.kind == "gpu":
            used = round(reading.held) * MIB
            yield GpuSample(
                seen_at=at, host=course.name, gpu="0", used_bytes=used + 500 * MIB, free_bytes=CARD_MIB * MIB - used - 500 * MIB,
                total_bytes=CARD_MIB * MIB, util=0.9 if reading.running else 0.0, src=f"nvml:{course.name}@{at}",
            )  # fmt: skip
            yield GpuSample(
                seen_at=at, host=course.name, gpu="0", pid=round(reading.since_s) + 200_000, pid_used_bytes=used, pid_engine=course.name,
                process="VLLM::EngineCore", src=f"nvml:{course.name}/p@{at}",
            )  # fmt: skip


# --- the KV cache: bursts of work with pauses between them ---------------------------------------------------------------------------


def kv(
    chance: random.Random,
    *,
    lost: Callable[[float], float] = lambda work: 0.0,
    busy_s: tuple[float, float] = (200, 500),
    idle_s: tuple[float, float] = (90, 400),
    peak: tuple[float, float] = (0.2, 0.9),
    release_s: float = 0.0,
    restart_s: float | None = None,
    first_idle_s: float = 120.0,
) -> list[Reading]:
    """`lost`: share lost after so many seconds of work of one process. `release_s`: how long it takes to fall at a burst's end."""
    readings, made, work, since, left = [], 0.0, 0.0, float(-BEFORE_S), 0.0
    until, busy, top, at = first_idle_s, False, 0.0, 0.0
    while at < KV_FOR_S:
        if at >= until:
            left = top if busy else 0.0
            busy = not busy
            top = chance.uniform(*peak)
            ended, until = at, at + chance.uniform(*(busy_s if busy else idle_s))
        if restart_s is not None and since < 0 and at >= restart_s:
            since, made, work, busy, left, until = restart_s, 0.0, 0.0, False, 0.0, at + 90
        work += KV_EVERY_S if busy else 0
        made += chance.uniform(500, 3000) if busy else 0
        floor = lost(work)
        falling = max(0.0, left * (1 - (at - ended) / release_s)) if not busy and release_s and left else 0.0
        used = min(1.0, floor + top * chance.uniform(0.6, 1.0) * (1 - floor)) if busy else max(floor, falling)
        if left and at - ended < KV_EVERY_S and chance.random() < 0.3:
            used = max(used, left)  # read in the very moment of the last end
        readings.append(Reading(at + chance.uniform(-0.4, 0.4), round(used, 4), chance.randint(1, 30) if busy else 0, made, since))
        at += KV_EVERY_S
    return readings


def first_loss(readings: list[Reading], after_s: float = 0.0) -> float:
    """When work began: from there on blocks are lost."""
    return next(reading.at_s for reading in readings if reading.running and reading.at_s >= after_s)


def kv_leak(**about: object) -> Make:
    def make(chance: random.Random) -> tuple[list[Reading], float | None]:
        a_second = chance.uniform(*about.get("pace", (0.0001, 0.0008)))  # type: ignore[misc]
        step = chance.uniform(0.02, 0.06) if about.get("steps") else None
        gap = about.get("gaps")
        restart = chance.uniform(1500, 2400) if about.get("restart") else None
        readings = kv(
            chance, lost=lambda work: min(0.98, step * math.floor(work * a_second / step) if step else work * a_second), restart_s=restart
        )
        begun = first_loss(readings)
        return (with_gaps(chance, readings) if gap else readings), begun

    return make


def kv_well(**about: object) -> Make:
    def make(chance: random.Random) -> tuple[list[Reading], float | None]:
        given = {name: value(chance) if callable(value) else value for name, value in about.items()}
        gaps = given.pop("gaps", False)
        readings = kv(chance, **given)  # type: ignore[arg-type]
        return (with_gaps(chance, readings) if gaps else readings), None

    return make


def kv_day(chance: random.Random) -> tuple[list[Reading], float | None]:
    """A load that swells over the hours, with nobody ever gone; the pauses at its ends are empty."""
    readings, made = [], 0.0
    for number in range(KV_FOR_S // KV_EVERY_S):
        share = math.sin(math.pi * number * KV_EVERY_S / KV_FOR_S)
        running = round(30 * share * chance.uniform(0.8, 1.2))
        made += 100 * running
        readings.append(Reading(number * KV_EVERY_S, 0.9 * share * chance.uniform(0.9, 1.0) if running else 0.0, running, made))
    return readings, None


def kv_full(chance: random.Random) -> tuple[list[Reading], float | None]:
    """Warmed up to a full cache that stays full: it is at work."""
    readings = []
    for number in range(KV_FOR_S // KV_EVERY_S):
        used = (1 - math.exp(-number / 20)) * chance.uniform(0.93, 0.99)
        readings.append(Reading(number * KV_EVERY_S, used, chance.randint(15, 25), 900.0 * number))
    return readings, None


def with_gaps(chance: random.Random, readings: list[Reading]) -> list[Reading]:
    """Without a fifth of the readings, and without two stretches of some minutes."""
    holes = [chance.uniform(0, readings[-1].at_s) for _ in range(2)]
    long = readings[-1].at_s / 18
    return [one for one in readings if chance.random() > 0.2 and not any(hole <= one.at_s <= hole + long for hole in holes)]


KV: Final[dict[str, Make]] = {
    "empty when idle": kv_well(),
    "full at work": kv_full,
    "a day's load": kv_day,
    "sawtooth": kv_well(busy_s=(60, 120), idle_s=(30, 60), peak=(0.6, 0.95)),
    "noise": kv_well(busy_s=(15, 60), idle_s=(15, 90), peak=(0.05, 0.6)),
    "slow to let go": kv_well(release_s=lambda chance: chance.uniform(15, 50)),
    "gaps, well": kv_well(gaps=True),
    "restarted, well": kv_well(restart_s=lambda chance: chance.uniform(1000, 4000)),
    "growing": kv_leak(),
    "growing in steps": kv_leak(steps=True),
    "growing slowly": kv_leak(pace=(0.00004, 0.00008)),
    "growing, gaps": kv_leak(gaps=True),
    "growing, restarted": kv_leak(restart=True),
}


# --- the card: what the engine's process holds ---------------------------------------------------------------------------------------


def gpu(
    chance: random.Random, held: Callable[[float], float], *, load: str = "bursts", noise: float = 4.0, restart_s: float | None = None
) -> list[Reading]:
    """`held`: MiB above what was taken at the start, by the age of the last process. `load`: bursts, a day, or always."""
    base = chance.uniform(40_000, 72_000)
    readings, made, until, busy = [], 0.0, 0.0, False
    for number in range(GPU_FOR_S // GPU_EVERY_S):
        at = number * GPU_EVERY_S
        if at >= until:
            busy, until = not busy, at + chance.uniform(200, 900)
        share = math.sin(2 * math.pi * at / GPU_FOR_S - math.pi / 2) / 2 + 0.5
        running = {"bursts": chance.randint(1, 20) if busy else 0, "day": round(20 * share), "always": chance.randint(8, 12)}[load]
        made += 200 * running
        since = restart_s if restart_s is not None and at >= restart_s else -BEFORE_S
        if restart_s is not None and 0 <= at - restart_s < 120:
            continue
        age = at - since if since > 0 else 0.0 if restart_s is not None else at
        readings.append(Reading(at, base + held(age) + chance.gauss(0, noise), running, made, since))
    return readings


def gpu_of(course: Callable[[random.Random], Callable[[float], float]], leaks: bool = False, **about: object) -> Make:
    def make(chance: random.Random) -> tuple[list[Reading], float | None]:
        held = course(chance)
        given = {name: value(chance) if callable(value) else value for name, value in about.items()}
        gaps = given.pop("gaps", False)
        readings = gpu(chance, held, **given)  # type: ignore[arg-type]
        begun = float(given.get("restart_s", 0.0)) if leaks else None  # type: ignore[arg-type]
        return (with_gaps(chance, readings) if gaps else readings), begun

    return make


def flat(chance: random.Random) -> Callable[[float], float]:
    return lambda age: 0.0


def warming(chance: random.Random) -> Callable[[float], float]:
    """Towards a level, quickly or over an hour."""
    level, time = chance.uniform(300, 3000), chance.uniform(200, 3000)
    return lambda age: level * (1 - math.exp(-age / time))


def one_step(chance: random.Random) -> Callable[[float], float]:
    begun, size = chance.uniform(600, GPU_FOR_S), chance.uniform(300, 2500)
    return lambda age: size if age >= begun else 0.0


def some_steps(chance: random.Random) -> Callable[[float], float]:
    steps = [(chance.uniform(600, GPU_FOR_S), chance.uniform(300, 2500)) for _ in range(chance.randint(2, 4))]
    return lambda age: sum(size for at, size in steps if age >= at)


def teeth(chance: random.Random) -> Callable[[float], float]:
    """A cache that fills and is emptied."""
    size, time = chance.uniform(300, 2000), chance.uniform(300, 3600)
    return lambda age: size * (age % time) / time


def wandering(chance: random.Random) -> Callable[[float], float]:
    """Noise that remembers: a cache that grows and shrinks by itself, over a quarter of an hour or an hour."""
    spread, time = chance.uniform(100, 400), chance.uniform(900, 3600)
    keep = math.exp(-GPU_EVERY_S / time)
    levels = [chance.gauss(0, spread)]
    while len(levels) <= GPU_FOR_S // GPU_EVERY_S:
        levels.append(keep * levels[-1] + chance.gauss(0, spread * math.sqrt(1 - keep * keep)))
    return lambda age: levels[min(int(age) // GPU_EVERY_S, len(levels) - 1)]


def daily(chance: random.Random) -> Callable[[float], float]:
    """It follows the load and goes with it."""
    size = chance.uniform(400, 2500)
    return lambda age: size * (math.sin(2 * math.pi * age / GPU_FOR_S - math.pi / 2) / 2 + 0.5)


def straight(low: float, high: float) -> Callable[[random.Random], Callable[[float], float]]:
    def course(chance: random.Random) -> Callable[[float], float]:
        an_hour = chance.uniform(low, high)
        return lambda age: an_hour * age / 3600

    return course


def stairs(chance: random.Random) -> Callable[[float], float]:
    size, time = chance.uniform(60, 400), chance.uniform(300, 720)
    return lambda age: size * math.floor(age / time)


GPU: Final[dict[str, Make]] = {
    "level": gpu_of(flat),
    "warming up": gpu_of(warming),
    "one step": gpu_of(one_step),
    "some steps": gpu_of(some_steps),
    "sawtooth": gpu_of(teeth),
    "noise": gpu_of(flat, noise=lambda chance: chance.uniform(50, 200), load="always"),
    "wandering": gpu_of(wandering),
    "a day's load": gpu_of(daily, load="day"),
    "restarted, well": gpu_of(warming, restart_s=lambda chance: chance.uniform(3600, 12_000)),
    "growing": gpu_of(straight(400, 2500), leaks=True),
    "growing in steps": gpu_of(stairs, leaks=True),
    "growing in noise": gpu_of(straight(250, 800), leaks=True, noise=lambda chance: chance.uniform(10, 40), load="always"),
    "growing, gaps, restarted": gpu_of(straight(400, 2500), leaks=True, gaps=True, restart_s=lambda chance: chance.uniform(2000, 5000)),
}
