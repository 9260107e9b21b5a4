"""A real engine dies in the middle of a stream and comes back at the same port: what callers see, and when they are served again."""

import signal
import time

import openai
import pytest
from gateway_real import ENGINE, GATEWAY, Caller, GatewayHouse, ask, count, running, seconds_until, waiting

pytestmark = pytest.mark.engine

CHAT = "/v1/chat/completions"
ASKED = {"model": "tiny-llama", "messages": [{"role": "user", "content": "the server answers"}], "max_tokens": 4}


def is_refused(answer):
    """Nobody is there: a 503 of the gateway's own that says when to come again."""
    said = answer.headers.get("retry-after", "0"), answer.headers["x-lensd-said-by"]
    return answer.status == 503 and int(said[0]) > 0 and said[1] == "gateway"


def test_callers_are_told_and_nobody_is_sent_to_an_engine_that_loads(engine_long, records, tmp_path):
    engine = engine_long.engine
    with (
        GatewayHouse(tmp_path / "before", engine, records.url) as house,
        openai.OpenAI(base_url=f"{house.url}/v1", api_key=house.key, max_retries=0) as client,
    ):
        seconds_until(house.is_ready)
        long = {**ASKED, "max_tokens": 20_000, "extra_body": {"ignore_eos": True}}
        stream = iter(client.chat.completions.create(**long, stream=True, extra_headers={"X-Request-Id": "killed-1"}))
        for _ in range(10):
            next(stream)
        waits = Caller(house, CHAT, ASKED, headers={"X-Request-Id": "killed-2"})
        seconds_until(lambda: (running(engine), waiting(engine)) == (1, 1))

        engine.signal(signal.SIGKILL, engine.core_pid())
        killed_at = time.monotonic()
        with pytest.raises(openai.APIError) as caught:
            read_on(stream)
        print(f"the stream broke {time.monotonic() - killed_at:.2f} s after the kill: {caught.value.message}")
        print(f"not ready after {seconds_until(lambda: not house.is_ready(), killed_at):.2f} s")
        for service in (GATEWAY, ENGINE):  # the middleware tells of it with the server's last breath
            record = records.record("killed-1", service)
            assert record["lensd.outcome"] in ("failed", "cut")
            assert record["lensd.decision"] in ("engine_dead", "engine_error")
        assert waits.read().status in (500, 502)  # the engine had taken it in: its own last word, or that it broke off
        record = records.record("killed-2", GATEWAY)
        assert (record["lensd.outcome"], record["lensd.decision"] in ("engine_dead", "engine_error")) == ("failed", True)
        with pytest.raises(openai.InternalServerError):
            client.chat.completions.create(**ASKED)
        assert "upstream_out" in records.acts

        renewed = engine_long.renew()
        with GatewayHouse(tmp_path / "after", renewed, records.url) as newcomer:
            houses = (house, newcomer)
            answers = asked_until_healthy(renewed, houses)
            up_at = time.monotonic()
            for each in houses:
                print(f"ready {seconds_until(each.is_ready, up_at):.2f} s after the engine")
                answers.append(ask(each, CHAT, ASKED))
                assert (answers[-1].status, answers[-1].headers["x-lensd-said-by"]) == (200, "engine")
        assert count(renewed, "http_requests_total", handler=CHAT) == sum(answer.status == 200 for answer in answers)


def read_on(stream):
    """To its end, which must not look like one."""
    for chunk in stream:
        assert chunk.choices[0].finish_reason is None


def asked_until_healthy(engine, houses):
    """Every gateway is asked over and over while the engine loads: its answers, all of them refusals but perhaps the very last."""
    answers = []
    while True:
        ready, now = [each.is_ready() for each in houses], [ask(each, CHAT, ASKED) for each in houses]
        answers += now
        if engine.healthy():
            assert len(answers) > 10
            return answers
        assert not any(ready)
        assert all(is_refused(answer) for answer in now)
        time.sleep(0.5)
