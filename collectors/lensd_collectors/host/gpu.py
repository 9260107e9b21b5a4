"""Samples the cards of one vendor's library: memory, load, clocks, faults and whose memory it is, and tells what changes about a card."""

import logging
import time
from collections.abc import Callable
from typing import Final

import msgspec

from lensd_collectors import conventions
from lensd_collectors.export import Batch, Exporter
from lensd_collectors.host import owners
from lensd_collectors.host.card import Card, CardState, Driver, DriverGoneError, Identity, Open, Reading, UnavailableDriverError
from lensd_collectors.host.line import FOLLOWED, Standing, State
from lensd_collectors.host.owners import Owner, Owners
from lensd_collectors.otlp import Value

log = logging.getLogger("lensd.agent")

WHOLE_EVERY_S: Final = 10.0  # limits, error counters, the list of cards, and processes that did not change
OPEN_EVERY_S: Final = 60.0  # a library that could not be opened
REOPEN_AFTER_S: Final = (5.0, 15.0, 60.0, 300.0)  # while a card is lost; the last again and again, since it may take seconds
SEND_AFTER_S: Final = 5.0  # samples that tell nothing new, in one body; others at once
NEWS_BYTES: Final = 64 * 2**20  # of memory more or less
STALLED_AFTER_S: Final = 10.0
FAILURES: Final = 3  # readings in turn that give nothing, before a card counts as failing
NO_CARD: Final = Standing(State.MISSING, "the driver lists no GPU")
STALLED: Final = Standing(State.MISSING, "the driver does not answer: nothing is known of its GPUs while it does not")
PROCESS: Final = "lensd.gpu.process.memory"
XID: Final = "lensd.gpu.xid"
UNITS: Final = {
    "hw.gpu.memory.usage": "By",
    "hw.gpu.memory.free": "By",
    "hw.gpu.memory.limit": "By",
    "lensd.gpu.memory.reserved": "By",
    "hw.gpu.utilization": "1",
    "lensd.gpu.utilization.memory": "1",
    "lensd.gpu.clock.sm": "MHz",
    "lensd.gpu.clock.sm.max": "MHz",
    "hw.temperature": "Cel",
    "lensd.gpu.temperature.slowdown": "Cel",
    "hw.power": "W",
    "hw.power.limit": "W",
    PROCESS: "By",
}
_SEVERITY: Final = {CardState.OK: "info", CardState.DENIED: "warning", CardState.UNSUPPORTED: "warning"}
_NOT_READ: Final = frozenset({CardState.LOST, CardState.ABSENT})

Told = tuple[CardState, frozenset[str], frozenset[str], bool]
"""A card's state, what it does not tell, what this user may not ask, and whether the host's memory is its own."""


class _Known:
    """What was last told of a card."""

    def __init__(self, identity: Identity) -> None:
        self.identity = identity
        self.told: Told | None = None
        self.sent: dict[int, tuple[int | None, float]] = {}  # of each process: its bytes, and when they were sent
        self.engines: frozenset[str] = frozenset()
        self.failures = 0
        self.used = 0.0  # as it was last sent
        self.xid: int | None = None  # that came since the last sample

    @property
    def state(self) -> CardState | None:
        return self.told[0] if self.told else None


class GpuSampler:
    """Call `step` at an interval, always from one thread: it blocks for as long as the driver does.

    `standing` and `processes` say how it is with the library and with the processes it names; both may be read by other threads.
    """

    def __init__(
        self,
        open_driver: Open,
        exporter: Exporter,
        who: Owners,
        clock_ns: Callable[[], int],
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._open_driver, self._exporter, self._who = open_driver, exporter, who
        self._clock_ns, self._clock_s = clock_ns, clock_s
        self._driver: Driver | None = None
        self._standing: Standing | None = None
        self.processes = owners.UNTOLD
        self._cards: list[tuple[Card, _Known]] = []
        self._known: dict[str, _Known] = {}
        self._whole_at = self._open_at = clock_s()
        self._reopen_at: float | None = None
        self._reopened = 0
        self._busy_since: float | None = None
        self._held = Batch()
        self._send_at = clock_s()

    @property
    def driver(self) -> Driver | None:
        """The library as it is open at present."""
        return self._driver

    @property
    def standing(self) -> Standing | None:
        """None before the library has first been tried."""
        since = self._busy_since
        return STALLED if since is not None and self._clock_s() - since > STALLED_AFTER_S else self._standing

    def known_by(self, identity: Identity) -> Identity:
        """A card under the index that it had when it was first seen."""
        known = self._known.get(identity.key)
        return known.identity if known else identity

    def note_xid(self, identity: Identity, xid: int) -> str | None:
        """Puts a fault into the card's next sample; returns the engine on the card, where it is one alone."""
        known = self._known.get(identity.key)
        if known is None:
            return None
        known.xid = xid
        return _only(known.engines)

    def step(self) -> None:
        """One sample of each card. What tells nothing new is held back for some seconds, and sent together."""
        self._busy_since = self._clock_s()
        try:
            self._step(self._clock_s())
        except DriverGoneError as gone:
            log.warning("the GPU driver is gone: %s", gone)
            self._standing = Standing(State.MISSING, f"the driver is gone: {gone}".lower())
            self._close(self._clock_s())
        finally:
            self._busy_since = None

    def close(self) -> None:
        driver, self._driver = self._driver, None
        if driver is not None:
            driver.close()

    def _step(self, now: float) -> None:
        if self._reopen_at is not None and now >= self._reopen_at:
            self._reopened += 1
            self._close(now)
            self._open_at = now
        if self._driver is None and not self._open(now):
            return
        whole = now >= self._whole_at
        if whole:
            self._whole_at = now + WHOLE_EVERY_S
            self._list()
        self._sample(whole, now)
        self._plan_reopening(now)

    def _open(self, now: float) -> bool:
        if now < self._open_at:
            return False
        self._open_at = now + OPEN_EVERY_S
        try:
            self._driver = self._open_driver()
        except UnavailableDriverError as unavailable:
            if self._standing != unavailable.standing:
                log.info("%s: GPU memory is not sampled", unavailable.standing.reason)
            self._standing = unavailable.standing
            return False
        self._whole_at = now
        return True

    def _close(self, now: float) -> None:
        self.close()
        self._cards, self._reopen_at, self._open_at = [], None, now + REOPEN_AFTER_S[0]

    def _plan_reopening(self, now: float) -> None:
        """A lost card's handle stays dead also when the card is back: only another opening of the library finds it."""
        if not any(known.state is CardState.LOST for known in self._known.values()):
            self._reopen_at, self._reopened = None, 0
        elif self._reopen_at is None:
            self._reopen_at = now + REOPEN_AFTER_S[min(self._reopened, len(REOPEN_AFTER_S) - 1)]

    def _list(self) -> None:
        """The cards there are now; one that was there and is not any more is told."""
        assert self._driver is not None
        listed = list(self._driver.cards())
        self._cards = [(card, self._recognise(card.identity, listed)) for card in listed]
        here = {id(known) for _, known in self._cards}
        for known in self._known.values():
            if id(known) not in here and known.state not in _NOT_READ:
                self._tell(known, Reading(state=CardState.ABSENT, reason="the driver lists it no more"))
        self._known = {key: each for key, each in self._known.items() if not (each.identity.mig and each.state is CardState.ABSENT)}
        self._standing = FOLLOWED if listed else NO_CARD

    def _recognise(self, identity: Identity, listed: list[Card]) -> _Known:
        """By its UUID; one that tells none is the card that had its index, where that is not listed elsewhere."""
        known = self._known.get(identity.key)
        if known is None and not identity.uuid:
            keys = {card.identity.key for card in listed}
            known = next((each for key, each in self._known.items() if each.identity.gpu == identity.gpu and key not in keys), None)
        if known is None:
            known = self._known[identity.key] = _Known(self._named(identity))
        return known

    def _named(self, identity: Identity) -> Identity:
        """With an index that no other card goes by: the driver counts anew where one is gone."""
        taken = {each.identity.gpu for each in self._known.values() if each.state is not CardState.ABSENT}
        while identity.gpu in taken:
            identity = msgspec.structs.replace(identity, index=identity.index + 1)
        return identity

    def _sample(self, whole: bool, now: float) -> None:
        told: list[tuple[int, Owner]] | None = None
        is_news = False
        for card, known in self._cards:
            if known.state is CardState.LOST and not whole:
                continue
            at_ns = self._clock_ns()
            reading = card.read(whole=whole)
            is_news |= self._tell(known, reading) | self._hold(known, reading, at_ns)
            if reading.processes is not None:
                told = (told or []) + self._hold_processes(known, reading, at_ns, now, whole)
        if whole:
            self.processes = owners.standing(told)
            self._who.keep(frozenset(pid for pid, _ in told or ()))
        if is_news or now >= self._send_at:
            self._send_at = now + SEND_AFTER_S
            self.flush()

    def flush(self) -> None:
        """Sends what is held back, as one body."""
        held, self._held = self._held, Batch()
        with self._exporter.batch() as batch:
            batch.records, batch.count = held.records, held.count

    def _hold(self, known: _Known, reading: Reading, at_ns: int) -> bool:
        """Keeps a card's values until they are sent; True where that is to be now."""
        values = reading.values
        if known.xid is not None:
            values, known.xid = {**values, XID: known.xid}, None
        attributes = known.identity.attributes
        for name, value in values.items():
            self._held.gauge(name, value, at_ns=at_ns, attributes=attributes, unit=UNITS.get(name, ""))
        used = values.get("hw.gpu.memory.usage", known.used)
        is_news = abs(used - known.used) >= NEWS_BYTES or XID in values
        if is_news:
            known.used = used
        return is_news

    def _hold_processes(self, known: _Known, reading: Reading, at_ns: int, now: float, whole: bool) -> list[tuple[int, Owner]]:
        """Those whose memory has changed, the others each `WHOLE_EVERY_S`; returns what is known of all."""
        found = [(each, self._who.of(each.pid, again=whole)) for each in reading.processes or ()]
        known.engines = frozenset(owner.engine for _, owner in found if owner.engine)
        known.sent = {each.pid: known.sent[each.pid] for each, _ in found if each.pid in known.sent}
        for each, owner in found:
            before = known.sent.get(each.pid)
            if each.used_bytes is None or (before and before[0] == each.used_bytes and now - before[1] < WHOLE_EVERY_S):
                continue
            known.sent[each.pid] = each.used_bytes, now
            attributes: dict[str, Value | None] = {
                **known.identity.attributes,
                conventions.PROCESS_PID: each.pid,
                conventions.PROCESS_NAME: owner.process,
                conventions.ENGINE: owner.engine,
            }
            self._held.gauge(PROCESS, each.used_bytes, at_ns=at_ns, attributes=attributes, unit="By")
        return [(each.pid, owner) for each, owner in found]

    def _tell(self, known: _Known, reading: Reading) -> bool:
        """Says how it is with a card, once and again at each change; True where it did."""
        known.failures = known.failures + 1 if reading.state is CardState.FAILING else 0
        if 0 < known.failures < FAILURES:
            return False
        told = reading.state, reading.unsupported, reading.denied, "lensd.gpu.unified" in reading.values
        if reading.state in _NOT_READ and known.told:
            told = reading.state, *known.told[1:]
        if told == known.told:
            return False
        known.told = told
        identity = known.identity
        attributes: dict[str, Value | None] = {
            **identity.attributes,
            conventions.ABOUT_GPU: identity.gpu,
            conventions.GPU_PCI: identity.pci or None,
            conventions.GPU_STATE: reading.state,
            conventions.SOURCE_REASON: reading.reason or None,
            conventions.GPU_UNSUPPORTED: sorted(told[1]) or None,
            conventions.GPU_DENIED: sorted(told[2]) or None,
            conventions.GPU_UNIFIED: told[3] or None,
            conventions.ENGINE: _only(known.engines),
        }
        severity = "info" if identity.mig and reading.state is CardState.ABSENT else _SEVERITY.get(reading.state, "critical")
        self._exporter.event(conventions.EVENT_GPU_STATE, at_ns=self._clock_ns(), attributes=attributes, severity=severity)
        return True


def _only(engines: frozenset[str]) -> str | None:
    return next(iter(engines)) if len(engines) == 1 else None
