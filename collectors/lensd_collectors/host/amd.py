"""AMD's cards through AMD SMI (the module `amdsmi` that ROCm brings), where it is there.

Names, codes and units: amd-smi's py-interface/amdsmi_interface.py and include/amd_smi/amdsmi.h, 6.0 to 7.0. It raises no error for
much of what a card lacks, but says "N/A". Written from that source and tried with a stand-in, on no card.
"""

import contextlib
import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeVar

from lensd_collectors.host.card import CardProcess, CardState, DriverGoneError, Identity, Reading, UnavailableDriverError
from lensd_collectors.host.line import Standing, State

NO_LIBRARY: Final = Standing(State.MISSING, "no AMD SMI")
NO_DRIVER: Final = Standing(State.MISSING, "the AMD driver is not loaded")
DENIED: Final = Standing(State.DENIED, "this user may not use the AMD driver")
STANDINGS: Final = {10: DENIED, 18: NO_DRIVER, 34: NO_DRIVER}
"""How it is with the library, by the code that opening it gives: no permission, failed to begin, driver not loaded."""

PROCESSES: Final = frozenset({"lensd.gpu.process.memory"})
NEVER: Final = frozenset({"lensd.gpu.clock.event_reasons", "lensd.gpu.memory.reserved", "lensd.gpu.pcie.generation"})
_GONE: Final = frozenset({32, 34})  # not initialised, driver not loaded
_DENIED: Final = 10
_UNSUPPORTED: Final = frozenset({1, 2, 3, 5, 31, 40})  # parameter, support, implementation, symbol, found, data
_LARGEST_W: Final = 10_000  # a limit above is in microwatts, as newer libraries give it
_MIB: Final = 1 << 20

T = TypeVar("T")
Values = dict[str, float]


class Call(NamedTuple):
    """One question to a card: `ask(amdsmi, handle)` gives some of `names`. Raises amdsmi.AmdSmiException."""

    names: frozenset[str]
    ask: Callable[[Any, Any], Values]


def _memory(amd: Any, handle: Any) -> Values:
    """To the byte where the library tells it so, else in whole MiB."""
    try:
        kind = amd.AmdSmiMemoryType.VRAM
        total, used = amd.amdsmi_get_gpu_memory_total(handle, kind), amd.amdsmi_get_gpu_memory_usage(handle, kind)
    except (AttributeError, amd.AmdSmiException):
        found = amd.amdsmi_get_gpu_vram_usage(handle)
        total, used = (None if (size := _number(found, key)) is None else size * _MIB for key in ("vram_total", "vram_used"))
    if not isinstance(total, int | float) or not isinstance(used, int | float):
        return {}
    return {"hw.gpu.memory.limit": total, "hw.gpu.memory.usage": used, "hw.gpu.memory.free": total - used}


def _activity(amd: Any, handle: Any) -> Values:
    found = amd.amdsmi_get_gpu_activity(handle)
    return _named(found, {"hw.gpu.utilization": ("gfx_activity",), "lensd.gpu.utilization.memory": ("umc_activity",)}, 0.01)


def _clock(amd: Any, handle: Any) -> Values:
    found = amd.amdsmi_get_clock_info(handle, amd.AmdSmiClkType.GFX)
    return _named(found, {"lensd.gpu.clock.sm": ("clk", "cur_clk"), "lensd.gpu.clock.sm.max": ("max_clk",)})


def _temperature(amd: Any, handle: Any) -> Values:
    """Of the hottest place of the processor, which is what it is slowed down by; of its edge where that is all there is."""
    current = amd.AmdSmiTemperatureMetric.CURRENT
    try:
        found = amd.amdsmi_get_temp_metric(handle, amd.AmdSmiTemperatureType.HOTSPOT, current)
    except amd.AmdSmiException:
        found = amd.amdsmi_get_temp_metric(handle, amd.AmdSmiTemperatureType.EDGE, current)
    return {"hw.temperature": found} if isinstance(found, int | float) else {}


def _power(amd: Any, handle: Any) -> Values:
    found = amd.amdsmi_get_power_info(handle)
    values = _named(found, {"hw.power": ("socket_power", "current_socket_power", "average_socket_power")})
    limit = _number(found, "power_limit")
    return values | ({"hw.power.limit": limit / 1e6 if limit > _LARGEST_W else limit} if limit else {})


def _ecc(amd: Any, handle: Any) -> Values:
    found = amd.amdsmi_get_gpu_total_ecc_count(handle)
    return _named(found, {"lensd.gpu.ecc.uncorrected": ("uncorrectable_count",), "lensd.gpu.ecc.corrected": ("correctable_count",)})


def _pages(amd: Any, handle: Any) -> Values:
    """A list of pages; with none, a sentence that says so."""
    found = amd.amdsmi_get_gpu_bad_page_info(handle)
    return {"lensd.gpu.retired_pages": len(found) if isinstance(found, list) else 0}


def _pcie(amd: Any, handle: Any) -> Values:
    found = amd.amdsmi_get_pcie_info(handle).get("pcie_metric", {})
    return _named(found, {"lensd.gpu.pcie.width": ("pcie_width",), "lensd.gpu.pcie.replays": ("pcie_replay_count",)})


FAST: Final = (
    Call(frozenset({"hw.gpu.memory.limit", "hw.gpu.memory.usage", "hw.gpu.memory.free"}), _memory),
    Call(frozenset({"hw.gpu.utilization", "lensd.gpu.utilization.memory"}), _activity),
    Call(frozenset({"lensd.gpu.clock.sm", "lensd.gpu.clock.sm.max"}), _clock),
    Call(frozenset({"hw.temperature"}), _temperature),
    Call(frozenset({"hw.power", "hw.power.limit"}), _power),
)
SLOW: Final = (
    Call(frozenset({"lensd.gpu.ecc.uncorrected", "lensd.gpu.ecc.corrected"}), _ecc),
    Call(frozenset({"lensd.gpu.retired_pages"}), _pages),
    Call(frozenset({"lensd.gpu.pcie.width", "lensd.gpu.pcie.replays"}), _pcie),
)


class AmdCard:
    """A card as AMD SMI lists it."""

    def __init__(self, amd: Any, handle: Any, identity: Identity) -> None:
        self._amd, self._handle, self.identity = amd, handle, identity
        self._unsupported: set[str] = set(NEVER)
        self._denied: set[str] = set()
        self._reason = ""

    def read(self, *, whole: bool) -> Reading:
        self._reason = ""
        values: Values = {}
        for call in (*FAST, *SLOW) if whole else FAST:
            if whole or not call.names <= self._unsupported | self._denied:
                values |= self._values(call)
        processes = None
        if whole or not self._unsupported | self._denied >= PROCESSES:
            processes = self._answer(PROCESSES, lambda: _processes(self._amd, self._handle))
        state = CardState.OK if values else self._silence()
        refused = frozenset(self._unsupported), frozenset(self._denied)
        return Reading(
            values=values,
            processes=processes,
            unsupported=refused[0],
            denied=refused[1],
            state=state,
            reason="" if state is CardState.OK else self._reason,
        )

    def _silence(self) -> CardState:
        if self._reason:
            return CardState.FAILING
        return CardState.DENIED if self._denied else CardState.UNSUPPORTED

    def _values(self, call: Call) -> Values:
        """What of the call's names the card tells; the others are remembered as untold."""
        values = self._answer(call.names, lambda: call.ask(self._amd, self._handle))
        if values is None:
            return {}
        self._unsupported |= call.names - values.keys()
        return values

    def _answer(self, names: frozenset[str], ask: Callable[[], T]) -> T | None:
        """None where the card refuses or fails to tell. Raises DriverGoneError."""
        try:
            answer = ask()
        except AttributeError:  # a library that does not know the call, or what it is asked with
            self._unsupported |= names
            return None
        except self._amd.AmdSmiException as error:
            self._refused(names, error)
            return None
        self._unsupported -= names
        self._denied -= names
        return answer

    def _refused(self, names: frozenset[str], error: Any) -> None:
        code = _code(error)
        if code in _GONE:
            raise DriverGoneError(str(error)) from None
        if code == _DENIED:
            self._denied |= names
        elif code is None or code in _UNSUPPORTED:
            self._unsupported |= names
        else:
            self._reason = str(error)


class Amd:
    """AMD SMI, opened."""

    name = "amdsmi"

    def __init__(self, library: Any) -> None:
        self._library = library
        self._known: dict[str, AmdCard] = {}

    def cards(self) -> Sequence[AmdCard]:
        """Raises DriverGoneError."""
        found = {}
        for index, handle in enumerate(self._ask(self._library.amdsmi_get_processor_handles) or ()):
            identity = self._identify(handle, index)
            known = self._known.get(identity.key)
            found[identity.key] = known if known and known.identity == identity else AmdCard(self._library, handle, identity)
        self._known = found
        return list(found.values())

    def close(self) -> None:
        with contextlib.suppress(self._library.AmdSmiException):
            self._library.amdsmi_shut_down()

    def _identify(self, handle: Any, index: int) -> Identity:
        library = self._library
        about = self._ask(library.amdsmi_get_gpu_asic_info, handle)
        name = about.get("market_name") if isinstance(about, Mapping) else None
        return Identity(
            index=index,
            uuid=str(self._ask(library.amdsmi_get_gpu_device_uuid, handle) or ""),
            name=str(name or ""),
            pci=str(self._ask(library.amdsmi_get_gpu_device_bdf, handle) or "").lower().partition(".")[0],
        )

    def _ask(self, call: Callable[..., Any], *arguments: Any) -> Any:
        """None for whatever refusal but that of a driver that is gone."""
        try:
            return call(*arguments)
        except self._library.AmdSmiException as error:
            if _code(error) in _GONE:
                raise DriverGoneError(str(error)) from None
            return None


def _processes(amd: Any, handle: Any) -> tuple[CardProcess, ...]:
    """Before 6.0 the library gives handles of processes instead, which are asked one by one."""
    found = [
        each if isinstance(each, Mapping) else amd.amdsmi_get_gpu_process_info(handle, each)
        for each in amd.amdsmi_get_gpu_process_list(handle)
    ]
    used = {int(each["pid"]): _number(each.get("memory_usage", {}), "vram_mem") for each in found}
    return tuple(CardProcess(pid, None if size is None else round(size)) for pid, size in sorted(used.items()))


def _named(found: Mapping[str, Any], wanted: Mapping[str, tuple[str, ...]], factor: float = 1.0) -> Values:
    """Metric -> the first of its keys that holds a number, times `factor`."""
    values = {name: next((number for key in keys if (number := _number(found, key)) is not None), None) for name, keys in wanted.items()}
    return {name: number * factor for name, number in values.items() if number is not None}


def _number(found: Mapping[str, Any], key: str) -> float | None:
    """None for "N/A", and for the largest number of its width, with which the library says the same."""
    value = found.get(key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return None if value in (0xFFFF, 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFF) else value


def _code(error: Any) -> int | None:
    get = getattr(error, "get_error_code", None)
    return None if get is None else int(get())


def open_amd() -> Amd:
    """Raises UnavailableDriverError: without the module, ROCm's library, the driver or a card, or without the right to use it."""
    try:
        amdsmi: Any = importlib.import_module("amdsmi")
    except Exception:  # without ROCm's library its import fails in as many ways as there were versions of it
        raise UnavailableDriverError(NO_LIBRARY) from None
    try:
        amdsmi.amdsmi_init()
    except amdsmi.AmdSmiException as error:
        raise UnavailableDriverError(STANDINGS.get(_code(error) or 0, Standing(State.MISSING, f"AMD SMI: {error}".lower()))) from None
    return Amd(amdsmi)
