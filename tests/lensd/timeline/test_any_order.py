"""Whatever comes, in any order, again or never: the timeline is that of what has come, told in order and once."""

import msgspec
from assembler_run import Run
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from judged_house import T0, Call, S
from lensd_collectors import conventions as c
from lensd_collectors.rows import Event, SpanRow
from parts import adds_up, tables

from lensd.store.arrow import batch_of
from lensd.store.memory import MemoryStore
from lensd.timeline.assembler import assemble_all

STEP_S, LONG_S = 0.3, 100_000
CHANGING = ("revision", "label", "confidence")


def parts():
    """Four requests as all parties tell of them: a gateway's, a middleware's, one with two answers, and one of a plugin's alone."""
    whole, inside, twice, alone = Call(1, at=0), Call(2, at=0.5), Call(3, at=1, total=1000, decode=500), Call(4, at=2)
    reply = {c.QUEUE_MS: 3.0, c.PREFILL_MS: 21.0, c.DECODE_MS: 61.0}
    rows = [
        *whole.client(),
        *whole.gateway(),
        *whole.middleware(**reply),
        *whole.llm_request(parent="middleware"),
        whole.record(0.2, queue=4),
    ]
    rows += [whole.open(1000), whole.open(1200, part="middleware"), *whole.llm_request("second", parent="middleware")]
    rows += [*inside.client(), *inside.llm_request(parent="client"), inside.record(0.7), *under(inside, "client")]
    rows += [*twice.gateway(), *twice.llm_request("a"), *twice.llm_request("b"), twice.record(1.6), twice.record(1.9, queue=6)]
    rows += [alone.record(2.2)]
    return [named(row) for row in rows]


def named(row):
    """As the receiver stores it: what a span says of its request's id is a column too; the engine's own says it in its form."""
    about = msgspec.json.decode(row.attributes) if isinstance(row, SpanRow) else {}
    ours = f"chatcmpl-r{int(row.trace_id, 16)}" if isinstance(row, SpanRow) and row.name == c.SPAN_VLLM_REQUEST else None
    return msgspec.structs.replace(row, request_id=ours or about.get(c.REQUEST_ID)) if about else row


def under(call, parent):
    (span,) = call.middleware(**{c.FIRST_CONTENT_MS: 50.0, c.IS_STREAMING: True, c.FIRST_BYTE_MS: 45.0, c.LAST_BYTE_MS: 100.0})
    span.parent_span_id = call.id(parent)
    return [span]


PARTS = parts()
NUMBERS = st.sampled_from(range(len(PARTS)))


def told_in_order(numbers):
    """What the whole set, restricted to these parts, is assembled to."""
    store = MemoryStore()
    store.append(batch_of(tables([PARTS[n] for n in sorted(numbers)])))
    with store.cursor() as cursor:
        found = assemble_all(cursor, None, T0 + LONG_S * S)
    store.close()
    return found


def said(row):
    return {name: value for name, value in msgspec.structs.asdict(row).items() if name not in CHANGING}


class AnyOrder(RuleBasedStateMachine):
    """Parts arrive within what the assembler waits for; then nothing more does, and all is looked at for the last time."""

    def __init__(self):
        super().__init__()
        self.run, self.arrived, self.now = Run(), set(), 2.5

    @rule(numbers=st.lists(NUMBERS, min_size=1, max_size=8))
    def arrive(self, numbers):
        self.run.receive([PARTS[n] for n in numbers])
        self.arrived |= set(numbers)

    @rule()
    def look(self):
        if self.now + STEP_S < 9:
            self.now += STEP_S
            self.changed = self.run.step(self.now)

    @invariant()
    def shares_are_parts_of_the_whole(self):
        for request in getattr(self, "changed", ()):
            adds_up(request)

    def teardown(self):
        for at in (LONG_S, LONG_S + 60):
            self.run.step(at)
        kept = {row.request_key: said(row) for row in self.run.last_rows()}
        whole = told_in_order(self.arrived)
        for request in whole:
            adds_up(request)
        assert kept == {r.row.request_key: said(r.row) for r in whole}
        assert self.run.assembler.waiting == 0
        self.run.store.close()


AnyOrder.TestCase.settings = settings(
    max_examples=60, stateful_step_count=14, deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)
TestAnyOrder = AnyOrder.TestCase


def test_the_parts_make_four_requests_with_every_source():
    found = told_in_order(range(len(PARTS)))
    assert sum(isinstance(part, Event) for part in PARTS) == 7
    assert sorted(r.row.queue_source for r in found) == ["plugin"] * 4
    assert sorted(r.row.client_source or "" for r in found) == ["", "", "client", "client"]
