import random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lensd_collectors.gateway.ids import IdSource, Parent, read_traceparent, sane_id, write_traceparent

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"


@pytest.mark.parametrize(
    ("value", "kept"),
    [
        (b"lens-req-a1", "lens-req-a1"),
        (b"  spaced out ", "spacedout"),
        (b"a\x00b\tc\x7f", "abc"),
        (b"\"quoted'<b>\\", "quotedb"),
        ("grün".encode(), "grn"),
        (b"x" * 300, "x" * 128),
        (b"", ""),
        (None, ""),
    ],
)
def test_an_id_of_the_caller_is_kept_as_far_as_it_is_sane(value, kept):
    assert sane_id(value) == kept


@given(st.binary(max_size=1000))
def test_a_kept_id_is_short_printable_and_stays_the_same(value):
    kept = sane_id(value)
    assert len(kept) <= 128
    assert kept.isascii()
    assert kept == "" or kept.isprintable()
    assert sane_id(kept.encode()) == kept


@pytest.mark.parametrize(
    ("value", "parent"),
    [
        (f"00-{TRACE}-{SPAN}-01", Parent(TRACE, SPAN)),
        (f"00-{TRACE}-{SPAN}-00", Parent(TRACE, SPAN)),
        (f" 00-{TRACE}-{SPAN}-01 ", Parent(TRACE, SPAN)),
        (f"01-{TRACE}-{SPAN}-01-more", Parent(TRACE, SPAN)),
        (f"00-{TRACE}-{SPAN}-01-more", None),
        (f"ff-{TRACE}-{SPAN}-01", None),
        (f"00-{'0' * 32}-{SPAN}-01", None),
        (f"00-{TRACE}-{'0' * 16}-01", None),
        (f"00-{TRACE.upper()}-{SPAN}-01", None),
        ("nonsense", None),
        ("", None),
    ],
)
def test_only_a_valid_traceparent_counts(value, parent):
    assert read_traceparent(value.encode()) == parent


@given(st.integers())
def test_new_ids_are_read_back(seed):
    ids = IdSource(random.Random(seed))
    trace_id, span_id = ids.trace_id(), ids.span_id()
    assert read_traceparent(write_traceparent(trace_id, span_id).encode()) == (trace_id, span_id)
