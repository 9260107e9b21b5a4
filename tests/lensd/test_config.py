"""lensd.toml and its environment twins: what counts, and one line for everything that does not hold."""

import tomllib
from pathlib import Path

import msgspec
import pytest

from lensd.config import Config, as_toml, find, load, read_token
from lensd.errors import ConfigError


@pytest.fixture(autouse=True)
def alone(tmp_path, monkeypatch):
    """No configuration of whoever runs the tests."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


def written(text, name="lensd.toml"):
    Path(name).parent.mkdir(parents=True, exist_ok=True)
    Path(name).write_text(text)
    return name


def test_without_a_file_the_defaults_hold():
    assert load(environ={}) == Config()
    assert find(None) is None


def test_the_nearest_file_counts(tmp_path):
    written('[gateway]\nlisten = "127.0.0.1:1"', "home/.config/lensd/lensd.toml")
    assert load(environ={}).gateway.listen == "127.0.0.1:1"
    written('[gateway]\nlisten = "127.0.0.1:2"')
    assert load(environ={}).gateway.listen == "127.0.0.1:2"
    written('[gateway]\nlisten = "127.0.0.1:3"', "other.toml")
    assert load("other.toml", environ={}).gateway.listen == "127.0.0.1:3"
    assert find(None) == tmp_path / "lensd.toml"


@pytest.mark.parametrize(
    ("name", "text", "read"),
    [
        ("LENSD_GATEWAY__LISTEN", "127.0.0.1:9999", lambda c: c.gateway.listen == "127.0.0.1:9999"),
        ("LENSD_SERVE__STORE", "2024-01-01", lambda c: c.serve.store == "2024-01-01"),
        ("LENSD_SERVE__STORE", '"quoted"', lambda c: c.serve.store == "quoted"),
        ("LENSD_SERVE__EVALUATE_EVERY_S", "2", lambda c: c.serve.evaluate_every_s == 2.0),
        ("LENSD_SERVE__LIMITS__MAX_IN_FLIGHT", "7", lambda c: c.serve.limits.max_in_flight == 7),
        ("LENSD_GATEWAY__REQUIRE_KEY", "false", lambda c: c.gateway.require_key is False),
        ("LENSD_RUNBOOKS__FOLDERS", '["a", "b"]', lambda c: c.runbooks.folders == ("a", "b")),
        ("LENSD_RUNBOOKS__PARAMS", "{queue-saturation = {share = 0.4}}", lambda c: c.runbooks.params["queue-saturation"]["share"] == 0.4),
        ("LENSD_GATEWAY__UPSTREAMS", '[{url = "http://e:8000"}]', lambda c: c.gateway.upstreams[0].url == "http://e:8000"),
        ("LENSD_URL", "http://elsewhere", lambda c: c == Config()),
        ("LENSD_ENGINE_DIR", "x", lambda c: c == Config()),
        ("NOT_LENSD__X", "x", lambda c: c == Config()),
    ],
)
def test_each_value_is_also_a_variable(name, text, read):
    assert read(load(environ={name: text}))


def test_a_variable_outdoes_the_file_and_leaves_its_neighbours():
    written('[serve]\nstore = "here"\n[serve.limits]\nmax_in_flight = 3\nretry_after_s = 9')
    config = load(environ={"LENSD_SERVE__LIMITS__MAX_IN_FLIGHT": "5"})
    assert (config.serve.store, config.serve.limits.max_in_flight, config.serve.limits.retry_after_s) == ("here", 5, 9)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[serv]\n", "lensd.toml: unknown key serv; did you mean serve?"),
        ('[serve]\nstor = "x"', "lensd.toml: unknown key serve.stor; did you mean serve.store?"),
        ("[serve.limits]\nmax_flight = 1", "lensd.toml: unknown key serve.limits.max_flight; did you mean serve.limits.max_in_flight?"),
        ('[[gateway.upstreams]]\nurll = "x"', "lensd.toml: unknown key gateway.upstreams[0].urll; did you mean gateway.upstreams[0].url?"),
        ("[dashboard]\nqqq = 1", "lensd.toml: unknown key dashboard.qqq; known: allow_remote, listen"),
        ("serve = 3", "lensd.toml: serve is a table: write its settings under [serve]"),
        ("[serve\n", "lensd.toml: not TOML: expected ']' at the end of a table declaration (at line 1, column 7)"),
        ('[serve]\nevaluate_every_s = "abc"', "lensd.toml: serve.evaluate_every_s: expected float, got str"),
        ("[serve]\nevaluate_every_s = 0", "lensd.toml: serve.evaluate_every_s: expected float > 0.0"),
        ("[serve]\njournal_max_bytes = -1", "lensd.toml: serve.journal_max_bytes: expected int >= 1"),
        ("[gateway]\nupstreams = [3]", "lensd.toml: gateway.upstreams[0]: expected object, got int"),
        ("[gateway]\nupstreams = [{}]", "lensd.toml: gateway.upstreams[0]: object missing required field url"),
        ('[serve]\napi = "8600"', "serve.api = '8600' is no address to listen on: write host:port, such as 127.0.0.1:8600"),
        ('[gateway]\nlisten = ":8080"', "gateway.listen = ':8080' is no address to listen on: write host:port, such as 127.0.0.1:8600"),
        (
            '[dashboard]\nlisten = "h:70000"',
            "dashboard.listen = 'h:70000' is no address to listen on: write host:port, such as 127.0.0.1:8600",
        ),
        (
            '[serve]\napi = "0.0.0.0:8600"',
            "serve.api = 0.0.0.0:8600 is reachable from outside: set serve.token_file, or listen on 127.0.0.1",
        ),
        (
            '[serve]\notlp = "127.evil.org:4318"',
            "serve.otlp = 127.evil.org:4318 is reachable from outside: set serve.token_file, or listen on 127.0.0.1",
        ),
        (
            '[serve]\notlp_grpc = "0.0.0.0:4317"',
            "serve.otlp_grpc = 0.0.0.0:4317 is reachable from outside: set serve.token_file, or listen on 127.0.0.1",
        ),
        ('[serve]\notlp_grpc = "4317"', "serve.otlp_grpc = '4317' is no address to listen on: write host:port, such as 127.0.0.1:8600"),
        ("[serve.limits]\nmax_records = 0", "lensd.toml: serve.limits.max_records: expected int >= 1"),
        ('[serve]\npublic_url = "lensd.example"', "serve.public_url = 'lensd.example' is no URL: write http://host:8501"),
    ],
)
def test_what_does_not_hold_is_named_as_the_user_wrote_it(text, said):
    with pytest.raises(ConfigError) as caught:
        load(written(text), environ={})
    assert str(caught.value) == said


def test_the_grpc_door_may_be_left_out():
    assert load(written('[serve]\notlp_grpc = ""'), environ={}).serve.otlp_grpc == ""


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("LENSD_GATEWAY__LISTE", "x", "LENSD_GATEWAY__LISTE: unknown key gateway.liste; did you mean gateway.listen?"),
        ("LENSD_SERV__STORE", "x", "LENSD_SERV__STORE: unknown key serv; did you mean serve?"),
        ("LENSD_RUNBOOKS__PARAMS__X", "1", "LENSD_RUNBOOKS__PARAMS__X: unknown key runbooks.params.x; known: runbooks.params is one value"),
        ("LENSD_SERVE__EVALUATE_EVERY_S", "x", "LENSD_SERVE__EVALUATE_EVERY_S: serve.evaluate_every_s: expected float, got str"),
        ("LENSD_SERVE", "x", None),
        ("LENSD_SERVE__LIMITS", "3", "LENSD_SERVE__LIMITS: serve.limits: expected object, got int"),
    ],
)
def test_a_variable_that_does_not_hold_is_named(name, text, said):
    if said is None:
        assert load(environ={name: text}) == Config()
        return
    with pytest.raises(ConfigError) as caught:
        load(environ={name: text})
    assert str(caught.value) == said


def test_a_table_that_is_none_in_the_file_does_not_trip_its_variable():
    with pytest.raises(ConfigError, match="serve is a table"):
        load(written("serve = 3"), environ={"LENSD_SERVE__API": "127.0.0.1:1"})


def test_an_error_shows_no_value_that_may_be_a_secret():
    with pytest.raises(ConfigError) as caught:
        load(written('alerts = "https://hooks.example/T0/s3cr3t"'), environ={})
    assert "s3cr3t" not in str(caught.value)


@pytest.mark.parametrize("content", [b"\xff\xfe\x00", b'[serve]\nstore = "\xe9"'])
def test_a_file_that_is_no_text_is_named(content):
    Path("odd.toml").write_bytes(content)
    with pytest.raises(ConfigError, match=r"^odd\.toml: this is not UTF-8 text$"):
        load("odd.toml", environ={})


@pytest.mark.parametrize("path", ["nothing.toml", "."])
def test_a_named_file_must_be_there(path):
    with pytest.raises(ConfigError, match="no configuration at"):
        load(path, environ={})


def denied(*_, **__):
    raise PermissionError(13, "Permission denied")


def test_a_file_that_may_not_be_read_is_named(monkeypatch):
    written("")
    monkeypatch.setattr(Path, "read_text", denied)
    with pytest.raises(ConfigError, match=r"^cannot read .*lensd\.toml: Permission denied$"):
        load(environ={})


def test_a_folder_that_may_not_be_looked_into_holds_nothing_of_ours_unless_it_is_named(monkeypatch):
    monkeypatch.setattr(Path, "is_file", denied)
    assert find(None) is None
    with pytest.raises(ConfigError, match=r"^cannot read x/lensd\.toml: Permission denied$"):
        find("x/lensd.toml")


def test_a_user_without_a_home_is_told_which_setting_wants_one(monkeypatch):
    def homeless(_):
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "expanduser", homeless)
    with pytest.raises(ConfigError, match=r"^serve\.store = ~/\.local/share/lensd: this user has no home folder"):
        _ = load(environ={}).store_folder


def test_the_token_is_its_file_without_white_space(tmp_path):
    assert read_token(tmp_path / "none") is None
    (tmp_path / "empty").write_text("\n")
    assert read_token(tmp_path / "empty") is None
    (tmp_path / "token").write_text(" abc\n")
    assert read_token(tmp_path / "token") == "abc"
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="it is not text"):
        read_token(tmp_path / "binary")
    with pytest.raises(ConfigError, match="Is a directory"):
        read_token(tmp_path)


def test_as_toml_reads_back_as_the_same_configuration():
    written('[gateway]\nupstreams = [{url = "http://e:1", models = ["a", "b \\"c\\""]}]\n[runbooks.params."odd key"]\nx = 1.5\n[agent]\n')
    config = load(environ={})
    text = as_toml(msgspec.to_builtins(config))
    assert msgspec.convert(tomllib.loads(text), Config) == config


def test_a_table_of_a_runbook_overrides_its_params():
    written('[runbooks]\nfolders = ["mine"]\n[runbooks.queue-saturation]\nshare = 0.4\n[runbooks.params.kv-cache-leak]\nheld = 0.1\n')
    found = load(environ={}).runbooks
    assert found.folders == ("mine",)
    assert found.params == {"queue-saturation": {"share": 0.4}, "kv-cache-leak": {"held": 0.1}}


def test_a_runbook_whose_params_stand_in_two_tables_is_named():
    written("[runbooks.kv-cache-leak]\nheld = 0.1\n[runbooks.params.kv-cache-leak]\nheld = 0.2\n")
    with pytest.raises(ConfigError, match=r"\[runbooks.kv-cache-leak\] stands beside \[runbooks.params.kv-cache-leak\]: keep one of them"):
        load(environ={})


def test_a_setting_of_the_runbooks_that_is_none_is_still_named():
    written('[runbooks]\nfolder = ["mine"]\n')
    with pytest.raises(ConfigError, match=r"unknown key runbooks.folder; did you mean runbooks.folders\?"):
        load(environ={})
