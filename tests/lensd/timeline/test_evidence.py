"""What is known of a request is the same, however it is looked up."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from lensd.timeline.evidence import RequestEvidence, Signal, Span

NAMES = ("a", "b", "c")
attributes = st.dictionaries(st.sampled_from(NAMES), st.none() | st.booleans() | st.integers(0, 3), max_size=3)


def span(about: dict[str, Any] | None) -> Span | None:
    return None if about is None else Span("t", "s", None, "n", None, None, None, None, None, None, 0, 1, None, None, about, None)


@given(st.none() | attributes, st.none() | attributes, st.lists(attributes, max_size=2), st.none() | attributes)
def test_a_complete_request_says_what_its_best_witness_says(gateway: Any, middleware: Any, told: list[dict[str, Any]], client: Any) -> None:
    signals = [Signal("e", 0, fields, None) for fields in told]
    request = RequestEvidence("t", "s", gateway=span(gateway), middleware=span(middleware), client=span(client), signals=signals)
    before = {name: request.value(name) for name in NAMES}
    witnesses = (gateway, middleware, *reversed(told), client)
    assert before == {name: next((w[name] for w in witnesses if w and w.get(name) is not None), None) for name in NAMES}
    request.complete()
    assert {name: request.value(name) for name in NAMES} == before
