"""Tables of processes and of the host's memory, as the tools of a Linux host and of containers print them."""

from pathlib import Path

import msgspec
import pytest
from lensd_collectors.read import Kind, quote, read
from lensd_collectors.read.gpu_table import Subject, read_gpu_table, subject_of
from lensd_collectors.rows import GpuSample, Point, Row

KIB, MIB, GIB = 1 << 10, 1 << 20, 1 << 30

PS_AUX = """\
USER         PID %CPU %MEM    VSZ   RSS TTY      STAT START   TIME COMMAND
root           1  0.0  0.1 167744 12800 ?        Ss   Nov01   0:12 /sbin/init splash
vllm        4471 99.0 71.2 99167744 187000000 ?  Sl   10:00  45:12 python3 /opt/vllm serve m --api-key sk-abcdefabcdefabcdefabcdef
"""
PS_OFTEN = """\
Tue Nov  3 10:00:00 UTC 2026
    PID   RSS COMMAND
   4471 187000000 VLLM::EngineCor
Tue Nov  3 10:01:00 UTC 2026
    PID   RSS COMMAND
   4471 197000000 VLLM::EngineCor
"""
TOP = """\
top - 10:00:05 up 3 days,  1:02,  1 user,  load average: 1.0, 2.0, 3.0
Tasks: 300 total,   2 running
%Cpu(s):  5.0 us
MiB Mem : 257000.0 total,   1200.0 free, 250000.0 used,   5800.0 buff/cache
MiB Swap:      0.0 total,      0.0 free,      0.0 used.   3000.0 avail Mem

    PID USER      PR  NI    VIRT    RES    SHR S  %CPU  %MEM     TIME+ COMMAND
   4471 vllm      20   0   99.1g  187.5g   1.1g S  99.0  71.2   1:02.3 VLLM::EngineCor
"""
FREE = """\
               total        used        free      shared  buff/cache   available
Mem:{figures}
Swap:             0           0           0
"""
MEMINFO = "MemTotal:       263168000 kB\nMemFree:         1048576 kB\nMemAvailable:    8388608 kB\nBuffers:            2048 kB\n"
STATUS = "Name:\tVLLM::EngineCor\nUmask:\t0022\nState:\tS (sleeping)\nPid:\t4471\nVmPeak:\t99167744 kB\nVmRSS:\t187000000 kB\n"
DOCKER = """\
CONTAINER ID   NAME      CPU %     MEM USAGE / LIMIT     MEM %     NET I/O          BLOCK I/O         PIDS
c0ffee123456   vllm-0    101.2%    187.5GiB / 251.1GiB   74.5%     1.2GB / 3.4GB    12GB / 0B         101
"""
KUBECTL = "NAME                CPU(cores)   MEMORY(bytes)\nvllm-7d9f-abcde     1003m        187213Mi\n"
PIDSTAT = """\
# Time        UID       PID  minflt/s  majflt/s     VSZ        RSS  %MEM  Command
1793951030   1000      4471      12.0       0.0  99167744  187000000  71.2  VLLM::EngineCor
"""
IOSTAT = """\
Device            r/s     rkB/s   rrqm/s  %rrqm r_await  %util
nvme0n1        120.00  15360.00     0.00   0.00    0.30  98.00
"""


def rows(text: str, name: str = "host.txt") -> list[Row]:
    return read_gpu_table(text.split("\n"), name=name).rows


def told(text: str, name: str = "host.txt") -> list[dict[str, object]]:
    found = [row for row in rows(text, name) if isinstance(row, GpuSample)]
    given = [{column: value for column in row.__struct_fields__ if (value := getattr(row, column)) is not None} for row in found]
    return [{column: value for column, value in one.items() if column not in ("seen_at", "seq", "src")} for one in given]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            PS_AUX,
            [
                {"pid": 1, "process": "init", "rss_bytes": 12800 * KIB, "cpu_share": 0.0},
                {"pid": 4471, "process": "python3", "rss_bytes": 187000000 * KIB, "cpu_share": 0.99},
            ],
        ),
        (
            TOP,
            [
                {"total_bytes": 257000 * MIB, "rss_bytes": 254000 * MIB},
                {"pid": 4471, "process": "VLLM::EngineCor", "rss_bytes": 375 * GIB // 2, "cpu_share": 0.99},
            ],
        ),
        (
            FREE.format(figures="  263168000  250000000  1048576  2048  12119424  8388608"),
            [{"total_bytes": 263168000 * KIB, "rss_bytes": 254779392 * KIB}],
        ),
        (
            "$ free -m\n" + FREE.format(figures="  257000  250000  1024  2  5976  8192"),
            [{"total_bytes": 257000 * MIB, "rss_bytes": 248808 * MIB}],
        ),
        (FREE.format(figures="  257000  250000  1024  2  5976  8192"), [{"total_bytes": 257000 * MIB, "rss_bytes": 248808 * MIB}]),
        (FREE.format(figures="  251Gi  240Gi  1.0Gi  2.0Mi  9.8Gi  8.0Gi"), [{"total_bytes": 251 * GIB, "rss_bytes": 243 * GIB}]),
        (MEMINFO, [{"total_bytes": 263168000 * KIB, "rss_bytes": 254779392 * KIB}]),
        (STATUS, [{"pid": 4471, "process": "VLLM::EngineCor", "rss_bytes": 187000000 * KIB}]),
        (DOCKER, [{"process": "vllm-0", "rss_bytes": 375 * GIB // 2}]),
        (KUBECTL, [{"process": "vllm-7d9f-abcde", "rss_bytes": 187213 * MIB}]),
        (PIDSTAT, [{"pid": 4471, "process": "VLLM::EngineCor", "rss_bytes": 187000000 * KIB}]),
        ("timestamp, pid, rss [MiB]\n2026/11/06 07:43:50, 4471, 2048\n", [{"pid": 4471, "rss_bytes": 2 * GIB}]),
        ("time,rss_gib,cgroup_limit_gib\n2026-11-06T07:43:50Z,21.5,64\n", [{"rss_bytes": 43 * GIB // 2, "total_bytes": 64 * GIB}]),
        (
            "time,vllm_pid,rss_gib,gpu_mem_used_mib\n2026-11-06T07:43:50Z,4471,21.5,5\n",
            [{"gpu": "#0", "used_bytes": 5 * MIB}, {"rss_bytes": 43 * GIB // 2}],
        ),
        ("2026-11-06 07:43:50 rss=21.5GiB gpu=0 memory.used=5MiB\n", [{"gpu": "0", "used_bytes": 5 * MIB}, {"rss_bytes": 43 * GIB // 2}]),
    ],
    ids=[
        "ps",
        "top",
        "free",
        "free -m",
        "free of MiB",
        "free -h",
        "meminfo",
        "status",
        "docker",
        "kubectl",
        "pidstat",
        "csv",
        "limit",
        "beside the GPU",
        "pairs",
    ],
)
def test_what_holds_memory(text: str, expected: list[dict[str, object]]) -> None:
    assert told(text) == expected
    assert subject_of(text.split("\n")) is not None


def test_a_listing_repeated_has_the_instants_between() -> None:
    found = [row for row in rows(PS_OFTEN) if isinstance(row, GpuSample)]
    assert [(row.seen_at, row.rss_bytes, row.src) for row in found] == [
        (1793700000000000, 187000000 * KIB, "host.txt:3"),
        (1793700060000000, 197000000 * KIB, "host.txt:6"),
    ]


def test_a_bare_time_is_of_the_day_that_the_file_is_called_by() -> None:
    (row,) = rows("time,pid,rss_mb\n18:00:30,4471,2048\n", "rss-2026-11-03T00-00-00.csv")
    assert isinstance(row, GpuSample)
    assert row.seen_at == 1793728830000000
    (row,) = rows("time,pid,rss_mb\n18:00:30,4471,2048\n")
    assert isinstance(row, GpuSample)
    assert row.seen_at is None


def test_a_disks_reads() -> None:
    found = [(row.name, row.labels, row.value) for row in rows(IOSTAT) if isinstance(row, Point)]
    assert found == [
        ("lensd.host.disk.read", '{"device":"nvme0n1"}', 15360 * 1024.0),
        ("lensd.host.disk.busy", '{"device":"nvme0n1"}', 0.98),
    ]


def test_a_key_of_a_listed_command_is_never_quoted(tmp_path: Path) -> None:
    (tmp_path / "ps.txt").write_text(PS_AUX)
    found = read(tmp_path / "ps.txt")
    assert (found.kind, found.records, found.unread_lines) == (Kind.PROCESS_TABLE, 2, 0)
    text, place = quote("ps.txt:3", "rss_bytes", tmp_path)
    assert place == "ps.txt:3"
    assert "187000000" in text
    assert "sk-abcdef" not in text


@pytest.mark.parametrize(
    "text",
    [
        "The memory of the process\nis fine, name, memory\n1 2 3\n",
        "Name: Anna\nPid: none of it\n",
        "MemTotal is 251 GB, MemAvailable: plenty\n",
        "a=1 b=2\nrunning=3\n",
        "time memory\n12:00 it grew\n",
        "index, memory.used [MiB]\n",
    ],
)
def test_prose_is_no_table(text: str) -> None:
    assert subject_of(text.split("\n")) is None


@pytest.mark.parametrize(
    ("text", "subject"), [(PS_AUX, Subject.PROCESSES), (IOSTAT, Subject.PROCESSES), ("gpu, fb_used_mib\n0, 5\n", Subject.CARDS)]
)
def test_what_a_table_is_about(text: str, subject: Subject) -> None:
    assert subject_of(text.split("\n")) is subject


TABLES = (
    "gpu_uuid, pid, process_name, used_gpu_memory [MiB]\nGPU-1, {v}, python, {v}\n",
    "timestamp, index, memory.used [MiB], ecc.errors.uncorrected.volatile.total\n2026/11/29 12:00:00.000, 0, {v}, {v}\n",
    "  PID   RSS COMMAND\n {v} {v} python3\n",
    "        total   used   free   shared  buff/cache   available\nMem:  {v}  1  1  1  1  {v}\n",
    "MemTotal: {v} kB\nMemAvailable: {v} kB\n",
    "Name: python\nPid: {v}\nVmRSS: {v} kB\nVmRSS: 5 kB\n",
    "0123456789ab  vllm  1.0%  {v}GiB / 5GiB 1.0%\n",
    "MiB Mem : {v} total, 1 free\nMiB Swap: 1 total, 1 free, 1 used. {v} avail Mem\n",
    "# gpu pwr gtemp sm mem\n0 {v} {v} {v} {v}\n",
    "|    0   N/A  N/A    {v}      C   python   {v}MiB |\n",
)


@pytest.mark.parametrize("value", ["9" * 400, "1e400", "1e19", "-1e19", "99999999999999999999", "0x" + "f" * 400, "²"])
@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.split()[0])
def test_a_figure_that_no_column_holds_ends_no_reading(table: str, value: str) -> None:
    for row in read_gpu_table(table.replace("{v}", value).splitlines(), name="t").rows:
        whole = [each for each in msgspec.structs.astuple(row) if isinstance(each, int)]
        assert all(-(2**63) <= each < 2**63 for each in whole)
