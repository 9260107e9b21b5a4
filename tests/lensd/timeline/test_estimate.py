"""What gauges tell of a request that its engine says nothing of."""

import pytest

from lensd.timeline.estimate import Scrape, estimate

S = 1_000_000


def gauges(*rows):
    """Seconds, running, waiting, tokens made."""
    return [Scrape(int(at * S), running, waiting, made) for at, running, waiting, made in rows]


def test_an_engine_that_stood_still_from_before_the_hand_over_does_not_have_the_request_in_prefill():
    frozen = gauges((-1, 1, 0, 500), (1, 1, 0, 500), (2, 1, 0, 500), (3, 1, 0, 500))
    assert estimate(frozen, 0, 4 * S) == (((0, 4 * S),), (), "estimate")


@pytest.mark.parametrize(
    "rows",
    [
        [(-1, 0, 0, 500), (1, 1, 0, 500), (2, 1, 0, 500)],  # it runs now: a long prompt makes no token for a while
        [(-1, 1, 0, 500), (1, 1, 0, 540), (2, 1, 0, 580)],  # one left as it came
        [(-1, 1, 0, 500), (1, 2, 0, 500), (2, 2, 0, 500)],
        [(1, 1, 0, 500), (2, 1, 0, 500)],  # nobody looked before
    ],
)
def test_an_engine_that_moved_since_has_it(rows):
    assert estimate(gauges(*rows), 0, 4 * S) == (((0, 0),), ((0, 4 * S),), "scrape")


def test_who_waits_at_an_engine_that_stood_still_is_not_said_to_be_seen_waiting():
    frozen = gauges((-1, 2, 3, 500), (1, 2, 3, 500), (2, 2, 3, 500))
    assert estimate(frozen, 0, 4 * S).source == "estimate"
