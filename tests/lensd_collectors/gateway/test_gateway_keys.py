"""The keys file: what is in it, what is added and taken away, and what stays as somebody wrote it."""

import hashlib
import os
import stat
import threading
from datetime import UTC, datetime, timedelta, timezone

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from lensd_collectors.gateway.keys import (
    MOST,
    PREFIX,
    KeyEntry,
    KeysError,
    KeyState,
    append,
    delete,
    entry_of,
    new_key,
    read_keys,
    revoke,
)

DIGEST = hashlib.sha256(b"k").hexdigest()
NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)


def test_a_new_key_is_never_stored(tmp_path):
    path = tmp_path / "keys.toml"
    secret, entry = new_key("team-a", ["llama-*", "mixtral"])
    append(path, entry)
    assert secret.startswith(PREFIX)
    assert secret.removeprefix(PREFIX) not in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert read_keys(path) == (entry,)
    assert (entry.sha256, entry.last4) == (hashlib.sha256(secret.encode()).hexdigest(), secret[-4:])


patterns = st.text(st.characters(exclude_categories=("C", "Z"), include_characters=" "), min_size=1)
entries = st.builds(
    KeyEntry,
    id=st.from_regex(r"[A-Za-z0-9._-]{1,64}", fullmatch=True),
    sha256=st.from_regex(r"[0-9a-f]{64}", fullmatch=True),
    last4=st.text("abcXYZ019-_", min_size=4, max_size=4),
    models=st.lists(patterns, max_size=4).map(tuple),
    routes=st.lists(patterns.map("/{}".format), max_size=3).map(tuple),
    disabled=st.booleans(),
    expires=st.none() | st.datetimes(datetime(1000, 1, 2), datetime(9999, 12, 30), timezones=st.just(timezone(timedelta(hours=5)))),
    **{name: st.integers(0, most) for name, most in MOST.items()},
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(entries, min_size=1, max_size=3, unique_by=(lambda e: e.id, lambda e: e.sha256)), st.data())
def test_every_entry_survives_the_file_and_each_change_touches_one(tmp_path_factory, given_entries, data):
    path = tmp_path_factory.mktemp("k") / "keys.toml"
    for entry in given_entries:
        append(path, entry)
    assert read_keys(path) == tuple(given_entries)
    one = data.draw(st.sampled_from(given_entries))
    assert revoke(path, one.id) == one
    assert read_keys(path) == tuple(msgspec.structs.replace(e, disabled=True) if e is one else e for e in given_entries)
    delete(path, one.id)
    assert read_keys(path) == tuple(e for e in given_entries if e is not one)


def test_an_id_or_a_key_is_not_taken_twice(tmp_path):
    path = tmp_path / "keys.toml"
    entry = new_key("a", ["*"])[1]
    append(path, entry)
    before = path.read_text()
    with pytest.raises(KeysError, match="'a' is already in"):
        append(path, new_key("a", ["*"])[1])
    with pytest.raises(KeysError, match=r"this key is already in .*, as 'a'"):
        append(path, msgspec.structs.replace(entry, id="b"))
    assert path.read_text() == before
    assert [each.name for each in tmp_path.iterdir()] == ["keys.toml"]


HAND = """\
# Keys of the house. Ask ops.\r
[[keys]]   # the first
id = "a" # a comment of its own
sha256 = "{a}"
models = [
    "llama-*",   # all of them
]

# b is the batch job's
  [[ keys ]]
  id = "b"
  sha256 = "{b}"
  disabled   =   false   # not yet

# the end
""".format(a="a" * 64, b="b" * 64)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        (lambda path: revoke(path, "a"), HAND.replace('of its own\n', 'of its own\ndisabled = true\n')),
        (lambda path: revoke(path, "b"), HAND.replace("=   false ", "=   true ")),
        (lambda path: delete(path, "b"), HAND[: HAND.index("  [[ keys ]]")] + "# the end\n"),
        (lambda path: delete(path, "a"), HAND.splitlines(keepends=True)[0] + HAND[HAND.index("# b is") :]),
        (
            lambda path: append(path, KeyEntry(id="c", sha256="c" * 64, last4="wxyz", models=("*",), concurrency=2)),
            HAND + f'\n[[keys]]\nid = "c"\nsha256 = "{"c" * 64}"\nlast4 = "wxyz"\nmodels = ["*"]\ndisabled = false\nconcurrency = 2\n',
        ),
    ],
    ids=["disable", "disable in place", "delete the last", "delete the first", "add"],
)  # fmt: skip
def test_the_rest_of_the_file_stays_as_it_was_written(tmp_path, change, text):
    path = tmp_path / "keys.toml"
    path.write_bytes(HAND.encode())
    change(path)
    assert path.read_bytes().decode() == text


def test_lines_that_end_as_on_windows_stay_so(tmp_path):
    path = tmp_path / "keys.toml"
    path.write_bytes(f'[[keys]]\r\nid = "a"\r\nsha256 = "{DIGEST}"\r\n'.encode())
    revoke(path, "a")
    assert path.read_bytes() == f'[[keys]]\r\nid = "a"\r\ndisabled = true\r\nsha256 = "{DIGEST}"\r\n'.encode()


@pytest.mark.parametrize(
    "text",
    [
        f'keys = [{{id = "a", sha256 = "{DIGEST}"}}]',
        f'[["keys"]]\nid = "a"\nsha256 = "{DIGEST}"',
        f"[[keys]]\nid = 'a'\nsha256 = '{DIGEST}'\nlast4 = '''\n[[keys]]\n'''",
    ],
    ids=["inline", "quoted heading", "a heading inside a text"],
)
def test_a_form_that_is_not_understood_is_left_alone(tmp_path, text):
    path = tmp_path / "keys.toml"
    path.write_text(text)
    for change in (revoke, delete):
        with pytest.raises(KeysError, match="change the entry by hand"):
            change(path, "a")
    assert path.read_text() == text


def test_nothing_is_added_to_a_file_of_another_form(tmp_path):
    path = tmp_path / "keys.toml"
    path.write_text(f"keys = [{{id = 'a', sha256 = '{DIGEST}'}}]\n")
    with pytest.raises(KeysError, match="is not written as one"):
        append(path, new_key("b", ["*"])[1])


def test_a_key_that_is_not_there_cannot_be_revoked(tmp_path):
    path = tmp_path / "keys.toml"
    for change in (revoke, delete):
        with pytest.raises(KeysError, match=r"no key in .*keys\.toml has the id 'x'"):
            change(path, "x")
    assert not path.exists()


def test_revoking_twice_says_so_and_writes_nothing(tmp_path):
    path = tmp_path / "keys.toml"
    append(path, new_key("a", ["*"])[1])
    assert not revoke(path, "a").disabled
    before = path.stat()
    assert revoke(path, "a").disabled
    assert path.stat().st_ino == before.st_ino


SECRET = "sk-kept-0123456789abcdef"


def test_a_key_that_was_given_out_elsewhere_is_kept_by_its_hash():
    entry = entry_of("old", SECRET, ["*"])
    assert (entry.sha256, entry.last4) == (hashlib.sha256(SECRET.encode()).hexdigest(), "cdef")


@pytest.mark.parametrize(
    ("secret", "said"),
    [
        ("", "empty"),
        (f'"{SECRET}"', "quotes"),
        (f"{SECRET}'", "quotes"),
        (f"{SECRET} {SECRET}", "one word"),
        (f"{SECRET}\n{SECRET}", "one word"),
        (f"{SECRET}é", "one word"),
        ("sk-too-short-00", "15 characters"),
        ("x" * 513, "513 characters"),
    ],
)
def test_what_cannot_be_imported(secret, said):
    with pytest.raises(KeysError, match=said) as caught:
        entry_of("old", secret, ["*"])
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize(
    ("disabled", "expires", "state"),
    [
        (False, None, KeyState.IN_USE),
        (False, NOON + timedelta(seconds=1), KeyState.IN_USE),
        (False, NOON, KeyState.EXPIRED),
        (True, NOON, KeyState.DISABLED),
        (True, None, KeyState.DISABLED),
    ],
)
def test_how_a_key_stands(disabled, expires, state):
    assert KeyEntry(id="a", sha256=DIGEST, disabled=disabled, expires=expires).state(NOON) is state


def test_limits_in_words():
    assert list(KeyEntry(id="a", sha256=DIGEST).limits()) == []
    entry = KeyEntry(id="a", sha256=DIGEST, requests_per_min=60, concurrency=4, max_prompt_tokens=8000)
    assert list(entry.limits()) == ["60 requests/min", "4 at a time", "prompts up to 8000 tokens"]


BEGUN = f"[[keys]]\nid = 'a'\nsha256 = '{DIGEST}'\n"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("keys = 5", "array"),
        ("[[keys]]\nid = 'a'", "sha256"),
        (f"[[keys]]\nid = 'a b'\nsha256 = '{DIGEST}'", "key id 'a b'"),
        ("[[keys]]\nid = 'a'\nsha256 = 'short'", "64 lower-case hex"),
        (f"{BEGUN}model = ['x']", "model"),
        (f"{BEGUN}[[keys]]\nid = 'b'\nsha256 = '{DIGEST}'", "shares its sha256"),
        (f"{BEGUN}[[keys]]\nid = 'a'\nsha256 = '{'b' * 64}'", "shares its id"),
        (f"{BEGUN}models = ['']", "not empty"),
        (f"{BEGUN}routes = ['chat']", "must be a path such as"),
        (f"{BEGUN}expires = 2027-01-31T00:00:00", "timezone"),
        (f"{BEGUN}expires = 2027-01-31", "datetime"),
        (f"{BEGUN}concurrency = -1", r"concurrency = -1 must lie between 0 \(no limit\) and 100000"),
        (f"{BEGUN}concurrency = 1.5", "int"),
        (f"{BEGUN}max_tokens = {10**9}", "max_tokens = 1000000000 must lie between"),
    ],
)
def test_a_broken_file_is_named_in_one_line(tmp_path, text, said):
    path = tmp_path / "keys.toml"
    path.write_text(text)
    with pytest.raises(KeysError, match=said) as caught:
        read_keys(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_cannot_be_read_is_an_error(tmp_path):
    (tmp_path / "keys.toml").mkdir()
    with pytest.raises(KeysError, match="cannot read"):
        read_keys(tmp_path / "keys.toml")
    (tmp_path / "latin.toml").write_bytes(b"# \xe9\n")
    for touch in (read_keys, lambda path: revoke(path, "a")):
        with pytest.raises(KeysError, match="not UTF-8"):
            touch(tmp_path / "latin.toml")


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "keys.toml"
    append(path, new_key("a", ["*"])[1])
    before = path.read_text()

    def full(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    for change in (lambda: append(path, new_key("b", ["*"])[1]), lambda: revoke(path, "a"), lambda: delete(path, "a")):
        with pytest.raises(KeysError, match="No space left"):
            change()
    assert path.read_text() == before
    assert len(list(tmp_path.iterdir())) == 1


def test_a_link_stays_one(tmp_path):
    (tmp_path / "real").mkdir()
    path = tmp_path / "keys.toml"
    path.symlink_to("real/keys.toml")
    append(path, new_key("a", ["*"])[1])
    append(path, new_key("b", ["*"])[1])
    assert path.is_symlink()
    assert [entry.id for entry in read_keys(tmp_path / "real" / "keys.toml")] == ["a", "b"]


def test_two_who_add_at_once_lose_nothing(tmp_path):
    path = tmp_path / "keys.toml"
    threads = [threading.Thread(target=append, args=(path, new_key(f"k{number}", ["*"])[1])) for number in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {entry.id for entry in read_keys(path)} == {f"k{number}" for number in range(16)}
