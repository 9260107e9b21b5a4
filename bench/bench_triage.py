"""`lensd triage` on a large engine log: seconds and memory of the whole process, and that it still names what is at its end.

usage: bench_triage.py [--quick] [--keep FILE]     --quick: 100 MB instead of 1 GB; --keep: make the log there, or use it

The log is made line by line as a vLLM 0.11 that serves two busy models' worth of callers writes it: an access line a request from
forty peers, probes and scrapes, the engine's statistics every ten seconds, now and then a request that failed or was aborted. In its
last hour more ask than are served, which is what triage has to find.
"""

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from origin import origin

ROOT: Final = Path(__file__).resolve().parent.parent
SEED: Final = 11
MOST_S: Final = 60.0
MOST_MB: Final = 500.0
LABEL: Final = "queue-saturation"
A_SECOND: Final = 40  # requests
HOUR_S: Final = 3600


def lines(size: int, random_: random.Random) -> Iterator[str]:
    """The log, second by second, about `size` bytes of it."""
    yield "INFO 11-01 00:00:00 [api_server.py:1712] vLLM API server version 0.11.0\n"
    yield "INFO 11-01 00:00:00 [utils.py:233] non-default args: {'model': 'Qwen/Qwen3-32B', 'max_num_seqs': 64}\n"
    yield "INFO:     Application startup complete.\n"
    peers = [f"10.{random_.randrange(9)}.{random_.randrange(200)}.{random_.randrange(250)}" for _ in range(40)]
    written, second, last = 0, 0, size // (A_SECOND * 87) - HOUR_S // 4
    while written < size:
        for line in _second(second, second > last, peers, random_):
            written += len(line)
            yield line
        second += 1


def _second(second: int, is_late: bool, peers: list[str], random_: random.Random) -> Iterator[str]:
    for _ in range(A_SECOND):
        path = "/v1/chat/completions" if random_.random() < 0.9 else "/v1/completions"
        yield f'INFO:     {random_.choice(peers)}:{random_.randrange(1024, 65535)} - "POST {path} HTTP/1.1" 200 OK\n'
    yield f'INFO:     10.0.0.9:{random_.randrange(1024, 65535)} - "GET /metrics HTTP/1.1" 200 OK\n'
    yield f'INFO:     10.0.0.8:{random_.randrange(1024, 65535)} - "GET /health HTTP/1.1" 200 OK\n'
    day, rest = divmod(second, 86400)
    clock = f"11-{1 + day % 28:02d} {rest // 3600:02d}:{rest // 60 % 60:02d}:{rest % 60:02d}"
    if second % 97 == 0:
        yield f"INFO {clock} [async_llm.py:345] Aborted request chatcmpl-{random_.getrandbits(128):032x}.\n"
    if second % 10 == 0:
        running, waiting = (64, 40 + second % 60) if is_late else (random_.randrange(20, 60), 0)
        yield (
            f"INFO {clock} [loggers.py:127] Engine 000: Avg prompt throughput: {random_.uniform(2000, 4000):.1f} tokens/s, "
            f"Avg generation throughput: {random_.uniform(1300, 1500):.1f} tokens/s, Running: {running} reqs, Waiting: {waiting} reqs, "
            f"GPU KV cache usage: {random_.uniform(30, 60):.1f}%, Prefix cache hit rate: {random_.uniform(20, 30):.1f}%\n"
        )


def measure(path: Path) -> tuple[float, float, dict[str, Any]]:
    """Seconds, MB at most, and what was said."""
    began = time.monotonic()
    with tempfile.TemporaryFile() as out:
        process = subprocess.Popen([sys.executable, "-m", "lensd", "triage", str(path), "--json"], stdout=out, cwd=ROOT)
        _, _, used = os.wait4(process.pid, 0)
        took = time.monotonic() - began
        out.seek(0)
        return took, used.ru_maxrss / 1024, json.loads(out.read())


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="100 MB instead of 1 GB")
    parser.add_argument("--keep", type=Path, help="make the log there, or use the one that is there")
    asked = parser.parse_args()
    size = 100_000_000 if asked.quick else 1_000_000_000
    with tempfile.TemporaryDirectory(prefix="bench-triage-") as folder:
        path = asked.keep or Path(folder) / "engine.log"
        if not path.is_file():
            with path.open("w") as file:
                file.writelines(lines(size, random.Random(SEED)))
        megabytes = path.stat().st_size / 1e6
        took, memory, said = measure(path)
    label, records = said["verdict"]["label"], said["files"][0]["records"]
    print(f"{megabytes:,.0f} MB: {took:.1f} s ({megabytes / took:.0f} MB/s), {memory:.0f} MB of memory, {records:,} records, said {label}")
    figures = {
        "log": {"value": round(megabytes), "unit": "MB"},
        "time": {"value": round(took, 1), "unit": "s"},
        "memory": {"value": round(memory), "unit": "MB, peak resident"},
        "rate": {"value": round(megabytes / took, 1), "unit": "MB/s"},
    }
    seconds = MOST_S * megabytes / 1000
    budgets = [
        {"name": "time", "limit": round(seconds, 1), "value": round(took, 1), "held": took <= seconds},
        {"name": "memory", "limit": MOST_MB, "value": round(memory), "held": memory <= MOST_MB},
        {"name": "verdict", "limit": 1, "value": int(label == LABEL), "held": label == LABEL},
    ]
    line = json.dumps({**origin("triage"), "figures": figures, "ratios": {}, "budgets": budgets})
    if not asked.quick:
        (ROOT / "bench" / "results" / "triage.json").write_text(line + "\n")
    print(line)
    return 0 if all(budget["held"] for budget in budgets) else 1


if __name__ == "__main__":
    sys.exit(main())
