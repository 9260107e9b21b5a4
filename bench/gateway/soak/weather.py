"""What befalls engines, OTLP door and keys file while callers call; seeded, so that a run can be had again."""

import asyncio
import contextlib
import itertools
import random
from typing import Final

from gateway.soak.door import Mood
from gateway.soak.house import ENGINES, House

MOODS: Final = (
    (Mood.GOOD, 4.0), (Mood.SLOW, 1.0), (Mood.GOOD, 2.0), (Mood.BUSY, 0.5), (Mood.GOOD, 3.0), (Mood.CUT, 0.3), (Mood.DEAD, 2.0),
)  # fmt: skip
"""A round of it takes thirteen seconds; while it is dead, the gateway's queue becomes full."""
KEYS_EVERY_S: Final = 1.3


async def run(house: House, source: random.Random) -> None:
    """For ever."""
    await asyncio.gather(_engines(house, source), _door(house), _keys(house))


async def _engines(house: House, source: random.Random) -> None:
    """Now and then one dies or hangs, and is there again after a while; at times two at once."""
    while True:
        await asyncio.sleep(source.uniform(0.8, 2.5))
        names = source.sample(list(ENGINES), 2 if source.random() < 0.15 else 1)
        await asyncio.gather(*(_befall(house, name, source) for name in names))
        house.engines.check()


async def _befall(house: House, name: str, source: random.Random) -> None:
    if source.random() < 0.3:
        house.engines.freeze(name, is_on=True)
        try:
            await asyncio.sleep(source.uniform(0.2, 1.6))
        finally:
            house.engines.freeze(name, is_on=False)
    else:
        house.engines.kill(name)
        try:
            await asyncio.sleep(source.uniform(0.0, 1.0))
        finally:
            house.engines.start(name)


async def _door(house: House) -> None:
    try:
        for mood, seconds in itertools.cycle(MOODS):
            await asyncio.to_thread(house.door.become, mood)
            await asyncio.sleep(seconds)
    finally:
        with contextlib.suppress(OSError):
            house.door.become(Mood.GOOD)


async def _keys(house: House) -> None:
    for number in itertools.count(1):
        await asyncio.sleep(KEYS_EVERY_S)
        await asyncio.to_thread(house.keys.write, is_broken=number % 5 == 0)
