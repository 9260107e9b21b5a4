"""Which engine gets a request, in which state each is, and what a name leads to."""

import asyncio
import itertools
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from lensd_collectors.conventions import Decision
from lensd_collectors.gateway.config import GatewayConfig, Upstream
from lensd_collectors.gateway.decisions import Refused
from lensd_collectors.gateway.fleet import Fleet, ModelCard, TargetState
from lensd_collectors.gateway.http1 import BrokenError
from lensd_collectors.gateway.routes import GatewayError
from lensd_collectors.gateway.upstream import NotTakenError

LOADING, READY, STALLED, OUT = TargetState.LOADING, TargetState.READY, TargetState.STALLED, TargetState.OUT
S = 1_000_000_000


def models(*cards):
    """A model list; a string is a name, a pair an adapter and its model."""
    listed = [
        {"id": card, "max_model_len": 512, "root": "/srv/secret"} if isinstance(card, str) else {"id": card[0], "parent": card[1]}
        for card in cards
    ]
    return 200, json.dumps({"object": "list", "data": listed}).encode()


class Engines:
    """A client whose engines answer as the test says: a status and body, or an exception. Port 1 is engine a, and so on."""

    def __init__(self, **answers):
        self.answers = answers
        self.asked = []
        self.meanwhile = lambda: None

    async def ask(self, method, url, *, headers, body, timeout_s, most):
        assert (method, body) == ("GET", None)
        assert timeout_s <= 2
        assert most == 4 << 20
        name = "abcd"[int(url.removesuffix("/v1/models").removeprefix("http://h:")) - 1]
        self.asked.append((name, dict(headers)))
        self.meanwhile()
        answer = self.answers[name]
        if isinstance(answer, Exception):
            raise answer
        return answer


class Stage:
    """A fleet with a clock that the test moves, and all that it reported."""

    def __init__(self, engines="ab", configured=(), **settings):
        self.now = 100 * S
        self.acts = []
        upstreams = tuple(Upstream(url=f"http://h:{number}", name=name, models=configured) for number, name in enumerate(engines, 1))
        config = GatewayConfig(**{"upstreams": upstreams, "stall_after_s": 30, **settings})
        self.fleet = Fleet(config, lambda act, engine, why: self.acts.append((act, engine, why)), lambda: self.now)
        self.client = Engines(**{name: models("m") for name in engines})

    def __getattr__(self, name):
        return next(target for target in self.fleet.targets if target.name == name)

    def refresh(self, **answers):
        self.client.answers |= answers
        asyncio.run(self.fleet.refresh(self.client))
        return self

    def told(self):
        """The acts since the last call, without their texts."""
        told, self.acts = [(act, engine) for act, engine, _ in self.acts], []
        return told

    def pick(self, model="m", tried=()):
        target = self.fleet.pick(model, tried)
        return target.name if target is not None else None

    def refusal(self, name, visible=None):
        with pytest.raises(Refused) as caught:
            self.fleet.resolve(name, visible)
        return caught.value


# what an engine's list makes of it


@pytest.mark.parametrize(
    ("configured", "first", "then", "acts"),
    [
        ((), NotTakenError("Connection refused"), LOADING, ["upstream_loading"]),
        ((), (503, b'{"error":{"message":"Loading model"}}'), LOADING, ["upstream_loading"]),
        ((), TimeoutError(), LOADING, ["upstream_loading"]),
        ((), BrokenError("closed"), LOADING, ["upstream_loading"]),
        ((), (404, b""), LOADING, ["upstream_loading"]),
        ((), (307, b""), LOADING, ["upstream_loading"]),
        ((), (200, b"<html>"), LOADING, ["upstream_loading"]),
        ((), (401, b""), OUT, ["upstream_out"]),
        ((), (403, b""), OUT, ["upstream_out"]),
        ((), models(), READY, ["upstream_in"]),
        ((), models("m"), READY, ["upstream_in"]),
        (("m",), NotTakenError("Connection refused"), LOADING, ["upstream_loading"]),
        (("m",), (503, b""), LOADING, ["upstream_loading"]),
        (("m",), (404, b""), READY, ["upstream_in"]),
        (("m",), (200, b"<html>"), READY, ["upstream_in"]),
        (("m",), (401, b""), OUT, ["upstream_out"]),
    ],
)
def test_the_first_answer(configured, first, then, acts):
    stage = Stage("a", configured)
    assert stage.a.state is LOADING
    stage.refresh(a=first).refresh()
    assert stage.a.state is then
    assert stage.told() == [(act, "a") for act in acts]  # once, however often it is asked


@pytest.mark.parametrize("later", [NotTakenError("x"), BrokenError("x"), TimeoutError(), (500, b""), (503, b""), (404, b""), (401, b"")])
def test_an_engine_that_was_ready_goes_out_and_comes_back_with_its_list(later):
    stage = Stage("a").refresh().refresh(a=later)
    assert stage.a.state is OUT
    assert stage.fleet.resolve("m") == "m"  # what it serves stays known
    stage.refresh(a=models("m"))
    assert stage.a.state is READY
    assert stage.told() == [("upstream_in", "a"), ("upstream_out", "a"), ("upstream_in", "a")]


def test_an_engine_that_is_out_and_then_refuses_the_key_is_told_of_again():
    stage = Stage("a").refresh().refresh(a=NotTakenError("x")).refresh(a=(503, b"")).refresh(a=(401, b""))
    assert stage.told() == [("upstream_in", "a"), ("upstream_out", "a"), ("upstream_out", "a")]
    assert "API key" in stage.a.why


def test_a_busy_engine_that_gives_bytes_is_not_out_for_a_late_list():
    stage = Stage("a").refresh()
    stage.a.begin(stage.now)

    def meanwhile():
        stage.now += 2 * S
        stage.a.byte(stage.now)

    stage.client.meanwhile = meanwhile
    stage.refresh(a=TimeoutError())
    assert stage.a.state is READY
    stage.client.meanwhile = lambda: None
    stage.now += S
    stage.refresh()
    assert stage.a.state is OUT
    assert "did not come within 2 s" in stage.a.why


def test_a_refused_credential_is_told_apart_from_an_engine_that_is_down(tmp_path):
    (tmp_path / "key").write_text("right-key")
    with_key = Upstream(url="http://h:1", name="a", api_key_file=str(tmp_path / "key"))
    stage = Stage(upstreams=(with_key, Upstream(url="http://h:2", name="b")))
    stage.client.answers = {"a": models("m"), "b": models("m")}
    stage.refresh(a=(401, b""), b=(401, b""))
    assert stage.client.asked == [("a", {"Authorization": "Bearer right-key"}), ("b", {})]
    assert [why for _, _, why in stage.acts] == [
        "the gateway's API key is refused: its model list answers 401",
        "it wants an API key, and no api_key_file is configured: its model list answers 401",
    ]
    refusal = stage.refusal("m")
    assert (refusal.decision, refusal.status) == (Decision.UPSTREAM_CREDENTIAL_REFUSED, 502)
    assert "a is out" in refusal.reason
    stage.told()
    stage.refresh(a=NotTakenError("x"))  # down, and never was ready
    assert (stage.a.state, stage.told()) == (LOADING, [("upstream_loading", "a")])
    assert stage.refusal("m").decision is Decision.NO_UPSTREAM
    assert "right-key" not in repr(stage.acts)


def test_a_credential_is_read_again_when_its_file_changes(tmp_path):
    path = tmp_path / "key"
    path.write_text("old")
    stage = Stage(upstreams=(Upstream(url="http://h:1", name="a", api_key_file=str(path)),))
    stage.client.answers = {"a": models("m")}
    stage.refresh()
    path.write_text("newer")
    stage.refresh()
    path.write_text("")
    stage.refresh().refresh()
    assert [headers["Authorization"] for _, headers in stage.client.asked] == ["Bearer old", *["Bearer newer"] * 3]
    assert stage.told() == [("upstream_in", "a"), ("credential_reloaded", "a"), ("credential_rejected", "a")]
    assert stage.a.credential == "Bearer newer"


# which engine gets a request


@pytest.mark.parametrize(
    ("states", "picked"),
    [
        ([(READY, 3), (READY, 1)], "b"),
        ([(READY, 3), (STALLED, 0)], "a"),
        ([(READY, 3), (OUT, 0)], "a"),
        ([(STALLED, 3), (OUT, 0)], "a"),
        ([(STALLED, 3), (STALLED, 1)], "b"),
        ([(OUT, 3), (OUT, 1)], "b"),  # none is ready: still tried
        ([(OUT, 3), (LOADING, 0)], "a"),
        ([(LOADING, 0), (READY, 9)], "b"),
        ([(LOADING, 0), (LOADING, 0)], None),
    ],
)
def test_a_request_goes_to_the_best_state_and_there_where_least_is_in_flight(states, picked):
    stage = Stage(configured=("m",))
    for target, (state, in_flight) in zip(stage.fleet.targets, states, strict=True):
        _bring(stage, target, state)
        for _ in range(in_flight):
            target.begin(stage.now)
        assert (target.state, target.in_flight) == (state, in_flight)
    assert stage.pick() == picked


def _bring(stage, target, state):
    if state is not LOADING:
        target.succeed(stage.now, "serves m")
    if state is OUT:
        stage.fleet.refused(target, "does not take connections")
    if state is STALLED:
        target.begin(stage.now)
        target.check_progress(stage.now + 30 * S, 30 * S)
        target.end(stage.now + 30 * S)


def test_idle_engines_take_turns():
    stage = Stage("abc").refresh()
    picked = []
    for _ in range(7):
        target = stage.fleet.pick("m")
        stage.now += 1
        target.begin(stage.now)
        target.end(stage.now)
        picked.append(target.name)
    assert picked == list("abcabca")


def test_what_was_tried_is_not_picked_again():
    stage = Stage("abc").refresh()
    tried = []
    for _ in range(3):
        tried.append(stage.fleet.pick("m", tried))
    assert [target.name for target in tried] == ["a", "b", "c"]
    assert stage.pick(tried=tried) is None
    assert stage.pick("nope") is None


def test_a_model_is_asked_only_where_it_is_served():
    stage = Stage().refresh(a=models("base", ("sql", "base")), b=models("base"))
    assert [stage.pick("sql"), stage.pick("sql", [stage.a]), stage.pick("base", [stage.a])] == ["a", None, "b"]
    assert [target.name for target in stage.fleet.serving("base")] == ["a", "b"]
    assert (stage.fleet.is_served("sql"), stage.fleet.is_served("nope"), set(stage.fleet.models())) == (True, False, {"base", "sql"})
    stage.a.begin(stage.now)
    stage.b.begin(stage.now)
    assert [stage.fleet.in_flight(model) for model in ("base", "sql", "nope")] == [2, 1, 0]


def test_an_unavailable_model_says_in_the_record_how_each_engine_stands():
    stage = Stage(configured=("m",)).refresh(a=NotTakenError("Connection refused"), b=(503, b""))
    refusal = stage.fleet.unavailable("m")
    assert (refusal.decision, refusal.status) == (Decision.NO_UPSTREAM, 503)
    assert refusal.reason == (
        "no engine for `m`: a is loading: its model list cannot be had: Connection refused; b is loading: its model list answers 503"
    )
    assert refusal.retry_after_s
    assert "list" not in refusal.message


# requests that fail, and engines that come back


def test_a_failed_request_puts_an_engine_out_and_a_response_brings_it_back():
    stage = Stage().refresh()
    stage.fleet.refused(stage.a, "does not take connections")
    assert (stage.a.state, stage.a.hurry.is_set(), stage.pick()) == (OUT, True, "b")
    began = stage.now = stage.now + S
    stage.fleet.answered(stage.a, began - 2 * S)  # a request from before it went out
    assert stage.a.state is OUT
    stage.fleet.answered(stage.a, began)
    assert stage.a.state is READY
    assert stage.told()[2:] == [("upstream_out", "a"), ("upstream_in", "a")]


def test_a_list_that_was_asked_for_before_the_failure_does_not_bring_it_back():
    stage = Stage("a").refresh()

    def meanwhile():
        stage.now += 1
        stage.fleet.refused(stage.a, "does not take connections")

    stage.client.meanwhile = meanwhile
    stage.refresh()
    assert stage.a.state is OUT


def test_an_engine_that_lists_its_models_and_fails_every_request_stays_out_longer_each_time():
    stage = Stage("a").refresh()
    outs = []
    for _ in range(8):
        stage.fleet.refused(stage.a, "answers that it is dead")
        stage.fleet.refused(stage.a, "answers that it is dead")  # the rest of what it had: the same failure
        since = stage.now
        while stage.a.state is OUT and stage.now < since + 60 * S:
            stage.now += S
            stage.refresh()
        outs.append((stage.now - since) // S)
    assert outs == [1, 1, 2, 4, 8, 16, 30, 30]
    stage.fleet.answered(stage.a, stage.now)
    stage.fleet.refused(stage.a, "does not take connections")
    stage.now += 1
    stage.refresh()
    assert stage.a.state is READY  # forgiven with the first request that went well


def test_a_refused_credential_is_not_lifted_by_a_response():
    stage = Stage("a", ("m",)).refresh(a=(401, b""))
    assert stage.pick() == "a"  # the last resort: its 401 is what the caller's record should name
    stage.fleet.answered(stage.a, stage.now)
    assert stage.a.state is OUT


# no progress


def test_an_engine_without_a_byte_is_stalled_until_one_comes():
    stage = Stage().refresh()
    stage.told()
    stage.a.begin(stage.now)
    stage.now += 29 * S
    stage.fleet.tick(stage.now)
    assert stage.a.state is READY
    stage.a.byte(stage.now)
    stage.now += 29 * S
    stage.fleet.tick(stage.now)
    assert (stage.a.state, stage.a.waits_since) == (READY, stage.now - 29 * S)
    stage.now += S
    stage.fleet.tick(stage.now)
    stage.fleet.tick(stage.now)
    assert (stage.a.state, stage.pick(), stage.pick(tried=[stage.b])) == (STALLED, "b", "a")
    assert stage.acts == [("upstream_stalled", "a", "no byte for 30 s with 1 in flight")]
    stage.refresh()
    stage.fleet.answered(stage.a, stage.now)
    assert stage.a.state is STALLED  # neither its list nor response headers are progress
    stage.a.byte(stage.now)
    assert stage.a.state is READY
    assert stage.told()[1:] == [("upstream_in", "a")]


def test_an_idle_engine_never_stalls_and_waits_from_its_first_request():
    stage = Stage("a").refresh()
    stage.now += 3600 * S
    stage.fleet.tick(stage.now)
    stage.a.begin(stage.now)
    stage.now += 20 * S
    stage.a.begin(stage.now)  # a second one does not hide how long the first has waited
    stage.now += 10 * S
    stage.fleet.tick(stage.now)
    assert stage.a.state is STALLED


def test_a_stalled_engine_that_lost_its_requests_is_tried_with_one_after_a_while():
    stage = Stage().refresh()
    stage.a.begin(stage.now)
    stage.now += 30 * S
    stage.fleet.tick(stage.now)
    stage.a.end(stage.now)
    stage.b.begin(stage.now)
    stage.b.begin(stage.now)
    stage.now += 29 * S
    stage.b.byte(stage.now)
    stage.fleet.tick(stage.now)
    assert (stage.a.state, stage.pick()) == (STALLED, "b")
    stage.now += S
    stage.fleet.tick(stage.now)
    assert stage.pick() == "a"
    stage.a.begin(stage.now)
    assert (stage.a.state, stage.pick()) == (STALLED, "b")
    stage.a.byte(stage.now)
    assert (stage.a.state, stage.told()[-1]) == (READY, ("upstream_in", "a"))


def test_a_stalled_engine_that_goes_away_is_out():
    stage = Stage("a").refresh()
    stage.a.begin(stage.now)
    stage.fleet.tick(stage.now + 30 * S)
    stage.refresh(a=NotTakenError("Connection refused"))
    stage.a.byte(stage.now + 31 * S)
    assert stage.a.state is OUT
    assert stage.told() == [("upstream_in", "a"), ("upstream_stalled", "a"), ("upstream_out", "a")]


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


# asking for ever


def test_engines_are_asked_again_and_one_that_failed_a_request_at_once():
    async def main():
        stage = Stage()
        both, more = asyncio.Event(), asyncio.Event()

        def meanwhile():
            names = [name for name, _ in stage.client.asked]
            if set(names) == {"a", "b"}:
                both.set()
            if names.count("a") > 1:
                more.set()

        stage.client.meanwhile = meanwhile
        stage.client.answers["b"] = RuntimeError("not foreseen")
        task = asyncio.create_task(stage.fleet.keep_fresh(stage.client, every_s=3600, soon_s=0.004))
        async with asyncio.timeout(5):
            await both.wait()
            stage.fleet.refused(stage.a, "does not take connections")
            await more.wait()
        assert not task.done()  # whatever an engine does
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        return [name for name, _ in stage.client.asked]

    assert asyncio.run(main()).count("a") == 2  # ready again, it would next be asked in an hour


# whatever happens


class Life(RuleBasedStateMachine):
    """Requests begin, get bytes and end in any order while engines come, fail and stall."""

    @initialize(configured=st.booleans())
    def start(self, configured):
        self.stage = Stage("abc", ("m",) if configured else ())
        self.open = []

    def _later(self, seconds):
        self.stage.now += int(seconds * S) + 1

    @rule(tried=st.sets(st.integers(0, 2)), seconds=st.floats(0, 40))
    def begin(self, tried, seconds):
        self._later(seconds)
        targets = self.stage.fleet.targets
        left_out = [targets[number] for number in tried]
        target = self.stage.fleet.pick("m", left_out)
        able = [each for each in self.stage.fleet.serving("m") if each.state is not LOADING and each not in left_out]
        if target is None:
            assert not able
            return
        assert target in able
        if any(each.state is READY for each in able):
            assert target.state is READY or (target.state is STALLED and not target.in_flight)
        target.begin(self.stage.now)
        self.open.append((target, self.stage.now))

    @rule(pick=st.integers(0), seconds=st.floats(0, 40), how=st.sampled_from(["byte", "answered", "refused", "gone"]))
    def hear(self, pick, seconds, how):
        self._later(seconds)
        if self.open:
            target, began = self.open[pick % len(self.open)]
            if how == "byte":
                target.byte(self.stage.now)
                assert target.state is not STALLED
            elif how == "answered":
                self.stage.fleet.answered(target, began)
            elif how == "refused":
                self.stage.fleet.refused(target, "does not take connections")
                assert target.state in (OUT, LOADING)
            else:
                self.stage.fleet.gone(target, "m")

    @rule(pick=st.integers(0), seconds=st.floats(0, 40))
    def end(self, pick, seconds):
        self._later(seconds)
        if self.open:
            target, _ = self.open.pop(pick % len(self.open))
            target.end(self.stage.now)

    @rule(
        seconds=st.floats(0, 40), answers=st.lists(st.sampled_from(["m", "none", 503, 401, 404, "refused", "late"]), min_size=3, max_size=3)
    )
    def ask(self, seconds, answers):
        self._later(seconds)
        said = {"m": models("m"), "none": models(), "refused": NotTakenError("x"), "late": TimeoutError()}
        self.stage.refresh(**{name: said.get(each, (each, b"")) for name, each in zip("abc", answers, strict=True)})

    @rule(seconds=st.floats(0, 40))
    def tick(self, seconds):
        self._later(seconds)
        self.stage.fleet.tick(self.stage.now)

    @invariant()
    def counts_are_right(self):
        if hasattr(self, "open"):
            for target in self.stage.fleet.targets:
                assert target.in_flight == sum(each is target for each, _ in self.open)
                assert (target.state is LOADING) <= (not target.has_answered)

    def teardown(self):
        if hasattr(self, "open"):
            for target, _ in self.open:
                target.end(self.stage.now)
            assert [target.in_flight for target in self.stage.fleet.targets] == [0, 0, 0]


TestLife = Life.TestCase


@given(st.lists(st.sampled_from(["a", "b"]), max_size=12), st.sampled_from(list(itertools.product([0, 1, 5], repeat=2))))
def test_engines_in_the_same_state_share_what_comes(ends, before):
    """Whatever ends in between, a new request goes where fewer are."""
    stage = Stage().refresh()
    for target, count in zip(stage.fleet.targets, before, strict=True):
        for _ in range(count):
            target.begin(stage.now)
    for name in ends:
        stage.now += 1
        target = getattr(stage, name)
        if target.in_flight:
            target.end(stage.now)
        least = min(each.in_flight for each in stage.fleet.targets)
        picked = stage.fleet.pick("m")
        assert picked.in_flight == least
        picked.begin(stage.now)
