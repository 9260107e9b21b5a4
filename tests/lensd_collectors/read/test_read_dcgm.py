"""A scrape of NVIDIA's DCGM exporter → one row a card, from the table in its dialect, and back to the line of each figure."""

import math
from pathlib import Path

import pytest
from lensd_collectors.dialects import DialectError, GpuSource, load, loads
from lensd_collectors.read import Kind, quote, read
from lensd_collectors.read.prometheus import read_prometheus
from lensd_collectors.rows import GpuSample

MIB = 1 << 20
CARD = 'gpu="{gpu}",UUID="GPU-{gpu}",pci_bus_id="00000000:3B:00.0",device="nvidia{gpu}",modelName="NVIDIA H100",Hostname="node-1"'
FIGURES = {
    "DCGM_FI_DEV_SM_CLOCK": 1410,
    "DCGM_FI_DEV_GPU_TEMP": 61,
    "DCGM_FI_DEV_POWER_USAGE": 401.3,
    "DCGM_FI_DEV_GPU_UTIL": 97,
    "DCGM_FI_DEV_MEM_COPY_UTIL": 40,
    "DCGM_FI_DEV_FB_FREE": 1342,
    "DCGM_FI_DEV_FB_USED": 79810,
    "DCGM_FI_DEV_FB_RESERVED": 407,
    "DCGM_FI_DEV_XID_ERRORS": 0,
    "DCGM_FI_DEV_CLOCKS_EVENT_REASONS": 68,
    "DCGM_FI_DEV_ECC_DBE_AGG_TOTAL": 9223372036854775794,
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": 1,
    "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS": 2,
    "DCGM_FI_DEV_ROW_REMAP_FAILURE": 0,
    "DCGM_FI_DEV_ROW_REMAP_PENDING": 1,
    "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": 7,
}


def scrape(figures: dict[str, float], *gpus: str, more: str = "") -> str:
    lines = []
    for name, value in figures.items():
        lines += [f"# HELP {name} words", f"# TYPE {name} gauge", *(f"{name}{{{CARD.format(gpu=gpu)}{more}}} {value}" for gpu in gpus)]
    return "\n".join(lines) + "\n"


def samples(text: str) -> list[GpuSample]:
    return [row for row in read_prometheus(text, name="dcgm.prom").rows if isinstance(row, GpuSample)]


def test_a_row_a_card_in_our_units() -> None:
    (row, other) = samples(scrape(FIGURES, "0", "1"))
    assert (row.host, row.gpu, other.gpu) == ("node-1", "0", "1")
    assert (row.used_bytes, row.free_bytes, row.reserved_bytes) == (79810 * MIB, 1342 * MIB, 407 * MIB)
    assert row.total_bytes == (79810 + 1342 + 407) * MIB
    assert (row.util, row.mem_util) == (pytest.approx(0.97), pytest.approx(0.4))
    assert (row.sm_mhz, row.temp_c, row.power_w) == (1410, 61, 401.3)
    assert row.throttle == "sw_power_cap,hw_thermal"
    assert (row.ecc, row.remapped_rows, row.remap_failed, row.remap_pending, row.pcie_replays) == (1, 2, False, True, 7)
    assert row.xid == 0, "none so far"
    assert (row.retired_pages, row.power_limit_w, row.pid) == (None, None, None)


def test_the_total_is_not_made_of_what_is_not_all_there() -> None:
    (row,) = samples(scrape({"DCGM_FI_DEV_FB_USED": 79810, "DCGM_FI_DEV_FB_FREE": 1342}, "0"))
    assert (row.used_bytes, row.total_bytes) == (79810 * MIB, None)


@pytest.mark.parametrize("blank", [2147483632, 2147483634, 9223372036854775794, 140737488355328.0, math.nan, math.inf])
def test_what_stands_for_none_is_none(blank: float) -> None:
    (row,) = samples(scrape({"DCGM_FI_DEV_XID_ERRORS": blank, "DCGM_FI_DEV_GPU_TEMP": 61}, "0"))
    assert (row.xid, row.temp_c) == (None, 61)


def test_the_last_xid() -> None:
    assert [row.xid for row in samples(scrape({"DCGM_FI_DEV_XID_ERRORS": 79}, "0"))] == [79]


def test_instances_of_a_divided_card() -> None:
    text = scrape({"DCGM_FI_DEV_FB_USED": 5}, "0", more=',GPU_I_PROFILE="3g.40gb",GPU_I_ID="1"') + scrape(
        {"DCGM_FI_DEV_FB_USED": 9}, "0", more=',GPU_I_PROFILE="3g.40gb",GPU_I_ID="2"'
    )
    assert [(row.gpu, row.mig, row.used_bytes) for row in samples(text)] == [("0/gi1", "gi1", 5 * MIB), ("0/gi2", "gi2", 9 * MIB)]


def test_several_scrapes_of_one_file_follow_one_another() -> None:
    text = "# scraped_at 2026-11-06T07:43:50Z\n" + scrape(FIGURES, "0") + "# scraped_at 2026-11-06T07:44:50Z\n" + scrape(FIGURES, "0")
    assert [(row.seen_at, row.seq) for row in samples(text)] == [(1793951030000000, 0), (1793951090000000, 1)]


def test_a_cite_finds_the_line_of_the_figure(tmp_path: Path) -> None:
    text = scrape(FIGURES, "0", "1")
    (tmp_path / "dcgm.prom").write_text(text)
    found = read(tmp_path / "dcgm.prom")
    assert (found.kind, found.unread_lines) == (Kind.PROMETHEUS, 0)
    row = found.rows["gpu_samples"][1]
    for column, name in (("used_bytes", "FB_USED"), ("util", "GPU_UTIL"), ("ecc", "ECC_DBE_VOL_TOTAL"), ("total_bytes", "FB_USED")):
        quoted, place = quote(row.src or "", column, tmp_path)
        assert quoted.startswith(f'DCGM_FI_DEV_{name}{{gpu="1"')
        assert text.split("\n")[int(place.rpartition(":")[2]) - 1] == quoted


def test_metrics_of_an_engine_beside_them_are_read_too() -> None:
    found = read_prometheus(scrape(FIGURES, "0") + 'vllm:num_requests_running{model_name="m"} 3\n', name="both.prom").rows
    assert sorted({type(row).__name__ for row in found}) == ["EngineSample", "GpuSample"]


def test_a_metric_called_like_a_column_of_another_tool_is_no_gpus() -> None:
    assert samples('temperature{room="1"} 21\npower{room="1"} 100\ngpu{a="b"} 1\n') == []


def test_the_table_of_a_dialect() -> None:
    table = load()["dcgm"].gpu
    assert table is not None
    assert table.columns["used_bytes"] == (GpuSource(("DCGM_FI_DEV_FB_USED",), 1048576.0),)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[gpu]\nspeed = ['x']", "speed"),
        ("[gpu]\nused_bytes = ['a b']", "a b"),
        ("[gpu]\nused_bytes = ['a*b']", "a*b"),
        ("[gpu]\n[gpu_labels]\nroom = ['x']", "room"),
        ("[gpu]\n[gpu_reasons]\nheat = ['x']", "heat"),
    ],
)
def test_a_mistake_in_the_table_is_named(text: str, said: str) -> None:
    with pytest.raises(DialectError, match=r"file\.toml") as caught:
        loads(f'name = "x"\nrole = "host"\n{text}', "file.toml")
    assert said in str(caught.value)
