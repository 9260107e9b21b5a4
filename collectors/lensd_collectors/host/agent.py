"""The agent on the GPU host: scrapes engines, follows their logs and processes, samples GPUs, and sends it all as OTLP."""

import logging
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from lensd_collectors import conventions
from lensd_collectors.export import Exporter
from lensd_collectors.host.config import AgentConfig
from lensd_collectors.host.engine import AgentError, Engine, fetch_with, resolve
from lensd_collectors.host.facts import Facts
from lensd_collectors.host.gpu import GpuSampler, load_nvml
from lensd_collectors.host.logs import LogFollower
from lensd_collectors.host.process import ProcessWatch
from lensd_collectors.host.scrape import Scraper, Seen
from lensd_collectors.host.tail import Tail

log = logging.getLogger("lensd.agent")

LOG_INTERVAL_S: Final = 0.25
LOOK_INTERVAL_S: Final = 0.25
LOOKS_PER_SEARCH: Final = 8
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
    engines = [resolve(watched) for watched in config.engines]
    names = [engine.name for engine in engines]
    for name in names:
        if names.count(name) > 1:
            raise AgentError(f"two engines are called {name!r}: give each its own name")
    try:
        exporter = Exporter(
            config.export_url, token=token, service="lensd-agent", scope=conventions.SCOPE_AGENT, capacity=CAPACITY, flush_every_s=0.25
        )
    except ValueError as error:
        raise AgentError(f"export_url: {error}") from None
    steps = [step for engine in engines for step in _engine_steps(engine, config, exporter)]
    gpus = GpuSampler(exporter, time.time_ns, load_nvml())
    if gpus.works:
        steps.append(("gpu", config.gpu_interval_s, lambda: gpus.sample))
    threads = [
        threading.Thread(target=_repeat, args=(name, interval_s, make, stop), name=f"lensd-{name}", daemon=True)
        for name, interval_s, make in steps
    ]
    for thread in threads:
        thread.start()
    stop.wait()
    for thread in threads:
        thread.join(config.scrape_timeout_s + 1.0)
    exporter.close()


Step = Callable[[], None]
Part = tuple[str, float, Callable[[], Step]]
"""Name, interval in seconds, and what makes the step, called in the part's own thread."""


def _engine_steps(engine: Engine, config: AgentConfig, exporter: Exporter) -> list[Part]:
    fetch = fetch_with(config.scrape_timeout_s)
    facts = Facts(engine, exporter, fetch, time.time_ns)

    def scraping() -> Step:
        scraper, starts = Scraper(engine, exporter, fetch, time.time_ns), StartWatch()

        def step() -> None:
            if starts.started(scraper.scrape()):
                facts.engine_started()

        return step

    def following() -> Step:
        tail = Tail(Path(engine.log), config.max_lines_per_s, time.monotonic)
        follower = LogFollower(engine, exporter, facts, tail, time.time_ns)
        follower.look_back()
        return follower.follow

    def watching() -> Step:
        watch, looks = ProcessWatch(engine, exporter, time.time_ns), 0

        def step() -> None:
            nonlocal looks
            if looks % LOOKS_PER_SEARCH == 0:
                watch.search()
            looks += 1
            watch.look()

        return step

    parts: list[Part] = [
        (f"scrape-{engine.name}", config.scrape_interval_s, scraping),
        (f"process-{engine.name}", LOOK_INTERVAL_S, watching),
    ]
    if engine.log:
        parts.append((f"log-{engine.name}", LOG_INTERVAL_S, following))
    return parts


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
