"""Spans of other client instrumentations: which stands for the caller's side of a request, and what it says under our names."""

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lensd_collectors.client.foreign import callers

URL = "http://llm:8000/v1/chat/completions"


@dataclass
class Made:
    span_id: str
    parent_span_id: str | None = None
    name: str = "x"
    kind: str | None = "client"
    scope: str | None = None
    start: int = 0
    attributes: dict[str, Any] = field(default_factory=dict)


def genai(span_id: str = "call", parent: str | None = None, **more: Any) -> Made:
    said = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m", "gen_ai.request.max_tokens": 9} | more
    return Made(span_id, parent, "chat m", attributes=said)


def http(span_id: str, parent: str | None = None, url: str = URL, start: int = 0, **more: Any) -> Made:
    return Made(span_id, parent, "POST", start=start, attributes={"http.request.method": "POST", "url.full": url} | more)


def ours(span_id: str, parent: str | None = None) -> Made:
    return Made(span_id, parent, "lensd.client.request", scope="lensd.client", attributes={"lensd.request.id": "r"})


def test_a_genai_span() -> None:
    span = genai(
        **{
            "gen_ai.response.id": "chatcmpl-1",
            "gen_ai.response.time_to_first_chunk": 0.25,
            "gen_ai.request.stream": True,
            "gen_ai.response.finish_reasons": ["stop"],
            "error.type": "timeout",
        }
    )
    told = callers([span])["call"]
    assert told["lensd.client.first_content_ms"] == 250
    assert told["lensd.request.streaming"] is True
    assert (told["gen_ai.response.id"], told["gen_ai.response.finish_reasons"]) == ("chatcmpl-1", ["stop"])
    assert told["gen_ai.operation.name"] == "chat", "what it said itself stays"


def test_an_openllmetry_span() -> None:
    said = {
        "llm.request.type": "chat", "gen_ai.system": "openai", "gen_ai.request.model": "m", "llm.is_streaming": True,
        "gen_ai.usage.prompt_tokens": 7, "gen_ai.usage.completion_tokens": 3, "gen_ai.usage.cache_read_input_tokens": 4,
        "gen_ai.response.finish_reason": "length",
    }  # fmt: skip
    told = callers([Made("a", name="openai.chat", attributes=said)])["a"]
    tokens = [told[f"gen_ai.usage.{name}"] for name in ("input_tokens", "output_tokens", "cache_read.input_tokens")]
    assert tokens == [7, 3, 4]
    assert (told["lensd.request.streaming"], told["gen_ai.response.finish_reasons"]) == (True, ["length"])


def test_an_openinference_span_though_it_is_no_client_by_kind() -> None:
    said = {
        "openinference.span.kind": "LLM", "llm.model_name": "m", "llm.token_count.prompt": 7, "llm.token_count.completion": 3,
        "llm.token_count.prompt_details.cache_read": 4, "session.id": "s",
    }  # fmt: skip
    told = callers([Made("a", name="ChatCompletion", kind="internal", attributes=said)])["a"]
    assert (told["gen_ai.request.model"], told["gen_ai.usage.input_tokens"], told["gen_ai.conversation.id"]) == ("m", 7, "s")


@pytest.mark.parametrize(
    "url", [{"url.full": URL + "?a=1"}, {"http.url": URL}, {"url.path": "/v1/completions"}, {"http.target": "/v1/embeddings"}]
)
@pytest.mark.parametrize("method", ["http.request.method", "http.method"])
def test_a_plain_http_span_to_an_llms_path(url: dict[str, str], method: str) -> None:
    told = callers([Made("a", attributes={**url, method: "POST", "http.status_code": 503})])
    assert told["a"]["http.response.status_code"] == 503


@pytest.mark.parametrize(
    "span",
    [
        http("a", url="http://shop/v1/charges"),
        Made("a", attributes={"http.request.method": "GET", "url.full": "http://llm/v1/chat/completions"}),
        Made("a", kind="server", attributes={"http.request.method": "POST", "url.path": "/v1/chat/completions"}),
        Made("a", kind="internal", attributes={"gen_ai.operation.name": "execute_tool"}),
        Made("a", attributes={"gen_ai.operation.name": "invoke_agent", "gen_ai.request.model": "m"}),
        Made("a", kind="internal", attributes={"openinference.span.kind": "CHAIN", "llm.model_name": "m"}),
        Made("a", kind="server", name="llm_request", attributes={"gen_ai.request.model": "m"}),
        Made("a", kind=None, name="llm_request", attributes={"gen_ai.request.model": "m"}),
        Made("a", scope="lensd.gateway", attributes={"gen_ai.request.model": "m", "http.request.method": "POST", "url.full": URL}),
        Made("a", kind="producer", attributes={"gen_ai.operation.name": "chat"}),
    ],
    ids=lambda span: f"{span.kind} {span.name} {span.attributes}"[:60],
)
def test_spans_that_are_no_callers(span: Made) -> None:
    assert callers([span]) == {}


def test_lists_written_by_hand_need_no_kind() -> None:
    told = callers([Made("a", kind=None, attributes={"timeout_s": 30}), Made("b", kind=None, attributes={"gen_ai.request.model": "m"})])
    assert told["a"]["lensd.client.timeout_ms"] == 30_000
    assert set(told) == {"a", "b"}


def test_of_a_call_and_its_attempt_the_attempt_stands_and_knows_what_the_call_knew() -> None:
    call = genai(**{"gen_ai.response.id": "chatcmpl-1", "gen_ai.response.time_to_first_chunk": 0.5})
    told = callers([call, http("a", "call", url="http://llm/unlike", start=100_000, **{"http.response.status_code": 200})])
    assert set(told) == {"a"}
    assert (told["a"]["gen_ai.request.model"], told["a"]["gen_ai.response.id"], told["a"]["http.response.status_code"]) == (
        "m",
        "chatcmpl-1",
        200,
    )
    assert told["a"]["lensd.client.first_content_ms"] == 400, "counted from the attempt's own start"


def test_of_several_attempts_the_last_has_what_came_of_it() -> None:
    first, last = http("a", "call", start=1, **{"http.response.status_code": 503}), http("b", "call", start=900_000)
    told = callers([last, genai(**{"gen_ai.response.id": "chatcmpl-1"}), first])
    assert "gen_ai.response.id" not in told["a"]
    assert told["b"]["gen_ai.response.id"] == "chatcmpl-1"
    assert told["a"]["gen_ai.request.model"] == told["b"]["gen_ai.request.model"] == "m"


@pytest.mark.parametrize("spans", [[ours("o"), http("h", "o")], [http("h"), ours("o", "h")], [genai(), http("h", "call"), ours("o", "h")]])
def test_where_two_tell_of_one_attempt_ours_stands(spans: list[Made]) -> None:
    assert set(callers(spans)) == {"o"}


def test_of_two_http_spans_of_one_attempt_the_inner_one_stands() -> None:
    assert set(callers([http("outer"), http("inner", "outer")])) == {"inner"}


def test_an_attempt_behind_another_server_is_a_hop() -> None:
    proxy = Made("s", "a", kind="server", scope="litellm")
    assert set(callers([http("a"), proxy, http("b", "s"), genai("c", "s")])) == {"a"}


def test_a_callers_own_server_makes_no_hop_of_it() -> None:
    browser = http("browser", url="http://app/ask")
    app = Made("app", "browser", kind="server")
    assert set(callers([browser, app, genai("call", "app"), http("a", "call")])) == {"a"}


def test_each_call_of_an_agents_run_stands_for_itself() -> None:
    agent = Made("agent", kind="internal", attributes={"gen_ai.operation.name": "invoke_agent"})
    assert set(callers([agent, genai("c1", "agent"), genai("c2", "agent"), http("a2", "c2")])) == {"c1", "a2"}


def test_an_attempt_sent_again_with_the_first_ones_headers_is_a_second() -> None:
    assert set(callers([ours("o1"), ours("o2", "o1")])) == {"o1", "o2"}


ODD = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5) | st.lists(st.text(max_size=3), max_size=2)
)
NAMES = st.sampled_from(
    ["gen_ai.operation.name", "gen_ai.request.model", "url.full", "http.request.method", "timeout_s", "gen_ai.response.time_to_first_chunk",
     "gen_ai.usage.input_tokens", "openinference.span.kind", "error.type"]
)  # fmt: skip
SPAN = st.builds(
    Made,
    span_id=st.sampled_from("abcd"),
    parent_span_id=st.sampled_from([None, *"abcd", "gone"]),
    kind=st.sampled_from([None, "client", "internal", "server"]),
    scope=st.sampled_from([None, "lensd.client", "lensd.gateway", "other"]),
    start=st.integers(0, 10**6),
    attributes=st.dictionaries(NAMES, ODD | st.sampled_from(["chat", "POST", URL, "LLM"]), max_size=5),
)


@pytest.mark.parametrize("said", [float("inf"), float("nan"), -1, 2**63, 10**400, True])
@pytest.mark.parametrize("name", ["gen_ai.usage.input_tokens", "gen_ai.response.time_to_first_chunk"])
def test_a_figure_that_is_none_is_left_out(name: str, said: Any) -> None:
    told = callers([genai("c1", **{name: said})])["c1"]
    assert {ours for ours in told if ours != name} == set(callers([genai("c1")])["c1"])


@given(st.lists(SPAN, max_size=4, unique_by=lambda span: span.span_id), st.randoms())
def test_whatever_comes_it_holds_and_order_does_not_matter(spans: list[Made], random: Any) -> None:
    told = callers(spans)
    random.shuffle(spans)
    assert callers(spans) == told
    assert all(told[span.span_id] | span.attributes == told[span.span_id] for span in spans if span.span_id in told)
