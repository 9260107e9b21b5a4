"""The key an engine wants from the gateway, from a file that changes."""

import os

import pytest
from lensd_collectors.gateway.credential import Credential
from lensd_collectors.gateway.routes import GatewayError


def test_without_a_file_there_is_none():
    credential = Credential("", "engine-a")
    assert (credential.header, credential.reload()) == ("", False)


def test_a_changed_file_is_read_and_a_broken_one_is_not(tmp_path):
    path = tmp_path / "key"
    path.write_text("first\n")
    credential = Credential(str(path), "engine-a")
    assert (credential.header, credential.reload()) == ("Bearer first", False)
    path.write_text("second")
    assert (credential.reload(), credential.header, credential.reload()) == (True, "Bearer second", False)
    path.write_text("two words")
    with pytest.raises(GatewayError, match="must hold one key"):
        credential.reload()
    assert (credential.header, credential.reload()) == ("Bearer second", False)  # said once
    path.unlink()
    with pytest.raises(GatewayError, match="cannot read"):
        credential.reload()
    assert (credential.header, credential.reload()) == ("Bearer second", False)
    path.write_text("second")
    os.utime(path, ns=(1, 1))
    assert (credential.reload(), credential.header) == (False, "Bearer second")  # the same again is no new key


def test_it_is_not_read_again_while_it_is_as_it_was(tmp_path, monkeypatch):
    path = tmp_path / "key"
    path.write_text("key")
    credential = Credential(str(path), "engine-a")
    monkeypatch.setattr(Credential, "_read", lambda _: pytest.fail("read"))
    assert credential.reload() is False


@pytest.mark.parametrize(
    "content", [b"", b" \n", b"two words", b"Bearer key", b"a\nb", b"k\x00", "schlüssel".encode(), b"\xff", b"k" * 5000]
)
def test_a_file_that_holds_no_key_is_named_and_not_shown(tmp_path, content):
    path = tmp_path / "key"
    path.write_bytes(content)
    with pytest.raises(GatewayError) as caught:
        Credential(str(path), "engine-a")
    assert str(caught.value).startswith("upstream 'engine-a': ")
    assert str(path) in str(caught.value)
    assert not content.strip() or content.decode("latin-1").strip() not in str(caught.value)


def test_a_file_that_is_not_there_is_named():
    with pytest.raises(GatewayError, match="upstream 'engine-a': cannot read api_key_file /no/such/file"):
        Credential("/no/such/file", "engine-a")
