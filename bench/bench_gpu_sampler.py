"""What sampling GPUs costs: memory over 24 simulated hours, and the share of a core over some real time, on a driver of 1 ms a call.

usage: bench_gpu_sampler.py [--seconds S | --hour] [--cards N]     S of real time (120) with N cards (1); the driver is the tests' stand-in

A day is one card with four processes that come and go, faults, a card that is lost and comes back, and instances that are made and
removed, sampled each simulated second and sent to a receiver. The share is that of a whole `lensd agent` without engines, at its
default intervals; the budget is for one card. Prints a table and, as its last line, one JSON object that is also kept in
bench/results/gpu_sampler.json.
"""

import argparse
import json
import os
import random
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from ctypes import CDLL
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path += [str(ROOT / "tests")]

from nvml_stub.build import built, compiler_missing, environment, python  # noqa: E402
from nvml_stub.scripts import GIB, cards, text  # noqa: E402
from origin import origin  # noqa: E402

DAY_S = 86_400
HOUR_S = 3_600
FLUSH_EVERY = 60
WARM_S = 5
SETTLED_H = 8  # by then the card has been in each of the parts that it is divided into
GROWTH_MIB = 2.0
"""From then to the end of the day: what a day leaves behind must not add up over weeks."""
SHARE = 0.5
"""Per cent of a core."""


class Sink(BaseHTTPRequestHandler):
    """Takes whatever comes."""

    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"{}")

    def log_message(self, *args: object) -> None: ...


def day() -> str:
    """The script of the day, a step a simulated second."""
    chance, lines = random.Random(5), cards(2)
    pids = [1000, 1001, 1002, 1003]
    for second in range(0, DAY_S, 5):
        lines += [f"{second} 0 used {chance.randrange(60, 78) * GIB}"]
        lines += [f"{second} 0 proc.{pid} {chance.randrange(1, 18) * GIB}" for pid in pids]
        if second % 600 == 0:  # one ends, another begins
            lines += [f"{second} 0 proc.{pids.pop(0)} -2", f"{second} 0 xid {chance.choice((13, 31, 43))}"]
            pids.append(pids[-1] + 1)
        if second % HOUR_S == 1800:
            lines += [f"{second} 1 lost 1", f"{second + 300} 1 lost 0"]
        if second % HOUR_S == 600:
            lines += [f"{second} 0.{second // HOUR_S % 7} used {GIB}", f"{second} 0 mig 1", f"{second + 900} 0 mig 0"]
    return text(lines)


def simulated_day(url: str) -> Iterator[dict[str, float]]:
    """Runs in a process of its own; yields its resident memory at the end of each hour."""
    from lensd_collectors import conventions
    from lensd_collectors.export import Exporter
    from lensd_collectors.host.gpu import GpuSampler
    from lensd_collectors.host.kmsg import Pids
    from lensd_collectors.host.nvml import open_nvml
    from lensd_collectors.host.nvml_events import XidWatch
    from lensd_collectors.host.owners import Owners
    from lensd_collectors.host.procfs import resident_bytes

    now = [0]
    exporter = Exporter(url, token=None, service="bench", scope=conventions.SCOPE_AGENT, capacity=50_000)
    gpus = GpuSampler(open_nvml, exporter, Owners(Pids()), lambda: now[0] * 1_000_000_000, lambda: float(now[0]))
    faults = XidWatch(gpus, exporter, lambda: now[0] * 1_000_000_000, lambda: float(now[0]), wait_ms=0)
    library: CDLL | None = None
    for second in range(1, DAY_S + 1):
        gpus.step()
        faults.step()
        library = library or CDLL("libnvidia-ml.so.1")
        library.stub_advance(1)
        now[0] = second
        if second % FLUSH_EVERY == 0 and not exporter.flush(60):
            raise SystemExit("the receiver does not keep up")
        if second % HOUR_S == 0:
            yield {
                "hour": second // HOUR_S,
                "mib": (resident_bytes(os.getpid()) or 0) / 2**20,
                "sent": exporter.sent,
                "dropped": exporter.dropped,
            }
    exporter.close()


def real_time(url: str, seconds: float) -> dict[str, float]:
    """Runs in a process of its own: the CPU time of an agent over some real time, in per cent of a core."""
    from lensd_collectors.host.agent import run
    from lensd_collectors.host.config import AgentConfig

    stop = threading.Event()
    agent = threading.Thread(target=run, args=(AgentConfig(kmsg=False, export_url=url), None), kwargs={"stop": stop})
    agent.start()
    time.sleep(WARM_S)
    cpu, began = time.process_time(), time.monotonic()
    time.sleep(seconds)
    share = (time.process_time() - cpu) / (time.monotonic() - began) * 100
    stop.set()
    agent.join()
    return {"share": share, "seconds": seconds}


def ran(folder: Path, script: str, arguments: list[str], **settings: object) -> list[dict[str, Any]]:
    """What one of the two printed. Raises SystemExit where it failed."""
    path = folder / "script"
    path.write_text(script)
    process = python([str(Path(__file__)), *arguments], environment(folder, path, **settings))
    out, err = process.communicate()
    if process.returncode != 0:
        raise SystemExit(f"bench_gpu_sampler: {err.strip().splitlines()[-1] if err.strip() else 'it failed'}")
    return [json.loads(line) for line in out.splitlines()]


def work(arguments: list[str]) -> int:
    """As the process that is measured."""
    if arguments[0] == "day":
        for each in simulated_day(arguments[1]):
            print(json.dumps(each), flush=True)
    else:
        print(json.dumps(real_time(arguments[1], float(arguments[2]))))
    return 0


def measure(seconds: float, count: int) -> int:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Sink)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_address[1]}"
    with tempfile.TemporaryDirectory() as made:
        folder = built(Path(made))
        serving = text(cards(count), [f"{second} 0 used {60 * GIB + second * 2**20}" for second in range(HOUR_S * 2)])
        (share,) = ran(folder, serving, ["--worker", "agent", url, str(seconds)], call_us=1000, step_ms=1000)
        print(
            f"{'cards':<28} {count:>12}\n{'real time, s':<28} {seconds:>12,.0f}\n{'share of a core, %':<28} {share['share']:>12.2f}",
            flush=True,
        )
        hours = ran(folder, day(), ["--worker", "day", url])
    growth, peak = hours[-1]["mib"] - hours[SETTLED_H - 1]["mib"], max(each["mib"] for each in hours)
    print(f"{'simulated hours':<28} {hours[-1]['hour']:>12}\n{'records sent':<28} {hours[-1]['sent']:>12,}")
    print(f"{'resident, most, MiB':<28} {peak:>12.1f}\n{'growth after 8 hours, MiB':<28} {growth:>12.1f}")
    budgets = [
        {"name": "share of a core", "limit": SHARE, "value": round(share["share"], 3), "held": share["share"] < SHARE},
        {"name": "growth after 8 of 24 simulated hours", "limit": GROWTH_MIB, "value": round(growth, 1), "held": growth < GROWTH_MIB},
    ]
    figures = {
        "share_of_a_core": {"value": round(share["share"], 3), "unit": "%"},
        "cards": {"value": count, "unit": "cards"},
        "real_time": {"value": seconds, "unit": "s"},
        "simulated_hours": {"value": hours[-1]["hour"], "unit": "h"},
        "records_sent": {"value": hours[-1]["sent"], "unit": "records"},
        "resident_most": {"value": round(peak, 1), "unit": "MiB"},
        "growth_after_8_hours": {"value": round(growth, 1), "unit": "MiB"},
    }
    document = {**origin("gpu_sampler"), "figures": figures, "ratios": {}, "budgets": budgets}
    line = json.dumps(document)
    (ROOT / "bench" / "results" / "gpu_sampler.json").write_text(line + "\n")
    print(line)
    return 0 if all(each["held"] for each in budgets) else 1


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=120)
    parser.add_argument("--hour", action="store_true")
    parser.add_argument("--cards", type=int, default=1)
    parser.add_argument("--worker", nargs="+")
    given = parser.parse_args()
    if given.worker:
        return work(given.worker)
    if reason := compiler_missing():
        raise SystemExit(f"bench_gpu_sampler: {reason}")
    return measure(HOUR_S if given.hour else given.seconds, given.cards)


if __name__ == "__main__":
    sys.exit(main())
