"""Who each instant of a request belongs to.

All times are integer microseconds from the request's first instant, so that shares add up to the whole exactly.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from lensd_collectors.conventions import Stage

PRIORITY = (Stage.DECODE, Stage.PREFILL, Stage.QUEUE, Stage.AUTH_ROUTING, Stage.STREAMING, Stage.CLIENT)
"""An instant belongs to the first of these that covers it."""

Segment = tuple[int, int]
"""Start and end, start <= end."""


class Gap(NamedTuple):
    """Time that no stage covers, and the stages it lies between ("start" and "end" at the edges)."""

    start: int
    end: int
    before: str
    after: str


class Partition(NamedTuple):
    """Exclusive time of each stage and what is left; the sum is the whole."""

    exclusive: dict[Stage, int]
    unattributed: int
    gaps: tuple[Gap, ...]


def partition(segments: Mapping[Stage, Sequence[Segment]], whole: int) -> Partition:
    """Divide `0..whole` among the stages; segments outside are clipped.

    >>> partition({Stage.QUEUE: [(0, 40)], Stage.PREFILL: [(30, 60)]}, 100).exclusive[Stage.QUEUE]
    30
    """
    free, exclusive = [(0, whole)] if whole else [], dict.fromkeys(PRIORITY, 0)
    begins, ends = dict[int, Stage](), dict[int, Stage]()  # of the pieces that have an owner
    for stage in PRIORITY:
        for start, end in segments.get(stage, ()):
            left: list[Segment] = []
            for low, high in free:
                begin, until = low if low > start else start, high if high < end else end
                if begin >= until:
                    left.append((low, high))
                    continue
                exclusive[stage] += until - begin
                begins[begin] = ends[until] = stage
                if low < begin:
                    left.append((low, begin))
                if until < high:
                    left.append((until, high))
            free = left
    gaps = tuple(Gap(start, end, ends.get(start, "start"), begins.get(end, "end")) for start, end in free)
    return Partition(exclusive, whole - sum(exclusive.values()), gaps)
