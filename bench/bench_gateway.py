"""What our gateway costs beside no proxy, nginx and LiteLLM: latency, processor time, memory, and how soon a caller's leaving arrives.

usage: bench_gateway.py [--rounds N] [--quick] [--only STACKS] [--without STACKS] [--profile FILE]

Alternating rounds on two cores: the proxy has one, the fake engine, the callers and the OTLP sink have the other. Prints a table and,
as its last line, one JSON object; a full run is also kept in bench/results/gateway.json. Exits 0 only if every budget holds.
"""

import argparse
import asyncio
import contextlib
import gc
import json
import os
import pstats
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType

import uvloop
from gateway import figures
from gateway.figures import FIGURES, Round
from gateway.process import BenchError, Group
from gateway.rounds import FULL, QUICK, Rounds
from gateway.stacks import ROOT, STACKS, Place, Stack, start_ours
from origin import origin

LEAST_ROUNDS = 3
PROFILE_LINES = 45


@contextlib.contextmanager
def running(names: Sequence[str], cores: Sequence[int], profile: Path | None) -> Iterator[tuple[list[Stack], int, set[str]]]:
    """The stacks that could be started, the engine's port, and a line for each that could not; all ends with the block."""
    with tempfile.TemporaryDirectory(prefix="bench-gateway-") as folder, contextlib.ExitStack() as held:
        aside = Path(folder)
        engine = Group("engine", [sys.executable, "-m", "gateway.engine"], cores[1], aside / "engine.log", cwd=ROOT / "bench", talks=True)
        held.callback(engine.end)
        assert engine.process.stdout is not None
        ports = engine.process.stdout.readline().split()
        if len(ports) != 2:
            raise BenchError(f"the fake engine did not start: {engine.last_words()}")
        place = Place(aside, int(ports[0]), int(ports[1]), cores[0])
        stacks: list[Stack] = []
        missing: set[str] = set()
        for name in names:
            try:
                stack = start_ours(place, profile) if name == "ours" else STACKS[name](place)
            except BenchError as error:
                if name == "ours":
                    raise
                missing.add(f"{name} is not measured: {error}")
                continue
            stacks.append(stack)
            if stack.group is not None:
                held.callback(stack.group.end)
        yield stacks, place.engine, missing


async def measure(rounds: Rounds, number: int) -> list[Round]:
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)  # uvloop calls no other handler while it runs
    gc.freeze()
    gc.disable()
    return [await rounds.measure(each) for each in range(number)]


def document(rounds: Sequence[Round]) -> dict[str, object]:
    found = {
        f"{stack}_{name}": {"value": figures.finite(value, FIGURES[name].digits), "unit": FIGURES[name].unit}
        for stack, of_stack in figures.medians(rounds).items()
        for name, value in of_stack.items()
    }
    return {
        **origin("gateway"), "figures": found, "ratios": figures.ratios(rounds),
        "budgets": figures.budgets(rounds),
    }  # fmt: skip


def report(rounds: Sequence[Round], problems: set[str], *, is_kept: bool) -> bool:
    """Prints everything; whether all budgets hold."""
    said = document(rounds)
    decided = figures.budgets(rounds)
    print(figures.table(figures.medians(rounds)))
    print()
    for name, value in figures.ratios(rounds).items():
        print(f"{name:<{figures.WIDTH}}{value:>11}")
    print()
    for budget in decided:
        verdict = "held" if budget["held"] else "not decided" if budget["value"] is None else "NOT HELD"
        print(f"{budget['name']:<66}{budget['limit']:>8}{budget['value'] if budget['value'] is not None else '-':>10}  {verdict}")
    for problem in sorted(problems):
        print(problem)
    line = json.dumps(said)
    if is_kept:
        (ROOT / "bench" / "results" / "gateway.json").write_text(line + "\n")
    print(line)
    return all(budget["held"] for budget in decided)


def read_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="What our gateway costs beside no proxy, nginx and LiteLLM.")
    listed = "stacks, with commas between them: " + ", ".join(STACKS)
    parser.add_argument("--rounds", type=int, default=0, help="default: 3, with --quick 1")
    parser.add_argument("--quick", action="store_true", help="a short look; budgets need a full run")
    parser.add_argument("--only", type=stack_names, default=list(STACKS), help=listed)
    parser.add_argument("--without", type=stack_names, default=[], help=listed)
    parser.add_argument("--profile", type=Path, metavar="FILE", help="run ours under cProfile, keep the profile, print where its time goes")
    arguments = parser.parse_args()
    arguments.rounds = arguments.rounds or (1 if arguments.quick else LEAST_ROUNDS)
    return arguments


def stack_names(text: str) -> list[str]:
    names = text.split(",")
    if wrong := [name for name in names if name not in STACKS]:
        raise argparse.ArgumentTypeError(f"no stack '{wrong[0]}': " + ", ".join(STACKS))
    return names


def end_in_order(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def main() -> int:
    arguments = read_arguments()
    names = [name for name in STACKS if name in arguments.only and name not in arguments.without]
    cores = sorted(os.sched_getaffinity(0))[:2]
    if len(cores) < 2:
        print("bench-gateway: two cores are needed, one for the proxy and one for what is around it", file=sys.stderr)
        return 2
    signal.signal(signal.SIGTERM, end_in_order)
    os.sched_setaffinity(0, {cores[1]})
    size = QUICK if arguments.quick else FULL
    profile = arguments.profile.resolve() if arguments.profile else None
    try:
        with running(names, cores, profile) as (stacks, engine, problems):
            try:
                rounds = uvloop.run(measure(Rounds(stacks, engine, size, problems), arguments.rounds))
            finally:
                signal.signal(signal.SIGTERM, end_in_order)
    except BenchError as error:
        print(f"bench-gateway: {error}", file=sys.stderr)
        return 1
    except (KeyboardInterrupt, asyncio.CancelledError):
        return 130
    if profile is not None and profile.exists():
        pstats.Stats(str(profile)).sort_stats("tottime").print_stats(PROFILE_LINES)
    is_kept = len(stacks) == len(STACKS) and not arguments.quick and profile is None and arguments.rounds >= LEAST_ROUNDS
    return 0 if report(rounds, problems, is_kept=is_kept) else 1


if __name__ == "__main__":
    sys.exit(main())
