"""Runs the sampler on the stub with a clock of its own and prints what it sent, one JSON line a step.

usage: player.py STEPS [--seconds S] [--engine PID=NAME]... [--proc FOLDER] [--faults]
"""

import argparse
import contextlib
import json
from collections.abc import Iterator
from ctypes import CDLL
from pathlib import Path
from typing import Any

import msgspec
from lensd_collectors import otlp
from lensd_collectors.host import procfs
from lensd_collectors.host.gpu import GpuSampler
from lensd_collectors.host.kmsg import Pids
from lensd_collectors.host.nvml import open_nvml
from lensd_collectors.host.nvml_events import XidWatch
from lensd_collectors.host.owners import Owners
from lensd_collectors.signals import Batch, Pending, Records

BEGAN_NS = 1_700_000_000_000_000_000


class Sent(Records):
    """What a step sent, as plain values."""

    def __init__(self) -> None:
        self.metrics: list[dict[str, Any]] = []
        self.events: list[dict[str, Any]] = []

    def _put(self, record: Pending, count: int = 1) -> None:
        made = record()
        if isinstance(made, str):
            told = json.loads(made)
            about = plain(msgspec.convert(told["attributes"], list[otlp.KeyValue]))
            self.events.append({"name": told["eventName"], "severity": told["severityText"], "about": about})
        elif isinstance(made, tuple):
            name, _, metric = made
            point = metric.gauge.data_points[0]  # type: ignore[union-attr]
            self.metrics.append({"name": name, "value": point.as_double, "at": point.time_unix_nano, "about": plain(point.attributes)})

    @contextlib.contextmanager
    def batch(self) -> Iterator[Batch]:
        collected = Batch()
        yield collected
        for record, count in collected.records:
            self._put(record, count)


def plain(pairs: Any) -> dict[str, Any]:
    found = {}
    for pair in pairs:
        value = pair.value
        several = None if value.array_value is None else [each.string_value for each in value.array_value.values]
        whole = None if value.int_value is None else int(value.int_value)
        found[pair.key] = next(
            each for each in (several, value.string_value, value.bool_value, whole, value.double_value) if each is not None
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("steps", type=int)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--engine", action="append", default=[])
    parser.add_argument("--proc", type=Path, default=procfs.PROC)
    parser.add_argument("--faults", action="store_true")
    given = parser.parse_args()
    sent, pids, now = Sent(), Pids(given.proc), [0.0]
    for each in given.engine:
        pid, _, engine = each.partition("=")
        pids.add(int(pid), engine)
    clock_ns = lambda: BEGAN_NS + round(now[0] * 1e9)  # noqa: E731
    gpus = GpuSampler(open_nvml, sent, Owners(pids, given.proc), clock_ns, lambda: now[0])  # type: ignore[arg-type]
    faults = XidWatch(gpus, sent, clock_ns, lambda: now[0], wait_ms=1)  # type: ignore[arg-type]
    for _ in range(given.steps):
        gpus.step()
        gpus.flush()
        if given.faults:
            faults.step()
        standings = {"gpu": gpus.standing, "processes": gpus.processes, "faults": faults.standing}
        said = {name: None if each is None else [each.state, each.reason] for name, each in standings.items()}
        print(json.dumps({"metrics": sent.metrics, "events": sent.events, **said}), flush=True)
        sent.metrics, sent.events = [], []
        now[0] += given.seconds
        with contextlib.suppress(OSError):
            CDLL("libnvidia-ml.so.1").stub_advance(1)


if __name__ == "__main__":
    main()
