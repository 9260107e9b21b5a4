"""Which engine gets a request, how often and after what wait it is tried again, and who answers in the end."""

import asyncio
import contextlib
import itertools
import json
import socket
import time

import pytest
from gateway_stage import CHAT, MODEL, Call, FakeEngine, capture, run, stage_of
from lensd_collectors.gateway.config import Retry
from lensd_collectors.gateway.keys import append, new_key
from lensd_collectors.gateway.target import TargetState

WHOLE = capture("http/ok-chat-nonstream.json")["body"].encode()
SSE = capture("http/ok-chat-stream.json")["body"].encode()
HEAD = SSE[: SSE.index(b"\n\n", 600) + 2]
STREAMED = {**CHAT, "stream": True}
GONE = capture("http/err-model-unknown.json")["body"].encode()
SMALL, ADAPTER = "small-model", "sql-adapter"
LIMIT_S = 0.05
TICK_S = 0.005  # the loop's clock is no finer
QUICK = Retry(most=3, first_s=0.02, busy_s=0.02)


async def whole(call: Call) -> None:
    await call.reply(200, WHOLE)


async def silent(call: Call) -> None:
    await asyncio.sleep(60)


async def cut(call: Call) -> None:
    call.cut()


async def cut_midway(call: Call) -> None:
    await call.start_stream()
    await call.chunk(HEAD)
    await asyncio.sleep(0.02)
    call.cut()


def answering(status: int, *headers: str, body: bytes = b'{"error": {"message": "no", "type": "planted"}}'):
    async def script(call: Call) -> None:
        lines = "".join(f"{each}\r\n" for each in headers)
        await call.send(
            f"HTTP/1.1 {status} X\r\n{lines}content-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n".encode() + body
        )

    return script


def first(*scripts):
    """One script a request, the last of them for all that follow."""
    made = iter(scripts)

    async def script(call: Call) -> None:
        await next(made, scripts[-1])(call)

    return script


def attempts(s) -> list[tuple]:
    """Number, engine, status and error of each upstream span."""
    names = ("lensd.attempt", "lensd.engine", "http.response.status_code", "error.type")
    return [tuple(span["attributes"].get(name) for name in names) for span in s.upstream_spans()]


# Where a request goes


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


# Trying again


@pytest.mark.parametrize(("jitter", "share"), [(0.0, 0.75), (1.0, 1.25)])
def test_the_wait_doubles_with_jitter(jitter, share):
    first_s = 0.08

    async def main():
        async with stage_of(FakeEngine(cut), jitter=jitter, retry=Retry(most=3, first_s=first_s)) as s:
            answer = await s.ask()
            return answer, [call.at for call in s.engine.posts], await s.record(), attempts(s), s.upstream_spans()

    answer, at, record, spans, whole_spans = run(main())
    waits = [later - earlier for earlier, later in itertools.pairwise(at)]
    assert len(waits) == 3
    for number, wait in enumerate(waits):
        assert first_s * 2**number * share - TICK_S <= wait < first_s * 2**number * share + 0.5
    assert (answer.status, answer.error["code"]) == (502, "engine_error")
    assert (answer.headers["x-should-retry"], answer.headers["x-lensd-attempts"]) == ("false", "4")
    assert record["lensd.attempts"] == 4
    assert spans == [(n, "engine-a", None, "engine_error" if n < 4 else None) for n in (1, 2, 3, 4)]
    for earlier, later in itertools.pairwise(whole_spans):
        assert earlier["start_ns"] <= earlier["end_ns"] < later["start_ns"]
        assert not earlier["ok"]


@pytest.mark.parametrize(("status", "error"), [(429, "rate_limited"), (502, "engine_error"), (503, "engine_busy")])
def test_what_may_succeed_later_is_tried_again(status, error):
    async def main():
        async with stage_of(FakeEngine(first(answering(status), whole)), retry=QUICK) as s:
            return await s.ask(), await s.record(), attempts(s)

    answer, record, spans = run(main())
    assert (answer.status, answer.body, answer.headers["x-lensd-attempts"]) == (200, WHOLE, "2")
    assert "x-should-retry" not in answer.headers
    assert (record["lensd.outcome"], record["lensd.attempts"], record["http.response.status_code"]) == ("ok", 2, 200)
    assert spans == [(1, "engine-a", status, error), (2, "engine-a", None, None)]


@pytest.mark.parametrize("status", [400, 404, 405, 409, 413, 422, 500, 501])
def test_what_will_not_is_not(status):
    async def main():
        async with stage_of(FakeEngine(answering(status)), FakeEngine(answering(status)), retry=QUICK) as s:
            answer = await s.ask()
            return answer, sum(len(engine.posts) for engine in s.engines)

    answer, posts = run(main())
    assert (answer.status, posts) == (status, 1)
    assert "x-should-retry" not in answer.headers
    assert "x-lensd-attempts" not in answer.headers


@pytest.mark.parametrize("most", [0, 1, 2])
def test_never_more_often_than_configured(most):
    async def main():
        async with stage_of(FakeEngine(answering(503)), retry=Retry(most=most, first_s=0.01, busy_s=0.01)) as s:
            answer = await s.ask()
            return answer, len(s.engine.posts), await s.record()

    answer, posts, record = run(main())
    assert posts == most + 1
    assert answer.status == 503
    assert answer.headers.get("x-should-retry") == ("false" if most else None)
    assert (record["lensd.decision"], record["lensd.attempts"]) == ("engine_busy", most + 1)


@pytest.mark.parametrize("status", [429, 503])
@pytest.mark.parametrize(
    ("headers", "least_s"), [((), 0.25), (("retry-after: 1",), 1.0), (("retry-after: 0",), 0.25), (("retry-after: soon",), 0.25)]
)
def test_a_busy_engine_is_left_alone_for_as_long_as_it_says(status, headers, least_s):
    async def main():
        busy = first(answering(status, *headers), whole)
        async with stage_of(FakeEngine(busy), retry=Retry(most=1, first_s=0.01, busy_s=0.25)) as s:
            answer = await s.ask()
            return answer, [call.at for call in s.engine.posts]

    answer, at = run(main())
    assert answer.status == 200
    assert least_s - TICK_S <= at[1] - at[0] < least_s + 1


def test_a_retry_after_may_be_a_date():
    async def main():
        busy = first(answering(503, f"retry-after: {time.strftime('%a, %d %b %Y %H:%M:%S GMT', time.gmtime(time.time() + 3600))}"), whole)
        async with stage_of(FakeEngine(busy), retry=QUICK) as s:
            return await s.ask(), len(s.engine.posts)

    answer, posts = run(main())
    assert (answer.status, posts) == (503, 1)


def test_an_engine_that_asks_for_too_long_a_wait_is_believed():
    async def main():
        async with stage_of(FakeEngine(answering(503, "retry-after: 3")), retry=Retry(most=3, first_s=0.01, busy_s=0.01, longest_s=2)) as s:
            answer = await s.ask()
            return answer, len(s.engine.posts)

    answer, posts = run(main())
    assert (answer.status, answer.headers["retry-after"], posts) == (503, "3", 1)
    assert "x-should-retry" not in answer.headers  # it was not waited for: the caller can


def test_another_engine_is_tried_at_once():
    async def main():
        engines = FakeEngine(answering(503)), FakeEngine(cut), FakeEngine(whole)
        async with stage_of(*engines, retry=Retry(most=3, first_s=30, busy_s=30, longest_s=60)) as s:
            began = time.perf_counter()
            answer = await s.ask()
            return answer, time.perf_counter() - began, await s.record(), attempts(s)

    answer, took, record, spans = run(main())
    assert answer.status == 200
    assert took < 5
    assert record["lensd.attempts"] == 3
    assert spans == [(1, "engine-a", 503, "engine_busy"), (2, "engine-b", None, "engine_error"), (3, "engine-c", None, None)]


def test_a_busy_engine_is_waited_for_though_another_has_failed_for_good():
    async def main():
        engines = FakeEngine(first(answering(503), whole)), FakeEngine(answering(401))
        async with stage_of(*engines, retry=QUICK) as s:
            s.engines[1].list_status = 401
            return await s.ask()

    assert run(main()).status == 200


def test_all_engines_count_into_the_most():
    async def main():
        async with stage_of(*(FakeEngine(cut) for _ in range(5)), retry=Retry(most=3, first_s=0.01)) as s:
            answer = await s.ask()
            return answer.status, sum(len(engine.posts) for engine in s.engines)

    assert run(main()) == (502, 4)


def test_nothing_is_tried_again_after_a_byte_has_reached_the_caller():
    async def main():
        async with stage_of(FakeEngine(cut_midway), FakeEngine(whole), retry=QUICK) as s:
            answer = await s.ask(STREAMED)
            return answer, [len(engine.posts) for engine in s.engines], await s.record()

    answer, posts, record = run(main())
    assert answer.body.startswith(HEAD)
    assert b'"code":"stream_cut"' in answer.body
    assert posts == [1, 0]
    assert (record["lensd.outcome"], record["lensd.attempts"]) == ("cut", 1)


async def cut_before_the_first_event(call: Call) -> None:
    await call.start_stream()
    await asyncio.sleep(0.01)
    call.cut()


async def half_a_reply(call: Call) -> None:
    await call.send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 900\r\n\r\n{")
    await asyncio.sleep(0.01)
    call.cut()


async def streamed(call: Call) -> None:
    await call.start_stream()
    await call.chunk(SSE)
    await call.end_stream()


@pytest.mark.parametrize(
    ("broken", "body", "then", "expected"), [(cut_before_the_first_event, STREAMED, streamed, SSE), (half_a_reply, CHAT, whole, WHOLE)]
)
def test_what_broke_off_before_a_byte_reached_the_caller_is_asked_elsewhere(broken, body, then, expected):
    async def main():
        async with stage_of(FakeEngine(broken), FakeEngine(then), retry=QUICK) as s:
            return await s.ask(body), await s.record()

    answer, record = run(main())
    assert (answer.status, answer.body) == (200, expected)
    assert (record["lensd.outcome"], record["lensd.engine"], record["lensd.attempts"]) == ("ok", "engine-b", 2)
    assert record["gen_ai.usage.output_tokens"] == 16


def test_half_a_head_on_a_used_connection_is_no_stale_connection():
    async def script(call: Call) -> None:
        if len(call_numbers) == 1:
            call_numbers.append(2)
            await call.send(b"HTTP/1.1 200 OK\r\nx-be")
            await asyncio.sleep(0.01)
            call.cut()
            return
        call_numbers.append(len(call_numbers) + 1)
        await call.reply(200, WHOLE)

    call_numbers: list[int] = []

    async def main():
        async with stage_of(FakeEngine(script)) as s:
            return (await s.ask()).status, (await s.ask()).status

    assert run(main()) == (200, 502)
    assert call_numbers == [1, 2]


def test_a_wait_between_attempts_is_nobodys_silence():
    settings = {"first_byte_timeout_s": 0.3, "idle_timeout_s": 0.3, "connect_timeout_s": 0.3, "stall_after_s": 0.3}

    async def main():
        async with stage_of(FakeEngine(first(cut, streamed)), retry=Retry(most=1, first_s=0.8), **settings) as s:
            answer = await s.ask(STREAMED)
            return answer, await s.record(), s.upstream_spans(), s.kept.acts()

    answer, record, spans, acts = run(main())
    assert (answer.status, answer.body) == (200, SSE)
    assert record["lensd.stream.max_gap_ms"] < 300
    assert "lensd.timeout.kind" not in record
    assert (spans[1]["start_ns"] - spans[0]["end_ns"]) / 1e9 >= 0.8 * 0.75
    assert spans[1]["attributes"]["lensd.upstream.first_byte_ms"] < 300
    assert "upstream_stalled" not in acts


def test_the_total_limit_holds_between_attempts():
    async def main():
        async with stage_of(FakeEngine(cut), total_timeout_s=0.2, retry=Retry(most=3, first_s=30)) as s:
            answer = await s.ask()
            return answer, await s.record(), len(s.engine.posts)

    answer, record, posts = run(main())
    assert (answer.status, answer.error["code"], answer.headers["x-should-retry"]) == (504, "upstream_timeout", "false")
    assert "waited between attempts, 1 were made" in answer.error["message"]
    assert (record["lensd.timeout.kind"], posts) == ("total", 1)


@pytest.mark.parametrize(("limit_s", "posts"), [("0.3", 1), ("60", 2)])
def test_a_caller_is_not_kept_waiting_past_its_own_limit(limit_s, posts):
    async def main():
        engine = FakeEngine(first(cut, whole))
        async with stage_of(engine, retry=Retry(most=3, first_s=0.5)) as s:
            began = time.perf_counter()
            answer = await s.ask(headers={"x-stainless-read-timeout": limit_s})
            return answer, time.perf_counter() - began, len(s.engine.posts)

    answer, took, made = run(main())
    assert made == posts
    if posts == 1:
        assert answer.status == 502
        assert took < 0.3


# The caller leaves


def test_a_caller_that_left_while_it_was_waited_gets_no_attempt_more():
    async def main():
        async with stage_of(FakeEngine(first(cut, whole)), retry=Retry(most=3, first_s=0.4)) as s:
            _, writer = await s.open()
            await s.engine.posted(1)
            await asyncio.sleep(0.05)
            left_at = time.perf_counter()
            writer.transport.abort()
            record = await s.record()
            took = time.perf_counter() - left_at
            await asyncio.sleep(0.6)
            return record, took, len(s.engine.posts), s.app.fleet.targets[0].in_flight

    record, took, posts, in_flight = run(main())
    assert took < LIMIT_S
    assert (posts, in_flight) == (1, 0)
    assert (record["lensd.outcome"], record["http.response.status_code"], record["lensd.attempts"]) == ("caller_gone", 499, 1)


@pytest.fixture
def hole(monkeypatch):
    """A place where connections are neither taken nor refused, until somebody accepts."""
    monkeypatch.setattr("lensd_collectors.gateway.fleet.ASK_TIMEOUT_S", 0.1)
    with socket.socket() as full:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        waiting = [socket.socket() for _ in range(3)]
        for each in waiting:
            each.setblocking(False)
            each.connect_ex(full.getsockname())
        yield full
        for each in waiting:
            each.close()


def at(full: socket.socket) -> dict:
    return {"upstream": {"url": f"http://127.0.0.1:{full.getsockname()[1]}", "models": (MODEL,)}}


def test_an_engine_that_does_not_take_the_connection_in_time_is_left_for_another(hole):
    async def main():
        async with stage_of(FakeEngine(whole), FakeEngine(whole), connect_timeout_s=0.15, retry=QUICK, **at(hole)) as s:
            s.app.fleet.targets[0].succeed(0, "as if its model list had come")
            answers = [await s.ask() for _ in range(3)]
            return answers, await s.records(), attempts(s), [target.in_flight for target in s.app.fleet.targets]

    answers, records, spans, in_flight = run(main())
    assert [answer.status for answer in answers] == [200] * 3
    assert [record["lensd.attempts"] for record in records] == [2, 1, 1]
    assert all("lensd.timeout.kind" not in record for record in records)
    assert spans[0] == (2, "engine-b", None, None)
    assert in_flight == [0, 0]


def test_where_there_is_no_other_the_limit_is_named(hole):
    async def main():
        async with stage_of(FakeEngine(whole), FakeEngine(cut), connect_timeout_s=0.15, retry=QUICK, **at(hole)) as s:
            s.app.fleet.targets[0].succeed(0, "as if its model list had come")
            s.engines[1].die()
            s.app.fleet.refused(s.app.fleet.targets[1], "as if a request had failed on it")
            return await s.ask(), await s.record()

    answer, record = run(main())
    assert (answer.status, answer.error["code"], answer.headers["x-lensd-timeout"]) == (504, "upstream_timeout", "connect")
    assert record["lensd.timeout.kind"] == "connect"


def test_an_engine_that_took_the_request_and_is_silent_is_not_left_for_another():
    """It may be at work on it."""

    async def main():
        async with stage_of(FakeEngine(silent), FakeEngine(whole), first_byte_timeout_s=0.1, retry=QUICK) as s:
            return await s.ask(), [len(engine.posts) for engine in s.engines]

    answer, posts = run(main())
    assert (answer.status, answer.headers["x-lensd-timeout"], posts) == (504, "first_byte", [1, 0])


def test_a_caller_that_leaves_while_the_engine_is_being_connected(hole):
    """When the engine has room again, nothing of the request may be left."""

    async def main():
        async with stage_of(FakeEngine(whole), **at(hole)) as s:
            target = s.app.fleet.targets[0]
            target.succeed(0, "as if its model list had come")
            _, writer = await s.open()
            async with asyncio.timeout(3):
                while not target.in_flight:
                    await asyncio.sleep(0.002)
            await asyncio.sleep(0.02)
            left_at = time.perf_counter()
            writer.transport.abort()
            record = await s.record()
            return record, time.perf_counter() - left_at, target.in_flight

    record, took, in_flight = run(main())
    hole.settimeout(0.2)
    sent = b""
    for _ in range(8):
        with contextlib.suppress(TimeoutError, ConnectionError), hole.accept()[0] as taken:
            taken.settimeout(0.01)
            sent += taken.recv(100)
    assert took < LIMIT_S
    assert in_flight == 0
    assert b"POST" not in sent
    assert (record["lensd.outcome"], record["http.response.status_code"]) == ("caller_gone", 499)
    assert "lensd.timeout.kind" not in record


def test_a_caller_that_leaves_while_its_prompt_is_counted():
    """The length is near the limit of 512 tokens, so the engine's /tokenize is asked first."""
    body = {"model": MODEL, "messages": [{"role": "user", "content": "a b c d e " * 150}], "max_tokens": 4}

    async def main():
        async with stage_of(FakeEngine(silent)) as s:
            _, writer = await s.open(body)
            async with asyncio.timeout(3):
                await s.engine.called.wait()
            call = s.engine.calls[0]
            left_at = time.perf_counter()
            writer.transport.abort()
            await asyncio.wait_for(call.gone.wait(), 1)
            return call, call.gone_at - left_at, await s.record(), s.engine.posts

    call, took, record, posts = run(main())
    assert call.path == "/tokenize"
    assert took < LIMIT_S
    assert posts == []
    assert (record["lensd.outcome"], record["http.response.status_code"]) == ("caller_gone", 499)


# Another model


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
