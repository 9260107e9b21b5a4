"""A connection to an engine in the course of time: requests one after another, answers too early, readers too slow, and its end."""

import asyncio
import gc
import itertools
import time
import tracemalloc
import weakref
from typing import Any

import pytest
from lensd_collectors.gateway.http1 import HIGH_WATER, BrokenError, Connection, StaleError
from raw_engine import CHUNKED, LOOPS, OK, REQUEST, STATUS, Run, Wire, connect, raw_engine, read_body, replies, runner

pytestmark = pytest.mark.filterwarnings("error")

LIMIT_S = 0.05


@pytest.fixture(params=LOOPS)
def run(request: pytest.FixtureRequest) -> Run:
    return runner(request.param)


def test_a_connection_serves_one_request_after_another(run):
    async def script(wire: Wire) -> None:
        for number in itertools.count():
            if not await wire.head():
                return
            body = b"%d" % number
            await wire.send(b"HTTP/1.1 %d X\r\nx-number: %s\r\ncontent-length: %d\r\n\r\n%s" % (200 + number % 3, body, len(body), body))

    async def main() -> None:
        async with raw_engine(script) as engine:
            connection = await connect(engine)
            for number in range(50):
                connection.request(REQUEST, b"")
                assert await read_body(connection) == b"%d" % number
                assert connection.can_be_kept
                assert connection.status == 200 + number % 3
                assert dict(connection.headers)[b"x-number"] == b"%d" % number
            connection.close()
            await engine.played()

    run(main())


def test_a_reply_that_nobody_asked_for_ends_the_connection(run):
    async def script(wire: Wire) -> None:
        await wire.request()
        await wire.send(OK)
        await go.wait()
        await wire.send(b"HTTP/1.1 408 Request Timeout\r\ncontent-length: 0\r\n\r\n")
        await wire.gone()

    go = asyncio.Event()

    async def main() -> None:
        async with raw_engine(script) as engine:
            connection = await connect(engine)
            connection.request(REQUEST, b"")
            assert await read_body(connection) == b"ok"
            assert connection.can_be_kept
            go.set()
            await engine.played()
            assert not connection.can_be_kept
            connection.close()

    run(main())


def test_closed_just_as_it_was_used_again(run):
    async def script(wire: Wire) -> None:
        await wire.request()
        await wire.send(OK)
        await wire.request()
        wire.end()

    async def main() -> None:
        async with raw_engine(script) as engine:
            connection = await connect(engine)
            connection.request(REQUEST, b"")
            await read_body(connection)
            connection.used = True
            connection.request(REQUEST, b"")
            with pytest.raises(StaleError):
                await connection.head()
            connection.close()

    run(main())


@pytest.mark.parametrize("data", [STATUS, b"HTTP/1.1 103 Early Hints\r\n\r\n", b"\r\n"], ids=["head", "hints", "a line end"])
def test_a_used_connection_that_had_begun_to_answer_is_not_stale(run, data):
    async def main() -> None:
        async with raw_engine(replies(data, end="close")) as engine:
            connection = await connect(engine)
            connection.used = True
            connection.request(REQUEST, b"")
            with pytest.raises(BrokenError) as caught:
                await connection.head()
            assert not isinstance(caught.value, StaleError)
            connection.close()

    run(main())


LARGE = b"x" * (8 << 20)


def early(reply: bytes, end: str) -> Any:
    async def script(wire: Wire) -> None:
        await wire.head()
        await wire.send(reply)
        if end == "close":
            wire.end()  # with much unread: the other side gets a reset
        elif end == "finish":
            wire.finish()
            await asyncio.Event().wait()
        else:
            await asyncio.Event().wait()

    return script


TOO_LARGE = b"HTTP/1.1 413 Too Large\r\n%s\r\nno"


@pytest.mark.parametrize(
    ("reply", "end"),
    [
        pytest.param(TOO_LARGE % b"content-length: 2\r\nconnection: close\r\n", "close", id="and closed"),
        pytest.param(TOO_LARGE % b"content-length: 2\r\n", "stay", id="and the rest left unread"),
        pytest.param(TOO_LARGE % b"", "finish", id="until the end, and the rest left unread"),
    ],
)
def test_an_answer_before_the_whole_request_was_sent(run, reply, end):
    async def main() -> None:
        async with raw_engine(early(reply, end)) as engine:
            connection = await connect(engine)
            connection.request(REQUEST.replace(b": 0", b": %d" % len(LARGE)), LARGE)
            async with asyncio.timeout(2):
                assert (await read_body(connection), connection.status) == (b"no", 413)
            assert not connection.can_be_kept  # the next request would be the rest of this one
            began = time.perf_counter()
            connection.close()
            await connection.closed()
            assert time.perf_counter() - began < LIMIT_S

    run(main())


def test_a_large_request_arrives_whole(run):
    large = bytes(range(256)) * 32768

    async def script(wire: Wire) -> None:
        head, body = await wire.request()
        await wire.send(OK if (head, body) == (head_of, large) else b"HTTP/1.1 400 X\r\ncontent-length: 0\r\n\r\n")
        await wire.gone()

    head = REQUEST.replace(b": 0", b": %d" % len(large))
    head_of = head.removesuffix(b"\r\n\r\n")

    async def main() -> None:
        async with raw_engine(script) as engine:
            connection = await connect(engine)
            connection.request(head, large)
            assert (await read_body(connection), connection.status, connection.can_be_kept) == (b"ok", 200, True)
            connection.close()

    run(main())


BLOCK = b"10000\r\n" + b"x" * 65536 + b"\r\n"
BLOCKS = 3200


async def much(wire: Wire) -> None:
    await wire.request()
    await wire.send(CHUNKED)
    for _ in range(BLOCKS):
        await wire.send(BLOCK)
    await wire.send(b"0\r\n\r\n")
    await wire.gone()


async def until_it_stands(wire: Wire) -> None:
    sent = -1
    while sent != wire.sent:
        sent = wire.sent
        await asyncio.sleep(0.03)


def test_a_reader_that_does_not_read_holds_the_engine_up(run):
    async def main() -> None:
        async with raw_engine(much) as engine:
            connection = await connect(engine)
            connection.request(REQUEST, b"")
            tracemalloc.start()
            try:
                await connection.head()
                await until_it_stands(engine.wires[0])
                assert tracemalloc.get_traced_memory()[0] < 1 << 20
            finally:
                tracemalloc.stop()
            assert engine.wires[0].sent < BLOCKS * len(BLOCK) / 4
            read = longest = 0
            while part := await connection.read():
                read += len(part)
                longest = max(longest, len(part))
            assert read == BLOCKS * 65536
            assert longest < HIGH_WATER + (1 << 19)
            assert connection.can_be_kept
            connection.close()

    run(main())


def test_tiny_chunks_count_for_what_they_take(run):
    async def script(wire: Wire) -> None:
        await wire.request()
        await wire.send(CHUNKED)
        for _ in range(400):
            await wire.send(b"2\r\nab\r\n" * 8192)

    async def main() -> int:
        async with raw_engine(script) as engine:
            connection = await connect(engine)
            connection.request(REQUEST, b"")
            await connection.head()
            await until_it_stands(engine.wires[0])
            part = await connection.read()
            connection.close()
            return len(part)

    assert run(main()) < HIGH_WATER


async def silent(wire: Wire) -> None:
    await wire.request()
    await wire.gone()


async def midway(wire: Wire) -> None:
    await wire.request()
    await wire.send(CHUNKED + b"2\r\nab\r\n")
    await wire.gone()


@pytest.mark.parametrize("script", [silent, midway, much], ids=["before the head", "in the body", "held up"])
def test_a_reply_broken_off_is_seen_by_the_engine_at_once(run, script):
    async def main() -> float:
        async with raw_engine(script) as engine:
            connection = await connect(engine)
            connection.request(REQUEST, b"")
            if script is silent:
                await asyncio.sleep(0.01)
            else:
                await connection.head()
                await until_it_stands(engine.wires[0])
            began = time.perf_counter()
            connection.close()
            await engine.played()
            return time.perf_counter() - began

    assert run(main()) < LIMIT_S


@pytest.mark.parametrize("script", [silent, midway], ids=["before the head", "in the body"])
def test_a_request_broken_off_while_it_is_being_sent(run, script):
    async def main() -> float:
        async def reads_nothing(wire: Wire) -> None:
            await wire.head()
            if script is midway:
                await wire.send(CHUNKED + b"2\r\nab\r\n")
            await asyncio.Event().wait()

        async with raw_engine(reads_nothing) as engine:
            connection = await connect(engine)
            connection.request(REQUEST.replace(b": 0", b": %d" % len(LARGE)), LARGE)
            await asyncio.sleep(0.01)
            began = time.perf_counter()
            connection.close()
            await connection.closed()
            return time.perf_counter() - began

    assert run(main()) < LIMIT_S


def test_a_connection_that_is_gone_is_freed_without_a_search(run):
    async def main() -> bool:
        async with raw_engine(replies(OK)) as engine:
            connection = await connect(engine)
            connection.request(REQUEST, b"")
            await read_body(connection)
            connection.close()
            await engine.played()
            await connection.closed()
            gone = weakref.ref(connection)
            del connection
            await asyncio.sleep(0)
            return gone() is None

    gc.disable()
    try:
        assert run(main())
    finally:
        gc.enable()


def test_closed_twice_and_before_it_was_there(run):
    async def main() -> None:
        Connection().close()
        async with raw_engine(replies(OK)) as engine:
            connection = await connect(engine)
            connection.close()
            connection.close()
            await connection.closed()
            connection.close()
            with pytest.raises(BrokenError):
                await connection.read()

    run(main())
