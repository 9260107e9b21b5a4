"""One slot and equal requests: the queue time of each, against the service times that callers saw of those before it."""

import random
from itertools import pairwise

import pytest
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
    seen = drive(house, [Asked(f"equal-{number}", content, 300, True) for number in range(6)], 6)
    rows = settled(house, [each.asked.request_id for each in seen])
    seen.sort(key=lambda each: each.tokens[0])
    # the slot is the first one's once its front end is done, however long its first step takes
    free_at = [seen[0].sent + (rows[seen[0].asked.request_id].frontend_ms or 0) / 1000, *(each.tokens[-1] for each in seen)]
    service = [1000 * (after - before) for before, after in pairwise(free_at)]
    for k, each in enumerate(seen):
        row, before = rows[each.asked.request_id], sum(service[:k])
        own = row.prefill_ms - (row.frontend_ms or 0) + row.decode_ms
        print(f"{k + 1}: queue {row.queue_ms:.0f} ms, service times before it {before:.0f} ms; its own {own:.0f} and {service[k]:.0f} ms")
        assert is_exact(row)
        assert row.queue_source == "llm_request"
        assert row.queue_ms == pytest.approx(before, rel=0.05, abs=30 if k == 0 else 0)
        assert own == pytest.approx(service[k], rel=0.05, abs=30)
