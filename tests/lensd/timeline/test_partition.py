"""Each instant belongs to one stage; the shares add up."""

from hypothesis import given
from hypothesis import strategies as st
from lensd_collectors.conventions import Stage

from lensd.timeline.partition import PRIORITY, partition

times = st.integers(min_value=-50, max_value=1500)
segments = st.lists(st.tuples(times, times).map(lambda t: (min(t), max(t))), max_size=4)


@given(st.dictionaries(st.sampled_from(list(Stage)), segments), st.integers(min_value=0, max_value=1000))
def test_shares_and_gaps_add_up_to_the_whole(placed, whole):
    shares = partition(placed, whole)
    assert sum(shares.exclusive.values()) + shares.unattributed == whole
    assert sum(g.end - g.start for g in shares.gaps) == shares.unattributed
    assert all(v >= 0 for v in shares.exclusive.values())


@given(st.dictionaries(st.sampled_from(list(Stage)), segments), st.integers(min_value=1, max_value=400))
def test_every_instant_goes_to_the_first_stage_that_covers_it(placed, whole):
    shares = partition(placed, whole)
    counted = dict.fromkeys(PRIORITY, 0)
    for instant in range(whole):
        owner = next((s for s in PRIORITY if any(a <= instant < b for a, b in placed.get(s, ()))), None)
        if owner is not None:
            counted[owner] += 1
    assert counted == shares.exclusive


def test_a_gap_is_named_by_its_neighbours():
    shares = partition({Stage.AUTH_ROUTING: [(0, 10)], Stage.QUEUE: [(25, 40)]}, 50)
    assert [(g.start, g.end, g.before, g.after) for g in shares.gaps] == [(10, 25, "auth_routing", "queue"), (40, 50, "queue", "end")]
