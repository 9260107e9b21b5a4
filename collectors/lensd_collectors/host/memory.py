"""What the engines' processes hold of the host's memory, and what the host has left."""

from collections.abc import Callable
from pathlib import Path

from lensd_collectors import conventions
from lensd_collectors.export import Exporter
from lensd_collectors.host import procfs
from lensd_collectors.host.kmsg import Pids
from lensd_collectors.otlp import Value


class MemoryWatch:
    """Sends one sample of the host and of each process of an engine that lives; nothing of what can't be read."""

    def __init__(self, exporter: Exporter, pids: Pids, clock_ns: Callable[[], int], proc: Path = procfs.PROC) -> None:
        self._exporter, self._pids, self._clock_ns, self._proc = exporter, pids, clock_ns, proc

    def sample(self) -> None:
        at_ns = self._clock_ns()
        with self._exporter.batch() as batch:
            host = procfs.host_memory(self._proc)
            if host is not None:
                batch.gauge(conventions.METRIC_HOST_MEMORY_LIMIT, host.total_bytes, at_ns=at_ns, attributes={}, unit="By")
                batch.gauge(conventions.METRIC_HOST_MEMORY_AVAILABLE, host.available_bytes, at_ns=at_ns, attributes={}, unit="By")
            for pid, engine in self._pids.living():
                resident = procfs.resident_bytes(pid, self._proc)
                if not resident:
                    continue  # a zombie's is 0
                attributes: dict[str, Value | None] = {
                    conventions.PROCESS_PID: pid,
                    conventions.PROCESS_NAME: procfs.name(pid, self._proc),
                    conventions.ENGINE: engine,
                }
                batch.gauge(conventions.METRIC_PROCESS_MEMORY, resident, at_ns=at_ns, attributes=attributes, unit="By")
