"""An OTLP exponential histogram as one with explicit bounds: a list of upper bounds, and one count more, each bucket for itself.

With base = 2 ** (2 ** -scale), the positive bucket of index i holds values in (base ** i, base ** (i + 1)], the negative one their
opposites; values nearer to zero than the threshold are counted apart (opentelemetry-proto, metrics.proto).
"""

import math
import sys
from collections.abc import Sequence
from typing import Any, Final

Explicit = tuple[list[float], list[float]]
"""Upper bounds, and counts with one more for what is above the last bound."""

MOST_BUCKETS: Final = 160
"""On each side of zero; pairs of neighbours are merged until there are no more, which lowers the scale by one each time."""
_SCALES: Final = range(-20, 41)


def explicit(point: Any) -> Explicit | None:
    """The point's buckets from the lowest to the highest; None for a scale that no histogram of doubles has."""
    if point.scale not in _SCALES:
        return None
    sides = point.negative, point.positive
    shift = max(_shift(side.offset, len(side.bucket_counts)) for side in sides)
    low, high = (_merged(side.offset, side.bucket_counts, shift) for side in sides)
    scale = point.scale - shift
    made = _Buckets()
    if low:
        made.add(-edge(max(low) + 1, scale), 0)
    for index in sorted(low, reverse=True):
        made.add(-edge(index, scale), low[index])
    threshold = point.zero_threshold
    made.add(threshold if 0 < threshold < math.inf else 0.0, point.zero_count)
    if high:
        made.add(edge(min(high), scale), 0)
    for index in sorted(high):
        made.add(edge(index + 1, scale), high[index])
    return made.bounds, [*made.counts, 0.0]


def edge(index: int, scale: int) -> float:
    """base ** index, as near as a double gets: 0 below the smallest and the largest double above it."""
    whole, part = (index << -scale, 0.0) if scale <= 0 else divmod(index, 1 << scale)
    try:
        return math.ldexp(2.0 ** (part / (1 << max(scale, 0))), whole)
    except OverflowError:
        return sys.float_info.max


class _Buckets:
    """Buckets in rising order; one whose bound is no higher than the last one's goes into that one."""

    def __init__(self) -> None:
        self.bounds: list[float] = []
        self.counts: list[float] = []

    def add(self, upper: float, count: int) -> None:
        if self.bounds and upper <= self.bounds[-1]:
            self.counts[-1] += count
        else:
            self.bounds.append(upper)
            self.counts.append(float(count))


def _shift(offset: int, count: int) -> int:
    """How often neighbours have to be merged."""
    shift, last = 0, offset + count - 1
    while count and (last >> shift) - (offset >> shift) >= MOST_BUCKETS:
        shift += 1
    return shift


def _merged(offset: int, counts: Sequence[int], shift: int) -> dict[int, int]:
    """Counts by index, without gaps, once each pair of neighbours has been merged `shift` times."""
    made: dict[int, int] = {}
    for index, count in enumerate(counts, offset):
        made[index >> shift] = made.get(index >> shift, 0) + count
    return made
