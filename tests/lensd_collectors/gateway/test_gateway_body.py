import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from lensd_collectors.gateway.body import MalformedBodyError, read_body


@pytest.mark.parametrize(
    ("data", "model", "streaming", "max_tokens"),
    [
        (b'{"model": "m"}', "m", False, None),
        (b'{"model":"m","stream":true,"max_tokens":7}', "m", True, 7),
        (b'{"model":"m","max_tokens":7,"max_completion_tokens":9}', "m", False, 9),
        (b'{"model":"m","stream":"yes","max_tokens":"many"}', "m", False, None),
        (b'{"model":"m","max_tokens":true}', "m", False, None),
        (b'{"model":"m","tools":[{"model":"other"},{"model":"third"}]}', "m", False, None),
        (b'{"model":"m","messages":[{"content":"\\"model\\": \\u006d"}]}', "m", False, None),
        (b'{"mod\\u0065l":"m"}', "m", False, None),
    ],
)
def test_what_is_read_of_a_body(data, model, streaming, max_tokens):
    asked = read_body(data)
    assert (asked.model, asked.streaming, asked.max_tokens) == (model, streaming, max_tokens)


@pytest.mark.parametrize(
    ("data", "param"),
    [
        (b"", None),
        (b"  ", None),
        (b"hello", None),
        (b'{"model": "tiny-llama", "messages": [', None),
        (b"[1]", None),
        (b"\xff\xfe", None),
        (b"[" * 100_000, None),
        (b"{}", "model"),
        (b'{"model": null}', "model"),
        (b'{"model": ""}', "model"),
        (b'{"model": 5}', "model"),
        (b'{"model": "a", "model": "b"}', "model"),
        (b'{"model": "a", "x": {"y": 1}, "\\u006dodel": "b"}', "model"),
        (b'{"mod\\u0065l": "a", "\\u006Dodel": "b"}', "model"),
    ],
)
def test_a_body_that_cannot_be_routed_is_refused_without_quoting_it(data, param):
    with pytest.raises(MalformedBodyError) as caught:
        read_body(data)
    assert caught.value.param == param
    assert "hello" not in str(caught.value)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(), lambda v: st.lists(v) | st.dictionaries(st.text(), v), max_leaves=8
)


@given(st.dictionaries(st.text().filter(lambda key: key != "model"), values), st.text(min_size=1), st.booleans())
@settings(max_examples=50)
def test_any_json_object_that_names_one_model_is_read(rest, model, ascii_only):
    body = json.dumps({**rest, "model": model}, ensure_ascii=ascii_only)
    try:
        data = body.encode()
    except UnicodeEncodeError:  # lone surrogates
        return
    assert read_body(data).model == model
