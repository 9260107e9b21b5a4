"""Lines of the stub's script: a card that serves, and what happens to it."""

from collections.abc import Iterable

GIB = 2**30
TOTAL = 80 * GIB
STEADY = {
    "total": TOTAL, "used": 70 * GIB, "reserved": GIB, "util": 93, "mem_util": 41, "sm": 1755, "sm_max": 1980, "reasons": 0x4,
    "temp": 61, "power": 412_500, "limit": 700_000, "slowdown": 87, "ecc_u": 0, "ecc_c": 2, "retired": 1, "rows": 3, "pending": 0,
    "failed": 0, "gen": 5, "width": 16, "replays": 4, "mig": 0,
}  # fmt: skip


def card(index: int = 0, **other: int) -> list[str]:
    return [f"0 {index} {key} {value}" for key, value in {**STEADY, **other}.items()]


def cards(count: int) -> list[str]:
    return [f"0 - cards {count}", *(line for index in range(count) for line in card(index))]


def series(device: str, key: str, values: Iterable[int], *, first: int = 0) -> list[str]:
    """One value a step."""
    return [f"{step} {device} {key} {value}" for step, value in enumerate(values, first)]


def text(*lines: str | list[str]) -> str:
    """A script; its lines in the order of their steps."""
    flat = [line for each in lines for line in ([each] if isinstance(each, str) else each)]
    return "".join(f"{line}\n" for line in sorted(flat, key=lambda line: int(line.split()[0])))
