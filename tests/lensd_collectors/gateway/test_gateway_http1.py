"""What an engine can put on the wire, over loopback sockets: what is read of it, and whether the connection may be used again."""

import asyncio
import itertools
import re
from collections.abc import Coroutine
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lensd_collectors.gateway.http1 import MAX_BARE, MAX_HEADERS, BrokenError, Connection, StaleError
from raw_engine import CHUNKED, LENGTH, LOOPS, OK, REQUEST, STATUS, Run, Wire, connect, raw_engine, read_body, replies, runner

pytestmark = pytest.mark.filterwarnings("error")


@pytest.fixture(params=LOOPS)
def run(request: pytest.FixtureRequest) -> Run:
    return runner(request.param)


async def get(data: bytes, *, end: str = "stay") -> tuple[int, list[tuple[bytes, bytes]], bytes, bool]:
    """Status, headers, body, and whether the connection may be used again. Raises BrokenError."""
    async with raw_engine(replies(data, end=end)) as engine:
        connection = await connect(engine)
        try:
            connection.request(REQUEST, b"")
            body = await read_body(connection)
            return connection.status, connection.headers, body, connection.can_be_kept
        finally:
            connection.close()
            await connection.closed()


# What came, how the engine goes on, status, body, kept
WHOLE = {
    "length": (OK, "stay", 200, b"ok", True),
    "length of nothing": (STATUS + b"content-length: 0\r\n\r\n", "stay", 200, b"", True),
    "chunks": (CHUNKED + b"2\r\nab\r\n1\r\nc\r\n0\r\n\r\n", "stay", 200, b"abc", True),
    "no chunk": (CHUNKED + b"0\r\n\r\n", "stay", 200, b"", True),
    "extensions": (CHUNKED + b'2;a=b;c="d e"\r\nab\r\n0;x\r\n\r\n', "stay", 200, b"ab", True),
    "trailers": (CHUNKED + b"2\r\nab\r\n0\r\nx-checksum: 1\r\nset-cookie: a=1\r\n\r\n", "stay", 200, b"ab", True),
    "size in upper case": (CHUNKED.replace(b"chunked", b"Chunked") + b"00A\r\n0123456789\r\n0\r\n\r\n", "stay", 200, b"0123456789", True),
    "until the end": (STATUS + b"\r\nabc", "close", 200, b"abc", False),
    "nothing until the end": (STATUS + b"\r\n", "close", 200, b"", False),
    "no content": (b"HTTP/1.1 204 No Content\r\n\r\n", "stay", 204, b"", True),
    "not modified": (b"HTTP/1.1 304 Not Modified\r\ncontent-length: 500\r\n\r\n", "stay", 304, b"", True),
    "closing": (STATUS + b"connection: close\r\ncontent-length: 2\r\n\r\nok", "close", 200, b"ok", False),
    "closing, among others": (STATUS + b"Connection: x, Close\r\ncontent-length: 2\r\n\r\nok", "stay", 200, b"ok", False),
    "closing, said later": (STATUS + b"connection: keep-alive\r\nconnection: close\r\n" + LENGTH + b"ok", "stay", 200, b"ok", False),
    "old": (b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok", "stay", 200, b"ok", False),
    "old and kept": (b"HTTP/1.0 200 OK\r\nconnection: keep-alive\r\ncontent-length: 2\r\n\r\nok", "stay", 200, b"ok", True),
    "old, until the end": (b"HTTP/1.0 200 OK\r\nconnection: keep-alive\r\n\r\nok", "close", 200, b"ok", False),
    "continue": (b"HTTP/1.1 100 Continue\r\n\r\n" + OK, "stay", 200, b"ok", True),
    "hints": (b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\nHTTP/1.1 103 Early Hints\r\n\r\n" + OK, "stay", 200, b"ok", True),
    "continue with a length": (b"HTTP/1.1 100 Continue\r\ncontent-length: 9\r\n\r\n" + OK, "stay", 200, b"ok", True),
    "error": (b"HTTP/1.1 503 \r\ncontent-length: 2\r\n\r\nno", "stay", 503, b"no", True),
    "closed after it": (OK, "close", 200, b"ok", None),
    "reset after it": (OK, "reset", 200, b"ok", None),
    "more than a length": (OK + b"junk", "stay", 200, b"ok", False),
    "a second reply": (OK + b"HTTP/1.1 500 X\r\nset-cookie: a=1\r\ncontent-length: 3\r\n\r\nbad", "stay", 200, b"ok", False),
    "half of a second reply": (OK + b"HTTP/1.1 200 OK\r\nx-next: ", "stay", 200, b"ok", False),
    "a second head after chunks": (CHUNKED + b"2\r\nok\r\n0\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n", "stay", 200, b"ok", False),
    "a body where none is": (b"HTTP/1.1 204 No Content\r\ncontent-length: 2\r\n\r\nok", "stay", 204, b"", False),
    "more after closing": (STATUS + b"connection: close\r\ncontent-length: 2\r\n\r\nokHTTP/1.1 500 X\r\n\r\n", "stay", 200, b"ok", False),
}


@pytest.mark.parametrize("case", WHOLE)
def test_a_whole_reply(run, case):
    data, end, status, body, kept = WHOLE[case]
    told = run(get(data, end=end))
    assert (told[0], told[2]) == (status, body)
    assert kept is None or told[3] is kept


def test_headers_stay_in_order_and_apart(run):
    data = (
        b"HTTP/1.1 200 OK\r\nSet-Cookie: a=1\r\nX-Odd:caf\xe9 \t\r\nset-cookie: b=2\r\nX-EMPTY:\r\n"
        b"Content-Length:  90000  \r\nX-Long: %s\r\n\r\n%s" % (b"v" * 40_000, b"x" * 90_000)
    )
    _, headers, body, kept = run(get(data))
    assert headers == [
        (b"set-cookie", b"a=1"), (b"x-odd", b"caf\xe9"), (b"set-cookie", b"b=2"), (b"x-empty", b""), (b"content-length", b"90000"),
        (b"x-long", b"v" * 40_000),
    ]  # fmt: skip
    assert (body, kept) == (b"x" * 90_000, True)


@pytest.mark.parametrize("case", ["trailers", "a second reply", "half of a second reply", "hints"])
def test_headers_are_those_of_the_reply_alone(run, case):
    assert {name for name, _ in run(get(WHOLE[case][0]))[1]} <= {b"content-length", b"transfer-encoding"}


# What came, how the engine goes on, what the error says
BROKEN = {
    "nothing, closed": (b"", "close", "closed before it answered"),
    "nothing, reset": (b"", "reset", "closed before it answered"),
    "half a head": (STATUS + b"content-le", "close", "in the middle of its reply's head"),
    "half a head, reset": (STATUS + b"content-le", "reset", "in the middle of its reply's head"),
    "hints only": (b"HTTP/1.1 103 Early Hints\r\n\r\n", "close", "in the middle of its reply's head"),
    "less than a length": (STATUS + b"content-length: 3\r\n\r\nab", "close", "in the middle of its reply"),
    "a chunk's size": (CHUNKED + b"2\r\nab\r\n", "close", "in the middle of its reply"),
    "half a chunk": (CHUNKED + b"5\r\nab", "reset", "in the middle of its reply"),
    "chunks without the last line": (CHUNKED + b"2\r\nab\r\n0\r\n", "close", "in the middle of its reply"),
    "until the end, reset": (STATUS + b"\r\nabc", "reset", "in the middle of its reply"),
    "length and chunks": (CHUNKED[:-2] + b"content-length: 2\r\n\r\n2\r\nab\r\n0\r\n\r\n", "stay", "can't be present with"),
    "chunks and length": (OK[:-4] + b"transfer-encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n", "stay", "can't be present with"),
    "two lengths": (OK[:-4] + b"content-length: 3\r\n\r\nabc", "stay", "Duplicate Content-Length"),
    "the same length twice": (OK[:-4] + b"content-length: 2\r\n\r\nok", "stay", "Duplicate Content-Length"),
    "a list of lengths": (STATUS + b"content-length: 2, 3\r\n\r\nabc", "stay", "Content-Length"),
    "a signed length": (STATUS + b"content-length: +2\r\n\r\nok", "stay", "Content-Length"),
    "a length below zero": (STATUS + b"content-length: -2\r\n\r\nok", "stay", "Content-Length"),
    "a huge length": (STATUS + b"content-length: 99999999999999999999\r\n\r\nok", "stay", "overflow"),
    "another coding": (STATUS + b"transfer-encoding: gzip\r\n\r\nab", "close", "transfer coding"),
    "another coding in chunks": (STATUS + b"transfer-encoding: gzip, chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n", "stay", "transfer coding"),
    "chunks in chunks": (CHUNKED[:-2] + b"transfer-encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n", "stay", "transfer coding"),
    "no such size": (CHUNKED + b"zz\r\nab\r\n0\r\n\r\n", "stay", "chunk size"),
    "a huge size": (CHUNKED + b"fffffffffffffffff\r\nab\r\n", "stay", "overflow"),
    "a longer chunk": (CHUNKED + b"2\r\nabc\r\n0\r\n\r\n", "stay", "HTTP/1.1"),
    "folded": (STATUS + b"x-a: b\r\n c: d\r\ncontent-length: 0\r\n\r\n", "stay", "header value"),
    "a line feed alone": (STATUS + b"x-a: b\nx-b: c\r\ncontent-length: 0\r\n\r\n", "stay", "header value"),
    "a carriage return alone": (STATUS + b"x-a: b\rx-b: c\r\ncontent-length: 0\r\n\r\n", "stay", "header value"),
    "a zero byte": (STATUS + b"x-a: b\0c\r\ncontent-length: 0\r\n\r\n", "stay", "header value"),
    "a space before the colon": (STATUS + b"content-length : 0\r\n\r\n", "stay", "header"),
    "a name beyond ascii": (STATUS + b"x-\xe9: 1\r\ncontent-length: 0\r\n\r\n", "stay", "header"),
    "no name": (STATUS + b": 1\r\ncontent-length: 0\r\n\r\n", "stay", "header"),
    "no http": (b"SSH-2.0-OpenSSH_9.2\r\n", "stay", "does not answer in HTTP/1.1"),
    "tls": (b"\x15\x03\x01\x00\x02\x02\x50", "stay", "does not answer in HTTP/1.1"),
    "another protocol": (b"HTTP/1.1 101 Switching Protocols\r\nconnection: upgrade\r\nupgrade: x\r\n\r\n\1\2", "stay", "HTTP/1.1"),
    "no such status": (b"HTTP/1.1 099 X\r\ncontent-length: 0\r\n\r\n", "stay", "status 99"),
    "a status beyond all kinds": (b"HTTP/1.1 777 X\r\ncontent-length: 0\r\n\r\n", "stay", "status 777"),
    "a longer status": (b"HTTP/1.1 2000 X\r\n\r\n", "stay", "status"),
    "many headers": (STATUS + b"x: 1\r\n" * (MAX_HEADERS + 1) + b"\r\n", "stay", "too long"),
    "a long header": (STATUS + b"x: %s\r\ncontent-length: 0\r\n\r\n" % (b"v" * (MAX_BARE + 1)), "stay", "without one of a body|too long"),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_reply(run, case):
    data, end, why = BROKEN[case]
    with pytest.raises(BrokenError, match=why) as caught:
        run(get(data, end=end))
    assert not isinstance(caught.value, StaleError)


@pytest.mark.parametrize("case", ["less than a length", "half a chunk", "no such size", "until the end, reset"])
def test_a_broken_reply_never_makes_a_connection_fit_for_use(run, case):
    data, end, _ = BROKEN[case]

    async def main() -> bool:
        async with raw_engine(replies(data, end=end)) as engine:
            connection = await connect(engine)
            connection.request(REQUEST, b"")
            with pytest.raises(BrokenError):
                await read_body(connection)
            kept = connection.can_be_kept
            connection.close()
            await connection.closed()
            return kept

    assert run(main()) is False


def test_what_came_of_the_body_before_it_broke_can_be_read(run):
    async def main() -> bytes:
        async with raw_engine(replies(CHUNKED + b"3\r\nabc\r\nzz")) as engine:
            connection = await connect(engine)
            connection.request(REQUEST, b"")
            await connection.head()
            first = await connection.read()
            with pytest.raises(BrokenError, match="chunk size"):
                await connection.read()
            connection.close()
            await connection.closed()
            return first

    assert run(main()) == b"abc"


NO_END = re.compile("without one of a body|too long")
ENDLESS = {
    "status line": (b"HTTP/1.1 200 ", b"x" * 8192),
    "name": (STATUS, b"x" * 8192),
    "value": (STATUS + b"x-a: ", b"x" * 8192),
    "headers": (STATUS, b"x-a: 1\r\n" * 1024),
    "hints": (b"", b"HTTP/1.1 103 Early Hints\r\nlink: </x>\r\n\r\n" * 128),
    "empty lines": (b"", b"\r\n" * 4096),
    "extension": (CHUNKED + b"2;", b"x" * 8192),
    "trailer": (CHUNKED + b"2\r\nab\r\n0\r\nx-a: ", b"x" * 8192),
    "trailers": (CHUNKED + b"2\r\nab\r\n0\r\n", b"x-a: 1\r\n" * 1024),
}


@pytest.mark.parametrize("case", ENDLESS)
def test_what_has_no_end_and_no_body_is_cut(run, case):
    begin, more = ENDLESS[case]

    async def script(wire: Wire) -> None:
        await wire.request()
        await wire.send(begin)
        for _ in range(8192):  # 64 MB, were it taken
            await wire.send(more)

    async def main() -> int:
        async with raw_engine(script) as engine:
            connection = await connect(engine)
            connection.request(REQUEST, b"")
            with pytest.raises(BrokenError, match=NO_END):
                await read_body(connection)
            held = sum(len(value) for _, value in connection.headers)
            connection.close()
            await engine.played()
            assert engine.wires[0].sent < 60 << 20
            return held

    assert run(main()) < 1 << 20


# Without a socket: any bytes, in any pieces


class Nowhere(asyncio.Transport):
    """Takes everything, and says whether it was ended."""

    def __init__(self) -> None:
        super().__init__()
        self.is_ended = False

    def write(self, data: bytes) -> None: ...

    def writelines(self, data: Any) -> None: ...

    def abort(self) -> None:
        self.is_ended = True

    close = pause_reading = resume_reading = abort

    def get_write_buffer_size(self) -> int:
        return 0


class Fed:
    """A connection that has asked, to which bytes are given, and what was read of them."""

    def __init__(self) -> None:
        self.connection = Connection()
        self.connection.connection_made(Nowhere())
        self.connection.request(REQUEST, b"")
        self.body = b""

    def feed(self, parts: list[bytes]) -> None:
        for part in parts:
            self.connection.data_received(part)
            self.read()

    def read(self) -> None:
        with_head = self.connection.status >= 200
        while with_head and self.connection._parts:
            self.body += at_once(self.connection.read())


def at_once(coroutine: Coroutine[Any, Any, bytes]) -> bytes:
    """What it returns without having to wait."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value
    finally:
        coroutine.close()
    raise AssertionError("it waits")


def pieces(data: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    return [data[a:b] for a, b in itertools.pairwise(edges) if a < b]


KEPT = [case for case in WHOLE.values() if case[1] == "stay" and case[4]]


@given(st.sampled_from(KEPT), st.lists(st.integers(0, 200), max_size=12))
def test_however_it_is_cut_it_reads_the_same(case, cuts):
    data, _, status, body, _ = case
    uncut, cut = Fed(), Fed()
    uncut.feed([data])
    cut.feed(pieces(data, cuts))
    for fed in (uncut, cut):
        assert (fed.connection.status, fed.body, fed.connection.can_be_kept) == (status, body, True)
        assert at_once(fed.connection.read()) == b""
    assert cut.connection.headers == uncut.connection.headers


@pytest.mark.parametrize("case", [name for name, case in WHOLE.items() if case[1] == "stay"])
def test_byte_by_byte(case):
    data, _, status, body, kept = WHOLE[case]
    fed = Fed()
    fed.feed([data[i : i + 1] for i in range(len(data))])
    assert (fed.connection.status, fed.body, fed.connection.can_be_kept) == (status, body, kept)


@given(st.lists(st.binary(max_size=300), max_size=20))
def test_chunks_of_any_bytes(bodies):
    data = CHUNKED + b"".join(b"%x\r\n%s\r\n" % (len(each), each) for each in bodies if each) + b"0\r\n\r\n"
    fed = Fed()
    fed.feed([data[i : i + 7] for i in range(0, len(data), 7)])
    assert (fed.body, fed.connection.can_be_kept) == (b"".join(bodies), True)


WORDS = [
    STATUS, b"HTTP/1.1 ", b"HTTP/1.0 ", b"204", b"304 X", b"100 Continue", b"\r\n", b"\r", b"\n", b"\r\n\r\n", b"\0", b" ", b"\t", b":",
    b";", b"\xff", b"content-length: 3", b"content-length: ", b"transfer-encoding: chunked", b"connection: close",
    b"connection: keep-alive", b"x-a: b", b"3\r\nabc\r\n", b"0\r\n", b"abc", OK, CHUNKED,
]  # fmt: skip


@given(st.lists(st.sampled_from(WORDS) | st.binary(max_size=6), max_size=16), st.lists(st.integers(0, 200), max_size=4))
def test_nothing_that_comes_does_more_than_break_it(words, cuts):
    fed = Fed()
    fed.feed(pieces(STATUS + b"".join(words), cuts))
    connection = fed.connection
    assert not any(byte in name + value for name, value in connection.headers for byte in (b"\r", b"\n", b"\0"))
    assert connection.status == 0 or connection.status >= 100
    if connection.can_be_kept:  # then the parser stands at the beginning of a reply
        connection.request(REQUEST, b"")
        fed.body = b""
        fed.feed([b"HTTP/1.1 202 X\r\ncontent-length: 4\r\n\r\nnext"])
        assert (connection.status, connection.headers) == (202, [(b"content-length", b"4")])
        assert (fed.body, connection.can_be_kept) == (b"next", True)
