"""What tools print of processes and of the host's memory and disks, beside tables with a header over each column.

`free` (procps), /proc/meminfo, /proc/PID/status, the head of `top`, `docker stats`, `iostat` (sysstat). A row of the host as a whole has
neither card nor process: `total_bytes`, and in `rss_bytes` what of it can't be had without swapping.
"""

import re
from typing import Any, Final

import msgspec

from lensd_collectors.read.card_rows import program
from lensd_collectors.read.cells import quantity, scale
from lensd_collectors.read.gpu_columns import LARGEST
from lensd_collectors.rows import GpuSample, Instant, Point, Row

DISK_READ: Final = "lensd.host.disk.read"  # bytes/s, with the attribute device
DISK_BUSY: Final = "lensd.host.disk.busy"  # 0..1
_FREE: Final = re.compile(r"\s*total\s+used\s+free\s+shared\b.*\bavailable\s*")
_FREE_FLAG: Final = re.compile(r"\bfree\b.*\s-\w*(?P<unit>[bkmg])\b")
_MEM: Final = re.compile(r"Mem:\s+(?P<total>\S+)(?:\s+\S+){4}\s+(?P<available>\S+)\s*")
_MEMINFO: Final = re.compile(r"(?P<name>Mem(?:Total|Available)|VmRSS|VmHWM|Name|Pid|\w+(?:\(\w+\))?):\s+(?P<value>\S.*?)\s*")
_TOP: Final = re.compile(r"(?P<unit>[KMGT]i?B) Mem\s*:\s*(?P<total>[\d.]+)\s*\+?total,.*")
_TOP_SWAP: Final = re.compile(r"(?P<unit>[KMGT]i?B) Swap\s*:.*?(?P<available>[\d.]+)\s*avail Mem.*")
_DOCKER: Final = re.compile(
    r"(?P<id>[0-9a-f]{12,64})\s+(?P<process>\S+)\s+[\d.]+%\s+(?P<used>[\d.]+\s?[KMGT]?i?B)\s*/\s*(?P<limit>[\d.]+\s?[KMGT]?i?B)\s+[\d.]+%.*"
)
_HEADS: Final = re.compile(r"(?:top - |Swap:|Tasks:|Threads:|%Cpu\(s\)|Cpu\(s\)|CONTAINER ID\s|Total:|avg-cpu:|Linux \d\S* \()")
_PID: Final = re.compile(r"[0-9]{1,10}")
_IOSTAT: Final = re.compile(r"Device:?\s+\S+.*")
_OF_DISK: Final = {
    "rkB/s": (DISK_READ, 1024.0),
    "kB_read/s": (DISK_READ, 1024.0),
    "rMB/s": (DISK_READ, 1024.0 * 1024),
    "MB_read/s": (DISK_READ, 1024.0 * 1024),
    "%util": (DISK_BUSY, 0.01),
}
_FEWEST_KIB, _FEWEST_MIB = 1 << 21, 1 << 11  # a host that serves has 2 GiB and more, which tells the unit of a bare number


class HostTable:
    """Reads the lines of one file. `at` of a call holds for lines without an instant, and that is nearly all of them."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._unit: str | None = None
        self._held: dict[str, float] = {}  # until what belongs together is whole
        self._process: dict[str, str] = {}
        self._disks: list[str] | None = None

    def read(self, line: str, number: int, at: Instant | None) -> list[Row] | None:
        """The rows of a line; none for one that belongs to such a table and says nothing; None for any other line."""
        text = line.strip()
        rows = self._disk(text, number, at)
        if rows is not None:
            return rows
        if flag := _FREE_FLAG.search(text):
            self._unit = flag["unit"]
            return []
        if _FREE.fullmatch(text) or _HEADS.match(text):
            return []
        if match := _MEM.fullmatch(text):
            return self._whole_host(self._size(match["total"]), self._size(match["available"]), number, at)
        if match := _DOCKER.fullmatch(text):
            return [self._row(number, at, process=match["process"], rss_bytes=_bytes(match["used"]))]
        if match := _TOP.fullmatch(text) or _TOP_SWAP.fullmatch(text):
            return self._top(match, number, at)
        match = _MEMINFO.fullmatch(text)
        return self._field(match["name"], match["value"], number, at) if match else None

    def _field(self, name: str, value: str, number: int, at: Instant | None) -> list[Row] | None:
        """A line of /proc/meminfo or of /proc/PID/status."""
        size = _bytes(value) if value.endswith("kB") else None
        if name in ("Name", "Pid"):
            self._process[name] = value
            return []
        if name == "VmRSS" and size is not None:
            process = self._process
            pid = int(process["Pid"]) if _PID.fullmatch(process.get("Pid", "")) else None
            return [self._row(number, at, process=program(process.get("Name")), pid=pid, rss_bytes=size)]
        if name in ("MemTotal", "MemAvailable") and size is not None:
            self._held[name] = size
            if len(self._held) == 2:
                held, self._held = self._held, {}
                return self._whole_host(held["MemTotal"], held["MemAvailable"], number, at)
            return []
        return [] if size is not None else None

    def _top(self, match: re.Match[str], number: int, at: Instant | None) -> list[Row]:
        factor = scale(match["unit"].lower(), decimal=False) or 1
        if "total" in match.groupdict():
            self._held["total"] = float(match["total"]) * factor
            return []
        total = self._held.pop("total", None)
        return [] if total is None else self._whole_host(total, float(match["available"]) * factor, number, at)

    def _disk(self, text: str, number: int, at: Instant | None) -> list[Row] | None:
        """A line of `iostat`: what each device reads, in bytes a second, and for how much of the time it is busy."""
        if _IOSTAT.fullmatch(text):
            self._disks = text.split()
            return []
        cells = text.split()
        if self._disks is None or len(cells) != len(self._disks) or quantity(cells[1]) is None:
            self._disks = None
            return None
        rows: list[Row] = []
        labels = msgspec.json.encode({"device": cells[0]}).decode()
        for name, cell in zip(self._disks[1:], cells[1:], strict=True):
            found = quantity(cell.replace(",", "."))
            metric, factor = _OF_DISK.get(name, ("", 0))
            if metric and found:
                rows.append(Point(seen_at=at, name=metric, labels=labels, value=found.number * factor, src=f"{self._name}:{number}"))
        return rows

    def _size(self, text: str) -> float | None:
        found = quantity(text)
        if found is None:
            return None
        unit = found.unit or self._unit or ("k" if found.number >= _FEWEST_KIB else "m" if found.number >= _FEWEST_MIB else "g")
        return found.number * (scale(unit, decimal=False) or 1)

    def _whole_host(self, total: float | None, available: float | None, number: int, at: Instant | None) -> list[Row]:
        if total is None or available is None or not 0 <= available <= total < LARGEST:
            return []
        return [self._row(number, at, total_bytes=round(total), rss_bytes=round(total - available))]

    def _row(self, number: int, at: Instant | None, **values: Any) -> GpuSample:
        return GpuSample(seen_at=at, seq=number, src=f"{self._name}:{number}", **values)


def _bytes(text: str) -> int | None:
    """A size with its unit; kB, MB and GB are powers of 1024 in what the kernel and docker print."""
    found = quantity(text)
    factor = scale(found.unit, decimal=False) if found else None
    size = found.number * factor if found and factor else LARGEST
    return round(size) if abs(size) < LARGEST else None
