"""Memory of an assembler with 10,000 open requests while a million spans go by, and how fast those are assembled.

usage: bench_timeline.py [SPANS]     prints a table and, as its last line, one JSON object, also kept in bench/results/timeline.json
"""

import json
import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
from bench_judge import OK, spans_of
from lensd_collectors import conventions as c
from lensd_collectors.rows import Event, Row
from origin import origin

from lensd.store.arrow import batch_of
from lensd.store.folder import FolderStore
from lensd.timeline.assembler import Assembler, touched

ROOT = Path(__file__).resolve().parent.parent
START = 1_790_000_000_000_000
OPEN = 10_000
SPANS = 1_000_000
A_REQUEST = 7
BATCH = 2_000  # requests
SECOND = 1_000_000
MOST_BYTES = 1 << 30
"""The assembler's own part of the process: what it holds more at its peak than the store did before."""


def opened() -> Iterator[Event]:
    for number in range(OPEN):
        told = {c.REQUEST_ID: f"open{number}", c.REQUEST_MODEL: "tiny", c.PROGRESS_STAGE: "upstream", c.PROGRESS_AGE_MS: 1000.0}
        yield Event(
            seen_at=START, trace_id=f"{number + (1 << 100):032x}", span_id=f"{number + (1 << 60):016x}", name=c.EVENT_STARTED, engine="e0",
            request_id=f"open{number}", fields=msgspec.json.encode(told).decode(), src=f"event:{number}",
        )  # fmt: skip


def resident() -> int:
    """Bytes of this process now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def main(argv: list[str]) -> int:
    spans = int(argv[1]) if len(argv) > 1 else SPANS
    with tempfile.TemporaryDirectory() as folder:
        figures = _run(Path(folder), spans // A_REQUEST)
    for name, (value, unit) in figures.items():
        print(f"{name:<34} {value:>14,} {unit}")
    peak = figures["peak_rss"][0]
    budget = {"name": "10,000 open requests beside the spans: peak memory", "limit": MOST_BYTES, "value": peak, "held": peak <= MOST_BYTES}
    document = {
        **origin("timeline"),
        "figures": {name: {"value": value, "unit": unit} for name, (value, unit) in figures.items()},
        "ratios": {},
        "budgets": [budget],
    }
    line = json.dumps(document)
    (ROOT / "bench" / "results" / "timeline.json").write_text(line + "\n")
    print(line)
    return 0 if budget["held"] else 1


def _run(folder: Path, requests: int) -> dict[str, tuple[int, str]]:
    store, assembler = FolderStore(folder), Assembler()
    began, most_waiting = time.process_time(), 0
    first: list[Row] = list(opened())
    store.append(batch_of({"events": first}))
    assembler.touch(touched({"events": first}))
    now = START + 2 * SECOND  # before the open ones are lost
    for low in range(0, requests, BATCH):
        rows: list[Row] = [span for number in range(low, min(low + BATCH, requests)) for span in spans_of(number, OK, 5.0)]
        store.append(batch_of({"spans": rows}))
        assembler.touch(touched({"spans": rows}))
        most_waiting = max(most_waiting, assembler.waiting)
        _step(store, assembler, now)
    still_open = assembler.waiting
    figures = {
        "spans": (requests * A_REQUEST, "span"),
        "open_requests": (OPEN, "request"),
        "most_waiting": (most_waiting, "trace"),
        "waiting_at_the_end": (still_open, "trace"),
        "shed": (assembler.shed, "trace"),
        "rss_at_the_end": (resident(), "byte"),
        "peak_rss": (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024, "byte"),
        "spans_a_second_of_cpu": (round(requests * A_REQUEST / (time.process_time() - began)), "span/s"),
    }
    store.close()
    return figures


def _step(store: FolderStore, assembler: Assembler, now: int) -> None:
    while True:
        with store.cursor() as cursor:
            changed = assembler.step(cursor, now)
        store.append(batch_of({"requests": [r.row for r in changed]}))
        if not assembler.behind:
            return


if __name__ == "__main__":
    sys.exit(main(sys.argv))
