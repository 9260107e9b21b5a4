"""When an engine is asked again, how long after, and when no more."""

import asyncio
import contextlib
import itertools
import socket
import time

import pytest
from engine_scripts import (
    HEAD,
    LIMIT_S,
    QUICK,
    SSE,
    STREAMED,
    TICK_S,
    WHOLE,
    answering,
    attempts,
    cut,
    cut_midway,
    first,
    silent,
    streamed,
    whole,
)
from gateway_stage import CHAT, MODEL, Call, FakeEngine, run, stage_of
from lensd_collectors.gateway.config import Retry


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
