"""The gateway before a real vLLM: what the engine says comes through unchanged, and what it would refuse does not reach it."""

import json

import openai
import pytest
from gateway_real import Caller, GatewayHouse, ask, count, seconds_until

pytestmark = pytest.mark.engine

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"
ASKED = {"model": "tiny-llama", "ignore_eos": True, "temperature": 0.8, "seed": 7, "max_tokens": 64}
MESSAGES = [{"role": "user", "content": "the queue waits for a token"}]
USAGE = {"stream": True, "stream_options": {"include_usage": True}}


@pytest.fixture(scope="module")
def house(engine, records, tmp_path_factory):
    with GatewayHouse(tmp_path_factory.mktemp("front"), engine, records.url) as made:
        seconds_until(made.is_ready)
        yield made


@pytest.fixture(scope="module")
def client(house):
    with openai.OpenAI(base_url=f"{house.url}/v1", api_key=house.key, max_retries=0) as made:
        yield made


def named(request_id):
    return {"X-Request-Id": request_id}


def told(events):
    """What a stream says: its text, and its events without text, ids and repeats. A busy engine puts more text into fewer events."""
    text, kinds = "", []
    for line in events:
        data = line.removeprefix(b"data: ").strip()
        event = {"done": True} if data == b"[DONE]" else {**json.loads(data), "id": "", "created": 0}
        for choice in event.get("choices", ()):
            held = choice.get("delta", choice)
            for name in ("content", "text"):
                text += held.pop(name, None) or ""
        if event not in kinds[-1:]:
            kinds.append(event)
    return text, kinds


@pytest.mark.parametrize(
    ("path", "body"),
    [(CHAT, {"messages": MESSAGES}), (CHAT, {"messages": MESSAGES, **USAGE}), (COMPLETIONS, {"prompt": "two blocks", **USAGE})],
    ids=["chat", "chat with usage", "completion with usage"],
)
def test_a_stream_says_what_the_engine_says(house, engine, records, path, body):
    request_id = f"same-{path}-{'usage' if 'stream_options' in body else 'plain'}".replace("/", "-")
    asked = {**ASKED, **body, "stream": True}
    direct = list(Caller(engine, path, asked).events())
    passed = list(Caller(house, path, asked, headers=named(request_id)).events())
    assert told(passed) == told(direct)
    assert passed[-1].strip() == b"data: [DONE]"
    record = records.record(request_id)
    assert record["lensd.outcome"] == "ok"
    assert record["lensd.stream.chunks"] == len(passed) - 1
    assert (record["lensd.stream.done_seen"], record["gen_ai.response.finish_reasons"]) == (True, ["length"])
    if "stream_options" in body:
        assert record["gen_ai.usage.output_tokens"] == 64
    assert request_id in record["gen_ai.response.id"]


def test_a_whole_answer_is_the_engines_with_our_ids(house, engine, records):
    asked = {**ASKED, "messages": MESSAGES}
    direct, passed = ask(engine, CHAT, asked), ask(house, CHAT, asked, headers=named("whole-1"))
    assert passed.status == 200
    assert {**passed.json, "id": "", "created": 0} == {**direct.json, "id": "", "created": 0}
    assert (passed.headers["x-request-id"], passed.headers["x-lensd-said-by"]) == ("whole-1", "engine")
    usage, record = passed.json["usage"], records.record("whole-1")
    assert record["gen_ai.usage.input_tokens"] == usage["prompt_tokens"]
    assert record["gen_ai.usage.output_tokens"] == usage["completion_tokens"] == 64
    assert record["gen_ai.response.id"] == passed.json["id"] == "chatcmpl-whole-1"


def test_openais_client_chats_and_completes(client, house):
    chunks = list(
        client.chat.completions.create(
            model="tiny-llama", messages=MESSAGES, max_tokens=12, stream=True, stream_options={"include_usage": True},
            extra_body={"ignore_eos": True},
        )
    )  # fmt: skip
    assert chunks[-1].usage.completion_tokens == 12
    assert [each.choices[0].finish_reason for each in chunks if each.choices][-1] == "length"
    completion = client.completions.create(model="tiny-llama", prompt="under load", max_tokens=5, extra_body={"ignore_eos": True})
    assert (completion.usage.completion_tokens, completion.choices[0].finish_reason) == (5, "length")


def test_openais_client_lists_models_and_calls_one_by_its_alias(client, records):
    assert {model.id for model in client.models.list()} == {"tiny-llama", "tiny-alias"}
    assert client.models.retrieve("tiny-alias").max_model_len == 512
    raw = client.chat.completions.with_raw_response.create(
        model="tiny-alias", messages=MESSAGES, max_tokens=2, extra_headers=named("alias-1")
    )
    assert raw.headers["x-lensd-model"] == raw.parse().model == "tiny-llama"
    record = records.record("alias-1")
    assert (record["gen_ai.request.model"], record["lensd.request.dispatched_model"]) == ("tiny-alias", "tiny-llama")


def test_openais_client_gets_responses_whole_and_streamed(client, records):
    asked = {"model": "tiny-llama", "input": "the trace", "max_output_tokens": 9, "extra_body": {"ignore_eos": True}}
    whole = client.responses.create(**asked, extra_headers=named("response-1"))
    assert whole.usage.output_tokens == 9
    events = list(client.responses.create(**asked, stream=True, extra_headers=named("response-2")))
    assert events[0].type == "response.created"
    assert events[-1].type in ("response.completed", "response.incomplete")
    assert events[-1].response.usage.output_tokens == 9
    first, second = records.record("response-1"), records.record("response-2")
    for record, response in ((first, whole), (second, events[-1].response)):
        assert (record["lensd.outcome"], record["gen_ai.response.id"]) == ("ok", response.id)
        assert record["gen_ai.usage.output_tokens"] == 9
        assert record["gen_ai.usage.input_tokens"] == response.usage.input_tokens
        assert record["gen_ai.response.finish_reasons"]
    assert second["lensd.stream.done_seen"]
    assert second["lensd.stream.chunks"] == len(events)


def test_what_the_engine_does_not_do_it_says_itself(client, house, engine, records):
    body = {"model": "tiny-llama", "input": "the trace"}
    direct = ask(engine, "/v1/embeddings", body)
    passed = ask(house, "/v1/embeddings", body, headers=named("embeddings-1"))
    assert (passed.status, passed.body) == (direct.status, direct.body)
    assert passed.status in (400, 404)
    assert passed.headers["x-lensd-said-by"] == "engine"
    assert (records.record("embeddings-1")["lensd.outcome"], records.record("embeddings-1")["lensd.said_by"]) == ("refused", "engine")
    with pytest.raises((openai.NotFoundError, openai.BadRequestError)):
        client.embeddings.create(model="tiny-llama", input="the trace")


def served(engine, path):
    """How many requests of a path have reached the engine."""
    return count(engine, "http_requests_total", handler=path)


def test_a_prompt_over_the_context_is_refused_with_its_length_and_the_engine_is_not_asked(client, engine, records):
    messages = [{"role": "user", "content": "the queue waits for a token. " * 100}]
    counted = ask(engine, "/tokenize", {"model": "tiny-llama", "messages": messages}).json["count"]
    assert counted > 540
    before = served(engine, CHAT), served(engine, "/tokenize")
    with pytest.raises(openai.BadRequestError) as caught:
        client.chat.completions.create(model="tiny-llama", messages=messages, max_tokens=1, extra_headers=named("too-long-1"))
    assert caught.value.code == "context_length_exceeded"
    assert f"the prompt has {counted} tokens, the server's max_model_len is 512" in caught.value.message
    assert (served(engine, CHAT), served(engine, "/tokenize")) == (before[0], before[1] + 1)
    record = records.record("too-long-1")
    assert (record["lensd.decision"], record["lensd.said_by"], record["lensd.outcome"]) == ("context_too_long", "gateway", "refused")


def words(engine, tokens):
    """A text of exactly so many tokens."""
    text = " queue" * tokens
    assert ask(engine, "/tokenize", {"model": "tiny-llama", "prompt": text}).json["count"] == tokens
    return text


@pytest.mark.parametrize("as_text", [True, False], ids=["text", "token ids"])
def test_a_prompt_that_leaves_room_for_one_token_fits_and_one_more_does_not(house, engine, as_text):
    def prompt(tokens):
        return words(engine, tokens) if as_text else [20] * tokens

    fits, full = ({**ASKED, "max_tokens": 1, "prompt": prompt(tokens)} for tokens in (511, 512))
    passed = ask(house, COMPLETIONS, fits)
    assert (passed.status, passed.json["usage"]["prompt_tokens"], passed.json["usage"]["completion_tokens"]) == (200, 511, 1)
    assert ask(engine, COMPLETIONS, full).status == 400
    before = served(engine, COMPLETIONS)
    refused = ask(house, COMPLETIONS, full)
    assert (refused.status, refused.json["error"]["code"]) == (400, "context_length_exceeded")
    assert "the prompt has 512 tokens" in refused.json["error"]["message"]
    assert served(engine, COMPLETIONS) == before


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("POST", CHAT, {"model": "nope-70b", "messages": MESSAGES}, 404, "model_not_found"),
        ("GET", "/v1/models/nope-70b", None, 404, "model_not_found"),
        ("POST", "/chat/completions", {"model": "tiny-llama", "messages": MESSAGES}, 404, "route_not_found"),
        ("POST", "/v1/v1/chat/completions", {"model": "tiny-llama", "messages": MESSAGES}, 404, "route_not_found"),
        ("GET", CHAT, None, 405, "method_not_allowed"),
        ("POST", CHAT, {**ASKED, "messages": MESSAGES, "max_tokens": 100_000}, 400, "context_length_exceeded"),
        ("POST", CHAT, [], 400, "invalid_body"),
    ],
)
def test_the_gateway_refuses_with_the_engines_status_and_says_it_itself(house, engine, method, path, body, status, code):
    direct = ask(engine, path, body, method=method)
    before = served(engine, CHAT), served(engine, "none")  # none: no path of the engine's
    passed = ask(house, path, body, method=method)
    assert (direct.status, passed.status) == (status, status)
    assert (passed.json["error"]["code"], passed.headers["x-lensd-said-by"]) == (code, "gateway")
    assert (served(engine, CHAT), served(engine, "none")) == before


@pytest.mark.parametrize(
    "body",
    [{"messages": MESSAGES, "temperature": -1}, {"messages": "no list"}, {}, {"messages": MESSAGES, "n": 0}],
    ids=["temperature", "messages", "no messages", "n"],
)
def test_what_only_the_engine_can_judge_it_judges(house, engine, body):
    direct, passed = (ask(place, CHAT, {"model": "tiny-llama", **body}) for place in (engine, house))
    assert (passed.status, passed.body, passed.headers["x-lensd-said-by"]) == (direct.status, direct.body, "engine")
    assert passed.status == 400
