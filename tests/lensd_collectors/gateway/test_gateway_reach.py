"""How an engine is reached: its URL, its addresses, TLS, why it is not, and what goes on the wire."""

import asyncio
import base64
import itertools
import re
import socket
import ssl
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from lensd_collectors.gateway import upstream
from lensd_collectors.gateway.upstream import Address, NotTakenError, Place, PooledClient
from raw_caller import LIMIT_S, Clock, caller, echo, read_all, record
from raw_engine import CHUNKED, LOOPS, OK, Run, Wire, raw_engine, runner, tls_engine

pytestmark = pytest.mark.filterwarnings("error")

CLOSING = b"HTTP/1.1 200 OK\r\nconnection: close\r\ncontent-length: 2\r\n\r\nok"

# A key and a certificate that it signed itself, for 127.0.0.1 and localhost; DER. The key guards nothing but these tests.
KEY = base64.b64decode(
    "MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgzf1WJKcxDEnQh2N2kouxuMRdjU2wutLeZU7rjxcQcnWhRANCAAQUg+ETkm/J/y2YyCZ4ZQ8k0Leu0zUv5bId"
    "9+UMyJb5bSqViV1erzLBez4CNtRnEddlXL10zlGcQx8VQspCrci6"
)
CERTIFICATE = base64.b64decode(
    "MIIBcTCCARegAwIBAgIBATAKBggqhkjOPQQDAjARMQ8wDQYDVQQDDAZlbmdpbmUwIBcNMjAwMTAxMDAwMDAwWhgPMjEyMDAxMDEwMDAwMDBaMBExDzANBgNVBAMMBmVuZ2lu"
    "ZTBZMBMGByqGSM49AgEGCCqGSM49AwEHA0IABBSD4ROSb8n/LZjIJnhlDyTQt67TNS/lsh335QzIlvltKpWJXV6vMsF7PgI21GcR12VcvXTOUZxDHxVCykKtyLqjXjBcMA8G"
    "A1UdEwEB/wQFMAMBAf8wDgYDVR0PAQH/BAQDAgKEMBoGA1UdEQQTMBGHBH8AAAGCCWxvY2FsaG9zdDAdBgNVHQ4EFgQUXvaSBtB2rU8mqB3liSKfVky7E6kwCgYIKoZIzj0E"
    "AwIDSAAwRQIgfQMzegNBQi1ZII3tixJf+m7C2z7SWYSRuCyK87TT2rQCIQDv6oO1HAS2gK6pOkj/DICrmWlZ+DiUIEZhPOGAXWx5eQ=="
)


@pytest.fixture(params=LOOPS)
def run(request: pytest.FixtureRequest) -> Run:
    return runner(request.param)


# How an engine is reached


async def why_not(client: PooledClient, url: str) -> str:
    with pytest.raises(NotTakenError) as caught:
        await client.post(Address.of(url), [], b"", record())
    return str(caught.value)


def free_port() -> int:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return unused.getsockname()[1]


@pytest.mark.parametrize(
    ("host", "why"),
    [
        ("127.0.0.1", "Connection refused"),
        ("localhost", "Connection refused"),
        ("[::1]", "Connection refused|Cannot assign|unreachable"),
        ("no-such-engine.invalid", "its host cannot be resolved: "),
        ("a..b", "label"),
        ("x" * 70 + ".invalid", "label|resolved"),
    ],
)
def test_an_engine_that_takes_no_connections(run, host, why):
    async def main() -> str:
        client = PooledClient(Clock())
        told = await why_not(client, f"http://{host}:{free_port()}/")
        with pytest.raises(NotTakenError):
            await client.ask("GET", f"http://{host}:{free_port()}/", headers=[], body=None, timeout_s=5, most=1)
        await client.close()
        return told

    told = run(main())
    assert re.search(why, told)
    assert "\n" not in told
    assert len(told) < 200


def addresses(*hosts: str) -> Any:
    async def getaddrinfo(_: str, port: int, **__: Any) -> list[Any]:
        families = [socket.AF_INET6 if ":" in host else socket.AF_INET for host in hosts]
        return [(family, socket.SOCK_STREAM, 6, "", (host, port)) for family, host in zip(families, hosts, strict=True)]

    return getaddrinfo


@pytest.mark.parametrize("hosts", [("::1", "127.0.0.1"), ("127.0.0.1", "::1"), ("127.0.0.2", "::1", "127.0.0.1")])
def test_every_address_of_a_host_is_tried(run, hosts):
    async def main() -> bytes:
        async with caller(echo) as c:
            asyncio.get_running_loop().getaddrinfo = addresses(*hosts)
            return await read_all(await c.open(b"here", url=f"http://engine.test:{c.engine.port}/"))

    assert run(main()) == b"here"


def test_a_host_none_of_whose_addresses_answers_names_each_reason_once(run):
    async def main() -> str:
        asyncio.get_running_loop().getaddrinfo = addresses("127.0.0.1", "127.0.0.2")
        return await why_not(PooledClient(Clock()), f"http://engine.test:{free_port()}/")

    assert run(main()) == "Connection refused"


def test_a_host_without_an_address(run):
    async def main() -> str:
        asyncio.get_running_loop().getaddrinfo = addresses()
        return await why_not(PooledClient(Clock()), "http://engine.test/")

    assert run(main()) == "its host has no address"


def test_an_engine_on_ipv6(run):
    heads = []

    async def script(wire: Wire) -> None:
        heads.append((await wire.request())[0])
        await wire.send(OK)

    async def main() -> None:
        client = PooledClient(Clock())
        async with raw_engine(script, "::1") as engine:
            assert await read_all(await client.post(Address.of(engine.url), [], b"", record())) == b"ok"
            assert f"\r\nhost: [::1]:{engine.port}\r\n".encode() in heads[0]
            await client.close()

    run(main())


@pytest.fixture
def tls_server(tmp_path: Path) -> ssl.SSLContext:
    pem = tmp_path / "engine.pem"
    key = base64.encodebytes(KEY).decode()
    kind = "PRIVATE KEY"
    pem.write_text(f"-----BEGIN {kind}-----\n{key}-----END {kind}-----\n{ssl.DER_cert_to_PEM_cert(CERTIFICATE)}")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(pem)
    return context


@pytest.fixture
def trust() -> ssl.SSLContext:
    return ssl.create_default_context(cadata=CERTIFICATE)


def test_tls(run, tls_server, trust):
    async def main() -> None:
        client = PooledClient(Clock(), trust)
        async with tls_engine(OK, tls_server) as (url, gone):
            for number in range(3):
                noted = record()
                assert await read_all(await client.post(Address.of(url), [], b"", noted)) == b"ok"
                assert noted.reused is (number > 0)
            assert await client.ask("GET", url, headers=[], body=None, timeout_s=5, most=9) == (200, b"ok")
            gone.clear()
            began = time.perf_counter()
            await client.close()
            await gone.wait()
            assert time.perf_counter() - began < LIMIT_S

    run(main())


@pytest.mark.parametrize(
    ("data", "body"),
    [
        pytest.param(CLOSING.replace(b": 2\r\n\r\nok", b": 400000\r\n\r\n") + b"x" * 400_000, b"x" * 400_000, id="large"),
        pytest.param(CLOSING, b"ok", id="closing"),
    ],
)
def test_over_tls(run, tls_server, trust, data, body):
    async def main() -> None:
        client = PooledClient(Clock(), trust)
        async with tls_engine(data, tls_server) as (url, gone):
            assert await read_all(await client.post(Address.of(url), [], b"", record())) == body
            await gone.wait()
            await client.close()

    run(main())


def test_over_tls_a_reply_broken_off_is_seen_at_once(run, tls_server, trust):
    async def main() -> float:
        client = PooledClient(Clock(), trust)
        async with tls_engine(CHUNKED + b"2\r\nok\r\n", tls_server) as (url, gone):
            reply = await client.post(Address.of(url), [], b"", record())
            assert await reply.read() == b"ok"
            began = time.perf_counter()
            reply.close()
            await gone.wait()
            await client.close()
            return time.perf_counter() - began

    assert run(main()) < LIMIT_S


def test_tls_that_is_not_to_be_trusted(run, tls_server, trust):
    async def main() -> tuple[str, str]:
        async with tls_engine(OK, tls_server) as (url, _):
            stranger = await why_not(PooledClient(Clock()), url)
            asyncio.get_running_loop().getaddrinfo = addresses("127.0.0.1")
            misnamed = await why_not(PooledClient(Clock(), trust), url.replace("127.0.0.1", "engine.test"))
            return stranger, misnamed

    stranger, misnamed = run(main())
    assert stranger == "its certificate is not accepted: self-signed certificate"
    assert misnamed.startswith("its certificate is not accepted: Hostname mismatch")


@pytest.mark.parametrize(
    ("data", "why"),
    [(b"HTTP/1.1 400 Bad Request\r\n\r\n", "no TLS with it: "), (b"", "the connection was closed|Connection reset|no TLS with it")],
    ids=["plain", "closed"],
)
def test_an_engine_that_does_not_speak_tls(run, data, why):
    async def script(wire: Wire) -> None:
        await asyncio.get_running_loop().sock_recv(wire.sock, 9999)
        await wire.send(data)

    async def main() -> str:
        async with caller(script) as c:
            return await why_not(c.client, c.engine.url.replace("http", "https"))

    assert re.match(why, run(main()))


def test_a_trust_store_is_read_once(run, tls_server, trust, monkeypatch):
    made = itertools.count()

    def create() -> ssl.SSLContext:
        next(made)
        return trust

    monkeypatch.setattr(upstream.ssl, "create_default_context", create)

    async def main() -> None:
        client = PooledClient(Clock())
        async with tls_engine(OK, tls_server) as (url, _):
            for _ in range(3):
                await client.ask("GET", url, headers=[], body=None, timeout_s=5, most=9)
            await client.close()

    run(main())
    assert next(made) == 1


# What goes on the wire


def test_a_request_on_the_wire(run):
    got = []

    async def script(wire: Wire) -> None:
        got.append(await wire.request())
        await wire.send(OK)
        await wire.gone()

    async def main() -> int:
        async with caller(script) as c:
            address = Address.of(c.engine.url + "/a b")
            headers = [(b"x-request-id", b"r1"), (b"x-odd", b"caf\xe9"), (b"x-odd", b"")]
            await read_all(await c.client.post(address, headers, b"{}", record()))
            key = [("authorization", "Bearer k")]
            assert await c.client.ask("GET", c.engine.url, headers=key, body=None, timeout_s=5, most=2) == (200, b"ok")
            assert await c.client.ask("POST", c.engine.url, headers=[], body=b"[]", timeout_s=5, most=2) == (200, b"ok")
            return c.engine.port

    host = b"host: 127.0.0.1:%d\r\n" % run(main())
    assert got == [
        (b"POST /v1/x/a%20b HTTP/1.1\r\n" + host + b"content-length: 2\r\nx-request-id: r1\r\nx-odd: caf\xe9\r\nx-odd: ", b"{}"),
        (b"GET /v1/x HTTP/1.1\r\n" + host + b"content-length: 0\r\nauthorization: Bearer k", b""),
        (b"POST /v1/x HTTP/1.1\r\n" + host + b"content-length: 2", b"[]"),
    ]


@pytest.mark.parametrize(
    "header",
    [
        (b"x-request-id", b"a\r\nauthorization: Bearer other"),
        (b"x-request-id", b"a\nauthorization: Bearer other"),
        (b"x-request-id", b"a\rauthorization: Bearer other"),
        (b"x-request-id", b"a\r\n\r\nGET /v1/models HTTP/1.1\r\nhost: x\r\n"),
        (b"x-request-id", b"a\r\n"),
        (b"x-request-id", b"\n\ra"),
        (b"x-request-id", b"a\0b"),
        (b"x-a: b\r\nx-c", b"d"),
        (b"x-a\n", b"d"),
    ],
)
def test_a_header_that_would_be_more_than_one_never_goes_out(run, header):
    async def main() -> None:
        async with caller(echo) as c:
            await c.post()
            for headers in ([header], [(b"x-b", b"1"), header]):
                with pytest.raises(ValueError, match="a request header holds a line end or a zero byte"):
                    await c.client.post(Address.of(c.engine.url), headers, b"", record())
            text = [(header[0].decode(), header[1].decode())]
            with pytest.raises(ValueError, match="a request header holds a line end or a zero byte"):
                await c.client.ask("GET", c.engine.url, headers=text, body=None, timeout_s=5, most=9)
            assert await c.post(b"next") == b"next"
            assert c.record.reused
            assert len(c.engine.wires) == 1

    run(main())


TOKEN = st.text("abcxyz-", min_size=1).map(str.encode)


@given(st.lists(st.tuples(TOKEN, st.binary(max_size=12)), max_size=6))
def test_headers_go_out_as_they_are_or_not_at_all(headers):
    is_fit = not any(byte in value for _, value in headers for byte in (b"\r", b"\n", b"\0"))
    try:
        head = upstream._request_head(b"POST", Address.of("http://h/"), headers, 7)
    except ValueError:
        assert not is_fit
        return
    assert is_fit
    assert head.split(b"\r\n") == [
        b"POST / HTTP/1.1", b"host: h", b"content-length: 7", *(name + b": " + value for name, value in headers), b"", b"",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("url", "place", "authority", "path"),
    [
        ("http://h/v1/x", Place("h", 80, False), b"h", b"/v1/x"),
        ("https://H:8443", Place("h", 8443, True), b"h:8443", b"/"),
        ("https://h/", Place("h", 443, True), b"h", b"/"),
        ("http://[::1]:8000/v1", Place("::1", 8000, False), b"[::1]:8000", b"/v1"),
        ("http://b\u00fccher.test/", Place("xn--bcher-kva.test", 80, False), b"xn--bcher-kva.test", b"/"),
        ("http://h/a b", Place("h", 80, False), b"h", b"/a%20b"),
        ("http://h/caf\u00e9", Place("h", 80, False), b"h", b"/caf%C3%A9"),
        ("http://h/a%20b%2Fc", Place("h", 80, False), b"h", b"/a%20b%2Fc"),
        ("http://h/100%/%zz/%4", Place("h", 80, False), b"h", b"/100%25/%25zz/%254"),
        ('http://h/"<>\\^`{|}', Place("h", 80, False), b"h", b"/%22%3C%3E%5C%5E%60%7B%7C%7D"),
        ("http://h//a/../b;c=d,e:@!$&'()*+~", Place("h", 80, False), b"h", b"//a/../b;c=d,e:@!$&'()*+~"),
        ("http://h/a\x00b\x7f", Place("h", 80, False), b"h", b"/a%00b%7F"),
    ],
)
def test_an_address(url, place, authority, path):
    address = Address.of(url)
    assert (address.place, address.authority, address.path) == (place, authority, path)


@given(st.text(max_size=30))
def test_a_path_is_one_word_of_ascii(text):
    path = Address.of("http://h/" + text.translate({ord("?"): None, ord("#"): None})).path
    assert path.startswith(b"/")
    assert all(0x21 <= byte <= 0x7E for byte in path)


@pytest.mark.parametrize(
    "url",
    [
        "", "h:80", "/v1", "ftp://h/", "http://", "http:///v1", "http://:80/", "http://h:0/", "http://h:99999/", "http://h:x/", "http://[::1/",
        "http://hunter2@h/", "http://u:hunter2@h/", "http://h/?key=hunter2", "http://h/#hunter2", "http://u:hunter2/v1",
        "http://hunter2\u2100/", "http://hunter2\u00fc..test/",
    ],
)  # fmt: skip
def test_no_address(url):
    with pytest.raises(ValueError) as caught:
        Address.of(url)
    assert "hunter2" not in str(caught.value)
