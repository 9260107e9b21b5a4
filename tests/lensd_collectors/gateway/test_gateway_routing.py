"""Where a request goes: names, several engines of a model, and engines that are not to be asked."""

import asyncio
import json
import time

from engine_scripts import ADAPTER, GONE, QUICK, SSE, STREAMED, answering, attempts, silent, whole
from gateway_stage import CHAT, MODEL, Call, FakeEngine, capture, run, stage_of
from lensd_collectors.gateway.target import TargetState


def test_an_alias_changes_the_model_in_the_body_and_nothing_else():
    body = (
        b'{ "stream" : false, "temperature":0.10, "n": 1e0, "messages":[ {"content" : "\\u00fc\\/ 1" ,"role":"user"} ],\n'
        b' "model":"gpt-4", "x":{"b" :1,"b":2}}'
    )

    async def main():
        async with stage_of(FakeEngine(whole), aliases={"gpt-4": MODEL}) as s:
            return await s.ask(body), s.engine.calls[0], await s.record()

    answer, call, record = run(main())
    assert answer.headers["x-lensd-model"] == MODEL
    assert call.asked["model"] == MODEL
    for value in (b"false", b"0.10", b"1e0", b'[ {"content" : "\\u00fc\\/ 1" ,"role":"user"} ]', b'{"b" :1,"b":2}'):
        assert value in call.body
    assert list(call.asked) == list(json.loads(body))
    assert (record["gen_ai.request.model"], record["lensd.request.dispatched_model"]) == ("gpt-4", MODEL)
    assert record["lensd.request.rewritten"] == ["model"]


def test_an_adapter_goes_only_to_engines_that_list_it():
    async def main():
        async with stage_of(FakeEngine(whole), FakeEngine(whole, adapters={ADAPTER: MODEL}), FakeEngine(whole)) as s:
            answers = [await s.ask({**CHAT, "model": ADAPTER}) for _ in range(3)]
            got = [len(engine.posts) for engine in s.engines]
            s.engines[1].adapters.clear()
            s.app.fleet.targets[1].hurry.set()
            async with asyncio.timeout(3):
                while s.app.fleet.is_served(ADAPTER):
                    await asyncio.sleep(0.01)
            answers.append(await s.ask({**CHAT, "model": ADAPTER}))
            return answers, got, await s.records()

    answers, got, records = run(main())
    assert [answer.status for answer in answers] == [200, 200, 200, 404]
    assert got == [0, 3, 0]
    assert "engine-b served it as an adapter before" in records[-1]["lensd.error.message"]
    assert "engine-b" not in answers[-1].body.decode()


def test_least_in_flight_gets_the_next():
    async def main():
        async with stage_of(*(FakeEngine(silent) for _ in range(3))) as s:
            opened = [await s.open() for _ in range(6)]
            async with asyncio.timeout(3):
                while sum(len(engine.posts) for engine in s.engines) < 6:
                    await asyncio.sleep(0.002)
            spread = [len(engine.posts) for engine in s.engines]
            opened.pop(2)[1].transport.abort()
            done, _ = await asyncio.wait(
                [asyncio.create_task(call.gone.wait()) for engine in s.engines for call in engine.posts],
                return_when=asyncio.FIRST_COMPLETED, timeout=3,
            )  # fmt: skip
            assert done
            freed = next(at for at, engine in enumerate(s.engines) if any(call.gone.is_set() for call in engine.posts))
            opened.append(await s.open())
            await s.engines[freed].posted(3)
            for _, writer in opened:
                writer.transport.abort()
            await s.records()
            return spread, [target.in_flight for target in s.app.fleet.targets]

    spread, at_the_end = run(main())
    assert spread == [2, 2, 2]
    assert at_the_end == [0, 0, 0]


def test_an_engine_that_makes_no_progress_is_passed_over_while_another_is_ready():
    resume = asyncio.Event()

    async def held(call: Call) -> None:
        await call.start_stream()  # a head is no progress
        await resume.wait()
        await call.chunk(SSE)
        await call.end_stream()

    async def main():
        async with stage_of(FakeEngine(held), FakeEngine(silent), stall_after_s=0.15) as s:
            reader, writer = await s.open(STREAMED)
            await s.engine.posted(1)
            target = s.app.fleet.targets[0]
            async with asyncio.timeout(3):
                while target.state is not TargetState.STALLED:
                    await asyncio.sleep(0.01)
            others = [await s.open() for _ in range(3)]
            await s.engines[1].posted(3)  # though it has more in flight by now
            ready = await s.ask(None, "/readyz", "GET")
            resume.set()
            await reader.readuntil(b"[DONE]\n\n")
            assert target.state is TargetState.READY
            others.append(await s.open())
            await s.engine.posted(2)
            for _, each in [*others, (reader, writer)]:
                each.transport.abort()
            await s.records()
            return ready.status, s.kept.acts()

    ready, acts = run(main())
    assert ready == 200
    assert "upstream_stalled" in acts


def test_one_that_refuses_is_left_and_comes_back():
    async def main():
        async with stage_of(FakeEngine(whole), FakeEngine(whole), retry=QUICK) as s:
            s.engine.die()
            answers = [await s.ask() for _ in range(4)]
            dead = len(s.engine.posts), len(s.engines[1].posts)
            await s.engine.listen()
            async with asyncio.timeout(5):
                while s.app.fleet.targets[0].state is not TargetState.READY:
                    await asyncio.sleep(0.02)
            answers += [await s.ask() for _ in range(2)]
            return answers, dead, len(s.engine.posts), await s.records(), attempts(s)

    answers, dead, back, records, spans = run(main())
    assert [answer.status for answer in answers] == [200] * 6
    assert dead == (0, 4)
    assert back >= 1
    assert [record["lensd.attempts"] for record in records[:4]] == [2, 1, 1, 1]
    assert answers[0].headers["x-lensd-attempts"] == "2"
    assert "x-should-retry" not in answers[0].headers
    assert spans[0] == (2, "engine-b", None, None)


def test_a_dead_engine_that_still_talks_is_left_for_longer_and_longer():
    """Its API server lists the model and answers each request that the engine behind it has died."""
    dead_body = capture("killworker-nonstream.json")["body"].encode()

    async def main():
        async with stage_of(FakeEngine(answering(500, body=dead_body)), FakeEngine(whole), retry=QUICK) as s:
            until = time.perf_counter() + 1.5
            while time.perf_counter() < until:
                assert (await s.ask()).status == 200
                await asyncio.sleep(0.01)
            return len(s.engine.posts), len(s.engines[1].posts)

    dead, alive = run(main())
    assert 1 <= dead <= 3
    assert alive > 20


def test_one_that_is_loading_gets_nothing():
    async def main():
        loading = FakeEngine(whole)
        loading.list_status = 503
        async with stage_of(loading, FakeEngine(whole), upstream={"models": (MODEL,)}) as s:
            for _ in range(4):
                assert (await s.ask()).status == 200
            s.engines[1].die()
            alone = await s.ask()
            ready = await s.ask(None, "/readyz", "GET")
            before = len(loading.posts)
            loading.list_status = 200
            async with asyncio.timeout(5):
                while s.app.fleet.targets[0].state is not TargetState.READY:
                    await asyncio.sleep(0.02)
            return before, alone, ready, await s.ask(), await s.records()

    before, alone, ready, after, records = run(main())
    assert before == 0
    assert (alone.status, alone.error["code"]) == (503, "no_upstream")
    assert "engine-" not in alone.body.decode()
    assert "engine-b does not take connections" in records[4]["lensd.error.message"]
    assert (ready.status, after.status) == (503, 200)


def test_where_all_are_loading_it_is_503_not_404():
    async def main():
        loading = FakeEngine(whole)
        loading.list_status = 503
        async with stage_of(loading) as s:
            ready = await s.ask(None, "/readyz", "GET")
            return ready, await s.ask(), len(loading.posts)

    ready, answer, posts = run(main())
    assert (ready.status, answer.status, answer.error["code"], posts) == (503, 503, "no_upstream", 0)
    assert answer.headers["retry-after"]


def test_an_engine_that_says_the_model_is_gone_is_asked_for_it_no_more():
    async def main():
        async with stage_of(FakeEngine(answering(404, body=GONE)), FakeEngine(whole), retry=QUICK) as s:
            s.engine.models.remove(MODEL)
            answers = [await s.ask() for _ in range(4)]
            return answers, len(s.engine.posts), await s.records(), attempts(s)

    answers, asked, records, spans = run(main())
    assert [answer.status for answer in answers] == [200] * 4
    assert asked == 1
    assert [record["lensd.attempts"] for record in records] == [2, 1, 1, 1]
    assert spans[:2] == [(1, "engine-a", 404, "model_unknown"), (2, "engine-b", None, None)]


def test_an_engine_that_refuses_the_gateways_key_is_left_too():
    async def main():
        async with stage_of(FakeEngine(answering(401)), FakeEngine(whole), retry=QUICK) as s:
            s.engine.list_status = 401
            answers = [await s.ask() for _ in range(4)]
            return answers, len(s.engine.posts)

    answers, asked = run(main())
    assert [answer.status for answer in answers] == [200] * 4
    assert asked == 1
