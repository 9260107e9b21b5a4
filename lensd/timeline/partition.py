"""Who each instant of a request belongs to.

All times are integer microseconds from the request's first instant, so that shares add up to the whole exactly.
"""

from collections.abc import Mapping, Sequence
from itertools import pairwise
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
    clipped = {stage: [(max(0, a), min(whole, b)) for a, b in segments[stage]] for stage in PRIORITY if segments.get(stage)}
    edges = sorted({0, whole, *(edge for spans in clipped.values() for span in spans for edge in span if 0 <= edge <= whole)})
    exclusive = dict.fromkeys(PRIORITY, 0)
    pieces: list[tuple[int, int, Stage | None]] = []
    for start, end in pairwise(edges):
        owner = next((stage for stage, spans in clipped.items() for a, b in spans if a <= start and end <= b), None)
        if owner is not None:
            exclusive[owner] += end - start
        if pieces and pieces[-1][2] is owner:
            pieces[-1] = (pieces[-1][0], end, owner)
        else:
            pieces.append((start, end, owner))
    return Partition(exclusive, whole - sum(exclusive.values()), _gaps(pieces))


def _gaps(pieces: Sequence[tuple[int, int, Stage | None]]) -> tuple[Gap, ...]:
    """The pieces nobody owns; neighbours of such a piece are always owned, since equal owners were merged."""
    found = []
    for index, (start, end, owner) in enumerate(pieces):
        if owner is None:
            before = pieces[index - 1][2] if index else None
            after = pieces[index + 1][2] if index + 1 < len(pieces) else None
            found.append(Gap(start, end, before or "start", after or "end"))
    return tuple(found)
