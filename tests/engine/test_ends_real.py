"""Requests for which a real vLLM emits nothing, refused or left, are in the store with their right end: direct and through the gateway."""

import signal
import time

import pytest
from gateway_real import Caller, ask, running, seconds_until, waiting
from house import House, until
from stages_real import Place, is_exact, settled, sources

pytestmark = pytest.mark.engine


def say(content):
    return [{"role": "user", "content": content}]


CHAT = "/v1/chat/completions"
ASKED = {"model": "tiny-llama", "messages": say("the trace"), "max_tokens": 8, "ignore_eos": True}
LONG = {**ASKED, "max_tokens": 400, "stream": True}
ENGINES_OWN = {"plugin", "llm_request", "response"}
REFUSED = [
    # name, path, body, key (None: the right one), status, decision of the engine's middleware and of the gateway, who says the latter
    ("no-key", CHAT, ASKED, "", 401, "key_missing", "key_missing", "gateway"),
    ("wrong-key", CHAT, ASKED, "sk-wrong", 401, "key_unknown", "key_foreign", "gateway"),
    ("no-model", CHAT, {**ASKED, "model": "tiny-other"}, None, 404, "model_unknown", "model_unknown", "gateway"),
    ("no-path", "/v1/nothing", ASKED, None, 404, "path_unknown", "path_unknown", "gateway"),
    ("too-long", CHAT, {**ASKED, "messages": say("the trace " * 600)}, None, 400, "context_too_long", "context_too_long", "gateway"),
    ("too-many", CHAT, {**ASKED, "max_tokens": 100_000}, None, 400, "context_too_long", "context_too_long", "gateway"),
    ("no-list", CHAT, {**ASKED, "messages": "the trace"}, None, 400, "body_malformed", "body_malformed", "engine"),
]  # fmt: skip


@pytest.fixture(scope="module")
def house(engine_plugged, engine_otlp_port, engine_token, tmp_path_factory):
    engine = engine_plugged.ready()
    made = House(tmp_path_factory.mktemp("ends"), engine, engine_otlp_port, engine_token, engine.host)
    made.start("serve", "gateway", "agent")
    until(lambda: made.chat("warm-up").status == 200)
    yield made
    made.supervisor.stop()


@pytest.fixture(params=["engine", "gateway"])
def door(request, house):
    """Where the caller knocks: rung 3 and rung 5."""
    return house.engine if request.param == "engine" else Place(f"http://{house.gateway}", house.key)


def name_of(door, house, name):
    return f"{name}-{'engine' if door is house.engine else 'gateway'}"


@pytest.mark.parametrize(
    ("name", "path", "body", "key", "status", "inside", "outside", "said_by"), REFUSED, ids=[row[0] for row in REFUSED]
)
def test_a_refusal(house, door, name, path, body, key, status, inside, outside, said_by):
    request_id = name_of(door, house, name)
    sent = time.monotonic()
    assert ask(door, path, body, key=key, headers={"X-Request-Id": request_id}).status == status
    waited = 1000 * (time.monotonic() - sent)
    row = settled(house, [request_id])[request_id]
    assert (row.outcome, row.status) == ("refused", status)
    assert (row.decision, row.said_by) == ((inside, "engine") if door is house.engine else (outside, said_by))
    assert is_exact(row)
    assert row.total_ms <= waited + 30  # a server is done after its last byte has gone
    assert row.auth_routing_state == "failed"
    assert (row.queue_state, row.prefill_state, row.decode_state) == ("not_reached",) * 3


def test_an_engine_that_is_too_busy_and_callers_that_leave_its_line(house, door):
    ids = [name_of(door, house, f"busy-{number}") for number in range(25)]
    callers = [Caller(house.engine, CHAT, LONG, headers={"X-Request-Id": ident}) for ident in ids]
    seconds_until(lambda: waiting(house.engine) >= 12)
    asked, core = name_of(door, house, "too-busy"), house.engine.core_pid()
    house.engine.signal(signal.SIGSTOP, core)  # however fast it is, no place becomes free: the gateway tries again for a while
    try:
        answer = ask(door, CHAT, {**LONG, "stream": False}, headers={"X-Request-Id": asked})  # a stream is told inside a 200
        for caller in callers:
            caller.leave()
    finally:
        house.engine.signal(signal.SIGCONT, core)
    assert answer.status == 503
    seconds_until(lambda: running(house.engine) + waiting(house.engine) == 0)
    rows = settled(house, [*ids, asked])
    refused = rows.pop(asked)
    assert (refused.outcome, refused.status, refused.decision, refused.auth_routing_state) == ("refused", 503, "engine_busy", "failed")
    assert (refused.queue_state, refused.prefill_state, refused.decode_state) == ("not_reached",) * 3
    gone = [row for row in rows.values() if row.decision != "engine_busy" and row.outcome != "ok"]  # some may have had their turn
    assert len(gone) > 12
    for row in gone:
        assert (row.outcome, row.status, row.decision, row.said_by) == ("caller_gone", 499, "caller_gone", "client"), row.request_id
        assert not ENGINES_OWN & set(sources(row).values()), row.request_id
    assert all(is_exact(row) for row in (*rows.values(), refused))


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_a_caller_that_leaves_before_the_end(house, door, stream):
    request_id = name_of(door, house, f"left-{stream}")
    caller = Caller(door, CHAT, {**LONG, "stream": stream}, headers={"X-Request-Id": request_id})
    if stream:
        events = caller.events()
        for _ in range(20):
            next(events)
    else:
        seconds_until(lambda: running(house.engine) == 1)
    waited = 1000 * (caller.leave() - caller.sent)
    row = settled(house, [request_id])[request_id]
    assert (row.outcome, row.status, row.decision, row.said_by) == ("caller_gone", 499, "caller_gone", "client")
    assert is_exact(row)
    assert row.total_ms == pytest.approx(waited, abs=100)
    assert not ENGINES_OWN & set(sources(row).values())
    assert row.queue_source in ("scrape", "estimate")
    if stream:
        seen_by = "middleware" if door is house.engine else "gateway"
        assert (row.decode_state, row.decode_source, row.streaming_source) == ("failed", seen_by, seen_by)
        assert row.queue_ms + (row.prefill_ms or 0) + row.decode_ms <= row.total_ms
    else:
        assert row.decode_state == "not_reached"
