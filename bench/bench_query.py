"""How long the daemon takes to answer over a store of 10 million spans: each question by itself, and while spans come in.

usage: bench_query.py [--quick] [--rounds N]     prints a table and, as its last line, one JSON object, also kept in
bench/results/query.json

The store is made under .bench/query, which takes some minutes, and taken again for a day. Times are of whole HTTP exchanges on a
connection that is open already, one after another.
"""

import argparse
import contextlib
import http.client
import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from typing import Final
from urllib.parse import urlsplit

from query import report
from query.asks import Ask, asks, usage
from query.daemon import Daemon, serving
from query.store import PLACE, ROOT, Made, made

REQUESTS: Final = 1_430_000
QUICK_REQUESTS: Final = 30_000
A_REQUEST: Final = 7
ROUNDS: Final = 11
RATE: Final = 8_000  # spans a second that come in meanwhile
SETTLED_S: Final = 8.0  # after which what comes in is stored and judged as it comes
MOST_MS: Final = 250.0


def asked(daemon: Daemon, ask: Ask, rounds: int, chance: random.Random) -> list[float]:
    """Seconds of each exchange, the first one left out. Ends the bench where one is not answered."""
    connection = http.client.HTTPConnection(urlsplit(daemon.api).netloc, timeout=60)
    headers = {"Authorization": f"Bearer {daemon.token}"}
    times = []
    for _ in range(rounds + 1):
        path, body = f"/api/v1/{ask.path(chance)}", None if ask.body is None else json.dumps(ask.body(chance))
        began = time.perf_counter()
        connection.request("GET" if body is None else "POST", path, body, headers)
        answer = connection.getresponse()
        content = answer.read()
        times.append(time.perf_counter() - began)
        if answer.status != 200:
            raise SystemExit(f"{ask.name}: {answer.status} {content[:300]!r}")
    connection.close()
    return times[1:]


@contextlib.contextmanager
def coming_in(daemon: Daemon) -> Iterator[dict[str, float]]:
    """Spans come in at RATE within the block; at its end the dict has what was sent."""
    command = [sys.executable, "-m", "query.load", daemon.otlp, daemon.token, str(RATE)]
    sender = subprocess.Popen(command, cwd=ROOT / "bench", stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    told: dict[str, float] = {}
    try:
        time.sleep(SETTLED_S)
        yield told
        out, _ = sender.communicate(b"\n", timeout=60)
        told |= json.loads(out)
    finally:
        sender.kill()
        sender.wait()


def measured(daemon: Daemon, store: Made, rounds: int) -> report.Measured:
    chance = random.Random(7)
    return {ask.name: report.percentiles(asked(daemon, ask, rounds, chance)) for ask in (*asks(store), usage(store))}


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a small store; nothing is kept")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="questions of each kind")
    given = parser.parse_args(argv)
    store = made(QUICK_REQUESTS if given.quick else REQUESTS)
    with serving(store.folder, PLACE.parent / "query-served") as daemon:
        still = measured(daemon, store, given.rounds)
        with coming_in(daemon) as sent:
            busy = measured(daemon, store, given.rounds)
    print(f"{store.requests * A_REQUEST:,} spans, {store.requests:,} requests; then {sent['sent'] / sent['seconds']:,.0f} spans/s come in")
    print(f"\n{report.table('ms', still, busy)}")
    figures = report.figures(still, busy)
    figures["came in"] = (sent["sent"] / sent["seconds"], "spans/s")
    figures["refused"] = (sent["refused"], "body")
    judged = list(still)[:-1]  # usage is no panel
    budgets = [
        report.budget("the slowest question, p50, ms", MOST_MS, max(still[name][0] for name in judged)),
        report.budget("while spans come in, the slowest question, p50, ms", MOST_MS, max(busy[name][0] for name in judged)),
        report.least("spans/s that came in meanwhile", 0.95 * RATE, sent["sent"] / sent["seconds"]),
    ]
    return report.told("query", figures, budgets, keep=not given.quick)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
