"""Another model answers while no engine has the one that was meant."""

import asyncio

import pytest
from engine_scripts import GONE, QUICK, SMALL, STREAMED, WHOLE, answering, attempts, cut, cut_midway, streamed, whole
from gateway_stage import CHAT, MODEL, Call, FakeEngine, run, stage_of
from lensd_collectors.gateway.config import Retry
from lensd_collectors.gateway.keys import append, new_key

FALLBACK = {"fallback_models": {MODEL: SMALL}}


def pair(script, then=whole) -> tuple[FakeEngine, FakeEngine]:
    return FakeEngine(script), FakeEngine(then, models=[SMALL])


async def dead(call: Call) -> None:
    raise AssertionError("it takes no connections")


@pytest.mark.parametrize(
    ("script", "made"),
    [
        pytest.param(dead, 3, id="takes no connections"),
        pytest.param(answering(503), 3, id="busy"),
        pytest.param(answering(404, body=GONE), 2, id="has unloaded it"),
        pytest.param(cut, 3, id="breaks off"),
    ],
)
def test_the_fallback_answers_where_no_engine_of_the_model_can(script, made):
    async def main():
        async with stage_of(*pair(script), retry=Retry(most=1, first_s=0.01, busy_s=0.01), **FALLBACK) as s:
            if script is dead:
                s.engine.die()
            answer = await s.ask()
            return answer, s.engines[1].posts[0], await s.record(), attempts(s)

    answer, call, record, spans = run(main())
    assert (answer.status, answer.body) == (200, WHOLE)
    assert (answer.headers["x-lensd-model"], answer.headers["x-lensd-attempts"]) == (SMALL, str(made))
    assert call.asked == {**CHAT, "model": SMALL}
    assert (record["gen_ai.request.model"], record["lensd.request.dispatched_model"]) == (MODEL, SMALL)
    assert (record["lensd.engine"], record["lensd.attempts"], record["lensd.request.rewritten"]) == ("engine-b", made, ["model"])
    assert spans[-1][:2] == (made, "engine-b")


def test_a_model_that_is_gone_stays_with_its_fallback():
    async def main():
        async with stage_of(*pair(answering(404, body=GONE)), **FALLBACK) as s:
            s.engine.models.clear()
            answers = [await s.ask() for _ in range(3)]
            return [(answer.status, answer.headers.get("x-lensd-model")) for answer in answers], len(s.engine.posts)

    assert run(main()) == ([(200, SMALL)] * 3, 1)


def test_a_model_whose_engine_is_loading_too():
    async def main():
        engines = pair(whole)
        engines[0].list_status = 503
        async with stage_of(*engines, **FALLBACK) as s:
            answers = [await s.ask()]
            engines[0].list_status = 200
            async with asyncio.timeout(5):
                while not s.app.fleet.is_served(MODEL):
                    await asyncio.sleep(0.02)
            answers.append(await s.ask())
            return [(answer.status, answer.headers.get("x-lensd-model")) for answer in answers], len(engines[0].posts)

    assert run(main()) == ([(200, SMALL), (200, None)], 1)


@pytest.mark.parametrize("status", [400, 413, 422, 500])
def test_an_answer_about_the_request_itself_is_the_answer(status):
    async def main():
        async with stage_of(*pair(answering(status)), retry=QUICK, **FALLBACK) as s:
            answer = await s.ask()
            return answer.status, len(s.engines[1].posts), answer.headers.get("x-lensd-model")

    assert run(main()) == (status, 0, None)


def test_no_fallback_after_a_byte_has_reached_the_caller():
    async def main():
        async with stage_of(*pair(cut_midway, streamed), retry=QUICK, **FALLBACK) as s:
            answer = await s.ask(STREAMED)
            return answer, len(s.engines[1].posts)

    answer, posts = run(main())
    assert posts == 0
    assert b'"code":"stream_cut"' in answer.body


@pytest.mark.parametrize(("models", "status"), [([MODEL], 503), ([MODEL, SMALL], 200)])
@pytest.mark.parametrize("how", ["busy", "unloaded"])
def test_only_a_key_that_may_use_the_fallback_gets_it(tmp_path, models, status, how):
    path = tmp_path / "keys.toml"
    secret, entry = new_key("one", models)
    append(path, entry)

    async def main():
        async with stage_of(*pair(answering(503)), retry=Retry(most=0), require_key=True, keys_file=str(path), **FALLBACK) as s:
            if how == "unloaded":
                s.engine.models.clear()
                await s.app.fleet.refresh(s.app._client)
            answer = await s.ask(headers={"Authorization": f"Bearer {secret}"})
            return answer, len(s.engines[1].posts)

    answer, posts = run(main())
    assert answer.status == (404 if how == "unloaded" and status == 503 else status)
    assert posts == (status == 200)
    assert status == 200 or SMALL not in answer.body.decode()


def test_a_key_that_may_use_the_fallback_only_is_refused_as_ever(tmp_path):
    path = tmp_path / "keys.toml"
    secret, entry = new_key("one", [SMALL])
    append(path, entry)

    async def main():
        async with stage_of(*pair(whole), require_key=True, keys_file=str(path), **FALLBACK) as s:
            header = {"Authorization": f"Bearer {secret}"}
            there = await s.ask(headers=header)
            s.engine.models.clear()
            await s.app.fleet.refresh(s.app._client)
            gone = await s.ask(headers=header)
            return there.status, gone.status, len(s.engines[1].posts)

    there, gone, posts = run(main())
    assert (there, posts) == (403, 0)
    assert gone in (403, 404)


def test_where_the_fallback_cannot_answer_either():
    async def main():
        async with stage_of(*pair(answering(503, "retry-after: 7")), retry=Retry(most=0), **FALLBACK) as s:
            s.engines[1].die()
            return await s.ask(), await s.record(), attempts(s)

    answer, record, spans = run(main())
    assert (answer.status, answer.headers["x-lensd-model"]) == (503, SMALL)
    assert spans == [(1, "engine-a", 503, "engine_busy")]  # the second was never sent
    assert (record["lensd.decision"], record["lensd.attempts"]) == ("no_upstream", 2)


def test_a_fallback_is_the_first_attempt_where_nobody_could_be_asked_before():
    async def main():
        engines = pair(whole)
        engines[0].list_status = 503
        async with stage_of(*engines, upstream={"models": (MODEL,)}, **FALLBACK) as s:
            return await s.ask(), await s.record(), attempts(s)

    answer, record, spans = run(main())
    assert (answer.status, answer.headers["x-lensd-model"], record["lensd.attempts"]) == (200, SMALL, 1)
    assert "x-lensd-attempts" not in answer.headers
    assert spans == [(None, "engine-b", None, None)]
