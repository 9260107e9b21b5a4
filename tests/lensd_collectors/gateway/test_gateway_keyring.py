"""Who presents which key, told apart by form, and never repeated; and the file behind it, read again when it changes."""

import hashlib
from datetime import UTC, datetime

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from lensd_collectors.conventions import Decision
from lensd_collectors.gateway.decisions import Refused
from lensd_collectors.gateway.keyring import Key, KeyRing, Presented
from lensd_collectors.gateway.keys import KeyEntry, KeysError, append, new_key, read_keys, revoke

GOOD = b"gw-Q7Z9-good-key-4K"
DIGEST = hashlib.sha256(GOOD).hexdigest()
NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
NOON_NS = int(NOON.timestamp()) * 10**9


@pytest.fixture
def ring(tmp_path):
    path = tmp_path / "keys.toml"
    append(path, KeyEntry(id="a", sha256=DIGEST, models=("*",)))
    return KeyRing(path)


def bearer(secret: bytes) -> Presented:
    return Presented(authorization=b"Bearer " + secret, times=1)


@pytest.mark.parametrize(
    ("header", "said"),
    [
        (b"Bearer", "there is no key after 'Bearer'"),
        (b"Bearer ", "there is no key after 'Bearer'"),
        (b"Bearer  \t", "there is no key after 'Bearer'"),
        (b"Basic " + GOOD, "says 'Basic', not 'Bearer'"),
        (b"token " + GOOD, "says 'Token', not 'Bearer'"),
        (GOOD, "has no 'Bearer' before the key"),
        (b"Bear " + GOOD, "has no 'Bearer' before the key"),
        (b"Bearer" + GOOD, "no blank between 'Bearer' and the key"),
        (b"Bearer\xc2\xa0" + GOOD, "no blank between 'Bearer' and the key"),
        (b"Bearer: " + GOOD, "a colon after 'Bearer'"),
        (b"Bearer=" + GOOD, "an equals sign after 'Bearer'"),
        (b"Bearer\t" + GOOD, "a tab after 'Bearer'"),
        (b'Bearer "%s"' % GOOD, "the key is in quotes"),
        (b"Bearer '%s" % GOOD, "the key is in quotes"),
        (b"Bearer %s`" % GOOD, "the key is in quotes"),
        (f"Bearer “{GOOD.decode()}”".encode(), "the key is in quotes"),
        (b'"Bearer %s"' % GOOD, "the Authorization header is in quotes"),
        (b"Authorization: Bearer " + GOOD, "begins with the header's name"),
        (b"Bearer %s more" % GOOD, "the key has white space in it"),
        (b"Bearer %s\tx" % GOOD, "the key has white space in it"),
        (b"Bearer Bearer " + GOOD, "says 'Bearer' twice"),
        (b"Bearer %s, Bearer %s" % (GOOD, GOOD), "holds more than one key"),
        (b"Bearer " + b"x" * 513, "longer than 512 characters"),
        (b"Bearer \xff" + GOOD, "not printable ASCII"),
        ("Bearer \u200b".encode() + GOOD, "not printable ASCII"),
        (b"Bearer \x01" + GOOD, "not printable ASCII"),
    ],
)
def test_each_malformed_header_is_named(ring, header, said):
    with pytest.raises(Refused) as caught:
        ring.find(Presented(authorization=header, times=1))
    assert caught.value.decision is Decision.KEY_MALFORMED
    assert said in caught.value.message
    assert caught.value.message.endswith("send 'Authorization: Bearer KEY'")
    assert GOOD.decode() not in caught.value.message + caught.value.reason


@pytest.mark.parametrize(
    ("presented", "decision", "said"),
    [
        (Presented(None, 0), Decision.KEY_MISSING, "no API key"),
        (Presented(b"  ", 1), Decision.KEY_MISSING, "no API key"),
        (Presented(None, 0, "x-api-key"), Decision.KEY_WRONG_HEADER, "is in the header 'x-api-key'"),
        (Presented(b"", 1, "api-key"), Decision.KEY_WRONG_HEADER, "is in the header 'api-key'"),
        (Presented(b"Bearer " + GOOD, 2), Decision.KEY_MALFORMED, "Authorization was sent 2 times"),
    ],
)
def test_a_header_that_is_not_there_or_there_too_often(ring, presented, decision, said):
    with pytest.raises(Refused) as caught:
        ring.find(presented)
    assert caught.value.decision is decision
    assert said in caught.value.message


@pytest.mark.parametrize("header", [b"Bearer " + GOOD, b"bearer " + GOOD, b"BEARER  " + GOOD + b" \t", b"  Bearer " + GOOD])
def test_blanks_and_case_do_not_count(ring, header):
    assert ring.find(Presented(authorization=header, times=1)).id == "a"


def test_another_header_does_not_matter_beside_the_right_one(ring):
    assert ring.find(Presented(b"Bearer " + GOOD, 1, "x-api-key")).id == "a"


@pytest.mark.parametrize(
    ("secret", "decision", "said"),
    [
        ("wrong", Decision.KEY_UNKNOWN, "the API key is not valid"),
        (GOOD.decode().upper(), Decision.KEY_UNKNOWN, "the API key is not valid"),
        ("sk-lensd-" + "x" * 43, Decision.KEY_UNKNOWN, "the API key is not valid"),
        ("sk-lensd-" + "x" * 42, Decision.KEY_UNKNOWN, "it is cut off"),
        ("sk-lensd-" + "x" * 44, Decision.KEY_UNKNOWN, "it is too long"),
        ("$OPENAI_API_KEY", Decision.KEY_UNKNOWN, "a placeholder that was never filled in"),
        ("${KEY}", Decision.KEY_UNKNOWN, "a placeholder"),
        ("<your-key>", Decision.KEY_UNKNOWN, "a placeholder"),
        ("None", Decision.KEY_UNKNOWN, "a placeholder"),
        ("EMPTY", Decision.KEY_UNKNOWN, "a placeholder"),
        ("YOUR_API_KEY", Decision.KEY_UNKNOWN, "a placeholder"),
        ("sk-xxxx", Decision.KEY_UNKNOWN, "a placeholder"),
        ("sk-ant-api03-abc", Decision.KEY_FOREIGN, "of Anthropic"),
        ("sk-proj-abc", Decision.KEY_FOREIGN, "of OpenAI"),
        ("sk-svcacct-abc", Decision.KEY_FOREIGN, "of OpenAI"),
        ("sk-or-v1-abc", Decision.KEY_FOREIGN, "of OpenRouter"),
        ("hf_abc", Decision.KEY_FOREIGN, "of Hugging Face"),
        ("gsk_abc", Decision.KEY_FOREIGN, "of Groq"),
        ("AIzaSyabc", Decision.KEY_FOREIGN, "of Google"),
        ("xai-abc", Decision.KEY_FOREIGN, "of xAI"),
        ("nvapi-abc", Decision.KEY_FOREIGN, "of NVIDIA"),
        ("pplx-abc", Decision.KEY_FOREIGN, "of Perplexity"),
        ("r8_abc", Decision.KEY_FOREIGN, "of Replicate"),
        ("sk-abcdefgh", Decision.KEY_FOREIGN, "looks like an API key of OpenAI"),
    ],
)
def test_keys_that_are_in_no_file(ring, secret, decision, said):
    with pytest.raises(Refused) as caught:
        ring.find(bearer(secret.encode()))
    assert caught.value.decision is decision
    assert said in caught.value.message


def test_a_key_of_any_form_is_known_where_the_file_has_it(tmp_path):
    path = tmp_path / "keys.toml"
    for number, secret in enumerate((b"sk-ant-kept-from-before", b"EMPTY", b"hf_" + b"x" * 30)):
        append(path, KeyEntry(id=f"k{number}", sha256=hashlib.sha256(secret).hexdigest()))
        assert KeyRing(path).find(bearer(secret)).id == f"k{number}"


SIGNS = "ÄQZ7#~%^&*\"' \t-_.:=,"  # of these and of known prefixes, so that the messages' own words are in none
PREFIXES = ["", "sk-", "sk-ant-", "hf_", "sk-lensd-", "Bearer ", "Basic ", "'"]


@given(
    st.sampled_from(["Bearer ", "bearer", "Basic ", "", '"Bearer ']), st.sampled_from(PREFIXES), st.text(SIGNS, min_size=6, max_size=600)
)
def test_no_message_holds_any_part_of_what_was_sent(tmp_path_factory, scheme, prefix, secret):
    ring = KeyRing(tmp_path_factory.mktemp("r") / "none.toml")
    with pytest.raises(Refused) as caught:
        ring.find(Presented(authorization=(scheme + prefix + secret).encode(), times=1))
    told = caught.value.message + caught.value.reason + str(caught.value)
    parts = {secret[at : at + 3] for at in range(len(secret) - 2)}
    assert [part for part in parts if part in told and part.strip(" '.:,")] == []


@pytest.mark.parametrize(
    ("models", "model", "may"),
    [
        (("llama-*", "mixtral"), "llama-7b", True),
        (("llama-*", "mixtral"), "mixtral", True),
        (("llama-*", "mixtral"), "mixtral-2", False),
        (("llama-*",), "Llama-7b", False),
        (("llama-*",), "my-llama-7b", False),
        (("llama-?b",), "llama-7b", True),
        (("llama-?b",), "llama-70b", False),
        (("a*b*c", "*x*"), "a1b2c", True),
        (("org/*",), "org/team/model", True),
        (("m[1]",), "m[1]", True),
        (("m[1]",), "m1", False),
        (("*",), "anything\n", True),
        ((), "m", False),
        (("m",), "", False),
    ],
)
def test_which_models_a_key_may_use(models, model, may):
    assert Key(KeyEntry(id="a", sha256=DIGEST, models=models)).allows(model) is may


@pytest.mark.parametrize(
    ("routes", "route", "may"),
    [
        ((), "/v1/chat/completions", True),
        (("/v1/chat/*",), "/v1/chat/completions", True),
        (("/v1/chat/*",), "/v1/embeddings", False),
        (("/v1/embeddings", "*/completions"), "/v1/chat/completions", True),
        (("/v1/embeddings",), "/v1/models", True),  # it shows only what the key may use
        (("/v1/embeddings",), "/v1/models/{model}", True),
        (("/v1/embeddings",), "/v1/modelsx", False),
    ],
)
def test_which_paths_a_key_may_use(routes, route, may):
    assert Key(KeyEntry(id="a", sha256=DIGEST, routes=routes)).allows_route(route) is may


@pytest.mark.parametrize(
    ("entry", "at_ns", "decision"),
    [
        ({}, 1 << 62, None),
        ({"expires": NOON}, NOON_NS - 1, None),
        ({"expires": NOON}, NOON_NS, Decision.KEY_EXPIRED),
        ({"disabled": True}, 0, Decision.KEY_DISABLED),
        ({"disabled": True, "expires": NOON}, NOON_NS, Decision.KEY_DISABLED),
    ],
)
def test_a_known_key_is_found_and_then_judged(tmp_path, entry, at_ns, decision):
    path = tmp_path / "keys.toml"
    append(path, KeyEntry(id="a", sha256=DIGEST, **entry))
    key = KeyRing(path).find(bearer(GOOD))
    assert key.id == "a"  # the record names it, whatever comes next
    if decision is None:
        key.check(at_ns)
        return
    with pytest.raises(Refused) as caught:
        key.check(at_ns)
    assert caught.value.decision is decision
    assert "key a" in caught.value.reason
    assert " a " not in caught.value.message


def test_the_record_says_when_it_expired():
    with pytest.raises(Refused) as caught:
        Key(KeyEntry(id="a", sha256=DIGEST, expires=NOON)).check(NOON_NS)
    assert caught.value.reason == "key a expired at 2026-06-01 12:00:00 UTC"
    assert "2026" not in caught.value.message


def test_keys_by_id(ring):
    key = ring.get("a")
    assert key is not None
    assert key.entry.sha256 == DIGEST
    assert ring.get("b") is None
    assert (len(ring), list(ring.ids)) == (1, ["a"])


def test_a_changed_file_is_read_and_a_broken_one_is_not(tmp_path):
    path = tmp_path / "keys.toml"
    ring = KeyRing(path)  # no file: no keys
    secret, entry = new_key("a", ["*"])
    presented = bearer(secret.encode())
    with pytest.raises(Refused):
        ring.find(presented)
    append(path, entry)
    assert ring.reload() == f"1 keys from {path}"
    assert ring.reload() is None
    assert ring.find(presented).id == "a"
    path.write_text("[[keys]]\nid = ")
    with pytest.raises(KeysError, match=r"keys\.toml: .*; the 1 keys read before stay in force"):
        ring.reload()
    assert ring.find(presented).id == "a"
    assert ring.reload() is None  # said once
    path.unlink()
    with pytest.raises(KeysError, match="is gone; the 1 keys it held stay in force"):
        ring.reload()
    assert ring.find(presented).id == "a"
    assert ring.reload() is None
    append(path, msgspec.structs.replace(entry, id="renamed"))
    assert ring.reload() == f"1 keys from {path}"
    assert ring.find(presented).id == "renamed"


def test_a_reload_counts_what_is_not_in_use(tmp_path):
    path = tmp_path / "keys.toml"
    ring = KeyRing(path, lambda: NOON_NS)
    for name in ("a", "b", "c"):
        append(path, msgspec.structs.replace(new_key(name, ["*"])[1], expires=NOON if name == "b" else None))
    revoke(path, "c")
    assert len(read_keys(path)) == 3
    assert ring.reload() == f"3 keys, 1 of them expired, 1 of them disabled from {path}"


def test_a_file_that_is_broken_from_the_start_is_an_error(tmp_path):
    (tmp_path / "keys.toml").write_text("[[keys]]\nid = ")
    with pytest.raises(KeysError, match=r"keys\.toml: "):
        KeyRing(tmp_path / "keys.toml")
