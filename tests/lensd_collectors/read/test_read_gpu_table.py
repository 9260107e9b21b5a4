"""Tables of GPUs as `nvidia-smi` prints them, with units and without, whole and with what a card does not tell."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lensd_collectors import conventions
from lensd_collectors.host.card import CardState
from lensd_collectors.read import Kind, quote, read
from lensd_collectors.read.cells import FAULTS
from lensd_collectors.read.gpu_table import TableRows, read_gpu_table
from lensd_collectors.rows import EngineSample, Event, GpuSample
from smi_texts import BOX, DMON, OLD_BOX, PMON, QUERY, QUERY_LINE

MIB = 1 << 20
CORPUS = Path(__file__).parents[2] / "corpus"


def table(text: str, name: str = "gpu.csv") -> TableRows:
    return read_gpu_table(text.split("\n"), name=name)


def samples(found: TableRows) -> list[GpuSample]:
    return [row for row in found.rows if isinstance(row, GpuSample)]


def told(row: GpuSample) -> dict[str, object]:
    """The columns that have a value, without place and instant."""
    given = {name: getattr(row, name) for name in row.__struct_fields__ if getattr(row, name) is not None}
    return {name: value for name, value in given.items() if name not in ("seen_at", "seq", "src")}


def states(found: TableRows) -> list[tuple[str | None, str, int | None]]:
    events = [row for row in found.rows if isinstance(row, Event)]
    assert all(event.name == conventions.EVENT_GPU_STATE for event in events)
    fields = [json.loads(event.fields or "{}") for event in events]
    return [(one.get(conventions.ABOUT_GPU), one[conventions.GPU_STATE], event.seq) for one, event in zip(fields, events, strict=True)]


def us(text: str) -> int:
    return round(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp() * 1e6)


@pytest.mark.parametrize(
    ("header", "line", "expected"),
    [
        ("memory.used [MiB], memory.total [MiB]", "79810 MiB, 81152 MiB", {"used_bytes": 79810 * MIB, "total_bytes": 81152 * MIB}),
        ("memory.used [MiB], memory.free [MiB]", "79810, 1342", {"used_bytes": 79810 * MIB, "free_bytes": 1342 * MIB}),
        ("memory.used, memory.reserved", "79810, 640", {"used_bytes": 79810 * MIB, "reserved_bytes": 640 * MIB}),
        ("memory.used [GiB], utilization.gpu [%]", "1.5, 7", {"used_bytes": 1536 * MIB, "util": 0.07}),
        ("utilization.gpu [%], utilization.memory [%]", "100 %, 3 %", {"util": 1.0, "mem_util": 0.03}),
        ("clocks.current.sm [MHz], clocks.max.sm [MHz]", "1410 MHz, 1980 MHz", {"sm_mhz": 1410.0, "sm_max_mhz": 1980.0}),
        ("power.draw [W], enforced.power.limit [W]", "401.37 W, 700.00 W", {"power_w": 401.37, "power_limit_w": 700.0}),
        (
            "temperature.gpu, clocks_throttle_reasons.active",
            "88, 0x0000000000000048",
            {"temp_c": 88.0, "throttle": "hw_slowdown,hw_thermal"},
        ),
        ("temperature.gpu, clocks_event_reasons.active", "40, 0x0000000000000000", {"temp_c": 40.0, "throttle": ""}),
        ("temperature.gpu, clocks_event_reasons.active", "88, HW Thermal Slowdown", {"temp_c": 88.0, "throttle": "hw_thermal"}),
        ("temperature.gpu, throttle_reasons", "88, SW Power Cap | HW Slowdown", {"temp_c": 88.0, "throttle": "sw_power_cap,hw_slowdown"}),
        ("temperature.gpu, throttle_reasons", "40, Not Active", {"temp_c": 40.0, "throttle": ""}),
        ("temperature.gpu, throttle_reasons", "40, hot", {"temp_c": 40.0}),
        (
            "clocks_event_reasons.sw_power_cap, clocks_event_reasons.hw_thermal_slowdown, temperature.gpu",
            "Not Active, Active, 90",
            {"throttle": "hw_thermal", "temp_c": 90.0},
        ),
        ("clocks_event_reasons.hw_slowdown, temperature.gpu", "Not Active, 90", {"throttle": "", "temp_c": 90.0}),
        ("clocks_event_reasons.hw_slowdown, temperature.gpu", "[N/A], 90", {"temp_c": 90.0}),
        (
            "ecc.errors.uncorrected.aggregate.total, ecc.errors.uncorrected.volatile.total, ecc.errors.corrected.volatile.total",
            "3, 1, 12",
            {"ecc": 3, "ecc_corrected": 12},
        ),
        ("ecc.errors.uncorrected.aggregate.total, ecc.errors.uncorrected.volatile.total", "[N/A], 1", {"ecc": 1}),
        ("retired_pages.single_bit_ecc.count, retired_pages.double_bit.count", "3, 4", {"retired_pages": 7}),
        ("retired_pages.single_bit_ecc.count, retired_pages.double_bit.count", "3, [N/A]", {}),
        (
            "remapped_rows.uncorrectable, remapped_rows.pending, remapped_rows.failure",
            "1, Yes, No",
            {"remapped_rows": 1, "remap_pending": True, "remap_failed": False},
        ),
        ("pcie.link.gen.current, pcie.link.width.current", "1, 16", {"pcie_gen": 1, "pcie_width": 16}),
        ("memory.used [MiB], memory.total [MiB], utilization.gpu [%]", "[N/A], [Not Supported], 96 %", {"util": 0.96}),
    ],
)
def test_columns_in_their_units(header: str, line: str, expected: dict[str, object]) -> None:
    found = table(f"timestamp, index, {header}\n2026/11/06 07:43:50.123, 3, {line}\n")
    (row,) = samples(found)
    assert told(row) == {"gpu": "3"} | expected
    assert row.seen_at == us("2026-11-06T07:43:50.123")
    assert (row.src, row.seq, found.unread_lines) == ("gpu.csv:2", 2, 0)


@pytest.mark.parametrize(
    ("delimiter", "line"),
    [
        (",", "2026-11-06T07:43:50Z,0,79810"),
        (";", "2026-11-06 07:43:50;0;79810"),
        ("\t", "1793951030\t0\t79810"),
        (",", '"1793951030000","0","79810"'),
    ],
)
def test_a_table_that_a_program_saved(delimiter: str, line: str) -> None:
    (row,) = samples(table(delimiter.join(["timestamp", "index", "memory.used [MiB]"]) + f"\n{line}\n"))
    assert (row.seen_at, row.gpu, row.used_bytes) == (us("2026-11-06T07:43:50"), "0", 79810 * MIB)


def test_ones_own_names_are_read_beside_a_column_of_the_gpu() -> None:
    text = "time,gpu,mem_used_mib,util_pct,sm_clock_mhz\n2026-11-06 07:43:50,GPU 1,79810,97,1410\n"
    assert [told(row) for row in samples(table(text))] == [{"gpu": "1", "used_bytes": 79810 * MIB, "util": 0.97, "sm_mhz": 1410.0}]
    assert samples(table(text.replace("gpu,", "rank,"))) == [], "memory of what is not said"


def test_a_header_in_every_loop_and_another_table_after_it() -> None:
    one = "index, memory.used [MiB]\n0, 1\n1, 2\n"
    found = table(f"{one}{one}\nindex, utilization.gpu [%]\n1, 50 %\n")
    assert [(row.gpu, row.used_bytes, row.util) for row in samples(found)] == [
        ("0", MIB, None),
        ("1", 2 * MIB, None),
        ("0", MIB, None),
        ("1", 2 * MIB, None),
        ("1", None, 0.5),
    ]
    assert (found.unread_lines, states(found)) == (0, [])


def test_the_command_line_stands_for_a_header() -> None:
    found = table(f"{QUERY_LINE}\n2026/11/06 07:43:50.123, 0, 79810 MiB, 81152 MiB, 71 %, 1410 MHz, 0x0000000000000044\nKilled\n")
    assert [told(row) for row in samples(found)] == [
        {
            "gpu": "0",
            "used_bytes": 79810 * MIB,
            "total_bytes": 81152 * MIB,
            "util": 0.71,
            "sm_mhz": 1410.0,
            "throttle": "sw_power_cap,hw_thermal",
        }
    ]
    assert found.unread_lines == 1


def test_a_card_without_an_index_goes_by_its_uuid_and_processes_by_the_index_once_it_is_known() -> None:
    lines = ["gpu_uuid, pid, process_name, used_gpu_memory [MiB]", "GPU-aa, 4471, /usr/bin/python3.10, 130004 MiB"]
    apps = "\n".join([*lines, "GPU-bb, 77, [Not Found], [N/A]", ""])
    assert [told(row) for row in samples(table(apps))] == [
        {"gpu": "GPU-aa", "pid": 4471, "process": "python3.10", "pid_used_bytes": 130004 * MIB},
        {"gpu": "GPU-bb", "pid": 77},
    ]
    both = table("index, uuid, memory.used [MiB]\n0, GPU-aa, 130010 MiB\n1, GPU-bb, 5 MiB\n\n" + apps)
    assert [(row.gpu, row.pid) for row in samples(both)] == [("0", None), ("1", None), ("0", 4471), ("1", 77)]


def test_a_name_may_hold_the_comma() -> None:
    text = "index, name, memory.used [MiB]\n0, NVIDIA A100, SXM4, 5 MiB\n"
    assert [(row.gpu, row.used_bytes) for row in samples(table(text))] == [("0", 5 * MIB)]


@pytest.mark.parametrize("step", ["", ".125"])
def test_cards_that_no_column_names_go_by_their_place(step: str) -> None:
    lines = [f"2026/11/06 07:43:{second:02d}{step if nth else ''}, {used} MiB" for second in (50, 51) for nth, used in enumerate((5, 9))]
    found = samples(table("timestamp, memory.used [MiB]\n" + "\n".join(lines)))
    assert [(row.gpu, row.used_bytes) for row in found] == [("#0", 5 * MIB), ("#1", 9 * MIB)] * 2
    undated = samples(table("name, memory.used [MiB], memory.total [MiB]\nNVIDIA H100, 5 MiB, 81559 MiB\n"))
    assert [(row.gpu, row.used_bytes) for row in undated] == [(None, 5 * MIB)]


def test_lost_and_failing_cards_are_told_once_each_time_it_changes() -> None:
    lines = [
        "index, memory.used [MiB], utilization.gpu [%], power.draw [W]",
        "0, 5 MiB, 1 %, 60.0 W",
        "0, [GPU is lost], [GPU is lost], [GPU is lost]",
        "0, [GPU is lost], [GPU is lost], [GPU is lost]",
        "0, [GPU requires reset], [GPU requires reset], [N/A]",
        "0, 5 MiB, [Unknown Error], [Unknown Error]",
        "0, 5 MiB, 1 %, [Unknown Error]",
        "0, [N/A], [Not Supported], [Insufficient Permissions]",
    ]
    found = table("\n".join(lines))
    assert states(found) == [("0", "lost", 3), ("0", "reset_required", 5), ("0", "failing", 6), ("0", "ok", 7)]
    assert [row.severity for row in found.rows if isinstance(row, Event)] == ["critical", "critical", "error", "info"]
    assert [row.used_bytes for row in samples(found)] == [5 * MIB, None, None, None, 5 * MIB, 5 * MIB, None], "no value is frozen or 0"
    assert found.unread_lines == 0


def test_states_are_those_of_the_agent() -> None:
    assert {*FAULTS.values(), "absent", "ok"} <= {state.value for state in CardState}


@pytest.mark.parametrize(
    "rounds", [[(0, 1, 2), (0, 1, 2), (0, 2), (0, 2), (0, 2)], [(0, 1, 2), (0, 2)], [(0, 2, 1), (0, 2), (0, 2)], [(0, 1, 2), (0, 2), (0,)]]
)
def test_a_card_that_is_listed_no_more(rounds: list[tuple[int, ...]]) -> None:
    text = "index, memory.used [MiB]\n" + "".join(f"{gpu}, 5 MiB\n" for one in rounds for gpu in one)
    assert [(gpu, state) for gpu, state, _ in states(table(text))] == [("1", "absent")]


@pytest.mark.parametrize(
    "rounds",
    [
        [(0, 1, 2), (0, 1, 2), (0, 1)],  # cut short
        [(0, 1, 2), (0, 2), (0, 1, 2), (0, 1, 2)],  # one line was lost
        [(0,), (0, 1), (0, 1)],
        [(0, 1), (0, 1)],
    ],
)
def test_a_line_that_is_missing_is_no_missing_card(rounds: list[tuple[int, ...]]) -> None:
    text = "index, memory.used [MiB]\n" + "".join(f"{gpu}, 5 MiB\n" for one in rounds for gpu in one)
    assert states(table(text)) == []


@pytest.mark.parametrize(
    "lines",
    [
        "00:00 0, 00:00 1, 01:00 0, 01:00 1, 01:20 1, 02:00 0, 02:00 1",  # one looked at alone
        "00:00 0, 00:00 1, 01:00 0, 01:00 1, 01:20 1",
        "00:00 0, 01:00 0, 02:00 0, 00:00 1, 01:00 1, 02:00 1",  # one card after the other
    ],
)
def test_a_card_that_was_not_asked_is_not_absent(lines: str) -> None:
    listed = [line.split() for line in lines.split(", ")]
    text = "timestamp, index, memory.used [MiB]\n" + "".join(f"2026/11/18 10:{time}, {gpu}, 5\n" for time, gpu in listed)
    assert states(table(text)) == []


def test_a_card_that_is_missing_at_two_instants_is_absent() -> None:
    listed = [("10:00", 0), ("10:00", 1), ("10:01", 0), ("10:01", 1), ("10:02", 1), ("10:03", 1), ("10:04", 1)]
    text = "timestamp, index, memory.used [MiB]\n" + "".join(f"2026/11/18 {time}:00, {gpu}, 5\n" for time, gpu in listed)
    assert [(gpu, state) for gpu, state, _ in states(table(text))] == [("0", "absent")]


@pytest.mark.parametrize("named", ["pid 812 used [MiB]", "vllm pid 812 mem (MiB)", "process_812_gpu_mem_used_mib"])
def test_a_column_that_names_its_process_is_what_the_card_holds(named: str) -> None:
    found = table(f"time, {named}, memory.total [MiB]\n2026-11-18T10:00, 100, 400\n")
    assert [(row.used_bytes, row.total_bytes) for row in samples(found)] == [(100 << 20, 400 << 20)]


def test_what_a_line_about_a_process_says_of_a_card_is_what_it_holds_of_it() -> None:
    found = table("2026-11-18 10:00:00 idle=1 pid=812 gpu_mem=300MiB torch_reserved=1.1GiB\n")
    assert [(row.pid, row.pid_used_bytes) for row in samples(found)] == [(812, 300 << 20)]


def test_the_tool_says_itself_that_a_card_is_lost() -> None:
    text = "Unable to determine the device handle for GPU 0000:3B:00.0: GPU is lost.  Reboot the system to recover this GPU\n"
    assert states(table(text)) == [(None, "lost", 1)]


def test_the_default_box() -> None:
    found = table(BOX)
    assert [told(row) for row in samples(found)] == [
        {
            "gpu": "0",
            "used_bytes": 71234 * MIB,
            "total_bytes": 81559 * MIB,
            "util": 0.99,
            "temp_c": 51.0,
            "power_w": 412.0,
            "power_limit_w": 700.0,
            "ecc": 2,
        },
        {"gpu": "1", "used_bytes": MIB, "total_bytes": 24564 * MIB},
        {"gpu": "2", "util": 0.96, "temp_c": 63.0, "power_w": 44.0},
        {"gpu": "0/gi3ci0", "mig": "gi3ci0", "used_bytes": 12 * MIB, "total_bytes": 9856 * MIB},
        {"gpu": "0", "pid": 3154, "process": "Xorg", "pid_used_bytes": 18 * MIB},
        {"gpu": "0", "pid": 44757, "process": "VLLM::EngineCore", "pid_used_bytes": 48829 * MIB},
        {"gpu": "0/gi3ci0", "mig": "gi3ci0", "pid": 44758, "process": "python"},
    ]
    assert {row.seen_at for row in samples(found)} == {us("2026-11-18T10:00:00")}
    assert (found.unread_lines, states(found)) == (0, [("1", "failing", 14)])


def test_the_box_of_an_old_driver() -> None:
    found = table(OLD_BOX)
    assert [(row.gpu, row.used_bytes, row.pid, row.pid_used_bytes) for row in samples(found)] == [
        ("0", 14021 * MIB, None, None),
        ("0", None, 4471, 14010 * MIB),
    ]
    assert found.unread_lines == 0


def test_a_line_of_a_box_that_cannot_be_read_is_counted() -> None:
    assert table(BOX.replace("412W /  700W", "plenty")).unread_lines == 1


def test_the_whole_query() -> None:
    found = table(QUERY)
    assert [told(row) for row in samples(found)] == [
        {
            "gpu": "0",
            "used_bytes": 71234 * MIB,
            "free_bytes": 9773 * MIB,
            "total_bytes": 81559 * MIB,
            "reserved_bytes": 551 * MIB,
            "util": 0.99,
            "mem_util": 0.4,
            "sm_mhz": 1140.0,
            "sm_max_mhz": 1980.0,
            "throttle": "sw_power_cap,hw_slowdown,hw_thermal",
            "temp_c": 88.0,
            "temp_slowdown_c": 89.0,
            "power_w": 401.25,
            "power_limit_w": 700.0,
            "ecc": 5,
            "ecc_corrected": 9,
            "remapped_rows": 2,
            "remap_pending": True,
            "remap_failed": False,
            "pcie_gen": 4,
            "pcie_replays": 3,
        },
        {"gpu": "0", "pid": 4471, "process": "VLLM::EngineCore", "pid_used_bytes": 70000 * MIB},
        {"gpu": "0", "pid": 77, "process": "python3", "pid_used_bytes": 900 * MIB},
        {"gpu": "1"},
    ]
    assert {row.seen_at for row in samples(found)} == {us("2026-11-18T10:00:00")}
    assert (states(found), found.unread_lines) == ([("1", "lost", QUERY.split("\n").index("GPU 00000000:3B:00.0") + 1)], 0)


@pytest.mark.parametrize(
    ("text", "row", "column", "quoted"),
    [
        (QUERY, 0, "used_bytes", "Used                              : 71234 MiB"),
        (QUERY, 0, "throttle", "SW Power Cap                      : Active"),
        (QUERY, 0, "sm_mhz", "SM                                : 1140 MHz"),
        (QUERY, 2, "pid_used_bytes", "Used GPU Memory               : 900 MiB"),
        (BOX, 0, "used_bytes", "| N/A   51C    P0            412W /  700W |   71234MiB /  81559MiB |     99%      Default |"),
        (BOX, 0, "ecc", "|   0  NVIDIA H100 80GB HBM3          On  |   00000000:18:00.0 Off |                    2 |"),
        (DMON, 0, "sm_mhz", "20261106   07:43:50      0    401     61      -     99     40  79810   1410"),
    ],
)
def test_a_cite_finds_the_line_of_the_figure(text: str, row: int, column: str, quoted: str, tmp_path: Path) -> None:
    (tmp_path / "gpu.txt").write_text(text)
    found = read(tmp_path / "gpu.txt")
    assert (found.kind, found.unread_lines) == (Kind.GPU_CSV, 0)
    source = found.rows["gpu_samples"][row].src or ""
    said, place = quote(source, column, tmp_path)
    assert said == quoted
    assert text.split("\n")[int(place.rpartition(":")[2]) - 1].strip() == quoted


def test_the_scrolling_views() -> None:
    found = table(DMON)
    assert [told(row) for row in samples(found)] == [
        {"gpu": "0", "used_bytes": 79810 * MIB, "util": 0.99, "mem_util": 0.4, "sm_mhz": 1410.0, "temp_c": 61.0, "power_w": 401.0},
        {"gpu": "1", "used_bytes": 4 * MIB, "mem_util": 0.0, "sm_mhz": 210.0, "temp_c": 31.0, "power_w": 71.0},
    ]
    assert {row.seen_at for row in samples(found)} == {us("2026-11-06T07:43:50")}
    (process, idle) = samples(table(PMON))
    assert told(process) == {"gpu": "0", "pid": 4471, "process": "VLLM::EngineCor", "pid_used_bytes": 48829 * MIB}
    assert told(idle) == {"gpu": "1"}


@pytest.mark.parametrize(("case", "rows"), [("27", 3), ("35", 2), ("46", 3), ("53", 3)])
def test_the_tables_of_labelled_incidents_are_read_whole(case: str, rows: int) -> None:
    (path,) = CORPUS.glob(f"{case}-*/gpu.csv")
    found = read(path)
    assert (found.kind, found.records, found.unread_lines) == (Kind.GPU_CSV, rows, 0)
    lines = path.read_text().splitlines()
    for row in found.rows["gpu_samples"]:
        text, place = quote(row.src or "", "used_bytes", path.parent)
        assert (text, place) == (lines[int(place.rpartition(":")[2]) - 1], row.src)
        assert str(row.used_bytes // MIB) in text  # type: ignore[attr-defined]


def test_what_else_was_pasted_into_the_file_is_read_too() -> None:
    lines = [
        "NAME       ID              SIZE     PROCESSOR          UNTIL",
        "llama3:70b be39eb53a197    41 GB    42%/58% CPU/GPU    4 minutes from now",
    ]
    kernel = "[  123.456789] NVRM: Xid (PCI:0000:3b:00): 79, pid=1234, name=python3, GPU has fallen off the bus."
    found = table(BOX + "\n".join(["", *lines, kernel, "and a note of somebody's"]))
    others = [row for row in found.rows if not isinstance(row, GpuSample)]
    assert {(row.name, row.src) for row in others if isinstance(row, Event)} >= {("gpu.xid", f"gpu.csv:{BOX.count(chr(10)) + 4}")}
    assert any("58" in str(getattr(row, "value", None) or getattr(row, "fields", "")) for row in others), (
        "what ollama says of the placement"
    )
    assert found.unread_lines == 1


def test_a_byte_order_mark_and_windows_line_ends() -> None:
    assert [row.used_bytes for row in samples(table("\ufeffindex, memory.used [MiB]\r\n0, 5 MiB\r\n"))] == [5 * MIB]


@given(st.text(max_size=300))
def test_any_text_is_read_or_counted(text: str) -> None:
    found = read_gpu_table(["index, memory.used [MiB]", *text.split("\n")], name="x")
    assert found.unread_lines <= sum(1 for line in text.split("\n") if line.strip())


@given(st.lists(st.tuples(st.integers(0, 7), st.integers(0, 200_000)), max_size=20))
def test_every_line_gives_one_row_with_its_own_figure(lines: list[tuple[int, int]]) -> None:
    text = "index, memory.used [MiB]\n" + "".join(f"{gpu}, {used} MiB\n" for gpu, used in lines)
    assert [(row.gpu, row.used_bytes, row.seq) for row in samples(table(text))] == [
        (str(gpu), used * MIB, number) for number, (gpu, used) in enumerate(lines, 2)
    ]


def test_a_table_of_processes_may_say_how_many_requests_ran() -> None:
    found = table("timestamp;pid;process_name;used_gpu_memory [MiB];running_requests\n2026-11-20 08:00:00;77;python3;61000;3\n")
    assert [told(row) for row in samples(found)] == [{"pid": 77, "process": "python3", "pid_used_bytes": 61000 * MIB}]
    assert [(row.running, row.waiting, row.seen_at) for row in found.rows if isinstance(row, EngineSample)] == [
        (3.0, None, us("2026-11-20 08:00:00"))
    ]
