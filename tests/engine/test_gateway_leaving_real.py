"""A caller that leaves takes its request out of a real engine, wherever it stands there: in the queue, in prefill, in decode."""

import itertools
import random

import pytest
from gateway_real import ENGINE, Caller, GatewayHouse, count, running, seconds_until, waiting

pytestmark = pytest.mark.engine

LIMIT_S = 1.0
CONTEXT = 32_768
LONG_ANSWER = 20_000  # tokens, about a minute
SOME_OF_A_PROMPT = 0.005  # of the KV cache, which holds 64 prompts of the whole context: a third of one
WORDS = ("the", "queue", "waits", "for", "a", "token", "worker", "drops", "two", "blocks", "under", "load")
numbers = itertools.count(1)
chance = random.Random(32)


@pytest.fixture(scope="module")
def house(engine_long, records, tmp_path_factory):
    with GatewayHouse(tmp_path_factory.mktemp("leaving"), engine_long.engine, records.url) as made:
        seconds_until(made.is_ready)
        yield made


@pytest.fixture
def engine(engine_long):
    """Idle, as every test leaves it that passes."""
    engine = engine_long.engine
    seconds_until(lambda: (running(engine), waiting(engine)) == (0, 0), limit_s=180)
    return engine


def send(house, body, path="/v1/completions"):
    """A request under way, and its id."""
    request_id = f"leaving-{next(numbers)}"
    asked = {"model": "tiny-llama", "ignore_eos": True, "max_tokens": LONG_ANSWER, **body}
    return Caller(house, path, asked, headers={"X-Request-Id": request_id}), request_id


def leaves(caller, request_id, gauge, engine, records):
    """The caller leaves, the gauge falls in time, and both records say so; what they say, the gateway's first."""
    took = seconds_until(lambda: gauge(engine) == 0, caller.leave(), LIMIT_S)
    print(f"{gauge.__name__} fell {took * 1000:.0f} ms after {request_id} left")
    said = records.record(request_id), records.record(request_id, ENGINE)
    for record in said:
        assert (record["lensd.outcome"], record["http.response.status_code"]) == ("caller_gone", 499)
        assert (record["lensd.said_by"], record["lensd.decision"]) == ("client", "caller_gone")
    return said


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_from_the_queue(house, engine, records, stream):
    first, first_id = send(house, {"prompt": "the queue waits", "stream": True})
    events = first.events()
    next(events)
    prompts = count(engine, "vllm:prompt_tokens_total")
    second, second_id = send(house, {"prompt": "a request that waits", "stream": stream})
    seconds_until(lambda: waiting(engine) == 1)
    gateways, _ = leaves(second, second_id, waiting, engine, records)
    assert gateways["lensd.bytes_sent"] == 0
    assert next(events)  # the other one runs on
    assert running(engine) == 1
    leaves(first, first_id, running, engine, records)
    assert count(engine, "vllm:prompt_tokens_total") == prompts  # the second was never begun


def ids(tokens):
    """A prompt of so many tokens that the engine has not seen before."""
    return [chance.randrange(10, 440) for _ in range(tokens)]


def chat(tokens):
    """A chat of so many tokens and a few more: each of these words is one."""
    return [{"role": "user", "content": " ".join(chance.choices(WORDS, k=tokens))}]


@pytest.mark.parametrize(
    ("path", "body"),
    [
        pytest.param("/v1/completions", lambda: {"prompt": ids(CONTEXT - 64), "max_tokens": 8, "stream": True}, id="stream"),
        pytest.param("/v1/completions", lambda: {"prompt": ids(CONTEXT - 64), "max_tokens": 8}, id="whole"),
        pytest.param("/v1/chat/completions", lambda: {"messages": chat(CONTEXT - 64), "max_tokens": 8, "stream": True}, id="chat, stream"),
    ],
)
def test_from_prefill(house, engine, records, path, body):
    prompts, generated = count(engine, "vllm:prompt_tokens_total"), count(engine, "vllm:generation_tokens_total")
    caller, request_id = send(house, body(), path)
    seconds_until(lambda: count(engine, "vllm:kv_cache_usage_perc") > SOME_OF_A_PROMPT)
    gateways, middlewares = leaves(caller, request_id, running, engine, records)
    assert gateways["lensd.bytes_sent"] == 0
    assert "lensd.upstream.first_byte_ms" not in middlewares
    # no prefill came to its end
    assert (count(engine, "vllm:prompt_tokens_total"), count(engine, "vllm:generation_tokens_total")) == (prompts, generated)


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_from_decode(house, engine, records, stream):
    generated = count(engine, "vllm:generation_tokens_total")
    caller, request_id = send(house, {"prompt": "the trace", "stream": stream})
    if stream:
        read = list(itertools.islice(caller.events(), 20))
        assert b'"text"' in read[-1]
    else:
        seconds_until(lambda: count(engine, "vllm:generation_tokens_total") >= generated + 20)
    gateways, middlewares = leaves(caller, request_id, running, engine, records)
    assert ("lensd.stream.chunks" in gateways, "lensd.stream.chunks" in middlewares) == (stream, stream)
    if stream:
        assert 20 <= gateways["lensd.stream.chunks"] < LONG_ANSWER / 2
        assert not gateways["lensd.stream.done_seen"]
    assert 20 <= count(engine, "vllm:generation_tokens_total") - generated < LONG_ANSWER / 2


def test_how_long_a_prefill_takes_that_nobody_leaves(house, engine):
    """What the tests above rest on: far longer than a caller is given to be forgotten in."""
    body = {"model": engine.model, "prompt": ids(CONTEXT - 64), "max_tokens": 1, "ignore_eos": True}
    caller = Caller(house, "/v1/completions", body)
    answer = caller.read()
    took = seconds_until(lambda: True, caller.sent)
    print(f"prefill of {CONTEXT - 64} tokens: {took:.1f} s")
    assert answer.json["usage"]["prompt_tokens"] == CONTEXT - 64
    assert took > LIMIT_S
