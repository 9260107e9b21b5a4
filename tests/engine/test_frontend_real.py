"""Twenty prompts of 100,000 characters at one instant: what passes before the engine's queue is shown as front end, not as queue."""

import statistics
import time

import pytest
from frontend_load import LEFT, Scraped, at_once, compared, tokens, warm
from gateway_real import ENGINE, seconds_until
from recorded import Lensd, Recorder

pytestmark = pytest.mark.engine

COUNT = 20
QUEUE = "queue-saturation"


@pytest.fixture(scope="module")
def load(engine_long, records, engine_otlp_port, tmp_path_factory):
    """What the callers saw, and lensd with all that was told of it."""
    engine, folder = engine_long.ready(), tmp_path_factory.mktemp("frontend")
    assert 20_000 < tokens(engine) < 32_767
    door, before = Recorder(engine_otlp_port), len(records.bodies)
    try:
        with Scraped(engine, door.url, folder):
            warm(engine)
            seconds_until(lambda: door.bodies)
            time.sleep(2)
            seen = at_once(engine, COUNT)
            for each in seen:
                records.of(each.ident, ENGINE)
            time.sleep(3)  # vLLM sends its spans every half second, the agent scrapes each second
    finally:
        door.stop()
    lensd = Lensd(folder / "store").hear([*door.bodies, *records.bodies[before:]], look_on_s=15.0)
    yield seen, lensd
    lensd.close()


def test_the_time_before_the_queue_is_front_end(load):
    seen, lensd = load
    found = compared(seen, lensd.requests())
    assert len(found) == COUNT - 1
    for each in sorted(found):
        print(
            f"caller {each.caller_ms:5.0f} ms: front end {each.frontend_ms:5.0f}, queue {each.queue_ms:4.1f}, "
            f"prefill {each.engine_ms:3.0f}, after {each.after_ms:3.0f}, {'stream' if each.stream else 'whole'}"
        )
    off, before = statistics.median(each.off_ms for each in found), statistics.median(each.before_ms for each in found)
    print(f"front end beside the callers' clock: off by {off:.0f} ms in the median, {max(each.off_ms for each in found):.0f} at most")
    for each in found:
        assert each.off_ms <= max(150.0, 0.1 * each.before_ms), each
        assert each.queue_ms <= 0.1 * each.frontend_ms, each
        assert each.frontend_ms >= 0.5 * each.total_ms, each
        assert each.after_ms <= max(300.0, 0.25 * each.total_ms), each
    assert off <= max(30.0, 0.05 * before)


def test_nothing_is_called_a_queue(load):
    _, lensd = load
    assert [row for row in lensd.rows("select * from findings") if row["label"] == QUEUE] == []
    assert {ident: row["label"] for ident, row in lensd.requests().items() if row["label"] == QUEUE} == {}
    assert {row["queue_state"] for row in lensd.requests().values()} == {"ok"}


def test_one_that_left_meanwhile_is_there_and_is_no_queue_either(load):
    _, lensd = load
    row = lensd.requests()[LEFT]
    assert (row["outcome"], row["decision"], row["settled"]) == ("caller_gone", "caller_gone", True)
    assert row["label"] != QUEUE
    assert row["frontend_ms"] is None  # only its end would have told it apart
    assert row["queue_source"] in (None, "scrape", "estimate")  # never as if it had been measured
    assert row["decode_ms"] is None
