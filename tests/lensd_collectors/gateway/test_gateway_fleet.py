"""Which engine gets a request, and in which state each is."""

import asyncio

import pytest
from fleet_stage import LOADING, OUT, READY, STALLED, S, Stage, models
from lensd_collectors.conventions import Decision
from lensd_collectors.gateway.config import Upstream
from lensd_collectors.gateway.http1 import BrokenError
from lensd_collectors.gateway.upstream import NotTakenError

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
