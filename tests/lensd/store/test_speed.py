"""How long the writer takes over a record is told of many seconds of work, so that neither one batch nor a checkpoint decides."""

import pytest

from lensd.store.speed import WINDOW_S, Speed


def told(*batches: tuple[int, float]) -> float:
    speed = Speed()
    for records, seconds in batches:
        speed.stored(records, seconds)
    return speed.seconds_a_record


@pytest.mark.parametrize(
    ("batches", "seconds"),
    [
        ([], 0.0),
        ([(50, 1.0)], 0.02),
        ([(50, 1.0), (50, 3.0)], 0.04),  # the second with a checkpoint in it
        ([(1, 0.06)], 0.0),
        ([(50, 1.0), (1, 0.06)], 0.02),
        ([(1, 0.5)], 0.5),  # one large body
    ],
)
def test_seconds_a_record(batches: list[tuple[int, float]], seconds: float) -> None:
    assert told(*batches) == pytest.approx(seconds)


def test_what_was_long_ago_is_forgotten() -> None:
    assert told((1, 3600.0), (100, WINDOW_S)) == pytest.approx(WINDOW_S / 100)
    assert told(*[(10, 1.0)] * 100, *[(10, 0.5)] * 40) == pytest.approx(0.05)
