"""Exponential histograms as explicit ones: no reading is in a bucket whose bounds do not hold it, as the specification places it."""

import math
from fractions import Fraction
from itertools import accumulate, pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.metrics.v1.metrics_pb2 import ExponentialHistogramDataPoint

from lensd.receive.histograms import MOST_BUCKETS, edge, explicit


def recorded(readings: list[float], scale: int, threshold: float = 0.0) -> Any:
    """A point as a sender makes it: with base = 2**(2**-scale), index = ceil(log_base(value)) - 1, and lists that begin at `offset`."""
    sides: dict[bool, dict[int, int]] = {True: {}, False: {}}
    point = ExponentialHistogramDataPoint(scale=scale, zero_threshold=threshold, count=len(readings))
    for reading in readings:
        if abs(reading) <= threshold:
            point.zero_count += 1
            continue
        index = _index(abs(reading), scale)
        side = sides[reading > 0]
        side[index] = side.get(index, 0) + 1
    for made, counts in ((point.positive, sides[True]), (point.negative, sides[False])):
        if counts:
            made.offset = min(counts)
            made.bucket_counts.extend(counts.get(index, 0) for index in range(min(counts), max(counts) + 1))
    return point


def _index(value: float, scale: int) -> int:
    """The index for which base**index < value <= base**(index + 1), settled in whole numbers where a logarithm may be off by one."""
    guess = math.ceil(math.log2(value) * 2.0**scale) - 1
    return next(index for index in (guess - 1, guess, guess + 1) if _above(value, index, scale) and not _above(value, index + 1, scale))


def _above(value: float, index: int, scale: int) -> bool:
    """value > 2**(index / 2**scale), exactly."""
    power = 2 ** max(scale, 0)
    exponent = index if scale >= 0 else index * 2**-scale
    return Fraction(value) ** power > Fraction(2) ** exponent


MAGNITUDES = st.floats(1e-3, 1e3, allow_subnormal=False)
READINGS = st.lists(MAGNITUDES | MAGNITUDES.map(lambda value: -value) | st.just(0.0) | st.sampled_from([1.0, 2.0, 4.0, -0.5]), max_size=40)


@given(READINGS, st.integers(-3, 6), st.sampled_from([0.0, 1e-3]))
def test_every_reading_is_counted_within_its_bounds(readings: list[float], scale: int, threshold: float) -> None:
    bounds, counts = explicit(recorded(readings, scale, threshold)) or ([], [])
    assert len(counts) == len(bounds) + 1
    assert sum(counts) == len(readings)
    assert all(one < other for one, other in pairwise(bounds))
    running = list(accumulate(counts))
    for bound, below in zip(bounds, running, strict=False):
        slack = abs(bound) * 1e-9  # a bound is a rounded power; a reading on it may stand on either side of the double
        assert sum(reading < bound - slack for reading in readings) <= below <= sum(reading <= bound + slack for reading in readings)


@given(st.lists(st.floats(1e-300, 1e300), min_size=2, max_size=60), st.integers(0, 6))
def test_a_wide_histogram_has_fewer_and_wider_buckets(readings: list[float], scale: int) -> None:
    bounds, counts = explicit(_wide(readings, scale)) or ([], [])
    assert len(bounds) <= MOST_BUCKETS + 2
    assert sum(counts) == len(readings)
    running = list(accumulate(counts))
    for bound, below in zip(bounds, running, strict=False):
        assert (
            sum(reading < bound * (1 - 1e-9) for reading in readings) <= below <= sum(reading <= bound * (1 + 1e-9) for reading in readings)
        )


def _wide(readings: list[float], scale: int) -> Any:
    """Indices by logarithm alone: so far from one, a reading lies near a bound only by chance, which the slack above covers."""
    indices = [math.ceil(math.log2(reading) * 2**scale) - 1 for reading in readings]
    point = ExponentialHistogramDataPoint(scale=scale, count=len(readings))
    point.positive.offset = min(indices)
    counts = [0] * (max(indices) - min(indices) + 1)
    for index in indices:
        counts[index - min(indices)] += 1
    point.positive.bucket_counts.extend(counts)
    return point


@pytest.mark.parametrize(
    ("index", "scale", "wanted"),
    [
        (0, 3, 1.0), (1, 0, 2.0), (-1, 0, 0.5), (1, 1, 2**0.5), (3, 1, 2**1.5), (-1, 1, 2**-0.5), (1, -2, 16.0), (-1, -2, 1 / 16),
        (5000, 0, 1.7976931348623157e308), (-5000, 0, 0.0), (2**31, -20, 1.7976931348623157e308), (-(2**31), -20, 0.0),
    ],
)  # fmt: skip
def test_edges_are_powers_of_the_base(index: int, scale: int, wanted: float) -> None:
    assert edge(index, scale) == pytest.approx(wanted, rel=1e-15)


def test_buckets_beyond_what_a_double_holds_are_counted_in_the_outermost() -> None:
    point = ExponentialHistogramDataPoint(scale=-1, zero_count=1)
    point.positive.offset, point.positive.bucket_counts[:] = -600, [1] + [0] * 1199 + [2]
    point.negative.offset, point.negative.bucket_counts[:] = 599, [3, 4]
    bounds, counts = explicit(point) or ([], [])
    assert all(map(math.isfinite, bounds))
    assert all(one < other for one, other in pairwise(bounds))
    assert sum(counts) == 11


@pytest.mark.parametrize("scale", [-21, 41, 2**31 - 1, -(2**31)])
def test_a_scale_that_none_has_is_no_histogram(scale: int) -> None:
    assert explicit(ExponentialHistogramDataPoint(scale=scale)) is None
