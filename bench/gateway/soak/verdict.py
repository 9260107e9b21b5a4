"""From what a soak found to budgets: each one a sentence, a limit and a value, held or not."""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

MIB: Final = 1 << 20
EARLY: Final = (0.2, 0.4)
"""Of the requests: memory in this stretch is what the end is held against."""
LATE: Final = (0.8, 1.0)
MAX_GROWTH_MIB: Final = 8.0
MAX_GROWTH: Final = 0.10
LEAST_JUDGED: Final = 50_000
"""Requests; memory of a shorter run says nothing: what is kept for later is still being filled."""


class Sample(NamedTuple):
    """Memory of the gateway when so many requests were done."""

    share: float
    resident: int  # bytes


class Found(NamedTuple):
    """One part of a soak: what callers know, and what the gateway held when all was quiet beyond what it held before."""

    sent: int
    counted: int
    silent: int  # callers that got no answer in time
    broken: int  # replies without an end
    wrong: int  # answers with a status that may not be
    open_requests: int
    in_flight: int
    key_in_flight: int
    tasks: int
    files: int
    early_mib: float  # memory
    late_mib: float
    recorded: int  # requests the door was told of
    dropped: int  # and those whose record the gateway counted as lost
    complaints: int
    exit_status: int


class Budget(NamedTuple):
    name: str
    limit: float
    value: float

    @property
    def held(self) -> bool:
        return self.value <= self.limit


def budgets(found: Found) -> Iterator[Budget]:
    yield Budget("requests sent that the gateway did not count, or counted twice", 0, abs(found.sent - found.counted))
    yield Budget("requests that were never answered", 0, found.silent)
    yield Budget("replies without an end", 0, found.broken)
    yield Budget("answers that may not be", 0, found.wrong)
    yield Budget("open requests left", 0, abs(found.open_requests))
    yield Budget("requests left with engines", 0, abs(found.in_flight))
    yield Budget("places of keys still taken", 0, abs(found.key_in_flight))
    yield Budget("tasks left", 0, found.tasks)
    yield Budget("sockets and files left", 0, found.files)
    if found.sent >= LEAST_JUDGED:
        most = max(MAX_GROWTH_MIB, found.early_mib * MAX_GROWTH)
        yield Budget("growth of memory, MiB", round(most, 1), round(found.late_mib - found.early_mib, 1))
    yield Budget("requests without a record, and not counted as dropped", 0, abs(found.counted - found.recorded - found.dropped))
    yield Budget("lines that should not be in its log", 0, found.complaints)
    yield Budget("exit status after SIGTERM", 0, abs(found.exit_status))


def memory(samples: Sequence[Sample]) -> tuple[float, float]:
    """Early and late, MiB: the least that was seen in these stretches, since large replies come and go.

    Of a run too short for that, the nearest sample.
    """
    early, late = (_least(samples, *stretch) / MIB for stretch in (EARLY, LATE))
    return early, late


def _least(samples: Sequence[Sample], start: float, end: float) -> int:
    inside = [each.resident for each in samples if start <= each.share <= end]
    return min(inside or [min(samples, key=lambda each: abs(each.share - end)).resident])
