"""The sampler on the real binding and a library of our own: what each driver and card tells is sent, what it does not tell never is."""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from lensd_collectors.conventions import GPU_METRICS
from nvml_stub.build import built, environment, python, require_compiler
from nvml_stub.scripts import GIB, TOTAL, card, cards, series, text

STATE = "lensd.gpu.state.changed"
SLOW = {
    "lensd.gpu.clock.sm.max", "hw.power.limit", "lensd.gpu.temperature.slowdown", "lensd.gpu.ecc.uncorrected", "lensd.gpu.ecc.corrected",
    "lensd.gpu.retired_pages", "lensd.gpu.remapped_rows", "lensd.gpu.remap.pending", "lensd.gpu.remap.failed",
    "lensd.gpu.pcie.generation", "lensd.gpu.pcie.width", "lensd.gpu.pcie.replays",
}  # fmt: skip
TOLD = {
    "hw.gpu.memory.usage": 70 * GIB, "hw.gpu.memory.free": 9 * GIB, "hw.gpu.memory.limit": TOTAL, "lensd.gpu.memory.reserved": GIB,
    "hw.gpu.utilization": 0.93, "lensd.gpu.utilization.memory": 0.41, "lensd.gpu.clock.sm": 1755, "lensd.gpu.clock.event_reasons": 4,
    "hw.temperature": 61, "hw.power": 412.5, "lensd.gpu.clock.sm.max": 1980, "hw.power.limit": 700, "lensd.gpu.temperature.slowdown": 87,
    "lensd.gpu.ecc.uncorrected": 0, "lensd.gpu.ecc.corrected": 2, "lensd.gpu.retired_pages": 1, "lensd.gpu.remapped_rows": 3,
    "lensd.gpu.remap.pending": 0, "lensd.gpu.remap.failed": 0, "lensd.gpu.pcie.generation": 5, "lensd.gpu.pcie.width": 16,
    "lensd.gpu.pcie.replays": 4,
}  # fmt: skip

Play = Callable[..., list[dict[str, Any]]]


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """Compiles the library, once for each set of defines."""
    require_compiler()
    made: dict[tuple[str, ...], Path] = {}

    def get(*defines: str) -> Path:
        if defines not in made:
            made[defines] = built(tmp_path_factory.mktemp("nvml"), *defines)
        return made[defines]

    return get


@pytest.fixture
def play(library: Callable[..., Path], tmp_path: Path) -> Play:
    """Plays a script; gives what each step sent."""

    def run(
        script: str, steps: int, *arguments: str, defines: tuple[str, ...] = (), loaded: bool = True, **settings: object
    ) -> list[dict[str, Any]]:
        path = tmp_path / "script"
        path.write_text(script)
        player = str(Path(__file__).parents[2] / "nvml_stub" / "player.py")
        process = python([player, str(steps), *arguments], environment(library(*defines) if loaded else None, path, **settings))
        out, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        return [json.loads(line) for line in out.splitlines()]

    return run


def of(step: dict[str, Any], gpu: int = 0, mig: str | None = None) -> dict[str, float]:
    """Metric name to value, of one device; without processes."""
    return {
        each["name"]: each["value"]
        for each in step["metrics"]
        if each["about"]["lensd.gpu.index"] == gpu and each["about"].get("lensd.gpu.mig") == mig and "process.pid" not in each["about"]
    }


def states(steps: list[dict[str, Any]]) -> list[tuple[int, str, str, str]]:
    """Step, device, state and severity of what was told of cards."""
    return [
        (number, event["about"]["gpu"], event["about"]["lensd.gpu.state"], event["severity"])
        for number, step in enumerate(steps)
        for event in step["events"]
        if event["name"] == STATE
    ]


def processes(step: dict[str, Any]) -> dict[int, tuple[float, str | None, str | None]]:
    return {
        each["about"]["process.pid"]: (each["value"], each["about"].get("process.executable.name"), each["about"].get("lensd.engine"))
        for each in step["metrics"]
        if each["name"] == "lensd.gpu.process.memory"
    }


def fake_proc(folder: Path, *, hosts_pids: bool = True) -> Path:
    """A /proc with a server (100), its worker (101) and a stranger (200)."""
    for pid, parent, comm in ((100, 1, "python3"), (101, 100, "VLLM::Worker_TP"), (200, 1, "train")):
        place = folder / str(pid)
        place.mkdir(parents=True)
        (place / "stat").write_text(f"{pid} ({comm}) S {parent} " + "0 " * 17 + f"{pid}77 0 0\n")
        (place / "comm").write_text(f"{comm}\n")
        (place / "cmdline").write_bytes(b"VLLM::Worker_TP0\0\0\0" if pid == 101 else b"/usr/bin/" + comm.encode() + b"\0--key=x\0")
        (place / "fd").mkdir()
    (folder / "self/ns").mkdir(parents=True)
    (folder / "self/ns/pid").symlink_to("pid:[4026531836]" if hosts_pids else "pid:[4026532561]")
    return folder


def test_a_healthy_card_tells_everything(play: Play) -> None:
    steps = play(text(cards(2)), 12)
    assert of(steps[0]) == of(steps[0], 1) == TOLD
    assert set(TOLD) == set(GPU_METRICS) - {"lensd.gpu.xid", "lensd.gpu.unified", "lensd.gpu.process.memory"}
    assert of(steps[1]).keys() == TOLD.keys() - SLOW
    assert of(steps[10]).keys() == TOLD.keys()
    assert states(steps) == [(0, "0", "ok", "INFO"), (0, "1", "ok", "INFO")]
    assert steps[0]["gpu"] == ["followed", ""]
    about = steps[0]["events"][1]["about"]
    assert (about["hw.gpu.pci"], about["hw.id"], about["hw.name"]) == ("0000:3c:00", "GPU-00000000-0000-0000-0000-000000000001", "STUB GPU")
    assert "lensd.gpu.unsupported" not in about


def test_growth_until_memory_is_out_and_the_process_is_gone(play: Play, tmp_path: Path) -> None:
    used = [70 * GIB + step * GIB for step in range(10)]
    growth = [series("0", "used", used), series("0", "proc.101", [each - GIB for each in used])]
    end = ["10 0 proc.101 -2", "10 0 used 500000000"]
    steps = play(text(cards(1), *growth, end), 12, "--engine", "100=e0", "--proc", str(fake_proc(tmp_path / "proc")))
    assert [of(step)["hw.gpu.memory.usage"] for step in steps[:11]] == [*used, 500_000_000]
    assert of(steps[9])["hw.gpu.memory.free"] == 0
    assert [processes(step) for step in steps[:10]] == [{101: (each - GIB, "VLLM::Worker_TP0", "e0")} for each in used]
    assert processes(steps[10]) == processes(steps[11]) == {}


def test_processes_are_called_by_name_and_by_the_engine_they_descend_from(play: Play, tmp_path: Path) -> None:
    holding = ["0 0 proc.101 69000000000", "0 0 proc.200 5", "0 0 proc.999 7", "0 0 proc.100 -1", "3 0 proc.200 6"]
    steps = play(text(cards(1), holding), 12, "--engine", "100=e0", "--proc", str(fake_proc(tmp_path / "proc")))
    assert processes(steps[0]) == {101: (69e9, "VLLM::Worker_TP0", "e0"), 200: (5, "train", None), 999: (7, None, None)}
    assert [set(processes(step)) for step in steps[1:10]] == [set(), set(), {200}, *[set()] * 6]
    assert set(processes(steps[10])) == {101, 999}
    assert steps[0]["processes"] == ["followed", ""]


def test_pids_of_the_host_are_never_taken_for_those_of_a_container(play: Play, tmp_path: Path) -> None:
    proc = fake_proc(tmp_path / "proc", hosts_pids=False)
    steps = play(text(cards(1), "0 0 proc.101 9", "0 0 proc.200 5"), 2, "--engine", "100=e0", "--proc", str(proc))
    assert processes(steps[0]) == {101: (9, None, None), 200: (5, None, None)}
    assert steps[1]["processes"][0] == "missing"
    (proc / "101/fd/7").symlink_to("/dev/nvidia0")
    seen = play(text(cards(1), "0 0 proc.101 9", "0 0 proc.200 5"), 1, "--engine", "100=e0", "--proc", str(proc))
    assert processes(seen[0]) == {101: (9, "VLLM::Worker_TP0", "e0"), 200: (5, None, None)}


def test_a_lost_card_is_told_once_and_its_series_ends_until_it_is_back(play: Play) -> None:
    steps = play(text(cards(2), "2 0 lost 1", "6 0 lost 0"), 30)
    seen = [number for number, step in enumerate(steps) if "hw.gpu.memory.usage" in of(step)]
    back = next(number for number in seen if number > 2)
    assert seen == [0, 1, *range(back, 30)]
    assert back > 6
    assert states(steps) == [(0, "0", "ok", "INFO"), (0, "1", "ok", "INFO"), (2, "0", "lost", "CRITICAL"), (back, "0", "ok", "INFO")]
    assert all("hw.gpu.memory.usage" in of(step, 1) for step in steps)


def test_a_card_that_is_listed_no_more_leaves_the_others_their_names(play: Play) -> None:
    steps = play(text(cards(3), "2 0 lost 1", "2 0 hidden 1"), 40)
    assert [each for each in states(steps) if each[0] > 0] == [(2, "0", "lost", "CRITICAL")]
    assert of(steps[-1]) == {}
    for gpu in (1, 2):
        about = [each["about"]["hw.id"] for each in steps[-1]["metrics"] if each["about"]["lensd.gpu.index"] == gpu]
        assert set(about) == {f"GPU-00000000-0000-0000-0000-00000000000{gpu}"}
        assert of(steps[-1], gpu)["hw.gpu.memory.usage"] == 70 * GIB


def test_a_divided_card(play: Play, tmp_path: Path) -> None:
    instance = [f"0 0.1 {key} {value}" for key, value in (("total", 40 * GIB), ("used", 30 * GIB), ("reserved", 0), ("proc.101", 29 * GIB))]
    restricted = ["0 0 fail.MemoryInfo 4", "0 0 fail.UtilizationRates 3"]
    script = text("0 - cards 1", card(mig=1), instance, restricted, "15 0.1 hidden 1")
    steps = play(script, 31, "--engine", "100=e0", "--proc", str(fake_proc(tmp_path / "proc")))
    assert of(steps[0], mig="gi8ci0") == {
        "hw.gpu.memory.usage": 30 * GIB, "hw.gpu.memory.free": 10 * GIB, "hw.gpu.memory.limit": 40 * GIB, "lensd.gpu.memory.reserved": 0,
    }  # fmt: skip
    whole = of(steps[0])
    assert "hw.gpu.memory.usage" not in whole
    assert "lensd.gpu.unified" not in whole
    assert whole["hw.temperature"] == 61
    assert processes(steps[0]) == {101: (29 * GIB, "VLLM::Worker_TP0", "e0")}
    assert states(steps) == [(0, "0", "ok", "INFO"), (0, "0/gi8ci0", "ok", "INFO"), (20, "0/gi8ci0", "absent", "INFO")]
    told = steps[0]["events"][0]["about"]
    assert told["lensd.gpu.denied"] == ["hw.gpu.memory.free", "hw.gpu.memory.limit", "hw.gpu.memory.usage"]
    assert told["lensd.gpu.unsupported"] == ["hw.gpu.utilization", "lensd.gpu.utilization.memory"]


def test_an_instance_that_tells_no_memory_has_not_the_hosts(play: Play) -> None:
    steps = play(text("0 - cards 1", card(mig=1), f"0 0.1 total {GIB}", "0 0.1 fail.MemoryInfo 2"), 1)
    assert of(steps[0], mig="gi8ci0") == {}
    assert states(steps) == [(0, "0", "ok", "INFO"), (0, "0/gi8ci0", "unsupported", "WARNING")]


UNSUPPORTED = [
    ("UtilizationRates", {"hw.gpu.utilization", "lensd.gpu.utilization.memory"}),
    ("ClockInfo", {"lensd.gpu.clock.sm"}),
    ("ClocksReasons", {"lensd.gpu.clock.event_reasons"}),
    ("Temperature", {"hw.temperature"}),
    ("PowerUsage", {"hw.power"}),
    ("MaxClockInfo", {"lensd.gpu.clock.sm.max"}),
    ("EnforcedPowerLimit", {"hw.power.limit"}),
    ("TemperatureThreshold", {"lensd.gpu.temperature.slowdown"}),
    ("TotalEccErrors", {"lensd.gpu.ecc.uncorrected", "lensd.gpu.ecc.corrected"}),
    ("RetiredPages", {"lensd.gpu.retired_pages"}),
    ("RemappedRows", {"lensd.gpu.remapped_rows", "lensd.gpu.remap.pending", "lensd.gpu.remap.failed"}),
    ("CurrPcieLinkGeneration", {"lensd.gpu.pcie.generation"}),
    ("CurrPcieLinkWidth", {"lensd.gpu.pcie.width"}),
    ("PcieReplayCounter", {"lensd.gpu.pcie.replays"}),
    ("Processes", {"lensd.gpu.process.memory"}),
]


@pytest.mark.parametrize(("code", "told_as"), [(3, "lensd.gpu.unsupported"), (4, "lensd.gpu.denied"), (999, None)])
def test_what_a_card_refuses_is_absent_and_told_once(play: Play, code: int, told_as: str | None) -> None:
    failing = [f"0 {gpu} fail.{function} {code}" for gpu, (function, _) in enumerate(UNSUPPORTED)]
    steps = play(text(cards(len(UNSUPPORTED)), [f"0 {gpu} proc.101 9" for gpu in range(len(UNSUPPORTED))], failing), 3)
    events = [event["about"] for step in steps for event in step["events"]]
    assert [(event["gpu"], event["lensd.gpu.state"]) for event in events] == [(str(gpu), "ok") for gpu in range(len(UNSUPPORTED))]
    for gpu, (function, names) in enumerate(UNSUPPORTED):
        assert of(steps[0], gpu) == {name: value for name, value in TOLD.items() if name not in names}, function
        refused = {key: set(events[gpu].get(key, ())) for key in ("lensd.gpu.unsupported", "lensd.gpu.denied")}
        assert {key: value for key, value in refused.items() if value} == ({told_as: names} if told_as else {}), function
    of_process = [each["about"]["lensd.gpu.index"] for each in steps[0]["metrics"] if "process.pid" in each["about"]]
    assert of_process == list(range(len(UNSUPPORTED) - 1))


def test_a_card_without_memory_of_its_own_has_the_hosts(play: Play) -> None:
    steps = play(text(cards(1), "0 0 fail.MemoryInfo 3"), 2)
    found = of(steps[0])
    assert found["lensd.gpu.unified"] == 1
    assert found["hw.gpu.memory.limit"] == os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert found["hw.gpu.memory.usage"] + found["hw.gpu.memory.free"] == found["hw.gpu.memory.limit"]
    assert "lensd.gpu.memory.reserved" not in found
    assert of(steps[1])["lensd.gpu.unified"] == 1
    assert [event["about"]["lensd.gpu.unified"] for step in steps for event in step["events"]] == [True]


def test_a_card_that_had_memory_of_its_own_never_has_the_hosts(play: Play) -> None:
    steps = play(text(cards(1), "5 0 fail.MemoryInfo 3", "15 0 fail.MemoryInfo 0"), 25)
    assert not any("lensd.gpu.unified" in of(step) for step in steps)
    assert [of(step).get("hw.gpu.memory.usage") for step in (steps[4], steps[5], steps[12], steps[24])] == [70 * GIB, None, None, 70 * GIB]


def test_a_driver_from_before_the_newer_functions(play: Play) -> None:
    steps = play(text(cards(1), "0 0 proc.101 9"), 2, "--faults", defines=("OLD_DRIVER",))
    assert of(steps[0]) == {**{name: value for name, value in TOLD.items() if "reserved" not in name}, "hw.gpu.memory.usage": 71 * GIB}
    assert processes(steps[0])[101][0] == 9
    assert steps[0]["faults"] == ["missing", "the driver tells no faults: only the kernel's log does"]


def all_calls(code: int, step: int = 0) -> list[str]:
    return [f"{step} 0 fail.{function} {code}" for function in ("MemoryInfo", *(name for name, _ in UNSUPPORTED))]


@pytest.mark.parametrize(
    ("code", "told"),
    [
        (4, [(0, "0", "denied", "WARNING")]),
        (16, [(0, "0", "reset_required", "CRITICAL")]),
        (999, [(2, "0", "failing", "CRITICAL")]),
    ],
)
def test_a_card_that_tells_nothing(play: Play, code: int, told: list[tuple[int, str, str, str]]) -> None:
    steps = play(text(cards(1), all_calls(code)), 5)
    assert all(of(step) == {} for step in steps)
    assert states(steps) == told


def test_one_failing_answer_is_no_state_of_a_card(play: Play) -> None:
    steps = play(text(cards(1), all_calls(999, 2), all_calls(0, 3)), 6)
    assert of(steps[2]) == {}
    assert states(steps) == [(0, "0", "ok", "INFO")]


@pytest.mark.parametrize(
    ("code", "standing"),
    [
        (9, ["missing", "the NVIDIA driver is not loaded"]),
        (18, ["missing", "driver and library of NVIDIA have different versions: restart the agent after an upgrade, or the host"]),
        (4, ["denied", "this user may not use the NVIDIA driver"]),
        (999, ["missing", "nvml: unknown error"]),
    ],
)
def test_a_driver_that_comes_later_is_found(play: Play, code: int, standing: list[str]) -> None:
    steps = play(text(cards(1), f"0 - init {code}", "30 - init 0"), 70)
    assert steps[0]["gpu"] == steps[59]["gpu"] == standing
    assert of(steps[59]) == {}
    assert steps[60]["gpu"] == ["followed", ""]
    assert of(steps[60]) == TOLD


def test_no_library(play: Play) -> None:
    steps = play("", 2, "--faults", loaded=False)
    assert [step["gpu"] for step in steps] == [["missing", "no NVIDIA driver"]] * 2
    assert steps[1]["metrics"] == steps[1]["events"] == []


def test_no_card(play: Play) -> None:
    assert play(text("0 - cards 0"), 1)[0]["gpu"] == ["missing", "the driver lists no GPU"]


def test_a_driver_that_is_unloaded_in_mid_run(play: Play) -> None:
    steps = play(text(cards(1), "2 - fail.MemoryInfo 9", "4 - fail.MemoryInfo 0"), 12)
    assert steps[2]["gpu"][0] == "missing"
    assert of(steps[2]) == of(steps[6]) == {}
    assert of(steps[7]) == TOLD


def test_a_fault_is_an_event_at_once_and_a_number_in_the_next_sample(play: Play, tmp_path: Path) -> None:
    faults = ["2 1 xid 79", "2 1 xid 79", "2 1 xid 48", "5 1 xid 79"]
    steps = play(text(cards(2), "0 1 proc.101 9", faults), 8, "--faults", "--engine", "100=e0", "--proc", str(fake_proc(tmp_path / "proc")))
    events = [
        (number, about["xid"], about["pci"], about["gpu"], about["lensd.engine"], event["severity"])
        for number, step in enumerate(steps)
        for event in step["events"]
        if event["name"] == "gpu.xid" and (about := event["about"])
    ]
    assert events == [
        (2, 79, "0000:3c:00", "1", "e0", "CRITICAL"),
        (2, 48, "0000:3c:00", "1", "e0", "CRITICAL"),
        (5, 79, "0000:3c:00", "1", "e0", "CRITICAL"),
    ]
    assert {number: of(step, 1)["lensd.gpu.xid"] for number, step in enumerate(steps) if "lensd.gpu.xid" in of(step, 1)} == {3: 48, 6: 79}
    assert steps[0]["faults"] == ["followed", ""]


@pytest.mark.parametrize(("code", "state"), [(3, "missing"), (4, "denied")])
def test_faults_that_are_not_told(play: Play, code: int, state: str) -> None:
    assert play(text(cards(1), f"0 - fail.EventSetCreate {code}"), 1, "--faults")[0]["faults"][0] == state


def test_a_slow_driver_tells_the_same(play: Play) -> None:
    assert of(play(text(cards(1)), 1, call_us=1000)[0]) == TOLD
