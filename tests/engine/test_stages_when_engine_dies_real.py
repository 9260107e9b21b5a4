"""A real engine is killed: each request that it had is in the store with a bad end, told of by the middleware, the gateway or nobody.

Named so that it comes after the other tests of `engine_plugged`, which it leaves dead.
"""

import signal

import pytest
from gateway_real import Caller, running, seconds_until, waiting
from house import House, until
from stages_real import Place, is_exact, settled, sources

pytestmark = pytest.mark.engine

CHAT = "/v1/chat/completions"
LONG = {
    "model": "tiny-llama", "messages": [{"role": "user", "content": "the trace"}], "max_tokens": 480, "stream": True, "ignore_eos": True,
}  # fmt: skip


@pytest.fixture
def house(engine_plugged, engine_otlp_port, engine_token, tmp_path):
    engine = engine_plugged.ready()
    made = House(tmp_path, engine, engine_otlp_port, engine_token, engine.host)
    made.start("serve", "gateway", "agent")
    until(lambda: made.chat("warm-up").status == 200)
    yield made
    made.supervisor.stop()


def test_what_an_engine_had_when_it_was_killed(house):
    engine = house.engine
    doors = {"engine": engine, "gateway": Place(f"http://{house.gateway}", house.key)}
    calls = {
        f"killed-{name}-{stream}": Caller(door, CHAT, {**LONG, "stream": stream}, headers={"X-Request-Id": f"killed-{name}-{stream}"})
        for name, door in doors.items()
        for stream in (True, False)
    }
    for name in doors:
        next(calls[f"killed-{name}-True"].events())
    seconds_until(lambda: running(engine) + waiting(engine) == len(calls))
    engine.signal(signal.SIGSTOP, engine.core_pid())  # however fast it is, they do not end before
    until(lambda: calls.keys() <= {row.request_id for row in house.client.requests().items})  # each is told of while it is open
    assert running(engine) + waiting(engine) == len(calls)
    engine.kill()
    rows = settled(house, list(calls), 60)
    for request_id, row in rows.items():
        print(request_id, row.outcome, row.status, row.decision, row.label, sources(row))
    for request_id, row in rows.items():
        if "gateway" in request_id:
            assert (row.outcome in ("failed", "cut"), row.decision in ("engine_dead", "engine_error")) == (True, True), request_id
        else:
            assert row.outcome == "lost", request_id
        assert row.finish_reason is None, request_id
        assert is_exact(row), request_id
        assert not {"plugin", "llm_request"} & set(sources(row).values()), request_id
        assert house.client.diagnosis(request_id).verdict.label == "engine-crash", request_id
    for call in calls.values():
        call.leave()
