"""What a name leads to, what a caller is shown, and engines that cannot be configured so."""

import pytest
from fleet_stage import LOADING, READY, S, Stage, models
from lensd_collectors.conventions import Decision
from lensd_collectors.gateway.config import Upstream
from lensd_collectors.gateway.fleet import ModelCard
from lensd_collectors.gateway.routes import GatewayError
from lensd_collectors.gateway.upstream import NotTakenError

# names


def test_aliases_lead_to_served_models():
    stage = Stage(aliases={"gpt-4": "m", "old": "gone-model"}).refresh()
    assert (stage.fleet.resolve("gpt-4"), stage.fleet.resolve("m")) == ("m", "m")
    refusal = stage.refusal("old")
    assert (refusal.decision, refusal.param) == (Decision.MODEL_UNKNOWN, "model")
    assert refusal.message == "the model `old` is not served here"
    assert refusal.reason == "no engine serves `gone-model`, which `old` stands for"


def test_a_fallback_is_found_by_alias_and_by_name():
    stage = Stage(aliases={"big": "m"}, fallback_models={"m": "small"})
    assert [stage.fleet.fallback(name) for name in ("m", "big", "small")] == ["small", "small", None]


@pytest.mark.parametrize(
    ("asked", "sees", "hint"),
    [
        ("gpt4", "gpt-4", "; did you mean `gpt-4`?"),
        ("gpt4", "secret-4", ""),
        ("secret4", "gpt-4", ""),
        ("SECRET-4", "gpt-4", ""),
        ("gpt4\n", "gpt-4", "; did you mean `gpt-4`?"),
    ],
)
def test_an_unknown_model_is_told_only_a_name_that_the_caller_may_see(asked, sees, hint):
    stage = Stage().refresh(a=models("gpt-4"), b=models("secret-4"))
    refusal = stage.refusal(asked, lambda model: model == sees)
    assert (refusal.decision, refusal.status) == (Decision.MODEL_UNKNOWN, 404)
    assert refusal.message == f"the model `{asked.replace(chr(10), '?')}` is not served here{hint}"


def test_without_a_word_on_who_may_see_what_no_name_is_proposed():
    stage = Stage().refresh(a=models("gpt-4"))
    assert stage.refusal("gpt4").message == stage.fleet.unknown("gpt4").message == "the model `gpt4` is not served here"


def test_a_hidden_model_reads_like_one_that_does_not_exist():
    stage = Stage(aliases={"alias-x": "secret-x"}).refresh(a=models("gpt-4"), b=models("secret-x"))
    for hidden, nowhere in (("secret-x", "secret-y"), ("alias-x", "alias-y")):
        told = [stage.fleet.unknown(name, lambda model: model == "gpt-4").message for name in (hidden, nowhere)]
        assert told[0].replace(hidden, nowhere) == told[1]


def test_what_a_loading_engine_serves_is_not_unknown():
    stage = Stage().refresh(a=models("m"), b=(503, b""))
    assert stage.fleet.resolve("m") == "m"
    refusal = stage.refusal("other")
    assert (refusal.decision, refusal.status, refusal.param) == (Decision.NO_UPSTREAM, 503, "model")
    assert refusal.retry_after_s
    assert refusal.reason.endswith("; b is loading: its model list answers 503")
    assert "b is" not in refusal.message
    stage.refresh(b=models("other"))
    assert stage.fleet.resolve("other") == "other"
    stage.refresh(b=NotTakenError("x"))
    assert stage.refusal("third").decision is Decision.MODEL_UNKNOWN  # it has said what it serves


def test_without_an_engine_nothing_can_be_told():
    stage = Stage("")
    assert stage.refusal("m").decision is Decision.NO_UPSTREAM
    assert stage.refusal("m").reason.endswith("no upstreams are configured")
    assert (stage.fleet.any_ready(), stage.fleet.status()) == (False, [])


def test_an_adapter_that_is_unloaded_is_gone_at_once_and_remembered():
    stage = Stage().refresh(a=models("base", ("sql", "base")), b=models("base"))
    stage.told()
    stage.fleet.gone(stage.a, "sql")
    assert stage.a.hurry.is_set()
    refusal = stage.refusal("sql")
    assert refusal.decision is Decision.MODEL_UNKNOWN
    assert refusal.reason == "no engine serves `sql`; a served it as an adapter before"
    assert "a served" not in refusal.message
    assert stage.acts == [("upstream_models", "a", "serves other models now; gone: sql")]
    stage.refresh(a=models("base", ("sql", "base"), ("chat", "base")))
    assert stage.fleet.resolve("sql") == "sql"
    assert stage.acts[1:] == [("upstream_models", "a", "serves other models now; new: chat, sql")]
    stage.fleet.gone(stage.b, "sql")  # which it never had
    assert stage.fleet.resolve("sql") == "sql"


def test_a_configured_model_stays_when_an_engine_does_not_know_it():
    stage = Stage("a", ("m", "n")).refresh()
    stage.fleet.gone(stage.a, "m")
    assert (stage.fleet.resolve("m"), stage.fleet.resolve("n"), stage.a.hurry.is_set()) == ("m", "n", True)
    assert stage.fleet.max_model_len("m", stage.a) == 512


def test_what_vanished_is_remembered_within_a_limit():
    stage = Stage("a").refresh(a=models(*(f"lora-{n}" for n in range(1000)))).refresh(a=models())
    assert sum("before" in stage.fleet.unknown(f"lora-{n}").reason for n in range(1000)) == 256
    assert len(stage.acts[-1][2]) < 100


# what a caller is shown


def test_the_list_has_each_name_once_and_only_what_may_be_used():
    stage = Stage(aliases={"gpt-4": "base", "old": "nowhere", "mine": "secret"})
    stage.refresh(a=models("base", ("sql", "base")), b=models("base", "secret"))
    every = [ModelCard(name, max_model_len=512) for name in ("base", "sql", "secret", "gpt-4", "mine")]
    assert stage.fleet.cards(lambda _: True) == every
    assert [card.id for card in stage.fleet.cards(lambda model: model != "secret")] == ["base", "sql", "gpt-4"]
    assert stage.fleet.cards(lambda _: False) == []


def test_every_listed_name_resolves_and_every_other_does_not():
    stage = Stage("a", aliases={"a": "b", "m": "nowhere", "x": "m2"}).refresh(a=models("b", "m", "m2"))
    listed = {card.id for card in stage.fleet.cards(lambda _: True)}
    assert listed == {"a", "b", "x", "m2"}  # `m` is an alias of what nobody serves
    for name in ("a", "b", "m", "x", "m2", "nowhere"):
        if name in listed:
            stage.fleet.resolve(name)
        else:
            assert stage.refusal(name).decision is Decision.MODEL_UNKNOWN


def test_configured_names_are_shown_before_the_engine_has_answered_and_take_its_context():
    stage = Stage("a", ("mine",))
    assert stage.fleet.cards(lambda _: True) == [ModelCard("mine")]
    assert stage.fleet.max_model_len("mine", stage.a) is None
    stage.refresh(a=models("/srv/model.gguf"))
    assert stage.fleet.cards(lambda _: True) == [ModelCard("mine", max_model_len=512)]
    assert stage.fleet.max_model_len("mine", stage.a) == 512
    stage.refresh(a=models("one", "two"))
    assert stage.fleet.max_model_len("mine", stage.a) is None


def test_the_status_of_each_engine():
    stage = Stage().refresh(b=(503, b""))
    stage.a.begin(stage.now)
    a, b = stage.fleet.status()
    assert (a.name, a.state, a.why, a.in_flight, a.models) == ("a", READY, "serves m", 1, ("m",))
    assert (b.name, b.state, b.why, b.in_flight, b.models) == ("b", LOADING, "its model list answers 503", 0, ())
    assert stage.fleet.any_ready()
    stage.fleet.tick(stage.now + 30 * S)
    assert stage.fleet.any_ready()  # silent, perhaps at work
    stage.fleet.refused(stage.a, "does not take connections")
    assert not stage.fleet.any_ready()


# configuration


@pytest.mark.parametrize(
    ("upstreams", "said"),
    [
        ([Upstream(url="http://h:1"), Upstream(url="http://h:1/v1")], "upstream name 'h:1' is used twice"),
        ([Upstream(url="http://h:1", name="x"), Upstream(url="http://h:2", name="x")], "upstream name 'x' is used twice"),
        ([Upstream(url="localhost:8000")], "must be http://HOST:PORT"),
        ([Upstream(url="ftp://h:1")], "upstream url 'ftp://h' must be"),
        ([Upstream(url="http://")], "must be http://HOST:PORT"),
        ([Upstream(url="http://h:x")], "has no valid host and port"),
        ([Upstream(url="http://h:99999")], "has no valid host and port"),
        ([Upstream(url="http://h:0")], "has no valid port"),
        ([Upstream(url="http://[::1")], "has no valid host and port"),
        ([Upstream(url="http://me:planted@h:1")], "upstream url with host 'h' holds a user"),
        ([Upstream(url="http://h:1?key=planted")], "must have no query"),
        ([Upstream(url="http://h:1", api_key_file="/no/such/file")], "upstream 'h:1': cannot read api_key_file /no/such/file"),
    ],
)
def test_engines_that_cannot_work_are_named_at_the_start(upstreams, said):
    with pytest.raises(GatewayError, match=said) as caught:
        Stage(upstreams=tuple(upstreams))
    assert "\n" not in str(caught.value)
    assert "planted" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "place", "root"),
    [
        ("http://h:8000", "h:8000", "http://h:8000"),
        ("http://h:8000/v1/", "h:8000", "http://h:8000"),
        ("http://h", "h:80", "http://h:80"),
        ("https://h/llm/v1", "h:443", "https://h:443/llm"),
        ("http://[::1]:8000", "[::1]:8000", "http://[::1]:8000"),
    ],
)
def test_where_an_engine_is(url, place, root):
    (target,) = Stage(upstreams=(Upstream(url=url, kind="sglang"),)).fleet.targets
    assert (target.name, target.place, target.root, target.kind) == (place, place, root, "sglang")
