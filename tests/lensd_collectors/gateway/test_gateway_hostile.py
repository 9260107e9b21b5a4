"""Callers that are no clients: what every reply carries, whatever was sent, and what reaches the engine of it."""

import asyncio
import http.client
import io
import json
import re
import socket
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest
from gateway_house import KEYS, MODEL, SSE, WHOLE, House, house, key_id, wait_for
from lensd_collectors.gateway import callers, server

TRACE, SPAN = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
BODY = json.dumps({"model": MODEL, "messages": []}).encode()
POST = b"POST /v1/chat/completions HTTP/1.1"
KEY = b"authorization: Bearer %s\r\n" % KEYS["narrow"].encode()
IDS = re.compile(r"[0-9a-f]{32}")
LONG = 100_000


class Reply(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error(self) -> dict[str, Any]:
        return json.loads(self.body)["error"]


def request(line: bytes = POST, *headers: bytes, body: bytes | None = BODY, key: bytes = KEY) -> bytes:
    lines = [line, b"host: x", key.strip(), *headers]
    if body is not None:
        lines.append(b"content-length: %d" % len(body))
    return b"\r\n".join((*(each for each in lines if each), b"", body or b""))


def get(path: bytes, *headers: bytes, method: bytes = b"GET") -> bytes:
    return request(b"%s %s HTTP/1.1" % (method, path), *headers, body=None)


def chunked(line: bytes, *headers: bytes, key: bytes = KEY) -> bytes:
    half = len(BODY) // 2
    parts = b"".join(b"%x\r\n%s\r\n" % (len(each), each) for each in (BODY[:half], BODY[half:]))
    return request(line, *headers, b"transfer-encoding: chunked", body=None, key=key) + parts + b"0\r\n\r\n"


class _Pipe:
    """Lets http.client read replies that it has not asked for."""

    def __init__(self, sock: socket.socket) -> None:
        self._file = sock.makefile("rb")

    def makefile(self, _: str) -> io.BufferedReader:
        return self._file


def read(pipe: _Pipe, method: str = "POST") -> Reply:
    response = http.client.HTTPResponse(pipe, method=method)  # type: ignore[arg-type]
    response.fp.close = lambda: None  # type: ignore[method-assign]
    response.begin()
    names = [name.lower() for name in response.headers]
    assert len(names) == len(set(names))
    return Reply(response.status, {name.lower(): value for name, value in response.headers.items()}, response.read())


def send(at: House, data: bytes, replies: int = 1) -> list[Reply]:
    with socket.create_connection(("127.0.0.1", at.port), timeout=5) as sock:
        sock.sendall(data)
        pipe = _Pipe(sock)
        return [read(pipe, data.split(b" ")[0].decode("latin-1")) for _ in range(replies)]


@pytest.fixture(scope="module")
def usual(tmp_path_factory) -> Iterator[House]:
    with house(tmp_path_factory.mktemp("hostile")) as made:
        yield made


STREAMED = json.dumps({"model": MODEL, "messages": [], "stream": True}).encode()


@pytest.mark.parametrize(
    ("data", "status", "said_by"),
    [
        pytest.param(request(), 200, "engine", id="a whole reply"),
        pytest.param(request(body=STREAMED), 200, "engine", id="a stream"),
        pytest.param(get(b"/v1/models"), 200, "gateway", id="models"),
        pytest.param(get(b"/healthz"), 200, "gateway", id="healthz"),
        pytest.param(get(b"/healthz", method=b"HEAD"), 200, "gateway", id="HEAD healthz"),
        pytest.param(get(b"/readyz"), 200, "gateway", id="readyz"),
        pytest.param(get(b"/readyz", method=b"HEAD"), 200, "gateway", id="HEAD readyz"),
        pytest.param(get(b"/metrics"), 200, "gateway", id="metrics"),
        pytest.param(get(b"/metrics", b"x-forwarded-for: 9.9.9.9"), 404, "gateway", id="metrics for somebody else"),
        pytest.param(get(b"/v1/models", method=b"HEAD"), 405, "gateway", id="HEAD models"),
        pytest.param(get(b"/v1/chat/completions", method=b"OPTIONS"), 405, "gateway", id="OPTIONS"),
        pytest.param(get(b"/", method=b"TRACE"), 404, "gateway", id="TRACE"),
        pytest.param(get(b"/v1/models", b"key: none", method=b"PROPFIND"), 405, "gateway", id="PROPFIND"),
        pytest.param(request(key=b""), 401, "gateway", id="no key"),
        pytest.param(get(b"*", method=b"OPTIONS"), 404, "gateway", id="OPTIONS *"),
        pytest.param(get(b"example.org:443", method=b"CONNECT"), 400, "gateway", id="CONNECT"),
        pytest.param(get(b"/v1/models", method=b"FROBNICATE"), 400, "gateway", id="no method"),
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\r\n\r\n", 400, "gateway", id="TLS"),
        pytest.param(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400, "gateway", id="HTTP/2"),
        pytest.param(b"GET /healthz\r\n\r\n", 200, "gateway", id="HTTP/0.9"),
    ],
)
def test_every_reply_says_who_gave_it_and_what_to_ask_about_it_with(usual, data, status, said_by):
    (reply,) = send(usual, data)
    assert (reply.status, reply.headers["x-lensd-said-by"]) == (status, said_by)
    assert IDS.fullmatch(reply.headers["x-request-id"])
    assert reply.headers["traceparent"].startswith(f"00-{reply.headers['x-request-id']}-")
    assert bool(reply.body) is not data.startswith(b"HEAD")


def test_the_gateways_own_pages_leave_no_record(usual):
    asked = {send(usual, get(path))[0].headers["x-request-id"] for path in (b"/healthz", b"/readyz", b"/metrics")}
    (last,) = send(usual, get(b"/v1/models"))
    usual.span(last.headers["x-request-id"])
    assert len(asked) == 3
    assert not any(each in usual.told() for each in asked)


@pytest.mark.parametrize(
    ("sent", "kept"),
    [
        (b"my id<1>", "myid1"),
        (b"\xff\xfe\"'`<script>\\", "script"),
        (b"z" * 9000, "z" * 128),
        (b"   ", None),
        (b"\xe2\x80\xae\xc2\xa0", None),
    ],
)
def test_an_absurd_id_is_made_sane_or_replaced(usual, sent, kept):
    (reply,) = send(usual, request(POST, b"x-request-id: " + sent, b"x-session-id: " + sent))
    given = reply.headers["x-request-id"]
    assert given == kept if kept else IDS.fullmatch(given)
    record = usual.span(given)["attributes"]
    assert (record["lensd.request.id"], record.get("gen_ai.conversation.id")) == (given, kept)
    assert usual.engine.calls[-1].headers["x-request-id"] == given


@pytest.mark.parametrize(
    "sent",
    [b"00-zz-00-01", b"ff-%s-%s-01", b"00-%s-%s-01-x", b"00-00000000000000000000000000000000-%s-01", b"\xff", b"00-%s-%s", b"x" * 9000],
)  # fmt: skip
def test_a_traceparent_that_is_none_is_not_kept(usual, sent):
    sent = sent.replace(b"%s", TRACE.encode(), 1).replace(b"%s", SPAN.encode(), 1)
    (reply,) = send(usual, request(POST, b"traceparent: " + sent))
    assert reply.status == 200
    assert TRACE not in reply.headers["traceparent"]
    assert usual.span(reply.headers["x-request-id"])["parent_span_id"] is None


def test_an_engine_that_says_it_is_the_gateway_is_not_believed(usual):
    (reply,) = send(usual, request(body=json.dumps({"model": "tiny-spoof"}).encode()))
    assert (reply.status, reply.headers["x-lensd-said-by"]) == (200, "engine")
    assert IDS.fullmatch(reply.headers["x-request-id"])
    assert "other" not in reply.headers.values()
    assert "keep-alive" not in reply.headers


def test_headers_of_odd_bytes_pass_and_those_of_the_connection_do_not(usual):
    (reply,) = send(
        usual,
        request(POST, b"x-odd: \x80\xff", b"connection: x-odd-too, authorization", b"x-odd-too: 1", b"x-stainless-timeout: nan"),
    )
    assert reply.status == 200
    headers = usual.engine.calls[-1].headers
    assert headers["x-odd"] == "\x80\xff"
    assert "x-odd-too" not in headers


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        (b"/v1/%00models", "/v1/?models"),
        (b"/v1/%0d%0aset-cookie:x", "/v1/??set-cookie:[key]"),
        (b"/v1/%ff%fe", "/v1/\ufffd\ufffd"),
        (b"//v1/models", "//v1/models"),
        (b"/v1/../v1/models", "/v1/../v1/models"),
        (b"/v1/models/", "/v1/models/"),
        (b"/v1%2fmodels%3fmodel=x", "/v1/models?[content]"),
        (b"/" + b"a" * 60_000, "/" + "a" * 127),
    ],
)
def test_an_odd_path_is_unknown_and_shown_harmlessly(usual, path, shown):
    (reply,) = send(usual, get(path))
    assert (reply.status, reply.error["code"]) == (404, "route_not_found")
    assert reply.error["message"].partition(";")[0] == f"there is no path {shown}"
    assert usual.span(reply.headers["x-request-id"])["attributes"]["http.route"] == shown


@pytest.mark.parametrize("name", [b"%00", b"a%0ab", b"..%2f..%2fetc", b"x" * 5000, b"%f0%9f%98%80"])
def test_an_odd_model_is_unknown_wherever_it_stands(usual, name):
    (card,) = send(usual, get(b"/v1/models/" + name))
    assert (card.status, card.error["code"]) == (404, "model_not_found")
    (chat,) = send(usual, request(body=json.dumps({"model": f"{name!r}\0\n" * 3}).encode()))
    assert (chat.status, chat.error["code"]) == (404, "model_not_found")
    assert len(chat.body) < 500


def test_an_absolute_uri_is_a_path_like_any_other(usual):
    (reply,) = send(usual, request(b"POST http://elsewhere.example/v1/chat/completions HTTP/1.1"))
    assert (reply.status, reply.body) == (200, WHOLE)
    (reply,) = send(usual, get(b"http://elsewhere.example"))
    assert (reply.status, reply.error["code"]) == (400, "invalid_http")


def test_http_1_0_is_served_and_closed(usual):
    (reply,) = send(usual, request(b"POST /v1/chat/completions HTTP/1.0"))
    assert (reply.status, reply.body, reply.headers["connection"]) == (200, WHOLE, "close")


def test_pipelined_requests_are_answered_in_order(usual):
    data = request() + get(b"/healthz") + request(body=STREAMED) + request(key=b"") + get(b"/v1/models")
    replies = send(usual, data, 5)
    assert [reply.status for reply in replies] == [200, 200, 200, 401, 200]
    assert [reply.body for reply in replies[:3]] == [WHOLE, b'{"status":"ok"}', SSE]
    assert len({reply.headers["x-request-id"] for reply in replies}) == 5


@pytest.mark.parametrize(("key", "status"), [(KEY, 200), (b"", 401)])
def test_a_body_that_waits_to_be_asked_for(usual, key, status):
    """What is refused by its head alone is refused before the body is sent."""
    data = request(POST, b"expect: 100-continue", key=key)
    with socket.create_connection(("127.0.0.1", usual.port), timeout=5) as sock:
        sock.sendall(data.removesuffix(BODY))
        pipe = _Pipe(sock)
        if status == 200:
            assert pipe.makefile("rb").readline() + pipe.makefile("rb").readline() == b"HTTP/1.1 100 Continue\r\n\r\n"
            sock.sendall(BODY)
        assert read(pipe).status == status


def test_what_comes_behind_a_body_is_no_header(usual):
    """Whoever stands in front of the gateway looks at headers only."""
    trailers = b"x-request-id: behind\r\nx-behind: yes\r\n"
    (reply,) = send(usual, chunked(POST).removesuffix(b"\r\n") + trailers + b"\r\n")
    assert (reply.status, IDS.fullmatch(reply.headers["x-request-id"]) is not None) == (200, True)
    assert "x-behind" not in usual.engine.calls[-1].headers
    (reply,) = send(usual, chunked(POST, key=b"").removesuffix(b"\r\n") + KEY + b"\r\n")
    assert (reply.status, reply.error["code"]) == (401, "missing_api_key")


@pytest.mark.parametrize(("begun", "more"), [(b"0\r\n", b"x-a: b\r\n"), (b"0\r\nx-a: ", b"bbbb"), (b"1;", b"bbbb")])
def test_what_comes_beside_a_body_has_an_end(usual, begun, more):
    with socket.create_connection(("127.0.0.1", usual.port), timeout=5) as sock:
        sock.sendall(chunked(POST).removesuffix(b"0\r\n\r\n") + begun)
        with pytest.raises(ConnectionError):  # it was answered, and the connection is closed
            sock.sendall(more * LONG * 100)
    wait_for(lambda: not usual.app.live)


@pytest.mark.parametrize(("too_large", "status"), [(b"x" * 60_000, 413), (b"x" * 500_000, 413)])
def test_a_connection_is_usable_after_a_body_that_was_refused(usual, too_large, status):
    first, second = send(usual, request(body=too_large) + request(), 2)
    assert (first.status, second.status, second.body) == (status, 200, WHOLE)


@pytest.mark.parametrize("name", [b"x-long", b"authorization", b"x-request-id", b"content-type"])
def test_a_head_without_end_is_refused(usual, name):
    before = len(usual.engine.calls)
    (reply,) = send(usual, request(POST, name + b": " + b"a" * LONG, key=b""))
    check_too_long(usual, reply)
    assert len(usual.engine.calls) == before


@pytest.mark.parametrize("part", [LONG, 5000])
def test_a_head_without_end_is_refused_before_its_end(usual, part):
    with socket.create_connection(("127.0.0.1", usual.port), timeout=5) as sock:
        sock.sendall(POST + b"\r\nx-slow: ")
        for _ in range(callers.MAX_HEAD // part + 1):
            sock.sendall(b"a" * part)
        check_too_long(usual, read(_Pipe(sock)))


def check_too_long(at: House, reply: Reply) -> None:
    assert (reply.status, reply.error["code"], reply.headers["connection"]) == (413, "request_too_large", "close")
    record = at.span(reply.headers["x-request-id"])["attributes"]
    assert (record["lensd.decision"], record["lensd.outcome"], record["lensd.said_by"]) == ("body_too_large", "refused", "gateway")
    assert record["http.route"] == "-"


def test_a_head_that_does_not_come_is_not_waited_for(tmp_path, monkeypatch):
    monkeypatch.setattr(callers, "HEAD_WITHIN_S", 0.05)
    monkeypatch.setattr(server, "CALLER_KEEP_ALIVE_S", 0.05)
    with house(tmp_path) as made:
        for begun in (b"", b"GET /v1/mod", request() + b"GET /v1/mod"):
            with socket.create_connection(("127.0.0.1", made.port), timeout=5) as sock:
                sock.sendall(begun)
                while data := sock.recv(65536):
                    begun += data
            assert (b"200 OK" in begun) == begun.startswith(b"POST")


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(request(POST, b"transfer-encoding: chunked"), id="a length and chunks"),
        pytest.param(request(POST, b"content-length: 3"), id="two lengths"),
        pytest.param(request(POST, b"content-length: -1", body=None), id="a negative length"),
        pytest.param(request(POST, b"x-odd: a\x00b"), id="a zero byte"),
        pytest.param(request(POST, b"x-odd: a\nx-evil: b"), id="a bare line feed"),
        pytest.param(request(POST, b"x-odd: a\rx-evil: b"), id="a bare carriage return"),
        pytest.param(request(POST, b"x-odd: a\r\n x-evil: b"), id="a folded line"),
        pytest.param(request(POST, b"x odd: a"), id="a blank in a name"),
        pytest.param(get("/v1/mödels".encode()), id="a path that is not ASCII"),
    ],
)
def test_what_is_read_differently_by_different_servers_is_not_read_at_all(usual, data):
    before = len(usual.engine.calls)
    (reply,) = send(usual, data)
    assert (reply.status, reply.error["code"], reply.headers["connection"]) == (400, "invalid_http", "close")
    record = usual.span(reply.headers["x-request-id"])["attributes"]
    assert (record["lensd.decision"], record["http.route"], record["http.request.method"]) == ("body_malformed", "-", "_OTHER")
    assert len(usual.engine.calls) == before


def test_a_body_whose_chunks_are_none_is_not_taken_for_whole(usual):
    before = len(usual.engine.calls)
    head = request(POST, b"transfer-encoding: chunked", body=None)
    (reply,) = send(usual, head + b"%x\r\n%s\r\nzz\r\n" % (len(BODY), BODY))
    assert (reply.status, reply.error["code"], reply.headers["connection"]) == (400, "invalid_body", "close")
    assert usual.span(reply.headers["x-request-id"])["attributes"]["lensd.key.id"] == key_id("narrow")
    assert len(usual.engine.calls) == before


def test_rubbish_behind_a_request_does_not_spoil_its_reply(usual):
    with socket.create_connection(("127.0.0.1", usual.port), timeout=5) as sock:
        sock.sendall(request(body=STREAMED) + b"\x00\x01\x02 rubbish\r\n\r\n")
        pipe = _Pipe(sock)
        reply = read(pipe)
        assert (reply.status, reply.body) == (200, SSE)
        assert pipe.makefile("rb").read() == b""


@pytest.mark.parametrize("make", [request, chunked])
@pytest.mark.parametrize("split", [False, True])
def test_an_offer_of_another_protocol_is_declined_and_the_body_is_read(usual, make, split):
    """As Java's client sends it with every request."""
    data = make(POST, b"connection: Upgrade, HTTP2-Settings", b"upgrade: h2c", b"http2-settings: AAEAAEAAAAIAAAABAAMAAABk")
    with socket.create_connection(("127.0.0.1", usual.port), timeout=5) as sock:
        pipe = _Pipe(sock)
        for _ in range(2):
            for part in (data[:40], data[40:-20], data[-20:]) if split else (data,):
                sock.sendall(part)
                if split:  # so that the gateway has read it before more comes
                    usual.do(asyncio.sleep(0))
                    usual.do(asyncio.sleep(0))
            reply = read(pipe)
            assert (reply.status, reply.body) == (200, WHOLE)
            call = usual.engine.calls[-1]
            assert call.body == BODY
            assert not {"upgrade", "http2-settings", "connection"} & set(call.headers)


def test_many_offers_in_a_row(usual):
    offer = request(POST, b"connection: upgrade", b"upgrade: websocket", key=b"")
    replies = send(usual, offer * 400, 400)
    assert {reply.status for reply in replies} == {401}


def test_an_engine_without_models(tmp_path):
    with house(tmp_path, served=[]) as bare:
        (reply,) = send(bare, get(b"/v1/models"))
        assert json.loads(reply.body) == {"object": "list", "data": []}
        (reply,) = send(bare, request())
        assert (reply.status, reply.error["code"]) == (404, "model_not_found")
