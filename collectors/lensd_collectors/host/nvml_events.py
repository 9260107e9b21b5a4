"""Faults of NVIDIA's cards (Xid) as the driver tells them: an event at once, and the number in the card's next sample."""

import logging
import time
from collections.abc import Callable
from ctypes import c_void_p, cast
from typing import Any, Final

from lensd_collectors import conventions
from lensd_collectors.export import Exporter
from lensd_collectors.host.card import Identity
from lensd_collectors.host.gpu import GpuSampler
from lensd_collectors.host.line import FOLLOWED, Standing, State
from lensd_collectors.host.nvml import Nvml
from lensd_collectors.otlp import Value

log = logging.getLogger("lensd.agent")

WAIT_MS: Final = 1000
MOST_AT_ONCE: Final = 100
REPEATED_WITHIN_S: Final = 1.0  # the same fault of the same card is told once
RETRY_S: Final = 60.0
UNTOLD: Final = Standing(State.MISSING, "the driver tells no faults: only the kernel's log does")
NO_DRIVER: Final = Standing(State.MISSING, "there is no driver to ask")
_TIMEOUT: Final = 10
_DENIED: Final = 4


class XidWatch:
    """Waits for faults; call `step` again and again from a thread of its own."""

    def __init__(
        self,
        gpus: GpuSampler,
        exporter: Exporter,
        clock_ns: Callable[[], int],
        clock_s: Callable[[], float] = time.monotonic,
        wait_ms: int = WAIT_MS,
    ) -> None:
        self._gpus, self._exporter, self._clock_ns, self._clock_s, self._wait_ms = gpus, exporter, clock_ns, clock_s, wait_ms
        self._driver: Nvml | None = None
        self._events: Any = None
        self._cards: dict[int, Identity] = {}  # by the handle's address
        self._retry_at = 0.0
        self._told: dict[tuple[str, int], float] = {}
        self.standing = NO_DRIVER

    def step(self) -> None:
        """Waits once, at most `wait_ms`, and tells what has come."""
        driver = self._gpus.driver
        if not isinstance(driver, Nvml):
            self._driver, self.standing = None, NO_DRIVER
            return
        with driver.in_use:
            if driver is not self._gpus.driver:  # shut down while we waited for our turn
                return
            if driver is not self._driver or (self._events is None and self._clock_s() >= self._retry_at):
                self._register(driver)
            if self._events is not None:
                self._wait(driver.library)

    def _register(self, driver: Nvml) -> None:
        library = driver.library
        self._driver, self._events, self._cards = driver, None, {}
        self._retry_at = self._clock_s() + RETRY_S
        try:
            events = library.nvmlEventSetCreate()
        except library.NVMLError as error:
            self.standing = _standing(error)
            return
        refused: Standing | None = None
        for index in range(library.nvmlDeviceGetCount()):
            try:
                handle = library.nvmlDeviceGetHandleByIndex(index)
                library.nvmlDeviceRegisterEvents(handle, library.nvmlEventTypeXidCriticalError, events)
            except library.NVMLError as error:
                refused = _standing(error)
                continue
            self._cards[_address(handle)] = driver.identify(handle, index)
        if not self._cards:
            library.nvmlEventSetFree(events)
            self.standing = refused or NO_DRIVER
            return
        self._events, self.standing = events, FOLLOWED

    def _wait(self, library: Any) -> None:
        wait_ms = self._wait_ms
        for _ in range(MOST_AT_ONCE):
            try:
                event = library.nvmlEventSetWait_v2(self._events, wait_ms)
            except library.NVMLError as error:
                if error.value != _TIMEOUT:  # a card is lost, or the driver is gone: with the next driver anew
                    log.info("no faults are told at the moment: %s", error)
                    self._events, self.standing = None, _standing(error)
                return
            wait_ms = 0
            if event.eventType & library.nvmlEventTypeXidCriticalError:
                self._say(event)

    def _say(self, event: Any) -> None:
        identity = self._cards.get(_address(event.device))
        xid = int(event.eventData)
        if identity is None or self._is_repeated(identity.key, xid):
            return
        engine = self._gpus.note_xid(identity, xid)
        identity = self._gpus.known_by(identity)
        attributes: dict[str, Value | None] = {
            **identity.attributes,
            conventions.XID: xid,
            conventions.XID_PCI: identity.pci or None,
            conventions.ABOUT_GPU: identity.gpu,
            conventions.ENGINE: engine,
        }
        self._exporter.event(conventions.EVENT_GPU_XID, at_ns=self._clock_ns(), attributes=attributes, severity="critical")

    def _is_repeated(self, card: str, xid: int) -> bool:
        now = self._clock_s()
        self._told = {key: at for key, at in self._told.items() if now - at < REPEATED_WITHIN_S}
        if (card, xid) in self._told:
            return True
        self._told[card, xid] = now
        return False


def _address(handle: Any) -> int:
    return cast(handle, c_void_p).value or 0


def _standing(error: Any) -> Standing:
    return Standing(State.DENIED, "this user may not ask the driver for faults") if error.value == _DENIED else UNTOLD
