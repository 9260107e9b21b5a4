"""What plugin and middleware cost a real vLLM: tokens/s and processor time a token, beside the same server with them switched off.

usage: bench_overhead.py [--pairs N] [--seconds S] [--quick] [--alike]

Needs .engine. One server under one steady load, with both on, telling a sink, and off, by turns of a few seconds: two servers,
however alike, differ by more than is looked for (bench/overhead/switch.py). Two pairs are a round, ABBA or BAAB by lot, and the
interval is taken over rounds. Prints a table and, as its last line, one JSON object; a full run is also kept in
bench/results/overhead.json. Exits 0 only if the upper end of the 95 % interval of what is lost of the tokens/s holds the budget.
"""

import argparse
import asyncio
import gc
import json
import random
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType

import uvloop

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "tests"), str(ROOT / "tests" / "engine")]

from checkout import ENGINE, serving  # noqa: E402
from gateway.process import BenchError  # noqa: E402
from origin import origin  # noqa: E402
from overhead import figures, servers, sink  # noqa: E402
from overhead.figures import FIGURES, LEAST_PAIRS, Pair  # noqa: E402
from overhead.pairs import Pairs  # noqa: E402

PAIRS, SECONDS = 120, 2.0
QUICK_PAIRS, QUICK_SECONDS = 12, 1.0
ASIDE = ROOT / ".bench" / "overhead"


async def measure(folder: Path, number: int, seconds: float, *, alike: bool) -> tuple[list[Pair], float | None]:
    """The pairs, and how many of the requests were recorded, in %."""
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)  # uvloop calls no other handler while it runs
    async with sink.listening() as told, servers.running(folder, told.port) as server:
        gc.freeze()
        gc.disable()
        pairs = Pairs(server, told, seconds, random.SystemRandom(), alike=alike)
        return await pairs.measure(number), pairs.recorded


def document(pairs: Sequence[Pair], recorded: float | None) -> dict[str, object]:
    found = {
        f"{arm}_{name}": {"value": round(value, FIGURES[name].digits), "unit": FIGURES[name].unit}
        for arm, of_arm in figures.medians(pairs).items()
        for name, value in of_arm.items()
    }
    return {
        **origin("overhead"), "figures": {"pairs": {"value": len(pairs), "unit": "pair"}, **found},
        "ratios": figures.ratios(pairs), "budgets": figures.budgets(pairs, recorded),
    }  # fmt: skip


def report(pairs: Sequence[Pair], recorded: float | None, *, is_kept: bool) -> bool:
    """Prints everything; whether all budgets hold."""
    decided = figures.budgets(pairs, recorded)
    print(figures.table(pairs))
    print()
    for budget in decided:
        verdict = "held" if budget["held"] else "not decided" if budget["value"] is None else "NOT HELD"
        print(f"{budget['name']:<58}{budget['limit']:>8}{budget['value'] if budget['value'] is not None else '-':>10}  {verdict}")
    line = json.dumps(document(pairs, recorded))
    if is_kept:
        (ROOT / "bench" / "results" / "overhead.json").write_text(line + "\n")
    print(line)
    return all(budget["held"] for budget in decided)


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="What plugin and middleware cost a real vLLM.")
    parser.add_argument("--pairs", type=_pairs, help=f"an even number; default: {PAIRS}, with --quick {QUICK_PAIRS}")
    parser.add_argument("--seconds", type=_seconds, help=f"of a half pair; default: {SECONDS:g}, with --quick {QUICK_SECONDS:g}")
    parser.add_argument("--quick", action="store_true", help=f"a short look; the budget needs {LEAST_PAIRS} pairs")
    parser.add_argument("--alike", action="store_true", help="never switched on: what is found where there is nothing to find")
    arguments = parser.parse_args()
    arguments.pairs = arguments.pairs or (QUICK_PAIRS if arguments.quick else PAIRS)
    arguments.seconds = arguments.seconds or (QUICK_SECONDS if arguments.quick else SECONDS)
    return arguments


def _pairs(text: str) -> int:
    number = int(text)
    if number < 2 or number % 2:
        raise argparse.ArgumentTypeError(f"{number} is no even number from 2 on: two pairs are a round")
    return number


def _seconds(text: str) -> float:
    seconds = float(text)
    if not 0.1 <= seconds <= 60:
        raise argparse.ArgumentTypeError(f"{text} does not lie in 0.1 to 60")
    return seconds


def end_in_order(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main() -> int:
    arguments = read_arguments()
    if lacking := serving.missing(ENGINE):
        print(f"bench-overhead: {lacking}", file=sys.stderr)
        return 1
    signal.signal(signal.SIGTERM, end_in_order)
    try:
        pairs, recorded = uvloop.run(measure(ASIDE, arguments.pairs, arguments.seconds, alike=arguments.alike))
    except (BenchError, serving.EngineError) as error:
        print(f"bench-overhead: {error}", file=sys.stderr)
        return 1
    except (KeyboardInterrupt, asyncio.CancelledError):
        return 130
    is_kept = not arguments.quick and not arguments.alike and len(pairs) >= LEAST_PAIRS
    return 0 if report(pairs, recorded, is_kept=is_kept) else 1


if __name__ == "__main__":
    sys.exit(main())
