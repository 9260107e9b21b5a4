"""NVIDIA's cards through NVML (nvidia-ml-py), as far as card, driver and this user's rights tell."""

import contextlib
import threading
from collections.abc import Callable, Iterator
from ctypes import c_void_p, cast
from typing import Any, Final, TypeVar

from lensd_collectors.host.card import CardProcess, CardState, DriverGoneError, Identity, Reading, UnavailableDriverError
from lensd_collectors.host.line import Standing, State
from lensd_collectors.host.nvml_calls import FAST, MEMORY, SLOW, UNSUPPORTED, Call, Values, either
from lensd_collectors.host.procfs import host_memory

NO_DRIVER: Final = Standing(State.MISSING, "no NVIDIA driver")
STANDINGS: Final[dict[int, Standing]] = {
    4: Standing(State.DENIED, "this user may not use the NVIDIA driver"),
    9: Standing(State.MISSING, "the NVIDIA driver is not loaded"),
    12: NO_DRIVER,
    18: Standing(State.MISSING, "driver and library of NVIDIA have different versions: restart the agent after an upgrade, or the host"),
}
"""How it is with the library, by the code that opening it gives."""

PROCESSES: Final = frozenset({"lensd.gpu.process.memory"})
CLOSE_TIMEOUT_S: Final = 5.0
_GONE: Final = frozenset({1, 9, 18})  # uninitialised, driver not loaded, versions differ
_LOST: Final = frozenset({15, 28})  # lost, not found
_DENIED, _RESET = 4, 16

T = TypeVar("T")


class _LostError(Exception):
    """The card as a whole gives no answer any more."""


class NvmlCard:
    """A card, or an instance of a divided one, which has memory and processes of its own and nothing else."""

    def __init__(self, nvml: Any, handle: Any, identity: Identity, *, divided: bool = False) -> None:
        self._nvml, self.handle, self.identity, self._divided = nvml, handle, identity, divided
        self._unsupported: set[str] = set()
        self._denied: set[str] = set()
        self._state, self._reason = CardState.OK, ""
        self._has_memory = False  # of its own

    def read(self, *, whole: bool) -> Reading:
        self._state, self._reason = CardState.OK, ""
        values: Values = {}
        processes = None
        calls = (MEMORY,) if self.identity.mig else (*FAST, *SLOW) if whole else FAST
        try:
            for call in calls:
                values |= self._asked(call, whole) or {}
            if not self._divided:  # each instance tells its own
                processes = self._processes(whole)
        except _LostError:
            return Reading(state=CardState.LOST, reason=self._reason)
        if self._state is CardState.OK and not values:
            self._state = self._silence()
        self._has_memory |= not MEMORY.names.isdisjoint(values)
        if not (self._has_memory or self._divided or self.identity.mig) and self._unsupported >= MEMORY.names:
            values |= _unified()
        refused = frozenset(self._unsupported), frozenset(self._denied)
        return Reading(
            values=values, processes=processes, unsupported=refused[0], denied=refused[1], state=self._state, reason=self._reason
        )

    def _silence(self) -> CardState:
        if self._reason:
            return CardState.FAILING
        return CardState.DENIED if self._denied else CardState.UNSUPPORTED

    def _asked(self, call: Call, whole: bool) -> Values | None:
        """None for what is refused; that is asked again with the next whole reading, since cards are divided and joined."""
        if not whole and call.names <= self._unsupported | self._denied:
            return None
        return self._answer(call.names, lambda: call.ask(self._nvml, self.handle))

    def _processes(self, whole: bool) -> tuple[CardProcess, ...] | None:
        """Those that compute; with a whole reading also those that draw, a desktop's for example."""
        if not whole and self._unsupported | self._denied >= PROCESSES:
            return None
        found = self._answer(PROCESSES, lambda: self._running("Compute"))
        if found is None:
            return None
        if whole:
            with contextlib.suppress(self._nvml.NVMLError):
                found = [*found, *self._running("Graphics")]
        used = {each.pid: each.usedGpuMemory for each in reversed(found)}
        return tuple(CardProcess(pid, bytes_) for pid, bytes_ in sorted(used.items()))

    def _running(self, kind: str) -> list[Any]:
        newer, older = (f"nvmlDeviceGet{kind}RunningProcesses_{version}" for version in ("v3", "v2"))
        found: list[Any] = either(self._nvml, (newer, older), self.handle)
        return found

    def _answer(self, names: frozenset[str], ask: Callable[[], T]) -> T | None:
        """None where the card refuses or fails to tell, which is remembered."""
        try:
            answer = ask()
        except self._nvml.NVMLError as error:
            self._refused(names, error)
            return None
        self._unsupported -= names
        self._denied -= names
        return answer

    def _refused(self, names: frozenset[str], error: Any) -> None:
        """Raises _LostError, DriverGoneError."""
        code = error.value
        if code in _GONE:
            raise DriverGoneError(str(error)) from None
        if code in UNSUPPORTED:
            self._unsupported |= names
        elif code == _DENIED:
            self._denied |= names
        else:
            self._reason = str(error)
        if code in _LOST:
            raise _LostError
        if code == _RESET:
            self._state = CardState.RESET_REQUIRED


def _unified() -> Values:
    """The host's memory as the card's own, where NVML tells of none: GB10 and its like have no other."""
    memory = host_memory()
    if memory is None:
        return {}
    used = memory.total_bytes - memory.available_bytes
    return {
        "hw.gpu.memory.usage": used, "hw.gpu.memory.free": memory.available_bytes, "hw.gpu.memory.limit": memory.total_bytes,
        "lensd.gpu.unified": 1,
    }  # fmt: skip


class Nvml:
    """NVML, opened. `in_use` is held by who else calls the library, so that it is not shut down under them."""

    name = "nvml"

    def __init__(self, library: Any) -> None:
        self.library, self.in_use = library, threading.Lock()
        self._known: dict[tuple[int, bool], NvmlCard] = {}  # by the handle's address, and whether the card is divided

    def cards(self) -> list[NvmlCard]:
        found = list(self._listed())
        self._known = {key: card for key, card in self._known.items() if card in found}
        return found

    def identify(self, handle: Any, index: int, *, pci: str = "", mig: str = "") -> Identity:
        """Raises DriverGoneError."""
        return Identity(
            index=index,
            uuid=self._ask(self.library.nvmlDeviceGetUUID, handle) or "",
            name=self._ask(self.library.nvmlDeviceGetName, handle) or "",
            pci=pci or pci_of(self._ask(self.library.nvmlDeviceGetPciInfo, handle)),
            mig=mig,
        )

    def close(self) -> None:
        if not self.in_use.acquire(timeout=CLOSE_TIMEOUT_S):
            return  # who waits in it will not come back: to shut it down under them would end the process
        try:
            with contextlib.suppress(self.library.NVMLError):
                self.library.nvmlShutdown()
        finally:
            self.in_use.release()

    def _listed(self) -> Iterator[NvmlCard]:
        for index in range(self._ask(self.library.nvmlDeviceGetCount) or 0):
            handle = self._ask(self.library.nvmlDeviceGetHandleByIndex, index)
            if handle is None:
                continue  # one that is gone for good has no handle: who knew it sees that it is listed no more
            mode = self._ask(self.library.nvmlDeviceGetMigMode, handle)
            divided = bool(mode and mode[0])
            card = self._card(handle, index, divided=divided)
            yield card
            if divided:
                yield from self._instances(handle, card.identity)

    def _instances(self, parent: Any, of: Identity) -> Iterator[NvmlCard]:
        for number in range(self._ask(self.library.nvmlDeviceGetMaxMigDeviceCount, parent) or 0):
            handle = self._ask(self.library.nvmlDeviceGetMigDeviceHandleByIndex, parent, number)
            if handle is None:
                continue
            gi, ci = (
                self._ask(self.library.nvmlDeviceGetGpuInstanceId, handle),
                self._ask(self.library.nvmlDeviceGetComputeInstanceId, handle),
            )
            yield self._card(handle, of.index, pci=of.pci, mig=f"gi{number if gi is None else gi}ci{0 if ci is None else ci}")

    def _card(self, handle: Any, index: int, *, divided: bool = False, pci: str = "", mig: str = "") -> NvmlCard:
        key = cast(handle, c_void_p).value or 0, divided
        card = self._known.get(key)
        if card is None:
            identity = self.identify(handle, index, pci=pci, mig=mig)
            card = self._known[key] = NvmlCard(self.library, handle, identity, divided=divided)
        return card

    def _ask(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """None for whatever refusal but that of a driver that is gone."""
        try:
            return call(*arguments)
        except self.library.NVMLError as error:
            if error.value in _GONE:
                raise DriverGoneError(str(error)) from None
            return None


def pci_of(info: Any) -> str:
    """`00000000:3B:00.0` as the kernel writes it, 0000:3b:00; "" where it is not told."""
    if info is None:
        return ""
    text = info.busId.decode("ascii", "replace") if isinstance(info.busId, bytes) else info.busId
    domain, _, rest = text.lower().partition(":")
    return f"{domain[-4:]}:{rest.partition('.')[0]}" if rest else ""


def open_nvml() -> Nvml:
    """Raises UnavailableDriverError: without the binding, the library or the driver, or without the right to use it."""
    try:
        import pynvml
    except ImportError:
        raise UnavailableDriverError(NO_DRIVER) from None
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        raise UnavailableDriverError(STANDINGS.get(error.value, Standing(State.MISSING, f"NVML: {error}".lower()))) from None
    return Nvml(pynvml)
