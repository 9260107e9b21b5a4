import json

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lensd_collectors.conventions import Decision
from lensd_collectors.gateway.body import read_body, rewrite
from lensd_collectors.gateway.decisions import Refused
from lensd_collectors.gateway.routes import CHAT, COMPLETIONS, EMBEDDINGS, RESPONSES


@pytest.mark.parametrize(
    ("data", "model", "streaming"),
    [
        (b'{"model": "m"}', "m", False),
        (b' {"model":"m","stream":true}\n', "m", True),
        (b'{"model":"m","stream":"yes"}', "m", False),
        (b'{"model":"m","tools":[{"model":"other"},{"model":"third"}]}', "m", False),
        (b'{"model": "m", "tools": [{"model": "other"}, {"model":"third"}]}', "m", False),
        (b'{"model":"m","messages":[{"content":"\\"model\\": \\u006d"}],"user":"model"}', "m", False),
        (b'{"mod\\u0065l":"m"}', "m", False),
        (b'{"mod\\u0065l" : "m", "x":1}', "m", False),
        (b'{"model":"\\u00e9\xc3\xa9"}', "éé", False),
        (b'{"model":"m","metadata":{"Model":"x"},"Temperature":1,"caf\xc3\xa9":2}', "m", False),
        (b'{"model":"m","temperature":1,"temperature":2}', "m", False),  # no concern of ours
    ],
)
def test_what_is_read_of_a_body(data, model, streaming):
    asked = read_body(data, CHAT)
    assert (asked.model, asked.streaming, asked.max_tokens) == (model, streaming, None)


@pytest.mark.parametrize(
    ("rest", "structured"),
    [
        ({}, False),
        ({"response_format": {"type": "text"}}, False),
        ({"response_format": None, "guided_json": None}, False),
        ({"response_format": {"type": "json_object"}}, True),
        ({"response_format": {"type": "json_schema", "json_schema": {"schema": {"properties": {"text": {}}}}}}, True),
        ({"guided_regex": "a+"}, True),
        ({"structured_outputs": {"choice": ["a", "b"]}}, True),
    ],
)
def test_whether_the_answer_is_bound_to_a_form(rest, structured):
    assert read_body(json.dumps({"model": "m"} | rest).encode(), CHAT).structured is structured


@pytest.mark.parametrize(
    ("route", "rest", "most", "least", "name"),
    [
        (CHAT, "", None, None, "max_tokens"),
        (CHAT, '"max_tokens":7', 7, 7, "max_tokens"),
        (CHAT, '"max_completion_tokens":9', 9, 9, "max_completion_tokens"),
        (CHAT, '"max_tokens":7,"max_completion_tokens":9', 9, 7, "max_completion_tokens"),
        (CHAT, '"max_tokens":9,"max_completion_tokens":7', 9, 7, "max_tokens"),
        (CHAT, '"max_tokens":7,"max_completion_tokens":7', 7, 7, "max_completion_tokens"),
        (CHAT, '"max_tokens":7,"max_completion_tokens":null', 7, 7, "max_tokens"),
        (CHAT, '"max_tokens":7,"n_predict":100', 100, 7, "n_predict"),
        (CHAT, '"max_output_tokens":7', None, None, "max_tokens"),
        (COMPLETIONS, "", None, None, "max_tokens"),
        (COMPLETIONS, '"max_tokens":0', 0, 0, "max_tokens"),
        (COMPLETIONS, '"max_completion_tokens":9', None, None, "max_tokens"),
        (RESPONSES, "", None, None, "max_output_tokens"),
        (RESPONSES, '"max_output_tokens":7,"max_tokens":9', 7, 7, "max_output_tokens"),
        (EMBEDDINGS, '"max_tokens":7', None, None, ""),
        ("/v1/rerank", "", None, None, ""),
        # vLLM reads these as numbers
        (CHAT, '"max_tokens":"513"', 513, 513, "max_tokens"),
        (CHAT, '"max_tokens":" 513.0 "', 513, 513, "max_tokens"),
        (CHAT, '"max_tokens":7.0', 7, 7, "max_tokens"),
        (CHAT, '"max_tokens":1e30', 2**63 - 1, 2**63 - 1, "max_tokens"),
        (CHAT, f'"max_tokens":{2**70}', 2**63 - 1, 2**63 - 1, "max_tokens"),
        # no bound, or refused by the engine
        (CHAT, '"max_tokens":-1', None, None, "max_tokens"),
        (CHAT, '"max_tokens":true', None, None, "max_tokens"),
        (CHAT, '"max_tokens":"many"', None, None, "max_tokens"),
        (CHAT, '"max_tokens":"inf"', None, None, "max_tokens"),
        (CHAT, '"max_tokens":7.5', None, None, "max_tokens"),
        (CHAT, '"max_tokens":[7]', None, None, "max_tokens"),
    ],
)
def test_the_limit_on_the_answer_and_the_key_that_gives_it(route, rest, most, least, name):
    asked = read_body(f'{{"model":"m"{rest and ","}{rest}}}'.encode(), route)
    assert (asked.max_tokens, asked.max_tokens_least, asked.max_tokens_name) == (most, least, name)


@pytest.mark.parametrize(
    ("data", "param", "said"),
    [
        (b"", None, "no body"),
        (b"  \n", None, "no body"),
        (b"secret", None, "byte 0"),
        (b"model=secret&prompt=x", None, "byte 0"),
        (b'{"model": "secret", "messages": [', None, "its 33 bytes are not the whole"),
        (b'{"model": "secret",}', None, "byte 19"),
        (b'{"model": "secret"} {}', None, "near byte 2"),
        (b'{"model": "secret", "temperature": NaN}', None, "byte 35"),
        (b"[1]", None, "not an object"),
        (b'"secret"', None, "not an object"),
        (b"\xef\xbb\xbf{}", None, "byte order mark"),
        ('{"model":"secret"}'.encode("utf-16"), None, "UTF-16"),
        ('{"model":"secret"}'.encode("utf-16-be"), None, "UTF-16"),
        ('{"model":"secret"}'.encode("utf-32"), None, "UTF-32"),
        (b'{"\xff":"secret"}', None, "not valid JSON"),
        (b"[" * 100_000, None, "not an object"),
        (b'{"model":"secret","x":' + b"[" * 100_000 + b"]" * 100_000 + b"}", None, "nested too deep"),
        (b"{}", "model", "names no model"),
        (b'{"model": null}', "model", "names no model"),
        (b'{"model": ""}', "model", "non-empty string"),
        (b'{"model": 5}', "model", "non-empty string"),
        (b'{"model": ["secret"]}', "model", "non-empty string"),
    ],
)
def test_a_body_that_cannot_be_read_is_refused_with_its_fault_and_without_quoting_it(data, param, said):
    with pytest.raises(Refused) as caught:
        read_body(data, CHAT)
    refusal = caught.value
    assert (refusal.decision, refusal.status, refusal.param) == (Decision.BODY_MALFORMED, 400, param)
    assert said in refusal.message
    assert "secret" not in refusal.message + refusal.reason
    assert refusal.__cause__ is None


@pytest.mark.parametrize(
    ("data", "param"),
    [
        (b'{"model":"a","model":"b"}', "model"),
        (b'{"model":"a","model":"a"}', "model"),
        (b'{"model": "a", "model": "b"}', "model"),
        (b'{"model": "a", "x": {"y": 1}, "\\u006dodel": "b"}', "model"),
        (b'{"mod\\u0065l": "a", "\\u006Dodel": "b"}', "model"),
        (b'{"model":{"z":1,"x":    0},"x":"y","model":"b"}', "model"),
        (b'{"model":"a","Model":"b"}', "model"),
        (b'{"MODEL":"a"}', "model"),
        (b'{"model":"a","stream":false,"stream":true}', "stream"),
        (b'{"model":"a","\xc5\xbftream":true}', "stream"),
        (b'{"model":"a","max_tokens":5,"max_tokens":500}', "max_tokens"),
        (b'{"model":"a","max_tokens":5, "Max_Tokens":500}', "max_tokens"),
        ('{"model":"a","max_to\u212aens":500}'.encode(), "max_tokens"),  # the Kelvin sign
        (b'{"model":"a","max_completion_tokens":5,"max_completion_tokens":500}', "max_completion_tokens"),
        (b'{"model":"a","max_output_tokens":5,"max_output_tokens":500}', "max_output_tokens"),
    ],
)
def test_a_key_that_parsers_read_differently_is_refused(data, param):
    with pytest.raises(Refused) as caught:
        read_body(data, CHAT)
    refusal = caught.value
    assert (refusal.decision, refusal.status, refusal.param, refusal.code) == (Decision.BODY_AMBIGUOUS, 400, param, f"ambiguous_{param}")


@pytest.mark.parametrize("query", [b"model=m", b"a=1&model=other", b"MODEL", b"m%6Fdel=x", b"a;model=x", b"+model+=x", b"%4dodel=&b"])
def test_a_model_in_the_query_is_refused_even_where_it_is_the_same(query):
    with pytest.raises(Refused) as caught:
        read_body(b'{"model":"m"}', CHAT, query)
    assert (caught.value.decision, caught.value.param) == (Decision.BODY_AMBIGUOUS, "model")


@pytest.mark.parametrize("query", [b"", b"a=model", b"models=1", b"x=1&api-version=2024", b"%ff%zz", b"%256dodel=x"])
def test_other_queries_are_no_concern(query):
    assert read_body(b'{"model":"m"}', CHAT, query).model == "m"


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=8,
)
keys = st.text() | st.sampled_from(["messages", "prompt", "tools", "temperature", "n"])
objects = st.dictionaries(keys, values, max_size=8)
separators = st.sampled_from([(",", ":"), (", ", ": "), (" ,\n", " :\t")])
watched = {"model", "stream", "max_tokens", "max_completion_tokens", "max_output_tokens", "n_predict"}


@given(objects, st.text(min_size=1), st.booleans(), separators)
@settings(max_examples=100)
def test_any_json_object_that_names_one_model_is_read(rest, model, ascii_only, separated):
    rest = {key: value for key, value in rest.items() if key.casefold() not in watched}
    data = json.dumps({**rest, "model": model}, ensure_ascii=ascii_only, separators=separated).encode()
    assert read_body(data, CHAT).model == model


@given(objects, st.text(min_size=1), st.text(min_size=1), st.booleans(), separators, st.data())
@settings(max_examples=100)
def test_a_second_model_is_found_wherever_it_stands(rest, model, other, ascii_only, separated, data):
    comma, colon = separated
    pairs = [(key, value) for key, value in rest.items() if key.casefold() not in watched] + [("model", model)]
    pairs.insert(data.draw(st.integers(0, len(pairs))), ("model", other))
    members = [json.dumps(key, ensure_ascii=ascii_only) + colon + json.dumps(value, separators=separated) for key, value in pairs]
    with pytest.raises(Refused) as caught:
        read_body(("{" + comma.join(members) + "}").encode(), CHAT)
    assert caught.value.decision is Decision.BODY_AMBIGUOUS


@given(
    objects,
    st.none() | st.text(min_size=1),
    st.none() | st.integers(0, 2**40),
    st.sampled_from(["max_tokens", "max_completion_tokens", "max_output_tokens", "n_predict", ""]),
    st.sets(st.sampled_from(["max_tokens", "max_completion_tokens", "n_predict"])),
    st.booleans(),
    separators,
)
@settings(max_examples=200)
def test_a_rewritten_body_is_the_same_but_for_what_was_set(rest, model, limit, name, limits, ascii_only, separated):
    before = {"model": "m", **rest, **dict.fromkeys(limits, 5)}
    data = json.dumps(before, ensure_ascii=ascii_only, separators=separated).encode()
    after = rewrite(data, model=model, max_tokens=limit, max_tokens_name=name)

    expected = dict(before)
    if model is not None:
        expected["model"] = model
    if limit is not None and name:
        expected |= dict.fromkeys({name} | (limits if name != "max_output_tokens" else set()), limit)
    assert json.loads(after) == expected
    assert [*json.loads(after)][: len(before)] == [*before]
    raw_before, raw_after = (msgspec.json.decode(each, type=dict[str, msgspec.Raw]) for each in (data, after))
    untouched = [key for key in before if expected[key] == before[key]]
    assert [bytes(raw_after[key]) for key in untouched if key not in watched] == [
        bytes(raw_before[key]) for key in untouched if key not in watched
    ]


def test_a_body_in_which_nothing_is_to_be_set_stays_as_it_is():
    data = b'{ "model" : "m", "x": 1.0, "x": 2 }'
    assert rewrite(data) is data
    assert rewrite(data, max_tokens=5) is data
