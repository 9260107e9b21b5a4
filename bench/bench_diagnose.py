"""How long `lensd diagnose ID` takes as a whole process against a daemon over 10 million spans, still and while spans come in.

usage: bench_diagnose.py [--quick] [--rounds N]     prints a table and, as its last line, one JSON object, also kept in
bench/results/diagnose.json
"""

import argparse
import random
import sys
from collections.abc import Sequence
from typing import Final

from bench_query import QUICK_REQUESTS, REQUESTS, coming_in
from query import report
from query.daemon import Daemon, lensd, serving
from query.store import PLACE, Made, made

ROUNDS: Final = 9
MOST_MS: Final = 250.0
FOUND: Final = (0, 3)


def measured(daemon: Daemon, store: Made, rounds: int) -> report.Measured:
    """By the kind of name."""
    chance = random.Random(11)
    found = {}
    for kind in store.names(0):
        times = []
        for _ in range(rounds + 1):
            name = store.names(chance.randrange(store.requests))[kind]
            took, status, out = lensd(daemon, "diagnose", name, "--json")
            if status not in FOUND:
                raise SystemExit(f"lensd diagnose {name} ended with {status}: {out[:300]!r}")
            times.append(took)
        found[f"by {kind}"] = report.percentiles(times[1:])
    return found


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a small store; nothing is kept")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="commands for each kind of name")
    given = parser.parse_args(argv)
    store = made(QUICK_REQUESTS if given.quick else REQUESTS)
    with serving(store.folder, PLACE.parent / "diagnose-served") as daemon:
        still = measured(daemon, store, given.rounds)
        with coming_in(daemon) as sent:
            busy = measured(daemon, store, given.rounds)
    print(f"{store.requests:,} requests; then {sent['sent'] / sent['seconds']:,.0f} spans/s come in")
    print(f"\n{report.table('lensd diagnose, whole process, ms', still, busy)}")
    budgets = [
        report.budget("by request id, p50, ms", MOST_MS, still["by request id"][0]),
        report.budget("by the slowest kind of name, p50, ms", MOST_MS, max(p50 for p50, _ in still.values())),
    ]
    figures = report.figures(still, busy) | {"came in": (sent["sent"] / sent["seconds"], "spans/s")}
    return report.told("diagnose", figures, budgets, keep=not given.quick)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
