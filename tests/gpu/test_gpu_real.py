"""On a real driver: what its cards tell, and memory that runs out for real, whose text and curve are kept as a capture.

`make test-gpu`; LENSD_TORCH_PYTHON names a Python that has torch with CUDA, where this one has not.
"""

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from checkout import ROOT
from lensd_collectors.dialects import load
from lensd_collectors.host.card import CardState, Driver, UnavailableDriverError
from lensd_collectors.host.gpu import GpuSampler
from lensd_collectors.host.kmsg import Pids
from lensd_collectors.host.nvml import open_nvml
from lensd_collectors.host.owners import Owners
from lensd_collectors.read import engine_log, read
from lensd_collectors.rows import Event, GpuSample
from nvml_stub.player import Sent

FILL = Path(__file__).with_name("fill.py")
TORCH = os.environ.get("LENSD_TORCH_PYTHON") or sys.executable
CAPTURES = ROOT / "tests" / "captures" / "gpu"
INTERVAL_S = 0.1
LIMIT_S = 600
MIB = 2**20


@pytest.fixture(scope="module")
def driver() -> Iterator[Driver]:
    try:
        made = open_nvml()
    except UnavailableDriverError as unavailable:
        pytest.skip(f"no GPU here: {unavailable.standing.reason}")
    yield made
    made.close()


@pytest.fixture(scope="module")
def torch_python(driver: Driver) -> str:
    asked = "import torch, sys; sys.exit(not torch.cuda.is_available())"
    if subprocess.run([TORCH, "-c", asked], capture_output=True, check=False).returncode != 0:
        pytest.skip(f"no torch with CUDA in {TORCH}: LENSD_TORCH_PYTHON names a Python that has it")
    return TORCH


def test_a_real_card_tells_its_memory(driver: Driver) -> None:
    cards = list(driver.cards())
    assert cards
    for card in cards:
        reading = card.read(whole=True)
        assert reading.state is CardState.OK, reading.reason
        values = reading.values
        assert card.identity.uuid.startswith(("GPU-", "MIG-"))
        if {"hw.gpu.memory.usage", "hw.gpu.memory.free", "lensd.gpu.memory.reserved"} <= values.keys():
            parts = values["hw.gpu.memory.usage"] + values["hw.gpu.memory.free"] + values["lensd.gpu.memory.reserved"]
            assert parts == pytest.approx(values["hw.gpu.memory.limit"], rel=0.01)
        assert 0 <= values.get("hw.gpu.utilization", 0) <= 1
        told = values.keys() | reading.unsupported | reading.denied
        assert {"hw.gpu.memory.usage", "hw.temperature", "hw.power", "lensd.gpu.clock.event_reasons", "lensd.gpu.pcie.width"} <= told


class Curve:
    """Samples in the background while something else happens."""

    def __init__(self, pid: int) -> None:
        self._sent, self._stop = Sent(), threading.Event()
        pids = Pids()
        pids.add(pid, "e0")
        self._sampler = GpuSampler(open_nvml, self._sent, Owners(pids), time.time_ns)  # type: ignore[arg-type]
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._stop.is_set():
            self._sampler.step()
            self._stop.wait(INTERVAL_S)
        self._sampler.flush()
        self._sampler.close()

    def end(self) -> list[dict[str, Any]]:
        """One entry a sample of the first card: its instant, and its values by metric."""
        self._stop.set()
        self._thread.join(LIMIT_S)
        found: dict[int, dict[str, Any]] = {}
        for each in self._sent.metrics:
            about = each["about"]
            if about["lensd.gpu.index"] == 0 and "lensd.gpu.mig" not in about:
                key = f"{each['name']} {about['process.pid']}" if "process.pid" in about else each["name"]
                found.setdefault(int(each["at"]), {})[key] = each["value"]
        return [{"at_ns": at, **values} for at, values in sorted(found.items())]


def test_memory_that_runs_out_is_seen_and_kept(torch_python: str) -> None:
    process = subprocess.Popen([torch_python, str(FILL), "0"], stderr=subprocess.PIPE, text=True)
    curve = Curve(process.pid)
    try:
        _, text = process.communicate(timeout=LIMIT_S)
    finally:
        process.kill()
        time.sleep(2 * INTERVAL_S)  # the card after its process
        samples = curve.end()
    assert process.returncode == 1
    used = [each["hw.gpu.memory.usage"] for each in samples if "hw.gpu.memory.usage" in each]
    total = next(each["hw.gpu.memory.limit"] for each in samples if "hw.gpu.memory.limit" in each)
    peak = used.index(max(used))
    assert used[peak] - used[0] > 0.5 * (total - used[0])
    assert used[-1] < used[peak]
    keep(text, samples)
    told = engine_log.read_log(CAPTURES / "oom.log", load()["vllm"], name="oom.log").rows
    assert any(isinstance(row, Event) and row.name == "engine.oom" for row in told)
    rows = read(CAPTURES / "curve.csv").rows["gpu_samples"]
    assert max(row.used_bytes or 0 for row in rows if isinstance(row, GpuSample)) == pytest.approx(used[peak], abs=MIB)


def keep(text: str, samples: list[dict[str, Any]]) -> None:
    """The text as torch printed it, and the curve as nvidia-smi would."""
    CAPTURES.mkdir(parents=True, exist_ok=True)
    (CAPTURES / "oom.log").write_text(text)
    lines = ["timestamp, index, memory.total [MiB], memory.used [MiB], memory.free [MiB], utilization.gpu [%]"]
    for each in samples:
        if "hw.gpu.memory.usage" in each:
            at = datetime.fromtimestamp(each["at_ns"] / 1e9, UTC).strftime("%Y/%m/%d %H:%M:%S.%f")[:-3]
            sizes = (round(each[f"hw.gpu.memory.{part}"] / MIB) for part in ("limit", "usage", "free"))
            lines.append(
                f"{at}, 0, " + ", ".join(f"{size} MiB" for size in sizes) + f", {round(each.get('hw.gpu.utilization', 0) * 100)} %"
            )
    (CAPTURES / "curve.csv").write_text("\n".join(lines) + "\n")
    (CAPTURES / "samples.json").write_text(json.dumps(samples, indent=1) + "\n")
