"""A stand-in for the module `amdsmi`: its functions with the names, arguments and answers of amd-smi's own Python interface."""

from types import SimpleNamespace
from typing import Any

MIB = 1 << 20
NOT_SUPPORTED, NO_PERM, INTERNAL, NOT_INIT, DRIVER_NOT_LOADED = 2, 10, 16, 32, 34


class AmdSmiException(Exception):
    pass


class AmdSmiLibraryException(AmdSmiException):
    def __init__(self, code: int) -> None:
        super().__init__(f"An error occured with code: {code}")
        self.code = code

    def get_error_code(self) -> int:
        return self.code


class AmdLibrary:
    """Answers from `answers` by the function's name: a value for every card, or a code to fail with where it is an AmdSmiException."""

    AmdSmiException = AmdSmiException
    AmdSmiMemoryType = SimpleNamespace(VRAM="vram")
    AmdSmiClkType = SimpleNamespace(GFX="gfx")
    AmdSmiTemperatureType = SimpleNamespace(HOTSPOT="hotspot", EDGE="edge")
    AmdSmiTemperatureMetric = SimpleNamespace(CURRENT="current")

    def __init__(self, cards: int = 1, **answers: Any) -> None:
        self.handles = [f"card{number}" for number in range(cards)]
        self.calls: list[str] = []
        self.answers: dict[str, Any] = {
            "amdsmi_init": None,
            "amdsmi_shut_down": None,
            "amdsmi_get_gpu_asic_info": {"market_name": "AMD Instinct MI300X"},
            "amdsmi_get_gpu_device_uuid": lambda handle: f"uuid-{handle}",
            "amdsmi_get_gpu_device_bdf": lambda handle: f"0000:0{handle[-1]}:00.0",
            "amdsmi_get_gpu_memory_total": lambda handle, kind: 196_592 * MIB,
            "amdsmi_get_gpu_memory_usage": lambda handle, kind: 150_000 * MIB + 4096,
            "amdsmi_get_gpu_activity": {"gfx_activity": 97, "umc_activity": 40, "mm_activity": "N/A"},
            "amdsmi_get_clock_info": {"clk": 1700, "min_clk": 500, "max_clk": 2100, "clk_locked": False},
            "amdsmi_get_temp_metric": 71,
            "amdsmi_get_power_info": {
                "socket_power": 701,
                "current_socket_power": "N/A",
                "average_socket_power": 650,
                "power_limit": 750_000_000,
            },
            "amdsmi_get_gpu_total_ecc_count": {"correctable_count": 3, "uncorrectable_count": 1, "deferred_count": 0},
            "amdsmi_get_gpu_bad_page_info": "No bad pages found.",
            "amdsmi_get_pcie_info": {"pcie_static": {}, "pcie_metric": {"pcie_width": 16, "pcie_replay_count": 2}},
            "amdsmi_get_gpu_process_list": [{"name": "python", "pid": 4471, "mem": 1, "memory_usage": {"vram_mem": 149_000 * MIB}}],
        } | answers

    def amdsmi_get_processor_handles(self) -> list[str]:
        return list(self.handles)

    def __getattr__(self, name: str) -> Any:
        answers = self.__dict__["answers"]
        if name not in answers:
            raise AttributeError(name)

        def call(*arguments: Any) -> Any:
            self.calls.append(name)
            answer = answers[name]
            if isinstance(answer, AmdSmiException):
                raise answer
            return answer(*arguments) if callable(answer) else answer

        return call
