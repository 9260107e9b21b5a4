"""Our middleware inside a real engine that wants a key: its own span of each request, joined to the gateway's trace."""

import pytest
from gateway_real import ENGINE, GatewayHouse, ask, seconds_until

pytestmark = pytest.mark.engine

CHAT = "/v1/chat/completions"
ASKED = {"model": "tiny-llama", "messages": [{"role": "user", "content": "the trace"}], "max_tokens": 16, "ignore_eos": True}


@pytest.fixture
def engine(engine_long):
    return engine_long.engine


@pytest.fixture(scope="module")
def house(engine_long, records, tmp_path_factory):
    with GatewayHouse(tmp_path_factory.mktemp("joined"), engine_long.engine, records.url) as made:
        seconds_until(made.is_ready)
        yield made


@pytest.mark.parametrize("stream", [True, False], ids=["stream", "whole"])
def test_its_span_is_a_child_of_the_gateways_and_says_the_same(house, records, stream):
    request_id = f"joined-{stream}"
    asked = {**ASKED, "stream": stream, **({"stream_options": {"include_usage": True}} if stream else {})}
    answer = ask(house, CHAT, asked, headers={"X-Request-Id": request_id})
    assert answer.status == 200
    gateways, (inside,) = records.of(request_id), records.of(request_id, ENGINE).values()
    outside, upstream = gateways["server"], gateways["lensd.upstream"]
    assert (inside.trace_id, inside.parent_span_id) == (outside.trace_id, upstream.span_id)
    assert inside.span_id not in {each.span_id for each in gateways.values()}
    same = [
        "lensd.outcome", "http.response.status_code", "http.route", "lensd.bytes_sent", "gen_ai.response.id", "gen_ai.usage.input_tokens",
        "gen_ai.usage.output_tokens", "gen_ai.response.finish_reasons", "lensd.request.streaming", "lensd.engine",
    ]  # fmt: skip
    same += ["lensd.stream.chunks", "lensd.stream.done_seen"] if stream else []
    assert {name: inside.attributes[name] for name in same} == {name: outside.attributes[name] for name in same}
    assert (inside.attributes["lensd.outcome"], inside.attributes["gen_ai.usage.output_tokens"]) == ("ok", 16)
    for name in ("first_byte_ms", "first_content_ms", "last_byte_ms") if stream else ("first_byte_ms",):
        attribute = f"lensd.upstream.{name}"
        assert 0 < inside.attributes[attribute] <= upstream.attributes[attribute], name


def test_it_sees_keys_that_the_engine_refuses(engine, records):
    for key, decision in (("", "key_missing"), ("sk-wrong", "key_unknown")):
        assert ask(engine, CHAT, ASKED, key=key, headers={"X-Request-Id": f"direct-{decision}"}).status == 401
        said = records.record(f"direct-{decision}", ENGINE)
        assert (said["lensd.decision"], said["lensd.outcome"], said["http.response.status_code"]) == (decision, "refused", 401)


def test_an_engine_that_wants_a_key_is_not_ready_for_a_gateway_without_one(engine, records, tmp_path):
    with GatewayHouse(tmp_path, engine, records.url, knows_engine_key=False) as house:
        answer = ask(house, CHAT, ASKED, headers={"X-Request-Id": "no-engine-key"})
        assert (answer.status, answer.json["error"]["code"]) == (502, "upstream_credential_refused")
        assert ask(house, "/readyz").status == 503
        assert "sk-of-the-engine" not in house.output.getvalue()
    assert records.record("no-engine-key")["lensd.decision"] == "upstream_credential_refused"


def test_an_adapter_is_a_model_like_any_other(house, engine, records):
    listed = {card["id"]: card["max_model_len"] for card in ask(house, "/v1/models").json["data"]}
    assert listed == {"tiny-llama": 32_768, "tiny-alias": 32_768, "tiny-adapter": 32_768}
    direct = ask(engine, CHAT, {**ASKED, "model": "tiny-adapter"}).json
    through = ask(house, CHAT, {**ASKED, "model": "tiny-adapter"}, headers={"X-Request-Id": "adapter-1"}).json
    assert through["model"] == direct["model"] == "tiny-adapter"
    assert through["usage"] == direct["usage"]
    record = records.record("adapter-1")
    assert (record["gen_ai.request.model"], record["gen_ai.response.model"]) == ("tiny-adapter", "tiny-adapter")
