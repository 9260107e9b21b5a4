"""The agent on the GPU host: scrapes engines, follows logs and processes, samples GPUs, and sends it all as OTLP."""

import contextlib
import logging
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import Final, NamedTuple

from lensd_collectors import conventions
from lensd_collectors.dialects import Role, load
from lensd_collectors.export import Exporter
from lensd_collectors.host.config import AccessLog, AgentConfig, WatchedEngine
from lensd_collectors.host.dcgm import ExporterScraper, target
from lensd_collectors.host.engine import AgentError, Engine, fetch_with, resolve
from lensd_collectors.host.facts import Facts
from lensd_collectors.host.gpu import GpuSampler
from lensd_collectors.host.kmsg import KernelFollower, Kmsg, Pids
from lensd_collectors.host.lifecycle import POLL_EVERY_S, LifeWatch
from lensd_collectors.host.line import FOLLOWED, Source
from lensd_collectors.host.logs import AccessFollower, LogFollower
from lensd_collectors.host.memory import MemoryWatch
from lensd_collectors.host.nvml_events import XidWatch
from lensd_collectors.host.owners import Owners
from lensd_collectors.host.process import ProcessWatch
from lensd_collectors.host.scrape import Scraper, Seen
from lensd_collectors.host.sources import Place, Teller, asking, lifecycle_place, log_place, open_source
from lensd_collectors.host.vendors import open_gpus

log = logging.getLogger("lensd.agent")

LOG_INTERVAL_S: Final = 0.25
LOOK_INTERVAL_S: Final = 0.25
FAULTS_INTERVAL_S: Final = 1.0  # a step waits for as long
EXPORTERS_INTERVAL_S: Final = 10.0  # they look at their cards each 30 s by default
TELL_INTERVAL_S: Final = 2.0
LOOKS_PER_SEARCH: Final = 8
LOOKS_PER_POLL: Final = round(POLL_EVERY_S / LOOK_INTERVAL_S)
CAPACITY: Final = 50_000  # a vLLM scrape is some 60 records
START_SLACK_S: Final = 1.0

__all__ = ["AgentError", "run"]


class StartWatch:
    """Tells from scrape to scrape whether the engine has been started since the last one."""

    def __init__(self) -> None:
        self._up, self._start_s = False, None

    _start_s: float | None

    def started(self, seen: Seen) -> bool:
        """True on the first answer after none, and when the process behind the answer is another one."""
        new = seen.up and not self._up
        if seen.start_s is not None:
            new = new or (self._start_s is not None and abs(seen.start_s - self._start_s) > START_SLACK_S)
            self._start_s = seen.start_s
        self._up = seen.up
        return new


def run(config: AgentConfig, token: str | None, *, stop: threading.Event) -> None:
    """Runs until `stop` is set, then sends what is queued. Raises AgentError before it starts for settings of no use."""
    watched = [(resolve(each), each) for each in config.engines]
    plans = [_plan(engine, each) for engine, each in watched]
    _check(config, plans)
    try:
        exporter = Exporter(
            config.export_url, token=token, service="lensd-agent", scope=conventions.SCOPE_AGENT, capacity=CAPACITY, flush_every_s=0.25
        )
    except ValueError as error:
        raise AgentError(f"export_url: {error}") from None
    parts = Parts(config, exporter)
    threads = [
        threading.Thread(target=_repeat, args=(name, interval_s, make, stop), name=f"lensd-{name}", daemon=True)
        for name, interval_s, make in parts.all(plans)
    ]
    for thread in threads:
        thread.start()
    stop.wait()
    for thread in threads:
        thread.join(config.scrape_timeout_s + 1.0)
    parts.close()
    exporter.close()


class Plan(NamedTuple):
    """An engine, and where its log and the word of its end come from."""

    engine: Engine
    log: Place | None
    lifecycle: Place | None


def _plan(engine: Engine, watched: WatchedEngine) -> Plan:
    of = f"engine {engine.name}"
    log_at = log_place(watched.log, of) if watched.log else None
    return Plan(engine, log_at, lifecycle_place(watched.lifecycle, log_at, of))


def _check(config: AgentConfig, plans: list[Plan]) -> None:
    names = [plan.engine.name for plan in plans]
    for name in names:
        if names.count(name) > 1:
            raise AgentError(f"two engines are called {name!r}: give each its own name")
    kinds = sorted(
        name
        for name, dialect in load().items()
        if dialect.role in (Role.GATEWAY, Role.ENGINE) and any(event.into == "http_exchanges" for event in dialect.events)
    )
    logs = [plan.log for plan in plans]
    for access in config.access_logs:
        if access.kind not in kinds:
            raise AgentError(f"access log {access.log}: kind {access.kind!r} is none of {', '.join(kinds)}")
        if access.engine and access.engine not in names:
            raise AgentError(f"access log {access.log}: no engine is called {access.engine!r}")
        logs.append(log_place(access.log, "access log"))
    for url in config.gpu_exporters:
        target(url)
    if sum(1 for each in logs if each is not None and each.scheme == "-") > 1:
        raise AgentError("two logs are -: standard input can be one log only")


Step = Callable[[], None]
Part = tuple[str, float, Callable[[], Step]]
"""Name, interval in seconds, and what makes the step, called in the part's own thread."""


class Parts:
    """What the agent does, each part in a thread of its own, so that none holds up another."""

    def __init__(self, config: AgentConfig, exporter: Exporter) -> None:
        self._config, self._exporter = config, exporter
        self._teller, self._pids = Teller(exporter, time.time_ns), Pids()
        self._fetch = fetch_with(config.scrape_timeout_s)
        self._closing: list[Callable[[], None]] = []

    def all(self, plans: list[Plan]) -> list[Part]:
        parts = [part for plan in plans for part in self._of_engine(plan)]
        parts += [(f"access-{each.log}", LOG_INTERVAL_S, partial(self._accesses, each)) for each in self._config.access_logs]
        parts += self._of_gpus()
        parts += [(f"gpu-exporter-{url}", EXPORTERS_INTERVAL_S, partial(self._exports, url)) for url in self._config.gpu_exporters]
        parts.append(("memory", self._config.memory_interval_s, lambda: MemoryWatch(self._exporter, self._pids, time.time_ns).sample))
        if self._config.kmsg:
            parts.append(("kmsg", LOG_INTERVAL_S, self._kernel))
        return parts

    def close(self) -> None:
        """Lets go of files and children, once the threads have ended."""
        for close in self._closing:
            with contextlib.suppress(Exception):
                close()

    def _of_engine(self, plan: Plan) -> list[Part]:
        engine = plan.engine
        facts = Facts(engine, self._exporter, self._fetch, time.time_ns)
        parts: list[Part] = [
            (f"scrape-{engine.name}", self._config.scrape_interval_s, partial(self._scrapes, engine, facts)),
            (f"process-{engine.name}", LOOK_INTERVAL_S, partial(self._watches, plan)),
        ]
        if plan.log is not None:
            parts.append((f"log-{engine.name}", LOG_INTERVAL_S, partial(self._follows, engine, plan.log, facts)))
        return parts

    def _of_gpus(self) -> list[Part]:
        """A driver that blocks holds up its own two parts; the third tells of it. It is not closed at the end, which may block too."""
        gpus = GpuSampler(open_gpus, self._exporter, Owners(self._pids), time.time_ns)
        faults = XidWatch(gpus, self._exporter, time.time_ns)
        self._closing.append(gpus.flush)

        def tell() -> None:
            if gpus.standing is None:
                return
            self._teller.tell("gpu", gpus.standing)
            if gpus.standing is FOLLOWED:
                self._teller.tell("gpu processes", gpus.processes)
                self._teller.tell("gpu faults", faults.standing)

        return [
            ("gpu", self._config.gpu_interval_s, lambda: gpus.step),
            ("gpu-faults", FAULTS_INTERVAL_S, lambda: faults.step),
            ("gpu-standing", TELL_INTERVAL_S, lambda: tell),
        ]

    def _exports(self, url: str) -> Step:
        scraper = ExporterScraper(url, self._exporter, self._fetch, time.time_ns)

        def step() -> None:
            self._teller.tell(scraper.name, scraper.scrape())

        return step

    def _scrapes(self, engine: Engine, facts: Facts) -> Step:
        scraper, starts = Scraper(engine, self._exporter, self._fetch, time.time_ns), StartWatch()

        def step() -> None:
            if starts.started(scraper.scrape()):
                facts.engine_started()

        return step

    def _open(self, place: Place) -> Source:
        config = self._config
        source = open_source(place, config.max_lines_per_s, docker_socket=config.docker_socket, pod_logs=config.pod_logs)
        self._closing.append(source.close)
        return source

    def _follows(self, engine: Engine, place: Place, facts: Facts) -> Step:
        source = self._open(place)
        follower = LogFollower(engine, self._exporter, facts, source, time.time_ns)
        follower.look_back()

        def step() -> None:
            follower.follow()
            self._teller.tell(f"log {place}", source.standing, engine.attributes)

        return step

    def _accesses(self, access: AccessLog) -> Step:
        place = log_place(access.log, "access log")
        source = self._open(place)
        follower = AccessFollower(access, self._exporter, source, time.time_ns)

        def step() -> None:
            follower.follow()
            self._teller.tell(f"access log {place}", source.standing)

        return step

    def _kernel(self) -> Step:
        source = Kmsg()
        self._closing.append(source.close)
        follower = KernelFollower(self._exporter, source, self._pids, time.time_ns)

        def step() -> None:
            follower.follow()
            self._teller.tell("kmsg", source.standing)

        return step

    def _watches(self, plan: Plan) -> Step:
        engine, about = plan.engine, plan.engine.attributes
        life: LifeWatch | None = None
        if plan.lifecycle is not None:
            ask = asking(plan.lifecycle, docker_socket=self._config.docker_socket)
            life = LifeWatch(ask, about, self._exporter, time.time_ns)
        watch, looks = ProcessWatch(engine, self._exporter, time.time_ns, life=life, pids=self._pids), 0

        def step() -> None:
            nonlocal looks
            if looks % LOOKS_PER_SEARCH == 0:
                watch.search()
                self._teller.tell("process", watch.standing, about)
            if life is not None and looks % LOOKS_PER_POLL == 0:
                life.poll()
                if life.pid is not None:
                    self._pids.add(life.pid, engine.name)
                self._teller.tell(f"lifecycle {plan.lifecycle}", life.standing, about)
            looks += 1
            watch.look()

        return step


def _repeat(name: str, interval_s: float, make: Callable[[], Step], stop: threading.Event) -> None:
    """Runs a part at its interval until `stop`; a step that fails is told once and tried again."""
    step: Step | None = None
    told: str | None = None
    due = time.monotonic()
    while not stop.is_set():
        try:
            step = step or make()
            step()
            told = None
        except Exception as error:
            text = f"{type(error).__name__}: {error}"
            if text != told:
                log.warning("%s does not work at the moment: %s", name, text)
                told = text
        due = max(due + interval_s, time.monotonic())
        stop.wait(due - time.monotonic())
