"""Load shedding: a switch a model, with hysteresis, and what the engines say themselves of how full they are."""

import math
from collections.abc import Awaitable, Callable, Collection, Iterable
from enum import StrEnum
from typing import Final

import msgspec

from lensd_collectors.dialects import load
from lensd_collectors.gateway.config import Act, Degrade
from lensd_collectors.read.prometheus import parse_line
from lensd_collectors.read.samples import engine_samples

STALE_AFTER_SCRAPES: Final = 3


class Signal(StrEnum):
    """What a threshold can be set on; named as its key in `[gateway.degrade]`."""

    IN_FLIGHT = "in_flight"
    WAITING = "waiting"
    KV_USAGE = "kv_usage"


class Reading(msgspec.Struct, frozen=True):
    """One signal beside its threshold; `value` is None where it is not known."""

    signal: Signal
    value: float | None
    threshold: float

    @property
    def is_over(self) -> bool:
        return self.value is not None and self.value > self.threshold

    def is_back(self, share: float) -> bool:
        """At or below that share of the threshold, or not known."""
        return self.value is None or self.value <= share * self.threshold

    def __str__(self) -> str:
        return f"{self.signal} {'not known' if self.value is None else f'{self.value:g}'} (threshold {self.threshold:g})"


class Moved(msgspec.Struct, frozen=True):
    """A model's switch has moved. `readings` did it: those over their thresholds, or all when it went off; empty: the model is gone."""

    model: str
    is_on: bool
    does: Act
    readings: tuple[Reading, ...]

    @property
    def act(self) -> str:
        return "degrade_on" if self.is_on else "degrade_off"

    @property
    def text(self) -> str:
        why = ", ".join(str(each) for each in self.readings) or "it is not served any more"
        return f"load shedding ({self.does}) {'begins' if self.is_on else 'ends'} for {self.model}: {why}"


class Degraded(msgspec.Struct, frozen=True):
    """What a request gets while its model's switch is on."""

    act: Act
    model: str  # to send it to
    max_tokens: int | None = None  # to set; None: as it is
    max_prompt_tokens: int = 0  # longer prompts are refused; 0: any length
    retry_after_s: int = 0  # of a refusal


class _Switch:
    __slots__ = ("is_on", "since")

    def __init__(self) -> None:
        self.is_on = False
        self.since: int | None = None  # from when on all ticks have spoken for moving it


class Switches:
    """All models' switches. Models are named as they are served, aliases resolved.

    On: any signal over its threshold at every tick of `enter_after_s`. Off: all at or below `leave_at` of theirs at every tick of
    `leave_after_s`. A signal that is not known is no reason to begin and none to go on: it breaks what was leading to on, and the
    others alone decide on off; with none known a switch goes off after `leave_after_s`. Reports `degrade_on` with the signals that are
    over their thresholds, `degrade_off` with all.
    """

    def __init__(self, config: Degrade, report: Callable[[Moved], None]) -> None:
        self._config, self._report = config, report
        self._thresholds = tuple((each, float(limit)) for each in Signal if (limit := getattr(config, each.value)))
        self._is_live = config.enabled and bool(self._thresholds)
        self._enter_after, self._leave_after = int(config.enter_after_s * 1e9), int(config.leave_after_s * 1e9)
        self._switches: dict[str, _Switch] = {}
        self.on: set[str] = set()  # models
        if self.needs_engines:
            load()  # now: compiling the dialects at the first scrape would hold up the loop

    @property
    def needs_engines(self) -> bool:
        """A threshold looks at what only the engines can say."""
        return self._config.enabled and (self._config.waiting > 0 or self._config.kv_usage > 0)

    def tick(self, now_ns: int, model: str, in_flight: int, waiting: int | None, kv_usage: float | None) -> None:
        """Moves the model's switch where it is time to; the same clock at every call."""
        if not self._is_live:
            return
        switch = self._switches.get(model) or self._switches.setdefault(model, _Switch())
        values: dict[Signal, float | None] = {Signal.IN_FLIGHT: in_flight, Signal.WAITING: waiting, Signal.KV_USAGE: kv_usage}
        readings = tuple(Reading(signal, values[signal], threshold) for signal, threshold in self._thresholds)
        if switch.is_on:
            why = readings if all(each.is_back(self._config.leave_at) for each in readings) else ()
            lasting = self._leave_after
        else:
            why = tuple(each for each in readings if each.is_over)
            lasting = self._enter_after
        if not why:
            switch.since = None
            return
        if switch.since is None:
            switch.since = now_ns
        if now_ns - switch.since >= lasting:
            self._move(model, switch, why)

    def keep(self, models: Collection[str]) -> None:
        """Forgets all other models: they are not served any more."""
        for model in [each for each in self._switches if each not in models]:
            switch = self._switches[model]
            if switch.is_on:
                self._move(model, switch, ())
            del self._switches[model]

    def decide(self, model: str, asked_max_tokens: int | None) -> Degraded | None:
        """What a new request of the model gets; None: what it asks for.

        A cap only lowers: a smaller value stays, and where none is asked the cap is set. Rerouting takes one step, also where the smaller
        model's own switch is on; a model without an entry in `models` is served as ever.
        """
        if model not in self.on:
            return None
        config = self._config
        match config.act:
            case Act.REFUSE:
                return Degraded(config.act, model, retry_after_s=config.retry_after_s)
            case Act.REROUTE:
                smaller = config.models.get(model, model)
                return None if smaller == model else Degraded(config.act, smaller)
            case Act.CAP:
                lower = config.max_tokens > 0 and (asked_max_tokens is None or asked_max_tokens > config.max_tokens)
                if not lower and not config.max_prompt_tokens:
                    return None
                cap = config.max_tokens if lower else None
                return Degraded(config.act, model, cap, config.max_prompt_tokens, config.retry_after_s)

    def _move(self, model: str, switch: _Switch, why: tuple[Reading, ...]) -> None:
        switch.is_on, switch.since = not switch.is_on, None
        (self.on.add if switch.is_on else self.on.discard)(model)
        self._report(Moved(model, switch.is_on, self._config.act, why))


class Signals(msgspec.Struct, frozen=True):
    """How full an engine, or all engines of a model, are; None: not known."""

    waiting: int | None = None  # requests in the queue
    kv_usage: float | None = None  # 0 to 1


UNKNOWN: Final = Signals()


def joined(said: Iterable[Signals]) -> Signals:
    """Of several engines or ranks: what waits in all of them, and the fullest KV cache. Those that are not known are left out."""
    every = list(said)
    waiting = [each.waiting for each in every if each.waiting is not None]
    kv_usage = [each.kv_usage for each in every if each.kv_usage is not None]
    return Signals(sum(waiting) if waiting else None, max(kv_usage, default=None))


class Heard:
    """What each engine last said of itself. One failed scrape changes nothing; after three the engine's signals are not known."""

    def __init__(self, config: Degrade) -> None:
        self._fresh_for = int(STALE_AFTER_SCRAPES * config.scrape_every_s * 1e9)
        self._last: dict[str, tuple[int, Signals]] = {}

    def note(self, engine: str, said: Signals, now_ns: int) -> None:
        if said != UNKNOWN:
            self._last[engine] = (now_ns, said)

    def of(self, engines: Iterable[str], now_ns: int) -> Signals:
        """The signals of a model, of the engines that serve it."""
        last = (self._last.get(engine) for engine in engines)
        return joined(said for at, said in filter(None, last) if now_ns - at <= self._fresh_for)


async def read_signals(get: Callable[[str], Awaitable[str]], root: str, kind: str) -> Signals:
    """What the engine at `root` says now, read by the dialect `kind`. Never raises: an engine that cannot be read says nothing.

    `get` gives the text of a URL, and bounds its length and time.
    """
    try:
        return signals_in(await get(f"{root}/metrics"), kind)
    except Exception:  # whatever the engine sends: load shedding goes on without it
        return UNKNOWN


def signals_in(text: str, kind: str) -> Signals:
    """The signals in one scrape. Only the lines that hold them are read: a whole scrape would hold up the loop for milliseconds."""
    dialect = load().get(kind)
    if dialect is None:
        return UNKNOWN
    names = tuple(selector.name for column in (Signal.WAITING, Signal.KV_USAGE) for selector in dialect.selectors.get(column, ()))
    lines = (parse_line(line, 0) for line in text.splitlines() if line.startswith(names))
    rows = engine_samples(dialect, filter(None, lines), engine=None, seen_at=None, seq=None, src=lambda _: "")
    return joined(Signals(_count(row.waiting), _number(row.kv_usage)) for row in rows)


def _number(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) and value >= 0 else None


def _count(value: float | None) -> int | None:
    number = _number(value)
    return None if number is None else round(number)
