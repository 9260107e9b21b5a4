"""`lensd keys`: what is written, what is printed, and that a key itself never is, but once."""

import io
import sys
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from lensd_collectors.gateway.keys import entry_of, read_keys

from lensd.cli.main import run

SECRET = "sk-kept-Q7Z9-0123456789"


@pytest.fixture
def place(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"")))
    (tmp_path / "lensd.toml").write_text(
        '[gateway]\nkeys_file = "keys.toml"\nupstreams = [{url = "http://127.0.0.1:9", models = ["tiny-llama", "big"]}]\n'
    )
    return tmp_path


@pytest.fixture
def keys(place, capsys, monkeypatch):
    """`lensd keys` with a line as stdin; exit status, stdout, stderr."""

    def call(*arguments, stdin=""):
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(stdin.encode())))
        status = run(["keys", *arguments])
        return (status, *capsys.readouterr())

    return call


def stored(place):
    return read_keys(place / "keys.toml")


def test_a_key_with_all_it_can_have(place, keys):
    status, out, err = keys(
        "add", "team-a", "--model", "tiny-*", "--model", "big", "--route", "/v1/chat/*", "--expires", "2100-01-31",
        "--requests-per-min", "60", "--tokens-per-min", "100000", "--concurrency", "4", "--max-tokens", "512",
        "--max-prompt-tokens", "8000",
    )  # fmt: skip
    (entry,) = stored(place)
    secret = out.removesuffix("\n")
    assert (status, err) == (0, "lensd: it expires 2100-01-31 00:00:00 UTC\n")
    assert entry == msgspec.structs.replace(
        entry_of("team-a", secret, ("tiny-*", "big")),
        routes=("/v1/chat/*",),
        expires=datetime(2100, 1, 31, tzinfo=UTC),
        requests_per_min=60,
        tokens_per_min=100_000,
        concurrency=4,
        max_tokens=512,
        max_prompt_tokens=8000,
    )
    status, out, _ = keys("ls")
    heading, line = out.splitlines()
    assert heading.split("  ")[0] == "id"
    assert f"...{secret[-4:]}  tiny-*, big  /v1/chat/*  60 requests/min, 100000 tokens/min, 4 at a time, max_tokens 512, prompts up" in line
    assert line.endswith("2100-01-31 00:00:00  in use")
    assert secret not in out
    item = msgspec.json.decode(keys("ls", "--json")[1])["items"][0]
    assert (item["expires"], item["concurrency"], item["state"]) == ("2100-01-31T00:00:00Z", 4, "in use")
    assert "sha256" not in item


def test_a_key_without_anything_may_use_everything(place, keys):
    assert keys("add", "me")[0] == 0
    (entry,) = stored(place)
    assert (entry.models, entry.routes, entry.expires, list(entry.limits())) == (("*",), (), None, [])


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("90m", timedelta(minutes=90)),
        ("12h", timedelta(hours=12)),
        ("30d", timedelta(days=30)),
        ("2w", timedelta(days=14)),
        ("2100-01-31T09:00", datetime(2100, 1, 31, 9, tzinfo=UTC)),
        ("2100-01-31T09:00:30+02:00", datetime(2100, 1, 31, 7, 0, 30, tzinfo=UTC)),
    ],
)
def test_when_a_key_expires(place, keys, text, at):
    assert keys("add", "me", "--expires", text)[0] == 0
    (entry,) = stored(place)
    assert entry.expires is not None
    expected = datetime.now(UTC) + at if isinstance(at, timedelta) else at
    assert abs(entry.expires - expected) < timedelta(minutes=5)
    assert entry.expires.microsecond == 0


def test_a_key_that_callers_have_already_comes_from_stdin(place, keys):
    status, out, err = keys("add", "old", "--import", "--model", "big", stdin=f"  {SECRET}\n")
    assert (status, out, err) == (0, "old is the key that ends in 6789\n", "")
    assert stored(place) == (entry_of("old", SECRET, ("big",)),)
    assert SECRET not in (place / "keys.toml").read_text()
    for name, stdin, said in (("new", SECRET, "already in keys.toml, as 'old'"), ("new", f'"{SECRET}"', "in quotes"), ("new", "", "empty")):
        status, out, err = keys("add", name, "--import", stdin=stdin)
        assert (status, out) == (2, "")
        assert said in err
        assert SECRET not in err
    assert len(stored(place)) == 1


def test_a_revoked_key_is_named_until_it_is_deleted(place, keys):
    keys("add", "a", "--import", stdin=SECRET)
    keys("add", "b")
    assert keys("revoke", "a") == (0, "a is disabled\n", "")
    assert keys("revoke", "a") == (0, "a is disabled already\n", "")
    assert [line.split()[-1] for line in keys("ls")[1].splitlines()[1:]] == ["disabled", "use"]
    status, out, _ = keys("explain", "--header-stdin", stdin=f"Authorization: Bearer {SECRET}")
    assert status == 3
    assert "record: key_disabled: key a is disabled" in out
    assert keys("revoke", "a", "--delete") == (0, "a is deleted\n", "")
    status, out, _ = keys("explain", "--header-stdin", stdin=f"Authorization: Bearer {SECRET}")
    assert status == 3
    assert "answer: 401 foreign_api_key: this looks like an API key of OpenAI" in out
    assert keys("revoke", "a", "--delete")[0] == 2
    assert [entry.id for entry in stored(place)] == ["b"]


def test_an_expired_key_is_listed_as_such(place, keys):
    keys("add", "a", "--expires", "2100-01-31")
    path = place / "keys.toml"
    path.write_text(path.read_text().replace("2100", "2020"))
    assert keys("ls")[1].endswith("2020-01-31 00:00:00  expired\n")
    assert keys("explain", "--key-id", "a")[0] == 3


@pytest.mark.parametrize(
    ("arguments", "stdin", "status", "said"),
    [
        (("--model", "big"), f"Authorization: Bearer {SECRET}", 0, "the request goes on to an engine"),
        (("--model", "nope"), f"Bearer {SECRET}", 3, "404 model_not_found"),
        ((), f'Authorization: Bearer "{SECRET}"', 3, "401 malformed_api_key: the key is in quotes"),
        ((), SECRET, 3, "has no 'Bearer' before the key"),
        ((), f"x-api-key: {SECRET}", 3, "401 api_key_in_wrong_header: the API key is in the header 'x-api-key'"),
        ((), "", 3, "401 missing_api_key"),
        (("--key-id", "a", "--route", "/v1/chat/completion"), f"Bearer {SECRET}", 3, "did you mean /v1/chat/completions?"),
    ],
)
def test_explain_says_what_is_wrong_with_the_header_a_client_sends(keys, arguments, stdin, status, said):
    keys("add", "a", "--import", stdin=SECRET)
    for flag in ((), ("--json",)):
        got, out, err = keys("explain", "--header-stdin", *arguments, *flag, stdin=stdin)
        assert (got, err) == (status, "")
        assert SECRET not in out
        if not flag:
            assert said in out
        else:
            assert msgspec.json.decode(out)["result"] == {0: "ok", 3: "refused"}[status]


def test_explain_cannot_tell_while_an_engine_does_not_answer(place, keys):
    (place / "lensd.toml").write_text('[gateway]\nupstreams = [{url = "http://127.0.0.1:9", name = "e0"}]\n')
    keys("add", "a")
    status, out, _ = keys("explain", "--key-id", "a", "--model", "big")
    assert status == 5
    assert "e0 cannot be asked (Connection refused)" in out
    assert out.endswith("answer: cannot be told\n")


def test_explain_says_when_the_gateway_looks_at_no_key(place, keys):
    (place / "lensd.toml").write_text("[gateway]\nrequire_key = false\n")
    keys("add", "a")
    assert keys("explain", "--key-id", "a")[2].startswith("lensd: gateway.require_key = false")
