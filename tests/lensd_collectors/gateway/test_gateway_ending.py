"""What is said of a request in the end, where its end is not the plain one."""

import asyncio
import gc
import time

import aiohttp
import pytest
from gateway_house import FullListener
from gateway_stage import CHAT, MODEL, Call, FakeEngine, Stage, capture, run, stage, stage_of
from lensd_collectors.gateway import ending
from lensd_collectors.gateway.ending import interrupted
from lensd_collectors.gateway.record import Record, Stop
from lensd_collectors.gateway.sse import Scanner
from lensd_collectors.gateway.timer import Timer
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

SSE = capture("http/ok-chat-stream.json")["body"].encode()
HEAD = SSE[: SSE.index(b"\n\n", 600) + 2]
DEAD = b'data: {"error": {"message": "EngineCore encountered an issue.", "type": "InternalServerError", "code": 500}}\n\n'
STREAMED = {**CHAT, "stream": True}
HEADERS = b"HTTP/1.1 200 OK\r\n"


async def end_open(s: Stage) -> None:
    while not (s.app.live and next(iter(s.app.live)).last_out):
        await asyncio.sleep(0.002)
    s.app.end_open()


@pytest.mark.parametrize(
    "settings",
    [
        pytest.param({"idle_timeout_s": 0.1}, id="idle"),
        pytest.param({"total_timeout_s": 0.1}, id="total"),
        pytest.param({}, id="the gateway stops"),
    ],
)
@pytest.mark.parametrize(
    ("sent", "outcome", "decision"),
    [pytest.param(SSE, "ok", "allowed", id="done"), pytest.param(HEAD + DEAD, "failed", "engine_dead", id="failed")],
)
def test_a_stream_that_has_said_its_end_is_judged_by_that(settings, sent, outcome, decision):
    """The engine leaves its connection open afterwards, until a limit of ours ends it."""

    async def script(call: Call) -> None:
        await call.start_stream()
        await call.chunk(sent)
        await asyncio.sleep(60)

    async def main():
        async with stage(script, **settings) as s, asyncio.timeout(5):
            asking = asyncio.create_task(s.ask(STREAMED))
            if not settings:
                await end_open(s)
            return await asking, await s.record()

    answer, record = run(main())
    assert answer.body == sent
    assert (record["lensd.outcome"], record["lensd.decision"], record["lensd.said_by"]) == (outcome, decision, "engine")
    assert "lensd.timeout.kind" not in record


@pytest.mark.parametrize(("finished", "outcome"), [((0,), "cut"), ((1,), "cut"), ((0, 1), "ok")])
def test_a_clean_end_without_done_is_whole_where_every_answer_is_finished(finished, outcome):
    async def script(call: Call) -> None:
        await call.start_stream()
        for at in (0, 1):
            await call.chunk(b'data: {"choices":[{"index":%d,"delta":{"content":"a"}}]}\n\n' % at)
        for at in finished:
            await call.chunk(b'data: {"choices":[{"index":%d,"delta":{},"finish_reason":"stop"}]}\n\n' % at)
        await call.end_stream()

    async def main():
        async with stage(script) as s:
            return await s.ask({**STREAMED, "n": 2}), await s.record()

    answer, record = run(main())
    assert (record["lensd.outcome"], b'"stream_cut"' in answer.body) == (outcome, outcome == "cut")


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (HEADERS + b"x: a\x01b\r\n\r\n", "engine-a: does not answer in HTTP/1.1: Invalid header value char"),
        (HEADERS + b"content-length: 9\r\n\r\n{", "engine-a: closed in the middle of its reply"),
        (HEADERS + b"transfer-encoding: gzip, chunked\r\n\r\n", "engine-a: its reply has a transfer coding other than chunked"),
        (
            HEADERS + b"content-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n",
            "engine-a: closed in the middle of its reply",
        ),
        (
            HEADERS + b"content-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n" % (len(HEAD), HEAD),
            "the stream ended without [DONE] and without a finish reason; engine-a: closed in the middle of its reply",
        ),
        (
            HEADERS + b"content-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n%x\r\n%b\r\n" % (len(SSE) - 14, SSE[:-14]),
            "the stream ended without [DONE]; engine-a: closed in the middle of its reply",
        ),
    ],
)
def test_the_record_says_in_which_way_an_engine_broke_off(data, reason):
    async def script(call: Call) -> None:
        await call.send(data)
        await asyncio.sleep(0.02)  # what is cut takes along what was not read yet
        call.cut()

    async def main():
        async with stage(script) as s:
            await s.ask(STREAMED)
            return await s.record()

    assert run(main())["lensd.error.message"] == reason


def test_a_connection_that_is_not_taken_after_one_that_went_stale_is_no_slow_first_byte():
    async def whole(call: Call) -> None:
        await call.reply(200, b"{}")

    async def cut(call: Call) -> None:
        call.cut()

    class Engine(FakeEngine):
        async def listen(self) -> None:
            self.port = full.port
            self._listening = await asyncio.start_server(self.serve, sock=full.listening.dup(), backlog=1)

    async def main():
        engine = Engine(whole, [MODEL])
        async with stage_of(engine, connect_timeout_s=0.1, first_byte_timeout_s=2) as s:
            await s.ask()
            engine.script = cut
            engine.close()
            full.fill()
            answer = await s.ask()
            return answer, (await s.records())[-1]

    full = FullListener()
    try:
        answer, record = run(main())
    finally:
        full.close()
    assert (answer.status, answer.headers["x-lensd-timeout"]) == (504, "connect")
    assert (record["lensd.attempts"], record["lensd.timeout.kind"]) == (2, "connect")


def record_of(**given) -> Record:
    now = time.monotonic_ns() - 10**9
    return Record(
        wall_ns=0, received=now, method="POST", route="/v1/chat/completions", trace_id="", span_id="", parent_span_id=None, request_id="",
        body_read=now, **given,
    )  # fmt: skip


@pytest.mark.parametrize("stop", [Stop.SHUTDOWN, Stop.TOTAL, Stop.FIRST_BYTE])
def test_a_refusal_does_not_wait_for_a_caller_that_does_not_read(stop, monkeypatch):
    """It has not read an earlier reply on its connection."""

    async def full(_) -> None:
        await asyncio.Event().wait()

    async def main():
        async with stage(_never) as s, asyncio.timeout(2):
            await interrupted(record, full, s.app.limits)

    monkeypatch.setattr(ending, "LAST_WORDS_S", 0.01)
    record = record_of(stop=stop)
    run(main())
    assert record.outcome in ("failed", "timed_out")


@pytest.mark.parametrize(("is_full", "beats"), [(False, 1), (True, 0)])
def test_no_heartbeat_waits_for_a_caller_that_does_not_read(is_full, beats):
    """When its turn came, half an event could have gone out before it."""

    class Flow:
        write_paused = is_full

    async def send(message) -> None:
        sent.append(message["body"])

    async def main():
        async with stage(_never, heartbeat_s=0.01) as s:
            app = s.app
            timer = Timer({record}, app.limits, app.fleet, app._client, app.reporter, lambda: None, time.monotonic_ns, time.time_ns)
            timer._look_at_live(time.monotonic_ns())
            await asyncio.sleep(0)

    sent: list[bytes] = []
    record = record_of(streaming=True, is_sse=True, started_out=True, send=send, flow=Flow)
    record.scanner = Scanner()
    run(main())
    assert len(sent) == beats


def test_a_request_that_has_ended_is_freed_without_the_collector():
    async def whole(call: Call) -> None:
        await call.reply(200, b"{}")

    async def main():
        async with stage(whole) as s, aiohttp.ClientSession() as session:
            gc.collect()
            gc.disable()
            for _ in range(20):
                async with session.post(f"http://127.0.0.1:{s.port}/v1/completions", json=CHAT) as answer:
                    await answer.read()
            await s.records()
            return sum(isinstance(each, RequestResponseCycle) for each in gc.get_objects())

    try:
        assert run(main()) <= 1  # the last, which its connection keeps
    finally:
        gc.enable()


async def _never(_: Call) -> None:
    await asyncio.sleep(60)
