"""Every decision of the gateway as a caller with OpenAI's own client meets it, and as the record keeps it."""

import collections
import re
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import openai
import pytest
from decision_rows import CHAT, ROWS, Row, chat, post, retrieve, words
from gateway_house import (
    ALIAS,
    CONTEXT,
    CREDENTIAL,
    HIDDEN,
    HIDDEN_ALIAS,
    KEYS,
    MODEL,
    PLANT,
    PROMPT,
    SERVED,
    UNLOADED,
    House,
    house,
    key_id,
    wait_for,
)  # fmt: skip
from lensd_collectors.gateway.config import Degrade, Retry
from lensd_collectors.gateway.decisions import ANSWERS

RAISES = {
    400: openai.BadRequestError, 401: openai.AuthenticationError, 403: openai.PermissionDeniedError, 404: openai.NotFoundError,
    405: openai.APIStatusError, 408: openai.APIStatusError, 413: openai.APIStatusError, 422: openai.UnprocessableEntityError,
    429: openai.RateLimitError, 500: openai.InternalServerError, 502: openai.InternalServerError, 503: openai.InternalServerError,
    504: openai.InternalServerError,
}  # fmt: skip
NOT_ALWAYS = frozenset(
    ("retry-after", "www-authenticate", "allow", "x-should-retry", "x-lensd-timeout", "x-lensd-model", "x-lensd-attempts",
     "x-lensd-degraded")
)  # fmt: skip
TRACEPARENT = re.compile(r"00-([0-9a-f]{32})-([0-9a-f]{16})-01")


@pytest.fixture(scope="module")
def usual(tmp_path_factory) -> Iterator[House]:
    with house(tmp_path_factory.mktemp("usual"), connect_timeout_s=0.3) as made:
        yield made


def caller(at: House, key: str = "narrow", headers: Any = None, base: str = "/v1", **more: Any) -> openai.OpenAI:
    """OpenAI's client; `headers` take the place of the one that its key would be in."""

    def replace(request: httpx2.Request) -> None:
        if headers is not None:
            kept = [(name, value) for name, value in request.headers.raw if name.lower() != b"authorization"]
            request.headers = httpx2.Headers([*kept, *headers])

    http = httpx2.Client(event_hooks={"request": [replace]}, verify=False, trust_env=False)
    return openai.OpenAI(
        api_key=KEYS[key], base_url=f"http://127.0.0.1:{at.port}{base}", http_client=http, **{"max_retries": 0, "timeout": 10, **more}
    )


def refused(ask: Callable[[openai.OpenAI], Any], client: openai.OpenAI) -> openai.APIStatusError:
    with client, pytest.raises(openai.APIStatusError) as caught:
        ask(client)
    assert type(caught.value) is RAISES[caught.value.status_code]
    return caught.value


def check(at: House, row: Row, error: openai.APIStatusError) -> None:
    reply, said_by = error.response, "engine" if row.body else "gateway"
    server = at.span(error.request_id)
    record = server["attributes"]
    assert error.status_code == row.status
    check_reply(at, reply, server, said_by, repeats=row.repeats)
    assert {name: reply.headers[name] for name in NOT_ALWAYS if name in reply.headers} == dict(row.more)
    if row.body:
        assert reply.content == row.body
    else:
        assert error.body == {"message": row.says, "type": row.kind, "code": row.code, "param": row.param}
        assert (error.code, error.type, error.param) == (row.code, row.kind, row.param)
        assert reply.headers["x-lensd-stage"] == row.stage
        assert record["error.type"] == row.code
    assert (record["lensd.decision"], record["lensd.outcome"], record["lensd.said_by"]) == (row.decision, row.outcome, said_by)
    assert record["http.response.status_code"] == row.status
    assert record["http.route"] == row.route
    assert record.get("lensd.key.id") == (key_id(row.key) if row.known else None)
    assert row.reason in record["lensd.error.message"] if row.reason else record["lensd.error.message"] == row.says


def check_reply(at: House, reply: httpx2.Response, server: dict[str, Any], said_by: str, *, repeats: str = "", body: str = "") -> None:
    """What holds for every reply, whatever it is; `body` where that was read as a stream."""
    assert reply.headers["x-request-id"] == server["attributes"]["lensd.request.id"]
    assert TRACEPARENT.fullmatch(reply.headers["traceparent"]).groups() == (server["trace_id"], server["span_id"])
    assert reply.headers["x-lensd-said-by"] == said_by
    assert reply.headers["content-type"].startswith(("application/json", "text/event-stream"))
    given = f"{reply.headers.raw!r}{body or reply.text}"
    check_secret(at, given.replace(repeats, "") if repeats else given)
    assert_no_content(repr(server))


def check_secret(at: House, given: str) -> None:
    assert PLANT not in given.lower()
    for secret in (*KEYS.values(), *at.places):
        assert secret not in given


def assert_no_content(told: str) -> None:
    assert PROMPT not in told
    for secret in KEYS.values():
        assert secret[9:29] not in told


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_the_table(usual, row, caplog):
    before = len(usual.engine.calls)
    error = refused(row.ask, caller(usual, row.key, row.headers, row.base))
    check(usual, row, error)
    assert tuple(call.path for call in usual.engine.calls[before:]) == row.reached
    assert_no_content(caplog.text)


def test_every_decision_is_met():
    """In the table, or in a test of its own where it takes more than one request."""
    apart = {"rate_limited", "overloaded", "gateway_stopping", "gateway_error", "body_timeout", "caller_gone"}
    assert {row.decision for row in ROWS} | apart == {decision.value for decision in ANSWERS}


def over(key: str, code: str, limit: str, retry_after: str) -> Row:
    says = f"is over its limit of {limit}"
    return Row(
        name="", key=key, status=429, decision="rate_limited", kind="rate_limit_error", code=code, says=f"this API key {says}",
        reason=f"key {key_id(key)} {says}", ask=chat(), more=(("retry-after", retry_after),),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("key", "code", "limit"), [("rare", "requests_per_min", "1 requests/min"), ("thrifty", "tokens_per_min", "10 tokens/min")]
)
def test_a_limit_by_the_minute_says_how_long_it_holds(usual, key, code, limit):
    with caller(usual, key) as client:
        chat()(client)
        error = refused(chat(), client)
        wait_s = error.response.headers["retry-after"]
        check(usual, over(key, code, limit, wait_s), error)
    usual.clock.shift(int(wait_s) - 2)
    refused(chat(), caller(usual, key))
    usual.clock.shift(2)
    with caller(usual, key) as client:
        chat()(client)


def test_a_stream_that_gives_no_usage_is_metered_by_its_chunks(usual):
    with caller(usual, "frugal") as client:
        for _ in chat("tiny-talks", stream=True)(client):
            pass
    assert refused(chat(), caller(usual, "frugal")).code == "tokens_per_min"


def test_a_limit_at_the_same_time(usual):
    with usual.held("single"):
        check(usual, over("single", "concurrency", "1 at a time", "1"), refused(chat(), caller(usual, "single")))
    with caller(usual, "single") as client:
        chat()(client)


def of_server(status: int, decision: str, says: str, **more: Any) -> Row:
    return Row(name="", status=status, decision=decision, says=says, **{"kind": "server_error", "code": decision, "ask": chat(), **more})


def test_too_much_at_the_same_time(tmp_path):
    row = of_server(
        503, "overloaded", "too much is in flight already", known=False, reason="1 requests are in flight, max_in_flight = 1",
        more=(("retry-after", "2"),),
    )  # fmt: skip
    with house(tmp_path, max_in_flight=1) as full:
        with full.held("narrow"):
            check(full, row, refused(chat(), caller(full)))
        with caller(full) as client:
            chat()(client)


def test_a_gateway_that_is_stopping(tmp_path):
    row = of_server(503, "gateway_stopping", "the gateway is stopping", known=False, more=(("retry-after", "1"),))
    with house(tmp_path) as stopping, stopping.held("narrow"):  # else it would be gone at once
        stopping.app.drain()
        with caller(stopping) as client:
            chat()(client)  # whoever could not know it yet is served
            stopping.clock.shift(1.1)
            check(stopping, row, refused(chat(), client))


def test_load_shedding(tmp_path):
    shedding = Degrade(enabled=True, in_flight=1, enter_after_s=0, retry_after_s=9)
    row = of_server(
        503, "overloaded", "too much is in flight already", reason=f"load shedding refuses {MODEL}",
        more=(("retry-after", "9"), ("x-lensd-degraded", "refuse")),
    )  # fmt: skip
    with house(tmp_path, degrade=shedding) as shed, shed.held("narrow", 2):
        wait_for(lambda: MODEL in shed.app.switches.on)
        check(shed, row, refused(chat(), caller(shed)))


@pytest.mark.parametrize("streaming", [False, True])
def test_a_fault_of_the_gateways_own(usual, monkeypatch, streaming):
    async def broken(*_: Any) -> None:
        raise RuntimeError("planted fault")

    monkeypatch.setattr("lensd_collectors.gateway.dispatch.Dispatcher.run", broken)
    row = of_server(500, "gateway_error", "the gateway failed on this request", outcome="failed", more=(("x-should-retry", "false"),))
    check(usual, row, refused(chat(stream=streaming), caller(usual)))


def test_a_body_that_does_not_come(usual):
    def halting() -> Iterator[bytes]:
        yield b'{"model":'
        wait_for(lambda: usual.app.live)
        usual.clock.shift(61)
        wait_for(lambda: not usual.app.live)
        yield b'"x"}'

    row = Row(
        name="", status=408, decision="body_timeout", code="body_timeout", ask=post(halting), stage="client", outcome="timed_out",
        says="the body had not arrived within 60 s", more=(("x-lensd-timeout", "total"),),
    )  # fmt: skip
    check(usual, row, refused(row.ask, caller(usual)))


@pytest.mark.parametrize("streaming", [False, True])
def test_a_caller_that_leaves_is_recorded(usual, streaming):
    request_id = f"leaves-{streaming}"
    with caller(usual, timeout=0.1) as client, pytest.raises(openai.APITimeoutError):
        chat("tiny-silent", stream=streaming, extra_headers={"x-request-id": request_id})(client)
    server = usual.span(request_id)
    record = server["attributes"]
    assert {name: record[name] for name in ("lensd.decision", "lensd.outcome", "lensd.said_by", "error.type", "lensd.key.id")} == {
        "lensd.decision": "caller_gone", "lensd.outcome": "caller_gone", "lensd.said_by": "client", "error.type": "caller_gone",
        "lensd.key.id": key_id("narrow"),
    }  # fmt: skip
    assert record["http.response.status_code"] == 499
    assert_no_content(repr(server))


@pytest.mark.parametrize(
    ("model", "code", "says", "said_by", "outcome", "decision"),
    [
        ("tiny-cut", "stream_cut", "the engine's stream broke off before its end", "engine", "cut", "engine_error"),
        ("tiny-torn", "stream_cut", "the engine's stream broke off before its end", "engine", "cut", "engine_error"),
        ("tiny-dying", "500", "EngineCore encountered an issue.", "engine", "failed", "engine_dead"),
        (
            "tiny-idle-stream", "upstream_timeout", "the engine's reply stood still for 120 s in decode", "gateway", "timed_out",
            "upstream_timeout",
        ),
    ],
)  # fmt: skip
def test_a_broken_stream_raises(usual, model, code, says, said_by, outcome, decision):
    check_broken(usual, model, code, says, said_by, outcome, decision)


def test_a_fault_of_the_gateways_own_inside_a_stream(usual, monkeypatch):
    def broken(*_: Any, **__: Any) -> bool:
        raise RuntimeError("planted fault")

    monkeypatch.setattr("lensd_collectors.gateway.relay.judge_stream", broken)
    check_broken(usual, "tiny-cut", "gateway_error", "the gateway failed on this request", "gateway", "failed", "gateway_error")


def check_broken(at: House, model: str, code: str, says: str, said_by: str, outcome: str, decision: str) -> None:
    """The client raises, has got what came before, and has not been told of an end."""
    chunks: list[Any] = []
    with caller(at) as client:
        raw = client.chat.completions.with_raw_response.create(model=model, messages=[{"role": "user", "content": PROMPT}], stream=True)
        with pytest.raises(openai.APIError) as caught:
            collections.deque(map(chunks.append, raw.parse()))
    assert (caught.value.code, caught.value.message) == (code, says)
    assert chunks
    assert not any(choice.finish_reason for chunk in chunks for choice in chunk.choices)
    server = at.span(raw.headers["x-request-id"])
    record = server["attributes"]
    check_reply(at, raw.http_response, server, "engine", body=repr(caught.value.body))
    assert (record["lensd.outcome"], record["lensd.decision"], record["lensd.said_by"]) == (outcome, decision, said_by)
    assert (record["http.response.status_code"], record["lensd.stream.done_seen"]) == (200, False)


def test_a_loading_engine_gets_no_traffic(tmp_path):
    row = of_server(
        503, "no_upstream", "whether the model `q-model` is served here cannot be told yet; try again", ask=chat("q-model"), param="model",
        reason="no engine that has answered serves `q-model`; plant-engine-4 is loading: its model list answers 503",
        more=(("retry-after", "5"),),
    )  # fmt: skip
    with house(tmp_path, loading=()) as unsure:
        check(unsure, row, refused(row.ask, caller(unsure)))
        assert unsure.loading.calls == []


def test_a_gateway_without_keys_lets_anybody_use_any_model(tmp_path):
    with house(tmp_path, require_key=False) as free:
        with caller(free, headers=()) as client:
            chat(HIDDEN)(client)
            assert HIDDEN in [model.id for model in client.models.list()]
        error = refused(chat(f"{HIDDEN}9"), caller(free, headers=()))
        assert error.body["message"].endswith(f"did you mean `{HIDDEN}`?")
        assert "lensd.key.id" not in free.span(error.request_id)["attributes"]


@pytest.mark.parametrize(
    ("settings", "status"),
    [
        pytest.param({}, 404, id="every engine has said what it serves"),
        pytest.param({"loading": ()}, 503, id="one is still loading"),
        pytest.param({"loading": (), "list_status": 401}, 502, id="one refuses the gateway"),
    ],
)
def test_a_hidden_model_is_answered_as_an_unknown_one_is(tmp_path, settings, status):
    """Whatever is asked, and whatever state the engines are in."""
    asks = [(ask, hidden) for ask in (chat, retrieve) for hidden in (HIDDEN, HIDDEN_ALIAS)]
    with house(tmp_path, deny_as=404, **settings) as hiding:
        for ask, hidden in asks:
            missing = "q" * len(hidden)
            as_hidden, as_unknown = (refused(ask(name), caller(hiding)) for name in (hidden, missing))
            assert shape(as_hidden, hidden) == shape(as_unknown, missing)
            assert as_hidden.status_code == status
            of_hidden, of_unknown = (hiding.span(each.request_id)["attributes"] for each in (as_hidden, as_unknown))
            assert of_hidden["lensd.decision"] == "model_not_allowed" != of_unknown["lensd.decision"]
            assert of_hidden["lensd.error.message"] == f"key {key_id('narrow')} may not use {HIDDEN}"


def shape(error: openai.APIStatusError, name: str) -> tuple[Any, ...]:
    """All of a reply but what is its own."""
    own = ("date", "x-request-id", "traceparent")
    headers = [(key, value) for key, value in error.response.headers.items() if key not in own]
    return error.status_code, headers, error.response.text.replace(name, "NAME")


def test_the_models_of_a_key(usual):
    lists = {}
    for key in ("narrow", "wide", "embeds"):
        with caller(usual, key) as client:
            raw = client.models.with_raw_response.list()
            lists[key] = [model.id for model in raw.parse()]
            check_reply(
                usual, raw.http_response, usual.span(raw.headers["x-request-id"]), "gateway", repeats="plant" if key != "narrow" else ""
            )
    assert set(lists["wide"]) - {UNLOADED} == {*SERVED, ALIAS, HIDDEN_ALIAS, "tiny-dead", "tiny-gone", "tiny-loading", "tiny-stuck"} - {
        UNLOADED
    }
    assert lists["narrow"] == [name for name in lists["wide"] if PLANT not in name]
    assert lists["embeds"] == lists["wide"]  # which paths it may use does not keep it from looking


@pytest.mark.parametrize(("name", "context"), [(MODEL, CONTEXT), (ALIAS, CONTEXT), ("tiny-org/slashed", CONTEXT), ("tiny-loading", None)])
def test_the_card_of_a_model(usual, name, context):
    with caller(usual) as client:
        card = client.models.retrieve(name)
    assert card.to_dict() == {
        "id": name, "object": "model", "created": 0, "owned_by": "lensd", "max_model_len": context,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("key", "ask", "sent", "rewritten"),
    [
        ("narrow", chat(), None, None),
        ("brief", chat(), {"max_tokens": 64}, ["max_tokens"]),
        ("brief", chat(max_completion_tokens=64), {"max_completion_tokens": 64}, None),
        ("brief", chat(ALIAS, max_tokens=7), {"max_tokens": 7, "model": MODEL}, ["model"]),
        ("brief", chat(ALIAS), {"max_tokens": 64, "model": MODEL}, ["model", "max_tokens"]),
    ],
)
def test_what_reaches_the_engine(usual, key, ask, sent, rewritten):
    with caller(usual, key) as client:
        request_id = ask(client)._request_id
    call = usual.engine.calls[-1]
    given = {"model": MODEL, "messages": [{"role": "user", "content": PROMPT}], **(sent or {})}
    assert call.asked == given
    assert call.headers["authorization"] == f"Bearer {CREDENTIAL}"
    assert KEYS[key] not in repr(call.headers)
    assert usual.span(request_id)["attributes"].get("lensd.request.rewritten") == rewritten


@pytest.mark.parametrize(
    ("key", "count", "asked"),
    [
        pytest.param("narrow", 20, [CHAT], id="surely short"),
        pytest.param("narrow", 200, ["/tokenize", CHAT], id="near the context"),
        pytest.param("short", 20, ["/tokenize", CHAT], id="near the key's own limit"),
    ],
)
def test_the_engine_is_asked_to_count_only_near_a_limit(usual, key, count, asked):
    before = len(usual.engine.calls)
    with caller(usual, key) as client:
        chat(content=words(count))(client)
    assert [call.path for call in usual.engine.calls[before:]] == asked


def test_a_client_that_tries_again_by_itself_does_not_multiply_the_gateways_attempts(tmp_path):
    with house(tmp_path, retry=Retry(most=2, first_s=0.01, busy_s=0.01)) as patient:
        error = refused(chat("tiny-busy-often"), caller(patient, max_retries=2))
        assert len(patient.engine.calls) == 3
        assert {name: error.response.headers[name] for name in ("x-should-retry", "x-lensd-attempts")} == {
            "x-should-retry": "false", "x-lensd-attempts": "3",
        }  # fmt: skip


def test_a_client_may_try_again_where_the_gateway_did_not(usual):
    before = len(usual.engine.calls)
    error = refused(chat("tiny-busy-often"), caller(usual, max_retries=2))
    assert len(usual.engine.calls) - before == 3
    assert "x-should-retry" not in error.response.headers


def test_nothing_that_has_left_holds_a_key_or_a_prompt(usual):
    assert len(usual.kept.kept_spans) > 200
    assert_no_content(usual.told())
    assert CREDENTIAL not in usual.told()
