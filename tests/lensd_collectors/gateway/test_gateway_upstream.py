"""The client side: connections kept and not kept, calls ended in every phase, and the gateway's own short exchanges."""

import asyncio
import contextlib
import gc
import time
from typing import Any

import pytest
from lensd_collectors.gateway import upstream
from lensd_collectors.gateway.http1 import BrokenError, StaleError
from lensd_collectors.gateway.upstream import POOL_IDLE_NS, Address, NotTakenError, PooledClient
from raw_caller import LIMIT_S, Clock, S, caller, echo, once, read_all, record, silent, until
from raw_engine import CHUNKED, LOOPS, OK, Run, Wire, runner

pytestmark = pytest.mark.filterwarnings("error")

CLOSING = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok"


@pytest.fixture(params=LOOPS)
def run(request: pytest.FixtureRequest) -> Run:
    return runner(request.param)


# Kept connections


def test_a_connection_is_used_again(run):
    async def main() -> None:
        async with caller(echo) as c:
            for number in range(5):
                c.clock.now += 3 * S
                assert await c.post(b"%d" % number) == b"%d" % number
                assert (c.record.sent, c.record.reused) == (c.clock.now, number > 0)
            assert len(c.engine.wires) == 1

    run(main())


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(CLOSING, id="connection: close"),
        pytest.param(OK.replace(b"1.1", b"1.0"), id="HTTP/1.0"),
        pytest.param(OK + b"HTTP/1.1 200", id="more than it was asked"),
        pytest.param(CHUNKED + b"2\r\nok\r\n0\r\n\r\n\x00", id="a byte too many"),
    ],
)
def test_a_connection_that_is_not_used_again(run, data):
    async def main() -> None:
        async with caller(once(data)) as c:
            assert await c.post() == b"ok"
            began = time.perf_counter()
            await c.engine.played()
            assert time.perf_counter() - began < LIMIT_S
            assert await c.post() == b"ok"
            assert not c.record.reused

    run(main())


@pytest.mark.parametrize("data", [OK, CHUNKED + b"2\r\nok\r\n"], ids=["all came, nothing read", "half came"])
def test_a_reply_not_read_to_its_end_is_broken_off(run, data):
    async def main() -> None:
        async with caller(once(data)) as c:
            reply = await c.open()
            began = time.perf_counter()
            reply.close()
            await c.engine.played()
            assert time.perf_counter() - began < LIMIT_S
            (await c.open()).close()
            assert not c.record.reused

    run(main())


@pytest.mark.parametrize(("idle_ns", "reused"), [(0, True), (POOL_IDLE_NS - 1, True), (POOL_IDLE_NS, False), (60 * S, False)])
def test_how_long_a_connection_is_fit_for_use(run, idle_ns, reused):
    async def main() -> None:
        async with caller(echo) as c:
            await c.post()
            c.clock.now += idle_ns
            await c.post(b"again")
            assert c.record.reused is reused
            first = c.engine.wires[0]
            if not reused:
                await until(lambda: first.gone_at)
            assert bool(first.gone_at) is not reused

    run(main())


def test_sweep_closes_what_was_idle_for_too_long(run):
    async def main() -> None:
        async with caller(echo) as c:
            replies = [await c.open() for _ in range(3)]
            for reply in replies:
                await read_all(reply)
                c.clock.now += 2 * S
            c.client.sweep()  # 6, 4 and 2 s
            began = time.perf_counter()
            await until(lambda: [bool(wire.gone_at) for wire in c.engine.wires] == [True, True, False])
            assert time.perf_counter() - began < LIMIT_S
            c.clock.now += S
            await c.post()
            assert c.record.reused
            assert len(c.engine.wires) == 3

    run(main())


def test_a_pool_that_is_used_shrinks_to_what_is_needed(run):
    async def main() -> None:
        async with caller(echo) as c:
            for reply in [await c.open() for _ in range(8)]:
                await read_all(reply)
            for _ in range(5):
                c.clock.now += S
                await c.post()
                assert c.record.reused
            await until(lambda: sum(bool(wire.gone_at) for wire in c.engine.wires) == 7)

    run(main())


def test_no_more_are_kept_than_the_limit_says(run, monkeypatch):
    monkeypatch.setattr(upstream, "MAX_IDLE", 2)

    async def main() -> None:
        async with caller(echo) as c:
            for reply in [await c.open() for _ in range(5)]:
                await read_all(reply)
            await until(lambda: sum(bool(wire.gone_at) for wire in c.engine.wires) == 3)

    run(main())


@pytest.mark.parametrize("how", ["end", "reset"])
def test_one_that_the_engine_closed_while_it_was_idle_is_passed_over(run, how):
    async def script(wire: Wire) -> None:
        await wire.request()
        await wire.send(OK)
        if wire.number == 0:
            await go.wait()
            getattr(wire, how)()
        else:
            await wire.gone()

    go = asyncio.Event()

    async def main() -> None:
        async with caller(script) as c:
            await c.post()
            go.set()
            await asyncio.sleep(0.02)  # it has come here
            await c.post()
            assert not c.record.reused

    run(main())


@pytest.mark.parametrize("how", ["end", "reset"])
def test_one_that_the_engine_closes_just_as_it_is_used_again_is_stale(run, how):
    async def script(wire: Wire) -> None:
        await wire.request()
        await wire.send(OK)
        await wire.request()
        getattr(wire, how)()

    async def main() -> None:
        async with caller(script) as c:
            await c.post()
            with pytest.raises(StaleError):
                await c.post()
            assert c.record.reused
            await c.post()
            assert not c.record.reused

    run(main())


def test_a_new_connection_closed_before_an_answer_is_not_stale(run):
    async def script(wire: Wire) -> None:
        await wire.request()

    async def main() -> None:
        async with caller(script) as c:
            with pytest.raises(BrokenError, match="closed before it answered") as caught:
                await c.post()
            assert not c.record.reused
            assert not isinstance(caught.value, StaleError)

    run(main())


@pytest.mark.parametrize("is_spoken", [False, True], ids=["closed", "spoken first"])
def test_an_engine_that_ends_the_connection_before_it_is_asked(run, is_spoken):
    spoken = b"HTTP/1.1 408 Request Timeout\r\nconnection: close\r\ncontent-length: 0\r\n\r\n"
    data = spoken if is_spoken else b""

    async def script(wire: Wire) -> None:
        await wire.send(data)

    async def main() -> None:
        async with caller(script) as c:
            for _ in range(20):
                with contextlib.suppress(BrokenError):  # what is there in time is taken for the answer
                    assert (data, await c.post(), c.record.reused) == (spoken, b"", False)

    run(main())


def test_a_reply_closed_again_touches_nobody_elses_connection(run):
    async def main() -> None:
        async with caller(echo) as c:
            first = await c.open(b"first")
            assert await read_all(first) == b"first"
            second = await c.open(b"second")
            assert c.record.reused
            first.close()
            with pytest.raises(BrokenError, match="read after it was closed"):
                await first.read()
            assert await read_all(second) == b"second"
            first.close()
            second.close()
            one, other = await c.open(b"one"), await c.open(b"other")
            assert (await read_all(one), await read_all(other)) == (b"one", b"other")
            assert len(c.engine.wires) == 2

    run(main())


def test_many_at_the_same_time_get_their_own(run):
    async def main() -> None:
        async with caller(echo) as c:
            address = Address.of(c.engine.url)

            async def ask(body: bytes) -> bool:
                return await read_all(await c.client.post(address, [], body, record())) == body

            for _ in range(3):
                assert all(await asyncio.gather(*(ask(b"%d" % number * 50) for number in range(200))))
            assert len(c.engine.wires) <= 200
            await c.client.close()
            began = time.perf_counter()
            await c.engine.played()
            assert time.perf_counter() - began < 1

    run(main())


def test_what_is_given_back_after_the_client_closed_is_closed(run):
    async def main() -> None:
        async with caller(echo) as c:
            reply = await c.open()
            await c.client.close()
            assert await read_all(reply) == b"{}"
            await c.engine.played()
            await c.client.close()

    run(main())


# Calls that are ended from outside


@pytest.mark.parametrize("turns", range(12))
def test_ended_after_so_many_turns_of_the_loop(run, turns):
    async def main() -> float:
        async with caller(silent) as c:
            call = asyncio.create_task(c.open())
            for _ in range(turns):
                await asyncio.sleep(0)
            began = time.perf_counter()
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            await asyncio.sleep(0.005)  # in which the engine takes the connection
            await c.engine.played()
            return time.perf_counter() - began

    assert run(main()) < LIMIT_S


@pytest.mark.parametrize("turns", range(0, 24, 2))
def test_the_answer_to_a_call_that_was_ended_is_never_the_next_ones(run, turns):
    async def main() -> None:
        async with caller(echo) as c:
            await c.post(b"before")
            call = asyncio.create_task(c.post(b"ended"))
            for _ in range(turns):
                await asyncio.sleep(0)
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
            assert await c.post(b"next") == b"next"

    run(main())


def test_ended_while_it_waits_for_the_head(run):
    async def main() -> float:
        async with caller(silent) as c:
            call = asyncio.create_task(c.open())
            await until(lambda: c.engine.wires)
            await asyncio.sleep(0.02)
            began = time.perf_counter()
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            await c.engine.played()
            return time.perf_counter() - began

    assert run(main()) < LIMIT_S


@pytest.mark.parametrize("script", [once(CHUNKED), once(CHUNKED + b"2\r\nok\r\n")], ids=["nothing read", "something read"])
def test_a_reply_whose_reading_was_ended_is_broken_off_by_close(run, script):
    async def main() -> float:
        async with caller(script) as c:
            reply = await c.open()
            reading = asyncio.create_task(read_all(reply))
            await asyncio.sleep(0.01)
            reading.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            began = time.perf_counter()
            reply.close()
            await c.engine.played()
            (await c.open()).close()
            assert not c.record.reused
            return time.perf_counter() - began

    assert run(main()) < LIMIT_S


def test_ended_while_tls_is_being_agreed(run):
    async def script(wire: Wire) -> None:
        await wire.gone()

    async def main() -> float:
        async with caller(script) as c:
            call = asyncio.create_task(c.open(url=c.engine.url.replace("http", "https")))
            await until(lambda: c.engine.wires)
            await asyncio.sleep(0.01)
            began = time.perf_counter()
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
            await c.engine.played()
            return time.perf_counter() - began

    assert run(main()) < LIMIT_S


@pytest.mark.parametrize("turns", range(5))
def test_ended_while_the_host_is_looked_up(run, turns):
    """An error that comes after that is nobody's: it must not be complained about either."""

    async def main() -> None:
        client = PooledClient(Clock())
        call = asyncio.create_task(client.post(Address.of("http://no-such-engine.invalid/"), [], b"", record()))
        for _ in range(turns):
            await asyncio.sleep(0)
        call.cancel()
        await asyncio.gather(call, return_exceptions=True)
        with pytest.raises(NotTakenError):  # later than the first look-up
            await client.post(Address.of("http://no-such-engine.invalid/"), [], b"", record())
        await asyncio.sleep(0.01)
        gc.collect()
        await client.close()

    run(main())


# Short exchanges of the gateway's own

ASKED = {
    "an answer": (OK, (200, b"ok")),
    "an answer in chunks": (CHUNKED + b"2\r\nok\r\n0\r\n\r\n", (200, b"ok")),
    "an error": (b"HTTP/1.1 401 X\r\ncontent-length: 0\r\n\r\n", (401, b"")),
    "as long as it may be": (b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\n123456789", (200, b"123456789")),
    "a byte longer": (b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\n1234567890", BrokenError),
    "much longer": (CHUNKED + b"100000\r\n" + b"x" * (1 << 20), BrokenError),
    "no answer": (b"", TimeoutError),
    "half a head": (b"HTTP/1.1 200", TimeoutError),
    "half an answer": (OK[:-1], TimeoutError),
    "no http": (b"hello there\r\n", BrokenError),
}


@pytest.mark.parametrize("case", ASKED)
def test_ask(run, case):
    data, expected = ASKED[case]

    async def main() -> Any:
        async with caller(once(data)) as c:
            try:
                return await c.client.ask("GET", c.engine.url, headers=[], body=None, timeout_s=0.05, most=9)
            finally:
                began = time.perf_counter()
                await c.engine.played()  # whatever came of it, its connection is closed
                assert time.perf_counter() - began < LIMIT_S

    if isinstance(expected, tuple):
        assert run(main()) == expected
    else:
        with pytest.raises(expected):
            run(main())


def test_ask_has_a_connection_of_its_own(run):
    async def main() -> None:
        async with caller(echo) as c:
            await c.post()
            await c.client.ask("GET", c.engine.url, headers=[], body=None, timeout_s=5, most=9)
            await c.post()
            assert c.record.reused
            assert len(c.engine.wires) == 2

    run(main())
