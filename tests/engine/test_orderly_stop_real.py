"""An engine that is stopped in order is no crash, though its processes are killed on the way and the watcher is quicker than the log."""

import signal
import time

import pytest
from checkout import serving
from house import House, until

pytestmark = pytest.mark.engine


@pytest.fixture
def own_engine(engine_starter):
    yield from engine_starter.run("stopped-in-order")


def test_a_stop_by_sigterm_opens_no_incident(own_engine, tmp_path):
    house = House(tmp_path, own_engine, serving.free_port(), "token-of-this-test")
    house.start("serve", "gateway", "agent")
    try:
        until(lambda: house.chat("before-the-stop").status == 200)
        until(lambda: any(engine.up for engine in house.client.status().engines))
        own_engine.signal(signal.SIGTERM, own_engine.pid)
        until(lambda: not own_engine.processes())
        until(lambda: any(engine.up is False for engine in house.client.status().engines))
        time.sleep(6)  # as long as the rules wait for a line of the log, twice, and a few ticks
        assert house.client.incidents() == ()
        assert house.chat("after-the-stop").status in (502, 503)
        assert house.verdict("after-the-stop")["verdict"]["label"] != "engine-crash"
    finally:
        house.supervisor.stop()
