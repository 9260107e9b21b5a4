"""Spans a second from the door until they are queryable, and how long their acknowledgements take, with the sender on the same cores.

usage: bench_ingest.py [--spans N] [--rounds N] [--quick] [--only MODE] [--peers]

A real daemon with a store under .bench/ingest takes OTLP/HTTP bodies of 512 distinct spans, made before the clock starts: once with
timeline and rules off, once with them on. --peers sends a few thousand of the same spans to Phoenix and MLflow, each with its defaults in
an environment of its own. Prints a table and, as its last line, one JSON object; a full run with peers is also kept in
bench/results/ingest.json. Exits 0 only if every budget holds.
"""

import argparse
import json
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import FrameType

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "lensd"))

from gateway.process import BenchError  # noqa: E402
from ingest import figures, ours, peers  # noqa: E402
from ingest.figures import FIGURES, OFF, ON  # noqa: E402
from origin import origin  # noqa: E402

HOME = ROOT / ".bench" / "ingest"
A_BODY, CONNECTIONS, ROUNDS = 512, 4, 3
SPANS = {OFF: 3_000_000, ON: 400_000}
QUICK_SPANS = {OFF: 200_000, ON: 70_000}


def rounds_of(mode: str, spans: int, number: int) -> list[dict[str, float]]:
    found = []
    for _ in range(number):
        folder = fresh(mode)
        found.append(figures.of_round(ours.measure(folder, spans, A_BODY, CONNECTIONS, judged=mode == ON)))
        shutil.rmtree(folder)
    return found


def fresh(name: str) -> Path:
    folder = HOME / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def document(found: Mapping[str, float], rates: Mapping[str, float], *, with_peers: bool) -> dict[str, object]:
    named = {f"{mode}_{name}": figure for mode in (OFF, ON) for name, figure in FIGURES.items()}
    shown = {key: {"value": round(value, max(1, named[key].digits)), "unit": named[key].unit} for key, value in found.items()}
    shown |= {f"{name}_rate": {"value": round(rate, 1), "unit": "span/s"} for name, rate in rates.items()}
    compared = figures.ratios(found, rates)
    return {
        **origin("ingest"),
        "figures": shown, "ratios": {name: round(value, 1) for name, value in compared.items()},
        "budgets": figures.budgets(found, compared, with_peers=with_peers),
    }  # fmt: skip


def read_arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Spans a second from the door until they are queryable.")
    parser.add_argument("--spans", type=int, default=0, help="with rules off; default 3,000,000, with --quick 200,000")
    parser.add_argument("--rounds", type=int, default=0, help="default: 3, with --quick 1")
    parser.add_argument("--quick", action="store_true", help="a short look; budgets need a full run")
    parser.add_argument("--only", choices=(OFF, ON), help="one mode")
    parser.add_argument("--peers", action="store_true", help="Phoenix and MLflow too, installed under .bench/ where they are missing")
    return parser.parse_args(argv)


def end_in_order(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main(argv: Sequence[str]) -> int:
    arguments = read_arguments(argv)
    signal.signal(signal.SIGTERM, end_in_order)
    spans = dict(QUICK_SPANS if arguments.quick else SPANS)
    spans[OFF] = arguments.spans or spans[OFF]
    number = arguments.rounds or (1 if arguments.quick else ROUNDS)
    problems: list[str] = []
    try:
        rates = peers.rates(HOME, A_BODY, problems) if arguments.peers else {}
        measured = {mode: rounds_of(mode, spans[mode], number) for mode in (OFF, ON) if arguments.only in (None, mode)}
    except BenchError as error:
        print(f"bench-ingest: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    found = figures.medians(measured)
    said = document(found, rates, with_peers=arguments.peers)
    decided = figures.budgets(found, figures.ratios(found, rates), with_peers=arguments.peers)
    print(figures.table(found, rates, figures.ratios(found, rates)))
    print()
    for budget in decided:
        value = budget["value"] if budget["value"] is not None else "-"
        verdict = "held" if budget["held"] else "not measured" if budget["value"] is None else "NOT HELD"
        print(f"{budget['name']:<{figures.WIDTH}}{budget['limit']:>12}{value:>12}  {verdict}")
    for problem in problems:
        print(problem)
    line = json.dumps(said)
    if not arguments.quick and arguments.only is None and arguments.peers and number >= ROUNDS and spans == SPANS:
        (ROOT / "bench" / "results" / "ingest.json").write_text(line + "\n")
    print(line)
    return 0 if all(budget["held"] for budget in decided) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
