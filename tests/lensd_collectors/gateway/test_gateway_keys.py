import hashlib
import os
import stat

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lensd_collectors.conventions import Decision
from lensd_collectors.gateway.decisions import Refused
from lensd_collectors.gateway.keys import Key, KeyEntry, KeyRing, KeysError, append, new_key, read_keys


def test_a_new_key_is_found_again_and_never_stored(tmp_path):
    path = tmp_path / "keys.toml"
    secret, entry = new_key("team-a", ["llama-*", "mixtral"])
    append(path, entry)
    assert secret not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert read_keys(path) == (entry,)
    key = KeyRing(path).find(f"Bearer {secret}".encode())
    assert (key.id, key.entry.last4) == ("team-a", secret[-4:])
    assert [key.allows(model) for model in ("llama-7b", "mixtral", "mixtral-2", "Llama-7b", "")] == [True, True, False, False, False]


def test_appending_keeps_comments_and_refuses_an_id_twice(tmp_path):
    path = tmp_path / "keys.toml"
    path.write_text("# ours\n")
    append(path, new_key("a", ["*"])[1])
    append(path, new_key("b", [])[1])
    assert path.read_text().startswith("# ours\n")
    assert [each.id for each in read_keys(path)] == ["a", "b"]
    with pytest.raises(KeysError, match="'a' is already in"):
        append(path, new_key("a", ["*"])[1])
    assert [each.name for each in tmp_path.iterdir()] == ["keys.toml"]


@given(st.lists(st.text(min_size=1).filter(str.isprintable), max_size=4))
def test_any_printable_pattern_survives_the_file(tmp_path_factory, models):
    path = tmp_path_factory.mktemp("k") / "keys.toml"
    append(path, new_key("a", models)[1])
    assert read_keys(path)[0].models == tuple(models)


@pytest.mark.parametrize(
    ("authorization", "decision"),
    [
        (None, Decision.KEY_MISSING),
        (b"  ", Decision.KEY_MISSING),
        (b"Bearer", Decision.KEY_MALFORMED),
        (b"Bearer ", Decision.KEY_MALFORMED),
        (b"Basic dGVzdA==", Decision.KEY_MALFORMED),
        (b"good-key", Decision.KEY_MALFORMED),
        (b"Bearer good-key more", Decision.KEY_MALFORMED),
        (b"Bearer " + b"x" * 600, Decision.KEY_MALFORMED),
        (b"Bearer wrong", Decision.KEY_UNKNOWN),
        (b"Bearer Good-key", Decision.KEY_UNKNOWN),
        (b"Bearer \xff", Decision.KEY_UNKNOWN),
        (b"bearer good-key", None),
        (b"Bearer  good-key ", None),
    ],
)
def test_what_is_wrong_with_a_header(tmp_path, authorization, decision):
    path = tmp_path / "keys.toml"
    append(path, KeyEntry(id="a", sha256=hashlib.sha256(b"good-key").hexdigest(), models=("*",)))
    ring = KeyRing(path)
    if decision is None:
        assert ring.find(authorization).id == "a"
        return
    with pytest.raises(Refused) as caught:
        ring.find(authorization)
    assert caught.value.decision is decision
    assert "good-key" not in caught.value.message


def test_a_changed_file_is_read_and_a_broken_one_is_not(tmp_path):
    path = tmp_path / "keys.toml"
    ring = KeyRing(path)  # no file: no keys
    secret, entry = new_key("a", ["*"])
    header = f"Bearer {secret}".encode()
    with pytest.raises(Refused):
        ring.find(header)
    append(path, entry)
    assert ring.reload() == f"1 keys from {path}"
    assert ring.reload() is None
    assert ring.find(header).id == "a"
    path.write_text("[[keys]]\nid = ")
    with pytest.raises(KeysError, match=r"keys\.toml: "):
        ring.reload()
    assert ring.find(header).id == "a"
    assert ring.reload() is None  # said once
    path.unlink()
    with pytest.raises(KeysError, match="is gone; the 1 keys it held stay in force"):
        ring.reload()
    assert ring.find(header).id == "a"


DIGEST = hashlib.sha256(b"k").hexdigest()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("keys = 5", "array"),
        ("[[keys]]\nid = 'a'", "sha256"),
        (f"[[keys]]\nid = 'a b'\nsha256 = '{DIGEST}'", "key id 'a b'"),
        ("[[keys]]\nid = 'a'\nsha256 = 'short'", "64 lower-case hex"),
        (f"[[keys]]\nid = 'a'\nsha256 = '{DIGEST}'\nmodel = ['x']", "model"),
        (f"[[keys]]\nid = 'a'\nsha256 = '{DIGEST}'\n[[keys]]\nid = 'b'\nsha256 = '{DIGEST}'", "shares its sha256"),
        (f"[[keys]]\nid = 'a'\nsha256 = '{DIGEST}'\nmodels = ['']", "not empty"),
    ],
)
def test_a_broken_file_is_named_in_one_line(tmp_path, text, said):
    path = tmp_path / "keys.toml"
    path.write_text(text)
    with pytest.raises(KeysError, match=said) as caught:
        KeyRing(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_cannot_be_read_is_an_error(tmp_path):
    (tmp_path / "keys.toml").mkdir()
    with pytest.raises(KeysError, match="cannot read"):
        read_keys(tmp_path / "keys.toml")


def test_no_pattern_allows_nothing():
    assert not Key(KeyEntry(id="a", sha256=DIGEST)).allows("m")


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "keys.toml"
    append(path, new_key("a", ["*"])[1])
    before = path.read_text()

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(KeysError, match="No space left"):
        append(path, new_key("b", ["*"])[1])
    assert path.read_text() == before
    assert len(list(tmp_path.iterdir())) == 1
