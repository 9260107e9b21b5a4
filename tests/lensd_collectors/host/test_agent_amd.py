"""AMD's cards behind the same reader: what AMD SMI tells under our names, and each way in which it does not."""

import sys
from typing import Any

import pytest
from amd_library import (
    DRIVER_NOT_LOADED,
    INTERNAL,
    MIB,
    NO_PERM,
    NOT_INIT,
    NOT_SUPPORTED,
    AmdLibrary,
    AmdSmiException,
    AmdSmiLibraryException,
)
from lensd_collectors import conventions
from lensd_collectors.host import vendors
from lensd_collectors.host.amd import Amd, open_amd
from lensd_collectors.host.card import CardProcess, CardState, DriverGoneError, Identity, Reading, UnavailableDriverError
from lensd_collectors.host.gpu import GpuSampler
from lensd_collectors.host.kmsg import Pids
from lensd_collectors.host.line import FOLLOWED, Standing, State
from lensd_collectors.host.owners import Owners

NO_NVIDIA = Standing(State.MISSING, "no NVIDIA driver")


def refused(code: int) -> AmdSmiException:
    return AmdSmiLibraryException(code)


def reading(library: AmdLibrary, *, whole: bool = True) -> Reading:
    (card,) = Amd(library).cards()
    return card.read(whole=whole)


def test_what_a_card_tells() -> None:
    found = reading(AmdLibrary())
    used = 150_000 * MIB + 4096
    assert found.values == {
        "hw.gpu.memory.limit": 196_592 * MIB,
        "hw.gpu.memory.usage": used,
        "hw.gpu.memory.free": 196_592 * MIB - used,
        "hw.gpu.utilization": pytest.approx(0.97),
        "lensd.gpu.utilization.memory": pytest.approx(0.4),
        "lensd.gpu.clock.sm": 1700,
        "lensd.gpu.clock.sm.max": 2100,
        "hw.temperature": 71,
        "hw.power": 701,
        "hw.power.limit": 750,
        "lensd.gpu.ecc.uncorrected": 1,
        "lensd.gpu.ecc.corrected": 3,
        "lensd.gpu.retired_pages": 0,
        "lensd.gpu.pcie.width": 16,
        "lensd.gpu.pcie.replays": 2,
    }
    assert found.values.keys() | found.unsupported <= conventions.GPU_METRICS.keys()
    assert found.processes == (CardProcess(4471, 149_000 * MIB),)
    assert (found.state, found.reason, found.denied) == (CardState.OK, "", frozenset())


def test_who_a_card_is() -> None:
    first, second = (card.identity for card in Amd(AmdLibrary(cards=2)).cards())
    assert first == Identity(index=0, uuid="uuid-card0", name="AMD Instinct MI300X", pci="0000:00:00")
    assert (second.gpu, second.key) == ("1", "uuid-card1")


def test_slow_questions_are_asked_with_a_whole_reading_only() -> None:
    library = AmdLibrary()
    (card,) = Amd(library).cards()
    card.read(whole=True)
    library.calls.clear()
    card.read(whole=False)
    assert "amdsmi_get_gpu_memory_usage" in library.calls
    assert "amdsmi_get_gpu_process_list" in library.calls
    assert not {"amdsmi_get_gpu_bad_page_info", "amdsmi_get_pcie_info", "amdsmi_get_gpu_total_ecc_count"} & set(library.calls)


@pytest.mark.parametrize(
    ("answers", "expected", "absent"),
    [
        (
            {
                "amdsmi_get_gpu_memory_total": refused(NOT_SUPPORTED),
                "amdsmi_get_gpu_vram_usage": {"vram_total": 192 * 1024, "vram_used": 1024},
            },
            {"hw.gpu.memory.limit": 192 * 1024 * MIB, "hw.gpu.memory.usage": 1024 * MIB},
            (),
        ),
        (
            {"amdsmi_get_gpu_activity": {"gfx_activity": "N/A", "umc_activity": 0}},
            {"lensd.gpu.utilization.memory": 0},
            ("hw.gpu.utilization",),
        ),
        ({"amdsmi_get_gpu_activity": {"gfx_activity": 0xFFFF}}, {}, ("hw.gpu.utilization",)),
        ({"amdsmi_get_clock_info": {"cur_clk": 1200, "max_clk": 1700}}, {"lensd.gpu.clock.sm": 1200}, ()),
        ({"amdsmi_get_power_info": {"average_socket_power": 280, "power_limit": 300}}, {"hw.power": 280, "hw.power.limit": 300}, ()),
        ({"amdsmi_get_power_info": {"socket_power": "N/A", "power_limit": 0}}, {}, ("hw.power", "hw.power.limit")),
        ({"amdsmi_get_gpu_bad_page_info": [{"value": 1}, {"value": 2}]}, {"lensd.gpu.retired_pages": 2}, ()),
        ({"amdsmi_get_gpu_total_ecc_count": refused(NOT_SUPPORTED)}, {}, ("lensd.gpu.ecc.uncorrected", "lensd.gpu.ecc.corrected")),
    ],
)
def test_an_answer_of_another_version_or_none(answers: dict[str, Any], expected: dict[str, float], absent: tuple[str, ...]) -> None:
    found = reading(AmdLibrary(**answers))
    assert expected.items() <= found.values.items()
    assert not found.values.keys() & set(absent)
    assert set(absent) <= found.unsupported
    assert found.state is CardState.OK


def test_the_temperature_of_the_edge_where_there_is_no_other() -> None:
    def temperature(handle: str, kind: str, metric: str) -> int:
        if kind == "hotspot":
            raise refused(NOT_SUPPORTED)
        return 55

    assert reading(AmdLibrary(amdsmi_get_temp_metric=temperature)).values["hw.temperature"] == 55


def test_processes_whose_memory_is_not_told_and_those_of_an_old_library() -> None:
    untold = AmdLibrary(amdsmi_get_gpu_process_list=[{"pid": 4471, "memory_usage": {"vram_mem": "N/A"}}, {"pid": 7}])
    assert reading(untold).processes == (CardProcess(7, None), CardProcess(4471, None))
    old = AmdLibrary(
        amdsmi_get_gpu_process_list=["handle"],
        amdsmi_get_gpu_process_info=lambda card, process: {"pid": 4471, "memory_usage": {"vram_mem": 5 * MIB}},
    )
    assert reading(old).processes == (CardProcess(4471, 5 * MIB),)
    denied = reading(AmdLibrary(amdsmi_get_gpu_process_list=refused(NO_PERM)))
    assert (denied.processes, denied.denied) == (None, {"lensd.gpu.process.memory"})


def test_a_call_that_the_library_lacks_is_not_supported() -> None:
    library = AmdLibrary()
    del library.answers["amdsmi_get_pcie_info"]
    assert {"lensd.gpu.pcie.width", "lensd.gpu.pcie.replays"} <= reading(library).unsupported


EVERY = [
    name
    for name in AmdLibrary().answers
    if name.startswith("amdsmi_get_") and not name.startswith(("amdsmi_get_gpu_asic", "amdsmi_get_gpu_device"))
]


@pytest.mark.parametrize(
    ("code", "state"), [(INTERNAL, CardState.FAILING), (NO_PERM, CardState.DENIED), (NOT_SUPPORTED, CardState.UNSUPPORTED)]
)
def test_a_card_that_tells_nothing(code: int, state: CardState) -> None:
    found = reading(AmdLibrary(**{name: refused(code) for name in [*EVERY, "amdsmi_get_gpu_vram_usage"]}))
    assert (found.values, found.state) == ({}, state)
    assert (found.reason != "") == (state is CardState.FAILING)


@pytest.mark.parametrize("code", [NOT_INIT, DRIVER_NOT_LOADED])
def test_a_driver_that_goes_is_told(code: int) -> None:
    with pytest.raises(DriverGoneError):
        reading(AmdLibrary(amdsmi_get_gpu_activity=refused(code)))


@pytest.mark.parametrize(
    ("library", "standing"),
    [
        (None, Standing(State.MISSING, "no AMD SMI")),
        (AmdLibrary(amdsmi_init=refused(DRIVER_NOT_LOADED)), Standing(State.MISSING, "the AMD driver is not loaded")),
        (AmdLibrary(amdsmi_init=refused(NO_PERM)), Standing(State.DENIED, "this user may not use the AMD driver")),
    ],
)
def test_a_library_that_cannot_be_opened_says_why(library: AmdLibrary | None, standing: Standing, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "amdsmi", library)
    with pytest.raises(UnavailableDriverError) as caught:
        open_amd()
    assert caught.value.standing == standing


def test_amd_is_tried_where_there_is_no_nvidia(recorder: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_nvidia() -> Any:
        raise UnavailableDriverError(NO_NVIDIA)

    monkeypatch.setattr(vendors, "open_nvml", no_nvidia)
    monkeypatch.setitem(sys.modules, "amdsmi", None)
    with pytest.raises(UnavailableDriverError) as caught:
        vendors.open_gpus()
    assert caught.value.standing == NO_NVIDIA
    monkeypatch.setitem(sys.modules, "amdsmi", AmdLibrary())
    sampler = GpuSampler(vendors.open_gpus, recorder, Owners(Pids()), lambda: 9, lambda: 0.0)
    sampler.step()
    assert sampler.standing == FOLLOWED
    sent = {name: value for (name, _), value in recorder.values().items()}
    assert sent["hw.gpu.memory.limit"] == 196_592 * MIB
    assert sent["lensd.gpu.process.memory"] == 149_000 * MIB
