"""Aliases, fallbacks, the name that was meant, and what an engine's list says of its models."""

import json
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lensd_collectors.gateway.cards import ModelCard, read_list
from lensd_collectors.gateway.config import GatewayConfig, Upstream
from lensd_collectors.gateway.names import Names, nearest
from lensd_collectors.gateway.routes import GatewayError

CAPTURES = Path(__file__).parents[2] / "captures"


def names(**given):
    return Names(GatewayConfig(**given))


def test_aliases_and_fallbacks_are_resolved_to_the_end():
    made = names(aliases={"a": "b", "b": "llama", "mini": "tiny"}, fallback_models={"a": "mini", "other": "llama"})
    assert made.aliases == {"a": "llama", "b": "llama", "mini": "tiny"}
    assert [made.fallback(each) for each in ("llama", "a", "b", "other", "tiny", "nope")] == ["tiny", "tiny", "tiny", "llama", None, None]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"aliases": {"a": "a"}}, "aliases: a -> a leads back to itself"),
        ({"aliases": {"a": "b", "b": "c", "c": "b"}}, "aliases: a -> b -> c -> b leads back to itself"),
        ({"aliases": {"a": ""}}, "aliases: model name '' must be printable and not empty"),
        ({"aliases": {"a\n": "b"}}, r"aliases: model name 'a\\n' must be printable"),
        ({"aliases": {"m": "n"}, "upstreams": (Upstream(url="http://h:1", models=("m",)),)}, "aliases: 'm' is also a model of an upstream"),
        ({"fallback_models": {"m": "m"}}, "fallback_models: 'm' falls back to itself"),
        ({"fallback_models": {"a": "m"}, "aliases": {"a": "m"}}, "fallback_models: 'a' falls back to itself"),
        ({"fallback_models": {"a": "x", "m": "y"}, "aliases": {"a": "m"}}, "'m' is model 'm', which has another fallback already"),
        ({"fallback_models": {"m": ""}}, "fallback_models: model name '' must be printable"),
    ],
)
def test_names_that_cannot_work_are_named_at_the_start(given, said):
    with pytest.raises(GatewayError, match=said) as caught:
        names(**given)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("asked", "served", "meant"),
    [
        ("gpt4", ["gpt-4", "llama"], "gpt-4"),
        ("Tiny-Llama", ["tiny-llama"], "tiny-llama"),
        ("Llama-3-8B", ["mistral", "meta/llama-3-8b"], "meta/llama-3-8b"),
        ("meta/llama-3-8b", ["llama-3-8b"], "llama-3-8b"),
        ("m", ["org/m", "M"], "M"),
        ("gpt-4o", ["tiny-llama"], None),
        ("x", [], None),
        ("", ["a"], None),
    ],
)
def test_the_name_that_was_meant(asked, served, meant):
    assert nearest(asked, served) == meant


@given(st.text(max_size=300), st.lists(st.text(min_size=1, max_size=30)))
def test_a_name_that_was_meant_is_one_of_those_served(asked, served):
    assert nearest(asked, served) in (None, *served)


def test_what_vllm_and_llama_cpp_list():
    read = read_list((CAPTURES / "vllm-0.32.0" / "models.json").read_bytes())
    assert read.cards == {"tiny-llama": ModelCard("tiny-llama", created=1795963203, owned_by="vllm", max_model_len=512)}
    assert read.adapters == {}
    llama_cpp = {"models": [{"name": "tiny-random"}], "data": [{"id": "tiny-random", "owned_by": "llamacpp", "meta": {"n_ctx": 512}}]}
    assert read_list(json.dumps(llama_cpp).encode()).cards == {
        "tiny-random": ModelCard("tiny-random", owned_by="llamacpp", max_model_len=512)
    }


def test_adapters_have_the_context_of_their_model_and_no_paths_are_kept():
    read = read_list(
        json.dumps(
            {"data": [
                {"id": "base", "root": "/srv/base", "parent": None, "max_model_len": 512, "created": 7, "owned_by": "vllm"},
                {"id": "sql", "root": "/srv/sql", "parent": "base", "max_model_len": None},
                {"id": "lost", "root": "/srv/lost", "parent": "elsewhere"},
                {"id": ""},
            ]}
        ).encode()
    )  # fmt: skip
    assert read.adapters == {"sql": "base", "lost": "elsewhere"}
    assert {name: card.max_model_len for name, card in read.cards.items()} == {"base": 512, "sql": 512, "lost": None}
    assert "/srv" not in msgspec.json.encode(list(read.cards.values())).decode()


@pytest.mark.parametrize(
    ("card", "context"),
    [
        ({"max_model_len": 4096}, 4096),
        ({"meta": {"n_ctx": 512, "n_ctx_train": 2048}}, 512),  # llama.cpp
        ({"max_model_len": 0}, None),
        ({"max_model_len": -1}, None),
        ({"max_model_len": True}, None),
        ({"max_model_len": "4096"}, None),
        ({"meta": "x", "created": 1.5, "owned_by": 3, "parent": 5}, None),
    ],
)
def test_a_context_is_a_whole_number_or_not_known(card, context):
    read = read_list(json.dumps({"data": [{"id": "m", **card}]}).encode())
    assert read.cards == {"m": ModelCard("m", max_model_len=context)}


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b"<html>", b'{"data": 5}', b'{"data": [{"id": 5}]}', b'{"data":[{"id":"a","meta":' + b"[" * 99999]
)
def test_what_is_no_list_raises(body):
    with pytest.raises(msgspec.MsgspecError):
        read_list(body)


def test_a_list_without_a_model_is_a_list():
    assert read_list(b'{"object": "list", "data": null}').cards == {} == read_list(b'{"data": []}').cards
