"""What is known by sight is what a look would have found: the short way through a body of spans gives what the plain way gives."""

import json
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from lensd_collectors.scrub import is_suspect
from lensd_collectors.scrub import scrub as scrub_line
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
from otlp_bodies import any_value, pairs, traces

from lensd.errors import BadBodyError
from lensd.receive import members, sight, values
from lensd.receive.decode import Decoder
from lensd.receive.scrub import Scrubber
from lensd.receive.wire import RawTraces, parse_raw, value_at
from lensd.store.segments import Signal

SECRET = "planted-walrus"
NAMES = st.sampled_from(
    [
        "lensd.engine", "lensd.request.id", "gen_ai.request.id", "gen_ai.response.id", "gen_ai.usage.input_tokens", "a", "b", "",
        "gen_ai.prompt", "GEN_AI.Prompt", "input.value", "url.full", "http.route", "http.request.header.authorization", "é", "n" * 130,
    ]
)  # fmt: skip
TEXTS = st.sampled_from(
    [
        "", "e0", "chatcmpl-1", "https://u:pw@h/v1?api_key=walrus", "Bearer abcdef0123456789", "key sk-abcdefgh12345678", "é", '"\\\n',
        "x" * 130, "x" * 70, "prompt: 'walrus'", "what?", "\x7f\u2028",
    ]
) | st.text(max_size=12)  # fmt: skip
SCALARS = TEXTS | st.integers(-(2**63), 2**63 - 1) | st.integers(0, 300) | st.booleans() | st.floats()
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3), max_leaves=4)
ATTRIBUTES = st.lists(st.tuples(NAMES, VALUES), max_size=9)


def body(spans: list[list[tuple[str, Any]]]) -> Any:
    """A message of these spans; a name may come twice."""
    message = traces(*({} for _ in spans))
    for whole, attributes in zip(message.resource_spans[0].scope_spans, spans, strict=True):
        whole.spans[0].attributes.extend(KeyValue(key=name, value=any_value(value)) for name, value in attributes)
    return message


def parsed(raw: bytes) -> Any:
    return type(traces()).FromString(raw)


def by_sight(scrubber: Scrubber, raw: bytes) -> bytes:
    message = parse_raw(Signal.TRACES, raw)
    scrubber.scrub(Signal.TRACES, message)
    return bytes(message.SerializeToString())


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.lists(ATTRIBUTES, min_size=1, max_size=4), min_size=1, max_size=3),
    st.booleans(),
    st.sampled_from([2, 128]),
    st.sampled_from([5, 16 << 10]),
)
def test_scrubbing_by_sight_is_scrubbing(bodies: list[Any], stored: bool, most: int, longest: int) -> None:
    short, plain = (Scrubber(store_content=stored, max_attributes=most, max_value_chars=longest) for _ in range(2))
    for spans in [*bodies, *bodies]:  # again, when all has been seen
        message = body(spans)
        raw = message.SerializeToString()
        plain.scrub(Signal.TRACES, message)
        assert parsed(by_sight(short, raw)) == message
        assert short.counts == plain.counts


@settings(max_examples=300, deadline=None)
@given(st.lists(st.lists(ATTRIBUTES, min_size=1, max_size=4), min_size=1, max_size=2))
def test_reading_by_sight_is_reading(bodies: list[Any]) -> None:
    reader = members.MemberReader()
    for spans in [*bodies, *bodies]:
        message = body(spans)
        raws = parse_raw(Signal.TRACES, message.SerializeToString())
        for scope, whole in zip(raws.resource_spans[0].scope_spans, message.resource_spans[0].scope_spans, strict=True):
            plain = values.attributes(whole.spans[0].attributes)
            read = reader.read(scope.spans[0].attributes)
            assert members.text_of(read) == (values.json(plain) if plain else None)
            assert [members.value_of(read, name) for name in plain] == list(json.loads(values.json(plain)).values())


TWO = KeyValue(key="a", value=AnyValue(int_value=1)).SerializeToString()


@settings(max_examples=500, deadline=None)
@given(NAMES, VALUES, st.lists(st.tuples(st.integers(0, 40), st.integers(0, 255)), max_size=3), st.integers(0, 3), st.binary(max_size=4))
@example("a", 1, [], 0, b"\x0a\x01b")  # a second name
@example("a", 300, [(8, 0)], 0, b"")  # a number that ends early, and a field after it
@example("gen_ai.prompt", 1.5, [], 1, b"\x12\x08\x0a\x06walrus")
def test_what_is_known_by_its_form_is_what_protobuf_reads(
    name: str, value: Any, changes: list[tuple[int, int]], cut: int, more: bytes
) -> None:
    raw = bytearray(KeyValue(key=name, value=any_value(value)).SerializeToString())
    for place, byte in changes:
        if place < len(raw):
            raw[place] = byte
    raw = bytearray(bytes(raw[: len(raw) - cut]) + more)
    at = value_at(bytes(raw))
    if not at:
        return
    try:
        head, text = bytes(raw[2 : at - 2]).decode(), bytes(raw[at + 2 :]).decode() if raw[at] == 0x0A else ""
    except UnicodeDecodeError:
        return
    pair = KeyValue.FromString(bytes(raw))
    assert (pair.key, pair.value.string_value) == (head, text)
    assert pair.value.WhichOneof("value") == {0x0A: "string_value", 0x21: "double_value", 0x18: "int_value", 0x10: "bool_value"}[raw[at]]
    pair.DiscardUnknownFields()
    assert len(pair.SerializeToString()) <= len(raw)


def hidden(value: bytes, key: str = "a") -> bytes:
    """A body of one span with one attribute whose value is given as it is written."""
    pair = b"\x0a" + bytes([len(key)]) + key.encode() + b"\x12" + bytes([len(value)]) + value
    message = RawTraces()
    message.resource_spans.add().scope_spans.add().spans.add(attributes=[pair])
    return bytes(message.SerializeToString())


@pytest.mark.parametrize(
    "value",
    [
        b"\x18\x01\x0a\x19Bearer abcdef0123456789XY",  # the last of two values counts
        b"\x0a\x01a\x0a\x19Bearer abcdef0123456789XY",
        b"\x10\x01\x2a\x1d\x0a\x1b\x0a\x19Bearer abcdef0123456789XY",
        b"\x21" + b"\x00" * 8 + b"\x0a\x19Bearer abcdef0123456789XY",
        b"\xaa\x06\x19Bearer abcdef0123456789XY",  # a field that nobody knows
    ],
)
def test_nothing_hides_behind_a_value_that_stays(value: bytes) -> None:
    scrubber = Scrubber()
    by_sight(scrubber, hidden(b"\x18\x01"))
    by_sight(scrubber, hidden(b"\x0a\x01a"))
    assert b"abcdef" not in by_sight(scrubber, hidden(value))


def test_a_name_that_is_free_frees_no_other() -> None:
    scrubber = Scrubber()
    for name in ("input.valuf", "input.values", "nput.value"):
        by_sight(scrubber, traces({"attributes": {name: SECRET, name + "2": 1.5}}).SerializeToString())
    assert SECRET.encode() not in by_sight(scrubber, traces({"attributes": {"input.value": SECRET}}).SerializeToString())
    assert scrubber.counts == {"attribute": 1}


@pytest.mark.parametrize(
    "attribute", [b"\xff", b"\x0a\x05a", b"\x0a\x01\xff\x12\x03\x0a\x01a", b"\x0a\x01a\x12\x03\x0a\x01\xff", b"\x0a\x01a\x12\x02\x18\x80"]
)
def test_bytes_that_are_no_attribute_are_refused(attribute: bytes) -> None:
    message = RawTraces()
    message.resource_spans.add().scope_spans.add().spans.add(attributes=[attribute])
    raw = message.SerializeToString()
    with pytest.raises(BadBodyError):
        by_sight(Scrubber(), raw)
    with pytest.raises(BadBodyError):
        Decoder().decode(Signal.TRACES, raw, 1)


def test_an_attribute_without_anything_is_one() -> None:
    message = RawTraces()
    message.resource_spans.add().scope_spans.add().spans.add(attributes=[b"", b"\x0a\x01a"])
    raw = message.SerializeToString()
    assert parsed(by_sight(Scrubber(), raw)) == parsed(raw)
    (span,) = Decoder().decode(Signal.TRACES, raw, 1)["spans"]
    assert span.attributes == '{"":null,"a":null}'  # type: ignore[attr-defined]


def test_little_is_remembered_and_nothing_long(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sight, "REMEMBERED", 10)
    monkeypatch.setattr(members, "REMEMBERED", 10)
    scrubber, reader = Scrubber(), members.MemberReader()
    for number in range(100):
        message = traces({"attributes": {"a": f"v{number}", "long": "x" * 126 + str(number), f"n{number}": 1.5}})
        by_sight(scrubber, message.SerializeToString())
        reader.read([pair.SerializeToString() for pair in pairs({"a": f"v{number}", "long": "x" * 200})])
    kept = scrubber._sight._stays
    assert len(kept) <= 12
    assert len(reader) <= 12
    assert max(map(len, [*kept, *reader])) <= 128


WORDS = st.sampled_from(
    [
        "prompt", ": ", "'walrus'", '"', "content", "messages", "output", "input_value=", "input", "text", "reasoning", "system",
        "instructions", "arguments", "received request c-1: ", "generated response c-1: output: ", "json body: ", "response_body=",
        "details: prompt: ",
        "prompt_token_ids: [1]", "api_key", "=", "token", "access_token=", "password: ", "secret", "cookie: a=b", "Authorization: ",
        "Bearer ",
        "basic ", "abcdef0123456789", "sk-abcdefgh12345678", "pk-abcdefgh1234", "hf_abcdefghijkl", "ghp_" + "a" * 24, "gho_" + "b" * 24,
        "AKIA" + "A" * 16, "eyJhbGciOiJ.eyJ", "http://u:pw1@h", "GET /v1?a=b", "h/x?y=z", "\n", "K", "İ", " ",
    ]
)  # fmt: skip


@settings(max_examples=1000, deadline=None)
@given(st.lists(WORDS, max_size=6).map("".join))
def test_a_text_that_loses_something_is_suspect(text: str) -> None:
    if scrub_line(text) != text:
        assert is_suspect(text)
        assert is_suspect(f"a\n{text}\nb")
