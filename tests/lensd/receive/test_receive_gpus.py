"""GPU metrics as rows: one a card, one a process on a card, one a process of the host, one a host; and one source a card."""

from typing import Any

import msgspec
import pytest
from lensd_collectors.conventions import GPU_METRICS, THROTTLE_REASONS
from lensd_collectors.host.gpu import UNITS
from lensd_collectors.rows import GpuSample, Row
from otlp_bodies import AT_NS, AT_US, KINDS, logs, metrics

from lensd.receive.decode import Decoder
from lensd.store.arrow import batch_of

AT = "2026-11-29T14:38:46.000Z"
CARD = {"hw.id": "GPU-1", "hw.type": "gpu", "lensd.gpu.index": 1}
HOST = {"host.name": "h"}
WORKER = {"process.pid": 101, "process.executable.name": "VLLM::Worker_TP0", "lensd.engine": "e0"}
DCGM = {"lensd.scrape.target": "http://h:9400/metrics", "Hostname": "h", "gpu": "1", "UUID": "GPU-1"}
OTHER = {**DCGM, "gpu": "0", "UUID": "GPU-0"}


def rows(message: Any, decoder: Decoder | None = None) -> dict[str, list[Row]]:
    made = (decoder or Decoder()).decode(KINDS[type(message)], message.SerializeToString(), AT_US + 5)
    batch_of(made)  # every row fits its table
    return made


def gpus(*points: Any, decoder: Decoder | None = None, at_ns: int = AT_NS) -> list[Row]:
    return rows(metrics(*points, resource=HOST, at_ns=at_ns), decoder).get("gpu_samples", [])


def set_columns(row: Row) -> dict[str, Any]:
    return {name: value for name, value in msgspec.structs.asdict(row).items() if value is not None}


def test_every_metric_has_its_column() -> None:
    of_card = [(name, 3.0, CARD) for name in GPU_METRICS if name != "lensd.gpu.process.memory"]
    (row,) = gpus(*of_card)
    columns = set(GPU_METRICS.values()) - {"pid_used_bytes"}
    assert set_columns(row).keys() == columns | {"seen_at", "host", "gpu", "src"}
    assert isinstance(row, GpuSample)
    assert (row.throttle, row.remap_pending, row.unified, row.ecc, row.temp_c) == ("idle,application_clocks", True, True, 3, 3.0)
    assert set(UNITS) <= set(GPU_METRICS)


@pytest.mark.parametrize(
    ("mask", "text"),
    [(0, ""), (4, "sw_power_cap"), (0x48, "hw_slowdown,hw_thermal"), (sum(THROTTLE_REASONS), ",".join(THROTTLE_REASONS.values()))],
)
def test_reasons_are_spelled(mask: int, text: str) -> None:
    (row,) = gpus(("lensd.gpu.clock.event_reasons", float(mask), CARD))
    assert isinstance(row, GpuSample)
    assert row.throttle == text


def test_a_process_has_a_row_of_its_own_with_a_source_of_its_own() -> None:
    use = "lensd.gpu.process.memory"
    made = gpus(
        ("hw.gpu.memory.usage", 70.0, CARD), (use, 60.0, {**CARD, **WORKER}), (use, 9.0, {**CARD, "process.pid": 200}), (use, 1.0, CARD)
    )
    assert made == [
        GpuSample(seen_at=AT_US, host="h", gpu="1", used_bytes=70, src=f"scrape:gpu:h/1@{AT}"),
        GpuSample(
            seen_at=AT_US, host="h", gpu="1", pid=101, pid_used_bytes=60, process="VLLM::Worker_TP0", pid_engine="e0",
            src=f"scrape:gpu:h/1/101@{AT}",
        ),
        GpuSample(seen_at=AT_US, host="h", gpu="1", pid=200, pid_used_bytes=9, src=f"scrape:gpu:h/1/200@{AT}"),
    ]  # fmt: skip


def test_an_instance_of_a_divided_card_is_a_card() -> None:
    (row,) = gpus(("hw.gpu.memory.usage", 7.0, {**CARD, "lensd.gpu.mig": "gi7ci0"}))
    assert set_columns(row) == {
        "seen_at": AT_US, "host": "h", "gpu": "1/gi7ci0", "mig": "gi7ci0", "used_bytes": 7, "src": f"scrape:gpu:h/1/gi7ci0@{AT}",
    }  # fmt: skip


def test_memory_of_host_and_processes() -> None:
    made = gpus(
        ("system.memory.limit", 1000.0, {}), ("system.linux.memory.available", 300.0, {}),
        ("process.memory.usage", 50.0, WORKER), ("process.memory.usage", 50.0, {}),
    )  # fmt: skip
    assert [set_columns(row) for row in made] == [
        {
            "seen_at": AT_US, "host": "h", "pid": 101, "rss_bytes": 50, "process": "VLLM::Worker_TP0", "pid_engine": "e0",
            "src": f"scrape:proc:h/101@{AT}",
        },
        {"seen_at": AT_US, "host": "h", "total_bytes": 1000, "rss_bytes": 700, "src": f"scrape:proc:h@{AT}"},
    ]  # fmt: skip
    assert gpus(("system.memory.limit", 1000.0, {})) == []


def test_what_is_no_gpu_is_none() -> None:
    assert gpus(("hw.temperature", 40.0, {"hw.type": "cpu", "hw.id": "0"}), ("hw.power", 4.0, {}), ("hw.power", float("nan"), CARD)) == []


def test_an_exporters_scrape() -> None:
    made = gpus(
        ("DCGM_FI_DEV_FB_USED", 100.0, DCGM), ("DCGM_FI_DEV_GPU_UTIL", 93.0, DCGM), ("DCGM_FI_DEV_FB_USED", 7.0, OTHER),
    )  # fmt: skip
    assert [set_columns(row) for row in made] == [
        {"seen_at": AT_US, "host": "h", "gpu": "1", "used_bytes": 100 * 2**20, "util": 0.93, "src": f"scrape:exporter:h/1@{AT}"},
        {"seen_at": AT_US, "host": "h", "gpu": "0", "used_bytes": 7 * 2**20, "src": f"scrape:exporter:h/0@{AT}"},
    ]


def test_a_card_that_our_sampler_tells_of_has_no_rows_of_an_exporter_meanwhile() -> None:
    decoder, used = Decoder(), ("DCGM_FI_DEV_FB_USED", 100.0, DCGM)
    other = ("DCGM_FI_DEV_FB_USED", 5.0, OTHER)
    assert len(gpus(used, other, decoder=decoder)) == 2
    gpus(("hw.gpu.memory.usage", 1.0, CARD), decoder=decoder)
    kept = gpus(used, other, decoder=decoder, at_ns=AT_NS + 30_000_000_000)
    assert [row.gpu for row in kept if isinstance(row, GpuSample)] == ["0"]
    assert decoder.dropped["beside-sampler"] == 1
    assert len(gpus(used, decoder=decoder, at_ns=AT_NS + 31_000_000_000)) == 1


def test_a_card_without_a_uuid_hides_no_card_of_another_host() -> None:
    decoder = Decoder()
    gpus(("hw.gpu.memory.usage", 1.0, {"hw.id": "0", "hw.type": "gpu", "lensd.gpu.index": 0}), decoder=decoder)
    elsewhere = {**OTHER, "Hostname": "another"}
    assert [row.host for row in gpus(("DCGM_FI_DEV_FB_USED", 5.0, elsewhere), decoder=decoder) if isinstance(row, GpuSample)] == ["another"]


@pytest.mark.parametrize("value", [1e19, -1e19, 1e300])
def test_a_number_that_no_column_holds_costs_no_other(value: float) -> None:
    made = gpus(("hw.gpu.memory.usage", value, CARD), ("hw.temperature", 40.0, CARD))
    assert [set_columns(row).get("temp_c") for row in made] == [40.0]
    assert gpus(("system.memory.limit", value, {}), ("system.linux.memory.available", 300.0, {})) == []


def test_known_metrics_do_not_count_as_unknown() -> None:
    decoder = Decoder()
    points = [(name, 1.0, CARD) for name in (*GPU_METRICS, "process.memory.usage", "system.memory.limit", "DCGM_FI_DEV_FB_USED")]
    gpus(*points, ("hw.fan_speed", 1.0, CARD), decoder=decoder)
    assert decoder.dropped["unknown"] == 1


def test_a_fault_has_the_fields_of_the_kernels_line() -> None:
    told = {"xid": 79, "pci": "0000:3b:00", "gpu": "0", "lensd.engine": "e0", "hw.id": "GPU-0"}
    line = "NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python3, GPU has fallen off the bus."
    made = rows(
        logs(
            {"name": "gpu.xid", "severity": 21, "attributes": told},
            {"body": line, "attributes": {"lensd.engine.kind": "kernel"}},
            resource=HOST,
        )
    )["events"]
    found = [(row.name, row.severity, msgspec.json.decode(row.fields or "")) for row in made]  # type: ignore[attr-defined]
    assert [each[:2] for each in found] == [("gpu.xid", "critical")] * 2
    assert (
        {key: found[0][2][key] for key in ("xid", "pci")}
        == {key: found[1][2][key] for key in ("xid", "pci")}
        == {"xid": 79, "pci": "0000:3b:00"}
    )
