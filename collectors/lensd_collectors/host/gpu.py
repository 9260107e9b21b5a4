"""GPU memory, load, clock, temperature and power through NVML, as far as each card tells."""

import logging
from collections.abc import Callable
from typing import Any, Final

import msgspec

from lensd_collectors import conventions
from lensd_collectors.export import Exporter

log = logging.getLogger("lensd.agent")

NO_DRIVER: Final = "no NVIDIA driver: GPU memory is not sampled"
HW_ID: Final = "hw.id"
HW_NAME: Final = "hw.name"
HW_TYPE: Final = "hw.type"
UNITS: Final = {
    "hw.gpu.memory.usage": "By",
    "hw.gpu.memory.free": "By",
    "hw.gpu.memory.limit": "By",
    "lensd.gpu.memory.reserved": "By",
    "hw.gpu.utilization": "1",
    "lensd.gpu.clock.sm": "MHz",
    "hw.temperature": "Cel",
    "hw.power": "W",
}


class _Card(msgspec.Struct, frozen=True):
    index: int
    handle: Any
    attributes: dict[str, str | int | None]


def load_nvml() -> Any:
    """The pynvml module, initialised; None without library or driver."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:
        return None
    return pynvml


class GpuSampler:
    """Samples every GPU of the host. A call that a card does not support leaves that metric out."""

    def __init__(self, exporter: Exporter, clock_ns: Callable[[], int], nvml: Any) -> None:
        self._exporter, self._clock_ns, self._nvml = exporter, clock_ns, nvml
        if nvml is None:
            log.info(NO_DRIVER)
        self._cards = [] if nvml is None else _cards(nvml)

    @property
    def works(self) -> bool:
        """False where there is nothing to sample."""
        return bool(self._cards)

    def sample(self) -> None:
        """Sends one sample of each card, all in one body."""
        at_ns = self._clock_ns()
        with self._exporter.batch() as batch:
            for card in self._cards:
                for name, value in read(self._nvml, card.handle).items():
                    batch.gauge(name, value, at_ns=at_ns, attributes=card.attributes, unit=UNITS[name])


def read(nvml: Any, handle: Any) -> dict[str, float]:
    """Metric name to value for one card; what it does not tell is absent. Utilisation is 0..1."""
    values: dict[str, float] = {}
    memory = _ask(lambda: nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2))
    if memory is not None:
        values["lensd.gpu.memory.reserved"] = memory.reserved
    else:  # an old driver counts what it reserves as used
        memory = _ask(lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
    if memory is not None:
        values |= {"hw.gpu.memory.usage": memory.used, "hw.gpu.memory.free": memory.free, "hw.gpu.memory.limit": memory.total}
    asked = {
        "hw.gpu.utilization": _ask(lambda: nvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100),
        "lensd.gpu.clock.sm": _ask(lambda: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM)),
        "hw.temperature": _ask(lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)),
        "hw.power": _ask(lambda: nvml.nvmlDeviceGetPowerUsage(handle) / 1000),
    }
    return values | {name: value for name, value in asked.items() if value is not None}


def _cards(nvml: Any) -> list[_Card]:
    cards = []
    for index in range(_ask(nvml.nvmlDeviceGetCount) or 0):
        handle = _ask(nvml.nvmlDeviceGetHandleByIndex, index)
        if handle is None:
            log.info("GPU %d does not answer and is not sampled", index)
            continue
        attributes: dict[str, str | int | None] = {
            HW_ID: _name(_ask(nvml.nvmlDeviceGetUUID, handle)) or str(index),
            HW_NAME: _name(_ask(nvml.nvmlDeviceGetName, handle)),
            HW_TYPE: "gpu",
            conventions.GPU_INDEX: index,
        }
        cards.append(_Card(index, handle, attributes))
    return cards


def _ask(call: Callable[..., Any], *arguments: Any) -> Any:
    """What NVML says, or None: unsupported, lost, no permission, a function this driver lacks."""
    try:
        return call(*arguments)
    except Exception:
        return None


def _name(value: str | bytes | None) -> str | None:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
