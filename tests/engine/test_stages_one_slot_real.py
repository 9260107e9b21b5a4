"""One slot and equal requests: the queue time of each, against the service times that callers saw of those before it."""

import random
from concurrent.futures import ThreadPoolExecutor

import pytest
from gateway_real import running
from house import House, until
from stages_real import Asked, drive, is_exact, settled, text

pytestmark = pytest.mark.engine


@pytest.fixture
def house(engine_long, engine_otlp_port, engine_token, tmp_path):
    made = House(tmp_path, engine_long.ready(), engine_otlp_port, engine_token)
    made.start("serve", "gateway", "agent")
    until(lambda: made.chat("warm-up").status == 200)
    # vLLM's exporter waits longer and longer where nobody has listened yet
    until(lambda: "llm_request" in {row.queue_source for row in made.client.requests().items}, 90)
    yield made
    made.supervisor.stop()


def test_a_request_queues_for_the_service_times_before_it(house):
    content = text(random.Random(1), 4)
    equal = [Asked(f"equal-{number}", content, 300, True) for number in range(6)]
    with ThreadPoolExecutor() as aside:
        first = aside.submit(drive, house, equal[:1], 1)
        until(lambda: running(house.engine) == 1)  # it has the slot, so that the others' front ends are nobody's service time
        seen = drive(house, equal[1:], 5)
    rows = settled(house, [each.request_id for each in equal])
    [before] = first.result()
    assert rows["equal-0"].decode_ms == pytest.approx(before.between_ms, rel=0.05, abs=30)
    for each in sorted(seen, key=lambda each: each.tokens[0]):
        row = rows[each.asked.request_id]
        arrived = each.sent + ((row.auth_routing_ms or 0) + (row.frontend_ms or 0)) / 1000
        waited, service = 1000 * (before.tokens[-1] - arrived), 1000 * (each.tokens[-1] - before.tokens[-1])
        own = row.prefill_ms - (row.frontend_ms or 0) + row.decode_ms
        print(f"queue {row.queue_ms:.0f} ms, services before it end after {waited:.0f} ms; its own {own:.0f} and {service:.0f} ms")
        assert is_exact(row)
        assert row.queue_source == "llm_request"
        assert row.queue_ms == pytest.approx(waited, rel=0.05)
        assert own == pytest.approx(service, rel=0.05, abs=30)
        before = each
