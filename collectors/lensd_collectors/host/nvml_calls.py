"""What is asked of an NVIDIA card: each NVML call with the metrics that its answer gives.

Names, codes and structures: NVIDIA's NVML API reference, and pynvml.py of nvidia-ml-py 13.615.
"""

from collections.abc import Callable
from typing import Any, Final, NamedTuple

UNSUPPORTED: Final = frozenset({2, 3, 13, 22, 25, 26})  # argument, call, function, vGPU's ECC, struct's version, deprecated

Values = dict[str, float]


class Call(NamedTuple):
    """One question to a card: `ask(nvml, handle)` gives some of `names`. Raises nvml.NVMLError."""

    names: frozenset[str]
    ask: Callable[[Any, Any], Values]


def _memory(nvml: Any, handle: Any) -> Values:
    """`used` without what the driver keeps for itself; an old driver counts that as used, and then `reserved` is absent."""
    try:
        found = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
        values: Values = {"lensd.gpu.memory.reserved": found.reserved}
    except nvml.NVMLError as error:
        if error.value not in UNSUPPORTED:
            raise
        found, values = nvml.nvmlDeviceGetMemoryInfo(handle), {}
    return values | {"hw.gpu.memory.usage": found.used, "hw.gpu.memory.free": found.free, "hw.gpu.memory.limit": found.total}


def _utilisation(nvml: Any, handle: Any) -> Values:
    found = nvml.nvmlDeviceGetUtilizationRates(handle)
    return {"hw.gpu.utilization": found.gpu / 100, "lensd.gpu.utilization.memory": found.memory / 100}


def _temperature(nvml: Any, handle: Any) -> float:
    return float(either(nvml, ("nvmlDeviceGetTemperature", "nvmlDeviceGetTemperatureV"), handle, nvml.NVML_TEMPERATURE_GPU))


def _reasons(nvml: Any, handle: Any) -> float:
    return float(either(nvml, ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons"), handle))


def either(nvml: Any, names: tuple[str, str], *arguments: Any) -> Any:
    """The answer of a function that driver and binding have under one of two names, the first where they have both."""
    known = [call for name in names if (call := getattr(nvml, name, None)) is not None]
    for call in known[:-1]:
        try:
            return call(*arguments)
        except nvml.NVMLError as error:
            if error.value not in UNSUPPORTED:
                raise
    return known[-1](*arguments)


def _remapped(nvml: Any, handle: Any) -> Values:
    _, uncorrectable, pending, failed = nvml.nvmlDeviceGetRemappedRows(handle)
    return {"lensd.gpu.remapped_rows": uncorrectable, "lensd.gpu.remap.pending": pending, "lensd.gpu.remap.failed": failed}


def _retired(nvml: Any, handle: Any) -> float:
    return sum(len(nvml.nvmlDeviceGetRetiredPages(handle, cause)) for cause in range(nvml.NVML_PAGE_RETIREMENT_CAUSE_COUNT))


def _ecc(kind: str) -> Callable[[Any, Any], float]:
    """Errors over the card's life: the volatile counter begins anew with each load of the driver."""
    return lambda nvml, handle: float(nvml.nvmlDeviceGetTotalEccErrors(handle, getattr(nvml, kind), nvml.NVML_AGGREGATE_ECC))


def _one(name: str, ask: Callable[[Any, Any], float]) -> Call:
    return Call(frozenset({name}), lambda nvml, handle: {name: ask(nvml, handle)})


MEMORY: Final = Call(frozenset({"hw.gpu.memory.usage", "hw.gpu.memory.free", "hw.gpu.memory.limit"}), _memory)
FAST: Final = (
    MEMORY,
    Call(frozenset({"hw.gpu.utilization", "lensd.gpu.utilization.memory"}), _utilisation),
    _one("lensd.gpu.clock.sm", lambda nvml, handle: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
    _one("lensd.gpu.clock.event_reasons", _reasons),
    _one("hw.temperature", _temperature),
    _one("hw.power", lambda nvml, handle: nvml.nvmlDeviceGetPowerUsage(handle) / 1000),
)
"""What changes from second to second."""

SLOW: Final = (
    _one("lensd.gpu.clock.sm.max", lambda nvml, handle: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM)),
    _one("hw.power.limit", lambda nvml, handle: nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000),
    _one(
        "lensd.gpu.temperature.slowdown",
        lambda nvml, handle: nvml.nvmlDeviceGetTemperatureThreshold(handle, nvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN),
    ),
    _one("lensd.gpu.ecc.uncorrected", _ecc("NVML_MEMORY_ERROR_TYPE_UNCORRECTED")),
    _one("lensd.gpu.ecc.corrected", _ecc("NVML_MEMORY_ERROR_TYPE_CORRECTED")),
    _one("lensd.gpu.retired_pages", _retired),
    Call(frozenset({"lensd.gpu.remapped_rows", "lensd.gpu.remap.pending", "lensd.gpu.remap.failed"}), _remapped),
    _one("lensd.gpu.pcie.generation", lambda nvml, handle: nvml.nvmlDeviceGetCurrPcieLinkGeneration(handle)),
    _one("lensd.gpu.pcie.width", lambda nvml, handle: nvml.nvmlDeviceGetCurrPcieLinkWidth(handle)),
    _one("lensd.gpu.pcie.replays", lambda nvml, handle: nvml.nvmlDeviceGetPcieReplayCounter(handle)),
)
"""Limits and counters of errors."""
