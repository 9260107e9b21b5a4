"""What the gateway holds at an instant: by its own word at /metrics, and by the kernel's."""

import http.client
import os
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from prometheus_client.parser import text_string_to_metric_families

from gateway.process import PAGE

ASK_TIMEOUT_S: Final = 10.0
_SUMMED: Final = re.compile(r"lensd_gateway_(\w+)")


@dataclass(frozen=True, slots=True)
class Held:
    """Requests that are open in one sense or another, tasks, and what the kernel has for the process."""

    open_requests: int
    in_flight: int  # by model
    upstream_in_flight: int
    key_in_flight: int
    tasks: int
    files: int  # file descriptors, sockets among them
    resident: int  # bytes
    ended: int  # requests that were counted since the start
    dropped: int  # of these, how many have no record because a queue was full
    export_dropped: int
    export_failed: int
    outcomes: dict[str, int]

    @property
    def is_quiet(self) -> bool:
        return not (self.open_requests or self.in_flight or self.upstream_in_flight or self.key_in_flight)


def look(port: int, pid: int) -> Held:
    """Raises OSError where the gateway does not answer."""
    totals, outcomes = _read(port)
    return Held(
        open_requests=totals["open_requests"],
        in_flight=totals["in_flight"],
        upstream_in_flight=totals["upstream_in_flight"],
        key_in_flight=totals["key_in_flight"],
        tasks=totals["tasks"],
        files=files(pid),
        resident=resident(pid),
        ended=totals["requests_total"],
        dropped=totals["records_dropped_total"],
        export_dropped=totals["export_dropped_total"],
        export_failed=totals["export_failed_total"],
        outcomes=dict(outcomes),
    )


def files(pid: int) -> int:
    return len(os.listdir(f"/proc/{pid}/fd"))


def resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE


def _read(port: int) -> tuple[Counter[str], Counter[str]]:
    """Each metric summed over its series, and requests by their outcome."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ASK_TIMEOUT_S)
    try:
        connection.request("GET", "/metrics", headers={"Connection": "close"})
        page = connection.getresponse().read().decode()
    finally:
        connection.close()
    totals: Counter[str] = Counter()
    outcomes: Counter[str] = Counter()
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            found = _SUMMED.fullmatch(sample.name)
            if found is not None:
                totals[found[1]] += int(sample.value)
                if found[1] == "requests_total":
                    outcomes[sample.labels["outcome"]] += int(sample.value)
    return totals, outcomes
