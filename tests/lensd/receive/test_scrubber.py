"""Nothing that a caller wrote or a key opens stays in a message; what rules need stays."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from otlp_bodies import CAPTURES, KINDS, logs, metrics, traces

from lensd.receive.scrub import Scrubber
from lensd.receive.wire import parse_raw
from lensd.store.segments import Signal

SECRET = "planted-secret-9c1f"


def scrubbed(message: Any) -> tuple[bytes, Scrubber]:
    """Traces the short way too, by one that has seen nothing and again when it has seen this: it must come to the same."""
    kind, body, scrubber, short = KINDS[type(message)], message.SerializeToString(), Scrubber(), Scrubber()
    scrubber.scrub(kind, message)
    for times in (1, 2) if kind is Signal.TRACES else ():
        raws = parse_raw(kind, body)
        short.scrub(kind, raws)
        assert type(message).FromString(raws.SerializeToString()) == message
        assert short.counts == {rule: number * times for rule, number in scrubber.counts.items()}
    return message.SerializeToString(), scrubber


@pytest.mark.parametrize(
    "name",
    [
        "gen_ai.input.messages", "gen_ai.output.messages", "gen_ai.system_instructions", "gen_ai.prompt", "gen_ai.prompt.0.content",
        "gen_ai.completion", "gen_ai.completion.1.content", "llm.prompts", "llm.prompts.0.user", "llm.input_messages.0.message.content",
        "llm.output_messages.0.message.content", "input.value", "output.value", "traceloop.entity.input", "traceloop.entity.output",
        "gen_ai.tool.call.arguments", "gen_ai.tool.call.result", "http.request.header.authorization", "http.request.header.cookie",
        "http.response.header.set-cookie", "http.request.header.x-api-key", "http.request.header.X_Api_Key", "url.query",
        "http.request.body.content", "Gen_AI.Prompt",
    ],
)  # fmt: skip
@pytest.mark.parametrize("value", [SECRET, [SECRET, "b"], {"role": "user", "content": SECRET}])
def test_content_attributes_are_removed_wherever_they_stand(name: str, value: Any) -> None:
    given = {name: value, "kept": "yes"}
    for message in (
        traces({"attributes": given}),
        traces({}, resource=given),
        traces({"events": [("e", given)]}),
        traces({"attributes": {"outer": {name: value}, "kept": "yes"}}),
        logs({"attributes": given}),
        logs({"body": given}),
        metrics(("m", 1.0, given)),
    ):
        raw, scrubber = scrubbed(message)
        assert SECRET.encode() not in raw
        assert b"kept" in raw
        assert scrubber.counts["attribute"] == 1


@pytest.mark.parametrize(
    "name",
    [
        "gen_ai.usage.prompt_tokens", "gen_ai.usage.input_tokens", "gen_ai.request.max_tokens", "gen_ai.usage.completion_tokens",
        "gen_ai.response.id", "gen_ai.request.id", "gen_ai.latency.time_in_model_prefill", "lensd.key.id", "gen_ai.prompt_tokens",
        "http.request.method", "http.request.body.size", "error.type", "lensd.error.message",
    ],
)  # fmt: skip
@pytest.mark.parametrize("value", [7, "chatcmpl-1"])
def test_what_rules_need_stays(name: str, value: Any) -> None:
    message = traces({"attributes": {name: value}})
    before = message.SerializeToString()
    raw, scrubber = scrubbed(message)
    assert raw == before
    assert not scrubber.counts


@pytest.mark.parametrize(
    "name", ["gen_ai.user.message", "gen_ai.choice", "gen_ai.content.prompt", "gen_ai.client.inference.operation.details"]
)
def test_message_events_lose_body_and_attributes(name: str) -> None:
    for message in (
        traces({"events": [(name, {"content": SECRET, "event.name": name})]}),
        logs({"name": name, "body": SECRET, "attributes": {"anything": SECRET}}),
        logs({"body": {"content": SECRET}, "attributes": {"event.name": name, "anything": SECRET}}),
    ):
        raw, scrubber = scrubbed(message)
        assert SECRET.encode() not in raw
        assert name.encode() in raw
        assert scrubber.counts["event"] >= 1


@pytest.mark.parametrize(
    ("name", "value", "kept"),
    [
        ("url.full", f"https://h:8000/v1/models?api_key={SECRET}", "https://h:8000/v1/models"),
        ("http.url", f"http://user:{SECRET}@h/v1?x=1#f", "http://h/v1"),
        ("http.target", f"/v1/chat/completions?user={SECRET}", "/v1/chat/completions"),
        ("url.path", "/v1/chat/completions", "/v1/chat/completions"),
    ],
)
def test_addresses_lose_query_and_credentials(name: str, value: str, kept: str) -> None:
    message = traces({"attributes": {name: value}})
    scrubbed(message)
    assert message.resource_spans[0].scope_spans[0].spans[0].attributes[0].value.string_value == kept


@pytest.mark.parametrize(
    "text",
    ["got Bearer abcdef0123456789", "key sk-abcdefgh12345678 refused", "hf_abcdefghijklmnopqrstuvwx", "x-api-key: abcdef0123456789"],
)
def test_text_that_looks_like_a_key_is_masked_everywhere(text: str) -> None:
    for message in (
        traces({"name": text}),
        traces({"message": text}),
        traces({"attributes": {"a": text, "b": [text], "c": {"d": text}}}),
        traces({"events": [("exception", {"exception.message": text})]}),
        logs({"body": text}),
        metrics(("m", 1.0, {"a": text})),
        traces({}, resource={"a": text}),
    ):
        raw, scrubber = scrubbed(message)
        assert b"abcdef" not in raw
        assert scrubber.counts["text"] >= 1


@pytest.mark.parametrize(
    "line",
    [
        f"INFO 11-16 09:00:10 [logger.py:39] Received request cmpl-1-0: prompt: '{SECRET}', params: None, prompt_token_ids: [1, 2]",
        f"Generated response chatcmpl-1: output: '{SECRET}', output_token_ids: [3], finish_reason: stop",
        f'10.0.0.1:41025 - "GET /v1/models?api_key={SECRET} HTTP/1.1" 200 OK',
    ],
)
def test_log_lines_lose_prompts(line: str) -> None:
    raw, _ = scrubbed(logs({"name": "lensd.engine.log", "body": line}))
    assert SECRET.encode() not in raw


@pytest.mark.parametrize(
    "line",
    ["Received request c-1: params: SamplingParams(stop=['walrus'])", "{'reasoning': 'walrus'}", '{"system": "walrus"}', "Basic\twalrus="],
)
def test_the_door_asks_the_scrubber_about_every_text(line: str) -> None:
    for message in (logs({"body": line}), traces({"attributes": {"a": line}})):
        raw, scrubber = scrubbed(message)
        assert b"walrus" not in raw
        assert scrubber.counts["text"] == 1


def test_a_span_name_loses_its_query() -> None:
    message = traces({"name": f"GET /v1/models?user={SECRET}"})
    scrubbed(message)
    assert message.resource_spans[0].scope_spans[0].spans[0].name == "GET /v1/models"


@pytest.mark.parametrize("file", ["requests", "startup", "preempted"])
def test_real_bodies_stay_as_they_are(file: str) -> None:
    raw = (CAPTURES / "otlp" / f"{file}.pb").read_bytes()
    message = type(traces()).FromString(raw)
    assert not Scrubber().scrub(Signal.TRACES, message)
    assert message == type(traces()).FromString(raw)


def test_stored_content_keeps_prompts_but_no_credentials() -> None:
    message = traces({"attributes": {"gen_ai.prompt": "hello", "http.request.header.authorization": SECRET, "url.query": SECRET}})
    Scrubber(store_content=True).scrub(Signal.TRACES, message)
    assert [pair.key for pair in message.resource_spans[0].scope_spans[0].spans[0].attributes] == ["gen_ai.prompt"]


@given(st.dictionaries(st.text(max_size=20), st.text(max_size=40) | st.integers(-5, 5), max_size=8))
def test_scrubbing_twice_changes_nothing_more(attributes: dict[str, Any]) -> None:
    message = traces({"attributes": attributes})
    scrubbed(message)
    once = message.SerializeToString()
    assert scrubbed(message)[0] == once
