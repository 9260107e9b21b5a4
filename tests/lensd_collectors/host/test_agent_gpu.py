"""GPU samples as far as a card tells; without driver one line, never a crash."""

import logging
from types import SimpleNamespace
from typing import Any

import pytest
from lensd_collectors.conventions import GPU_METRICS
from lensd_collectors.host.gpu import NO_DRIVER, UNITS, GpuSampler, read

GIB = 2**30


class NotSupported(Exception):
    """As pynvml raises it."""


class FakeNvml:
    """Two cards; `broken` names the calls that are not supported."""

    nvmlMemory_v2, NVML_CLOCK_SM, NVML_TEMPERATURE_GPU = 2, 1, 0

    def __init__(self, broken: frozenset[str] = frozenset()) -> None:
        self.broken = broken

    def _say(self, name: str, value: Any) -> Any:
        if name in self.broken:
            raise NotSupported
        return value

    def nvmlDeviceGetCount(self) -> int:
        return int(self._say("count", 2))

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return int(self._say(f"handle{index}", index))

    def nvmlDeviceGetUUID(self, handle: int) -> Any:
        return self._say("uuid", f"GPU-{handle}".encode())

    def nvmlDeviceGetName(self, handle: int) -> Any:
        return self._say("name", "Fake")

    def nvmlDeviceGetMemoryInfo(self, handle: int, version: int | None = None) -> Any:
        if version is not None:
            return self._say("memory2", SimpleNamespace(used=70 * GIB, free=9 * GIB, total=80 * GIB, reserved=GIB))
        return self._say("memory", SimpleNamespace(used=71 * GIB, free=9 * GIB, total=80 * GIB))

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> Any:
        return self._say("util", SimpleNamespace(gpu=93, memory=41))

    def nvmlDeviceGetClockInfo(self, handle: int, kind: int) -> Any:
        return self._say("clock", 1980)

    def nvmlDeviceGetTemperature(self, handle: int, sensor: int) -> Any:
        return self._say("temperature", 61)

    def nvmlDeviceGetPowerUsage(self, handle: int) -> Any:
        return self._say("power", 412_500)


FULL = {
    "hw.gpu.memory.usage": 70 * GIB, "hw.gpu.memory.free": 9 * GIB, "hw.gpu.memory.limit": 80 * GIB, "lensd.gpu.memory.reserved": GIB,
    "hw.gpu.utilization": 0.93, "lensd.gpu.clock.sm": 1980, "hw.temperature": 61, "hw.power": 412.5,
}  # fmt: skip


def test_every_metric_of_the_conventions_is_read() -> None:
    assert read(FakeNvml(), 0) == FULL
    assert set(FULL) == set(GPU_METRICS) == set(UNITS)


@pytest.mark.parametrize(
    ("call", "absent"),
    [
        ("util", {"hw.gpu.utilization"}),
        ("clock", {"lensd.gpu.clock.sm"}),
        ("temperature", {"hw.temperature"}),
        ("power", {"hw.power"}),
    ],
)
def test_unsupported_call_leaves_its_metric_out(call: str, absent: set[str]) -> None:
    assert read(FakeNvml(frozenset({call})), 0) == {name: value for name, value in FULL.items() if name not in absent}


def test_old_driver_has_no_reserve() -> None:
    got = read(FakeNvml(frozenset({"memory2"})), 0)
    assert "lensd.gpu.memory.reserved" not in got
    assert got["hw.gpu.memory.usage"] == 71 * GIB


def test_lost_card_says_nothing() -> None:
    assert read(FakeNvml(frozenset({"memory", "memory2", "util", "clock", "temperature", "power"})), 0) == {}


def test_cards_are_told_apart(recorder: Any) -> None:
    sampler = GpuSampler(recorder, lambda: 9, FakeNvml())
    assert sampler.works
    sampler.sample()
    assert recorder.batches == [2 * len(FULL)]
    used = [metric.gauge.data_points[0] for name, _, metric in recorder.metrics if name == "hw.gpu.memory.usage"]
    assert [recorder.attributes(point) for point in used] == [
        {"hw.id": f"GPU-{index}", "hw.name": "Fake", "hw.type": "gpu", "lensd.gpu.index": str(index)} for index in (0, 1)
    ]


def test_one_broken_card_does_not_hide_the_other(recorder: Any) -> None:
    sampler = GpuSampler(recorder, lambda: 9, FakeNvml(frozenset({"handle0", "name"})))
    sampler.sample()
    assert len(recorder.metrics) == len(FULL)


@pytest.mark.parametrize("nvml", [None, FakeNvml(frozenset({"count"}))])
def test_no_driver(recorder: Any, caplog: pytest.LogCaptureFixture, nvml: Any) -> None:
    with caplog.at_level(logging.INFO):
        sampler = GpuSampler(recorder, lambda: 9, nvml)
    assert not sampler.works
    sampler.sample()
    assert recorder.metrics == []
    assert (NO_DRIVER in caplog.text) == (nvml is None)
