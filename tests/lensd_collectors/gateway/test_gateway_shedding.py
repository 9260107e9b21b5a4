"""Load shedding through the whole gateway: when it begins and ends, and what it does to a request meanwhile."""

import asyncio
import json

import pytest
from gateway_stage import CAPTURES, CHAT, MODEL, Call, FakeEngine, capture, run, stage_of
from lensd_collectors.gateway.config import Act, Degrade
from lensd_collectors.gateway.keys import append, new_key

WHOLE = capture("http/ok-chat-nonstream.json")["body"].encode()
PAGE = (CAPTURES / "metrics-3-under-load-queue-2.txt").read_text()
STREAMED = {**CHAT, "stream": True}
SMALL = "small-model"


class Engine(FakeEngine):
    """Holds streams until their callers leave, answers all else, and says of itself how full it is."""

    def __init__(self, models=(MODEL,)) -> None:
        super().__init__(self.play, models)
        self.waiting: float | None = None
        self.kv_usage = 0.0
        self.read = 0  # how often its metrics were

    async def play(self, call: Call) -> None:
        if call.path == "/metrics":
            self.read += 1
            await call.reply(200 if self.waiting is not None else 404, self.page().encode(), "text/plain; version=0.0.4")
        elif call.path == "/tokenize":
            words = sum(len(each["content"].split()) for each in call.asked["messages"])
            await call.reply(200, b'{"count": %d, "max_model_len": 512, "tokens": []}' % words)
        elif call.asked.get("stream"):
            await call.start_stream()
            await asyncio.sleep(60)
        else:
            await call.reply(200, WHOLE)

    def page(self) -> str:
        """A real page, with these two values in it."""
        lines = []
        for line in PAGE.splitlines():
            name, _, _ = line.rpartition(" ")
            if name.startswith("vllm:num_requests_waiting{"):
                line = f"{name} {self.waiting}"
            elif name.startswith("vllm:kv_cache_usage_perc{"):
                line = f"{name} {self.kv_usage}"
            lines.append(line)
        return "\n".join(lines) + "\n"


def shedding(act=Act.REFUSE, **given) -> dict:
    told = {"enter_after_s": 0.0, "leave_after_s": 0.3, "leave_at": 0.5, "scrape_every_s": 0.03, **given}
    return {"degrade": Degrade(enabled=True, act=act, **told)}


async def switched(s, act: str, times: int = 1) -> None:
    async with asyncio.timeout(5):
        while s.kept.acts().count(act) < times:
            await asyncio.sleep(0.005)


async def fill(s, count: int) -> list[asyncio.StreamWriter]:
    """So many streams in flight."""
    before = len(s.engine.posts)
    opened = [(await s.open(STREAMED))[1] for _ in range(count)]
    await s.engine.posted(before + count)
    return opened


async def leave(writers: list[asyncio.StreamWriter], s, left: int) -> None:
    while len(writers) > left:
        writers.pop().transport.abort()
    async with asyncio.timeout(3):
        while len(s.app.live) > left:
            await asyncio.sleep(0.005)


def test_over_the_threshold_new_requests_are_refused_and_open_ones_go_on():
    async def main():
        async with stage_of(Engine(), **shedding(in_flight=2, retry_after_s=7)) as s:
            opened = await fill(s, 2)
            await asyncio.sleep(0.15)
            at_it = await s.ask()
            opened += await fill(s, 1)
            await switched(s, "degrade_on")
            posts = len(s.engine.posts)
            refused = await s.ask()
            page = (await s.ask(None, "/metrics", "GET")).body.decode()
            open_still = len(s.app.live)
            told = next(each for each in s.kept.events if each["attributes"].get("lensd.gateway.act") == "degrade_on")
            await leave(opened, s, 0)
            return at_it, refused, len(s.engine.posts) - posts, open_still, page, told, await s.records()

    at_it, refused, posts, open_still, page, told, records = run(main())
    assert at_it.status == 200
    assert (refused.status, refused.error["code"], refused.headers["retry-after"]) == (503, "overloaded", "7")
    assert (refused.headers["x-lensd-degraded"], refused.headers["x-lensd-said-by"]) == ("refuse", "gateway")
    assert "in_flight" not in refused.body.decode()
    assert (posts, open_still) == (0, 3)
    assert 'lensd_gateway_degraded{model="tiny-llama"} 1.0' in page
    assert told["severity"] == "warning"
    assert "in_flight 3 (threshold 2)" in told["body"]
    record = next(each for each in records if each["http.response.status_code"] == 503)
    assert (record["lensd.decision"], record["lensd.outcome"], record["lensd.degraded"]) == ("overloaded", "refused", "refuse")
    assert [each.get("lensd.degraded") for each in records].count("refuse") == 1


def test_it_ends_well_below_the_threshold_and_not_at_once():
    async def main():
        async with stage_of(Engine(), **shedding(in_flight=4, leave_after_s=0.6)) as s:
            opened = await fill(s, 5)
            await switched(s, "degrade_on")
            await leave(opened, s, 3)  # under the threshold of 4, over the half of it
            await asyncio.sleep(0.9)
            between = await s.ask(), list(s.kept.acts())
            await leave(opened, s, 2)
            low = await s.ask()  # the time for it is not over
            await switched(s, "degrade_off")
            after = await s.ask()
            opened += await fill(s, 3)
            await switched(s, "degrade_on", 2)
            await leave(opened, s, 0)
            return between, low, after

    (between, acts), low, after = run(main())
    assert (between.status, low.status, after.status) == (503, 503, 200)
    assert "degrade_off" not in acts
    assert "x-lensd-degraded" not in after.headers


@pytest.mark.parametrize(
    ("asked", "sent", "degraded"),
    [({"max_tokens": 16}, 8, "cap"), ({}, 8, "cap"), ({"max_tokens": 4}, 4, None), ({"max_completion_tokens": 99}, 8, "cap")],
)
def test_a_cap_is_in_the_body_that_reaches_the_engine(asked, sent, degraded):
    body = {"model": MODEL, "messages": CHAT["messages"], "temperature": 0.25, **asked}

    async def main():
        async with stage_of(Engine(), **shedding(Act.CAP, in_flight=1, max_tokens=8)) as s:
            before = await s.ask(body)
            opened = await fill(s, 2)
            await switched(s, "degrade_on")
            answer = await s.ask(body)
            call = s.engine.posts[-1]
            await leave(opened, s, 0)
            return before, s.engine.posts[0], answer, call, (await s.records())[1]

    before, plain, answer, call, record = run(main())
    assert plain.asked == body
    assert "x-lensd-degraded" not in before.headers
    name = next(iter(asked), "max_tokens")
    assert answer.status == 200
    assert call.asked == {**body, name: sent}
    assert answer.headers.get("x-lensd-degraded") == record.get("lensd.degraded") == degraded
    assert record.get("lensd.request.rewritten") == ([name] if degraded else None)


def test_a_request_without_anything_to_cap_is_not_called_capped():
    async def main():
        async with stage_of(Engine(), **shedding(Act.CAP, in_flight=1, max_tokens=8)) as s:
            opened = await fill(s, 2)
            await switched(s, "degrade_on")
            answer = await s.ask({"model": MODEL, "input": "x"}, "/v1/embeddings")
            call = s.engine.posts[-1]
            await leave(opened, s, 0)
            return answer, call

    answer, call = run(main())
    assert call.asked == {"model": MODEL, "input": "x"}
    assert "x-lensd-degraded" not in answer.headers


def test_a_cap_may_refuse_long_prompts():
    async def main():
        async with stage_of(Engine(), **shedding(Act.CAP, in_flight=1, max_tokens=0, max_prompt_tokens=20)) as s:
            opened = await fill(s, 2)
            await switched(s, "degrade_on")
            posts = len(s.engine.posts)
            long = await s.ask({"model": MODEL, "messages": [{"role": "user", "content": "a b c d e " * 40}]})
            posts = len(s.engine.posts) - posts
            short = await s.ask({"model": MODEL, "messages": [{"role": "user", "content": "a"}]})
            await leave(opened, s, 0)
            return long, short, posts

    long, short, posts = run(main())
    assert (long.status, long.error["code"], posts) == (400, "prompt_too_long", 0)
    assert "while the engine is overloaded" in long.error["message"]
    assert short.status == 200


def reroute(models: dict[str, str] | None = None) -> dict:
    return shedding(Act.REROUTE, in_flight=1, models=models or {MODEL: SMALL})


@pytest.mark.parametrize("models", [{MODEL: SMALL}, {"big": "quick"}])
def test_requests_go_to_the_smaller_model(models):
    async def main():
        async with stage_of(Engine(), Engine([SMALL]), aliases={"big": MODEL, "quick": SMALL}, **reroute(models)) as s:
            opened = await fill(s, 2)
            await switched(s, "degrade_on")
            answer = await s.ask()
            direct = await s.ask({**CHAT, "model": SMALL})
            await leave(opened, s, 0)
            await switched(s, "degrade_off")
            after = await s.ask()
            return answer, direct, after, s.engines[1].posts, await s.records()

    answer, direct, after, posts, records = run(main())
    assert (answer.status, answer.headers["x-lensd-model"], answer.headers["x-lensd-degraded"]) == (200, SMALL, "reroute")
    assert posts[0].asked == {**CHAT, "model": SMALL}
    assert (direct.status, "x-lensd-degraded" in direct.headers, len(posts)) == (200, False, 2)
    assert "x-lensd-model" not in after.headers
    record = next(each for each in records if each.get("lensd.degraded"))
    assert (record["gen_ai.request.model"], record["lensd.request.dispatched_model"]) == (MODEL, SMALL)
    assert (record["lensd.request.rewritten"], record["lensd.engine"]) == (["model"], "engine-b")


@pytest.mark.parametrize("how", ["the key may not use it", "its engine is gone", "nobody serves it"])
def test_where_the_smaller_model_cannot_answer_the_request_is_served_as_ever(tmp_path, how):
    path = tmp_path / "keys.toml"
    secret, entry = new_key("one", [MODEL] if how == "the key may not use it" else ["*"])
    append(path, entry)
    small = Engine([] if how == "nobody serves it" else [SMALL])

    async def main():
        async with stage_of(Engine(), small, require_key=True, keys_file=str(path), **reroute()) as s:
            header = f"authorization: Bearer {secret}"
            opened = [(await s.open(STREAMED, header))[1] for _ in range(2)]
            await s.engine.posted(2)
            await switched(s, "degrade_on")
            if how == "its engine is gone":
                small.die()
                s.app.fleet.refused(s.app.fleet.targets[1], "as if a request had failed on it")
            answer = await s.ask(headers={"Authorization": f"Bearer {secret}"})
            await leave(opened, s, 0)
            return answer, len(small.posts)

    answer, posts = run(main())
    assert (answer.status, posts) == (200, 0)
    assert "x-lensd-model" not in answer.headers
    assert "x-lensd-degraded" not in answer.headers


@pytest.mark.parametrize(
    ("thresholds", "full", "says"), [({"waiting": 5}, (6, 0.1), "waiting 6"), ({"kv_usage": 0.9}, (0, 0.95), "kv_usage 0.95")]
)
def test_what_the_engine_says_of_itself_decides(thresholds, full, says):
    async def main():
        engine = Engine()
        engine.waiting, engine.kv_usage = 5, 0.9  # at the threshold is not over it
        async with stage_of(engine, **shedding(**thresholds)) as s:
            async with asyncio.timeout(3):
                while engine.read < 4:
                    await asyncio.sleep(0.005)
            before = await s.ask()
            engine.waiting, engine.kv_usage = full
            await switched(s, "degrade_on")
            during = await s.ask()
            told = next(each for each in s.kept.events if each["attributes"].get("lensd.gateway.act") == "degrade_on")
            engine.waiting, engine.kv_usage = 0, 0.1
            await switched(s, "degrade_off")
            return before, during, await s.ask(), told["body"]

    before, during, after, told = run(main())
    assert (before.status, during.status, after.status) == (200, 503, 200)
    assert during.error["code"] == "overloaded"
    assert says in told


def test_the_fullest_of_a_models_engines_counts():
    async def main():
        engines = Engine(), Engine()
        engines[0].waiting = engines[1].waiting = 0
        engines[1].kv_usage = 0.97
        async with stage_of(*engines, **shedding(kv_usage=0.9)) as s:
            await switched(s, "degrade_on")
            return (await s.ask()).status

    assert run(main()) == 503


def test_an_engine_that_says_nothing_is_no_reason_to_shed():
    async def main():
        engine = Engine()  # without metrics
        async with stage_of(engine, **shedding(waiting=1, kv_usage=0.5)) as s:
            async with asyncio.timeout(3):
                while engine.read < 4:
                    await asyncio.sleep(0.005)
            return await s.ask(), s.kept.acts()

    answer, acts = run(main())
    assert answer.status == 200
    assert "degrade_on" not in acts


def test_one_that_falls_silent_is_none_to_go_on():
    async def main():
        engine = Engine()
        engine.waiting = 9
        async with stage_of(engine, **shedding(waiting=5)) as s:
            await switched(s, "degrade_on")
            engine.waiting = None
            await switched(s, "degrade_off")
            return (await s.ask()).status

    assert run(main()) == 200


def test_it_is_off_unless_it_is_switched_on():
    async def main():
        async with stage_of(Engine(), degrade=Degrade(in_flight=1)) as s:
            opened = await fill(s, 5)
            await asyncio.sleep(0.3)
            answer = await s.ask()
            await leave(opened, s, 0)
            return answer, s.kept.acts(), json.dumps(s.kept.events, default=str)

    answer, acts, told = run(main())
    assert answer.status == 200
    assert "degrade_on" not in acts
    assert "load shedding" not in told
