"""One slot and equal requests: the queue time of each, against the service times that callers saw of those before it."""

import random
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

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
    [holder] = first.result()
    assert rows["equal-0"].decode_ms == pytest.approx(holder.between_ms, rel=0.05, abs=30)
    seen.sort(key=lambda each: each.tokens[0])
    queued = [rows[each.asked.request_id].queue_ms for each in seen]
    # callers see when a slot falls free; when an engine without a middleware took a request in, only that all came at the same time
    free_at = [1000 * each.tokens[-1] for each in (holder, *seen)]
    assert queued[0] < 1.05 * (free_at[0] - 1000 * seen[0].sent)
    for each, waited, (begins, ends) in zip(seen, queued, pairwise(free_at), strict=True):
        row, service = rows[each.asked.request_id], ends - begins
        own = row.prefill_ms - (row.frontend_ms or 0) + row.decode_ms
        print(f"queue {waited:.0f} ms, {begins - free_at[0]:.0f} of them for those before it; its own {own:.0f} and {service:.0f} ms")
        assert is_exact(row)
        assert row.queue_source == "llm_request"
        assert waited - queued[0] == pytest.approx(begins - free_at[0], rel=0.05)
        assert own == pytest.approx(service, rel=0.05, abs=30)
