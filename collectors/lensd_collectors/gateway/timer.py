"""The gateway's one timer: limits, heartbeats, open requests, finished records, the keys file, load shedding."""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Set
from typing import Final

from lensd_collectors.gateway.config import Degrade
from lensd_collectors.gateway.degrade import Heard, Switches, read_signals
from lensd_collectors.gateway.fleet import Fleet, Target
from lensd_collectors.gateway.frames import HEARTBEAT
from lensd_collectors.gateway.record import Limits, Record
from lensd_collectors.gateway.reply import send_stream_start
from lensd_collectors.gateway.report import Reporter
from lensd_collectors.gateway.upstream import Client, Clock

log = logging.getLogger("lensd.gateway")

TICK_S: Final = 0.2
KEYS_CHECK_S: Final = 1.0
SCRAPE_TIMEOUT_S: Final = 2.0
MAX_SCRAPE_BYTES: Final = 8 << 20


class Timer:
    """Looks at all that is open a few times a second; nothing else in the gateway waits for time to pass, a request least of all."""

    def __init__(
        self, live: Set[Record], limits: Limits, fleet: Fleet, client: Client, reporter: Reporter, reload_keys: Callable[[], None],
        clock: Clock, wall: Callable[[], int],
    ) -> None:  # fmt: skip
        self._live, self._limits, self._fleet, self._client, self._reporter = live, limits, fleet, client, reporter
        self._reload_keys, self._clock, self._wall = reload_keys, clock, wall
        self._beats: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        every = max(min(TICK_S, self._limits.shortest / 4e9), 0.01)
        keys_due = drain_due = 0
        while True:
            await asyncio.sleep(every)
            now = self._clock()
            try:
                self._look_at_live(now)
                self._fleet.tick(now)
                if now >= drain_due:
                    drain_due = now + int(TICK_S * 0.9e9)
                    await self._report(now)
                if now >= keys_due:
                    keys_due = now + int(KEYS_CHECK_S * 1e9)
                    self._reload_keys()
                    self._client.sweep()
            except Exception:  # without this timer no limit would hold any more
                log.exception("the gateway's timer failed once")

    def _look_at_live(self, now: int) -> None:
        for record in list(self._live):
            if (stop := self._limits.broken(record, now)) is not None:
                record.halt(stop)
            elif self._limits.wants_heartbeat(record, now):
                record.beat = now
                beat = asyncio.create_task(self._beat(record))
                self._beats.add(beat)
                beat.add_done_callback(self._beats.discard)

    async def _beat(self, record: Record) -> None:
        if record.send is None or record.flow.write_paused:
            return  # who does not read needs none, and it would have to wait: until after half an event, perhaps
        if not self._limits.wants_heartbeat(record, self._clock() + self._limits.heartbeat + 1):
            return  # something was written since
        with contextlib.suppress(Exception):  # a stream that has just ended
            if not record.started_out:
                await send_stream_start(record, record.send)
            await record.send({"type": "http.response.body", "body": HEARTBEAT, "more_body": True})

    async def _report(self, now: int) -> None:
        self._reporter.progress(self._live, now)
        for _ in self._reporter.drain():
            await asyncio.sleep(0)
        self._reporter.tell_dropped(self._wall())


async def watch_load(config: Degrade, fleet: Fleet, switches: Switches, client: Client, clock: Clock) -> None:
    """Reads how full the engines are, and moves the models' switches; for ever."""
    heard = Heard(config)
    reading = [_keep_reading(target, config, heard, client, clock) for target in fleet.targets] if switches.needs_engines else []
    await asyncio.gather(_keep_judging(fleet, switches, heard, min(TICK_S, config.scrape_every_s), clock), *reading)


async def _keep_reading(target: Target, config: Degrade, heard: Heard, client: Client, clock: Clock) -> None:
    async def text(url: str) -> str:
        status, body = await client.ask("GET", url, headers=[], body=None, timeout_s=SCRAPE_TIMEOUT_S, most=MAX_SCRAPE_BYTES)
        return body.decode("utf-8", "replace") if status == 200 else ""

    while True:
        heard.note(target.name, await read_signals(text, target.root, target.kind), clock())
        await asyncio.sleep(config.scrape_every_s)


async def _keep_judging(fleet: Fleet, switches: Switches, heard: Heard, every_s: float, clock: Clock) -> None:
    while True:
        try:
            now = clock()
            for model in fleet.models():
                signals = heard.of((target.name for target in fleet.serving(model)), now)
                switches.tick(now, model, fleet.in_flight(model), signals.waiting, signals.kv_usage)
            switches.keep(fleet.models())
        except Exception:  # without this loop the switches would stay as they are for ever
            log.exception("load shedding could not look once")
        await asyncio.sleep(every_s)
