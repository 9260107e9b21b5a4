"""The parts of a card's memory: they add up to what the device says is used, and what is not known is never 0."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lensd.memory.composition import Band, Device, Holder, Known, compose, holder

GIB = 1 << 30
CARD = Device(used_bytes=74 * GIB, free_bytes=5 * GIB, total_bytes=80 * GIB, reserved_bytes=GIB)
ENGINE = Holder(
    engine="e0", weights_bytes=15 * GIB, kv_cache_bytes=50 * GIB, kv_usage=0.5, activation_bytes=4 * GIB, graph_bytes=GIB,
    non_torch_bytes=GIB, utilization=0.9,
)  # fmt: skip
MARGIN = {"device": CARD, "others_bytes": GIB}


def bytes_of(known):
    return {part.band: part.bytes for part in compose(known).parts}


def without(name):
    return Holder(**{each: getattr(ENGINE, each) for each in ENGINE.__struct_fields__ if each != name})


def test_every_part_of_a_card_that_all_is_told_of():
    assert bytes_of(Known(holders=(ENGINE,), **MARGIN)) == {
        Band.WEIGHTS: 15 * GIB, Band.KV_USED: 25 * GIB, Band.KV_FREE: 25 * GIB, Band.RUNTIME: 6 * GIB, Band.UNEXPLAINED: 2 * GIB,
        Band.OTHERS: GIB, Band.DRIVER: GIB, Band.FREE: 5 * GIB,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("used_gib", "runtime_gib", "unexplained_gib", "over_gib"),
    [(74, 6, 2, 0), (72, 6, 0, 0), (69, 3, 0, 0), (68, 2, 0, 0), (60, 2, 0, 8)],
)
def test_activations_take_what_is_left_up_to_their_peak_and_no_less_than_what_lasts(used_gib, runtime_gib, unexplained_gib, over_gib):
    device = Device(used_bytes=used_gib * GIB, free_bytes=(79 - used_gib) * GIB, total_bytes=80 * GIB, reserved_bytes=GIB)
    made = compose(Known(device=device, holders=(ENGINE,), others_bytes=GIB))
    found = {part.band: part.bytes for part in made.parts}
    assert (found[Band.RUNTIME], found[Band.UNEXPLAINED]) == (runtime_gib * GIB, unexplained_gib * GIB)
    assert made.over_bytes == over_gib * GIB


@pytest.mark.parametrize(
    ("name", "unknown"),
    [
        ("weights_bytes", Band.WEIGHTS), ("kv_cache_bytes", Band.KV_POOL), ("activation_bytes", Band.RUNTIME),
        ("graph_bytes", Band.RUNTIME), ("non_torch_bytes", Band.RUNTIME),
    ],
)  # fmt: skip
def test_what_an_engine_does_not_say_is_unknown_and_the_rest_is_no_longer_unexplained(name, unknown):
    found = bytes_of(Known(holders=(without(name),), **MARGIN))
    assert found[unknown] is None
    assert Band.UNEXPLAINED not in found
    assert found[Band.NOT_KNOWN] > 0


def test_without_the_weights_nobody_can_tell_activations_from_them():
    found = bytes_of(Known(holders=(without("weights_bytes"),), **MARGIN))
    assert (found[Band.RUNTIME], found[Band.NOT_KNOWN]) == (2 * GIB, 21 * GIB)


def test_a_cache_of_which_nobody_says_how_full_it_is_stays_whole():
    found = bytes_of(Known(holders=(without("kv_usage"),), **MARGIN))
    assert found[Band.KV_POOL] == 50 * GIB
    assert not {Band.KV_USED, Band.KV_FREE} & set(found)
    assert found[Band.UNEXPLAINED] == 2 * GIB


@pytest.mark.parametrize("usage", [-0.1, 1.2, 85.0, float("nan")])
def test_a_usage_that_is_no_share_is_not_told(usage):
    found = bytes_of(Known(holders=(holder("e0", {"kv_cache_bytes": str(50 * GIB)}, usage),)))
    assert (found[Band.KV_POOL], Band.KV_USED in found) == (50 * GIB, False)


def test_without_a_list_of_processes_others_are_unknown():
    found = bytes_of(Known(device=CARD, holders=(ENGINE,)))
    assert (found[Band.OTHERS], found[Band.NOT_KNOWN], found[Band.RUNTIME]) == (None, 7 * GIB, 2 * GIB)


def test_of_a_card_without_an_engine_only_its_processes_are_known():
    assert bytes_of(Known(device=CARD, others_bytes=70 * GIB)) == {
        Band.NOT_KNOWN: 4 * GIB, Band.OTHERS: 70 * GIB, Band.DRIVER: GIB, Band.FREE: 5 * GIB,
    }  # fmt: skip


def test_a_card_that_tells_nothing_is_not_empty():
    made = compose(Known(device=Device(), holders=(ENGINE,), others_bytes=0))
    found = {part.band: part.bytes for part in made.parts}
    assert (found[Band.NOT_KNOWN], found[Band.FREE], found[Band.DRIVER], made.limit_bytes) == (None, None, None, None)


def test_an_engine_on_a_card_that_nobody_watches():
    made = compose(Known(holders=(ENGINE,)))
    found = {part.band: part.bytes for part in made.parts}
    assert found == {Band.WEIGHTS: 15 * GIB, Band.KV_USED: 25 * GIB, Band.KV_FREE: 25 * GIB, Band.RUNTIME: 6 * GIB}
    assert made.limit_bytes is None


def test_two_engines_on_a_card_each_have_their_parts_and_share_the_limit():
    second = Holder(
        engine="e1", weights_bytes=GIB, kv_cache_bytes=0, kv_usage=0.0, activation_bytes=GIB, graph_bytes=0, non_torch_bytes=0,
        requested_bytes=5 * GIB,
    )  # fmt: skip
    made = compose(Known(device=CARD, holders=(ENGINE, second), others_bytes=0))
    assert [(part.band, part.engine) for part in made.parts[:2]] == [(Band.WEIGHTS, "e0"), (Band.WEIGHTS, "e1")]
    assert made.limit_bytes == 72 * GIB + 5 * GIB
    assert {part.engine: part.bytes for part in made.parts if part.band == Band.RUNTIME} == {"e0": 6 * GIB, "e1": GIB}
    assert compose(Known(device=CARD, holders=(ENGINE, Holder(engine="e1")), others_bytes=0)).limit_bytes is None


def test_the_limit_is_rounded_up_as_the_engine_does():
    device = Device(total_bytes=85_520_809_984)
    assert compose(Known(device=device, holders=(Holder(engine="e0", utilization=0.92),))).limit_bytes == 78_679_145_186


@pytest.mark.parametrize(
    ("facts", "pool"),
    [
        ({"kv_cache_bytes": "1073741824"}, GIB),
        ({"kv_cache_bytes": "1073741824", "num_gpu_blocks": "64", "num_gpu_blocks_override": "64", "kv_block_bytes": "65536"}, 64 * 65536),
        ({"kv_cache_bytes": "1073741824", "num_gpu_blocks": "64", "num_gpu_blocks_override": "64"}, None),
        ({"kv_cache_bytes": "1.0 GiB"}, None),
        ({"kv_cache_bytes": "9" * 5000}, None),
        ({"num_gpu_blocks": "64"}, None),
        ({}, None),
    ],
)
def test_the_cache_is_what_was_allocated(facts, pool):
    assert holder("e0", facts, None).kv_cache_bytes == pool


def test_the_usage_is_of_the_blocks_that_can_be_given_out():
    facts = {"num_gpu_blocks": "64", "kv_block_bytes": "65536"}
    found = bytes_of(Known(holders=(holder("e0", facts, 21 / 63),)))
    assert (found[Band.KV_USED], found[Band.KV_FREE]) == (21 * 65536, 43 * 65536)


@pytest.mark.parametrize(("facts", "graphs"), [({"enforce_eager": "true"}, 0), ({"enforce_eager": "false"}, None), ({}, None)])
def test_without_graphs_there_is_no_room_for_them(facts, graphs):
    assert holder("e0", facts, 0.0).graph_bytes == graphs


@pytest.mark.parametrize("text", ["", "nan", "0", "1.5", "-0.9", "auto"])
def test_a_share_that_is_none_is_not_told(text):
    assert holder("e0", {"gpu_memory_utilization": text}, 0.0).utilization is None


sizes = st.one_of(st.none(), st.integers(0, 1 << 40))
holders = st.builds(
    Holder, engine=st.sampled_from(["e0", "e1"]), weights_bytes=sizes, kv_cache_bytes=sizes, kv_usage=st.one_of(st.none(), st.floats(0, 1)),
    kv_blocks=st.one_of(st.none(), st.integers(1, 1 << 20)), activation_bytes=sizes, graph_bytes=sizes, non_torch_bytes=sizes,
)  # fmt: skip


@given(device=st.builds(Device, used_bytes=sizes, free_bytes=sizes, reserved_bytes=sizes), held=st.lists(holders, max_size=3), others=sizes)
def test_parts_add_up_to_what_is_used_or_to_what_is_told_beyond_it(device, held, others):
    made = compose(Known(device=device, holders=tuple(held), others_bytes=others))
    inside = [part.bytes or 0 for part in made.parts if part.band not in (Band.DRIVER, Band.FREE)]
    assert min(inside) >= 0
    if device.used_bytes is not None:
        assert sum(inside) - made.over_bytes == device.used_bytes
    assert [part.band for part in made.parts] == sorted((part.band for part in made.parts), key=list(Band).index)
    if any(part.band == Band.UNEXPLAINED for part in made.parts):
        assert all(part.bytes is not None for part in made.parts if part.band not in (Band.DRIVER, Band.FREE))
