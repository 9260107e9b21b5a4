"""A body on its way to a receiver: how it is asked, and what is read of every form that an answer can have."""

import socket
import threading
from collections.abc import Sequence

import pytest
from lensd_collectors.post import Post, Reply, Result


def answered(*parts: bytes, endpoint: str = "http://127.0.0.1:{port}", token: str | None = None) -> tuple[Reply, bytes]:
    """What comes of one posting to a receiver that answers in these parts and closes, and the bytes that it was sent."""
    asked: list[bytes] = []
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            line, _ = server.accept()
            with line:
                asked.append(_read(line))
                for part in parts:
                    line.sendall(part)

        thread = threading.Thread(target=serve)
        thread.start()
        reply = Post(endpoint.format(port=server.getsockname()[1]), token, 2.0).send("/v1/logs", b'{"n":1}')
        thread.join(5)
    return reply, asked[0]


def _read(line: socket.socket) -> bytes:
    seen = b""
    while not seen.endswith(b'{"n":1}'):
        seen += line.recv(65536)
    return seen


def test_a_request_is_one_that_any_receiver_reads() -> None:
    reply, asked = answered(
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}", endpoint="http://127.0.0.1:{port}/otlp/", token=" secret-token\n"
    )
    head, _, body = asked.partition(b"\r\n\r\n")
    line, *headers = head.decode().split("\r\n")
    named = dict(header.split(": ", 1) for header in headers)
    assert reply == Reply(Result.TAKEN)
    assert (line, body) == ("POST /otlp/v1/logs HTTP/1.1", b'{"n":1}')
    assert named.pop("Host").startswith("127.0.0.1:")
    assert named == {
        "Content-Type": "application/json", "Connection": "close", "User-Agent": "lensd", "Content-Length": "7",
        "Accept-Encoding": "identity", "Authorization": "Bearer secret-token",
    }  # fmt: skip


REJECTED = b'{"partialSuccess":{"rejectedLogRecords":"1"}}'
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2d\r\n%b\r\n0\r\n\r\n" % REJECTED


@pytest.mark.parametrize(
    ("parts", "reply"),
    [
        ([b"HTTP/1.1 200 OK\r\ncontent-length: 45\r\n\r\n", REJECTED], Reply(Result.TAKEN, rejected=1)),
        ([b"HTTP/1.1 200 OK\r\nContent-Length:45\r\nServer: x\r\n\r\n" + REJECTED], Reply(Result.TAKEN, rejected=1)),
        ([CHUNKED], Reply(Result.TAKEN, rejected=1)),
        ([CHUNKED[:70], CHUNKED[70:]], Reply(Result.TAKEN, rejected=1)),
        ([b"HTTP/1.0 200 OK\r\n\r\n" + REJECTED], Reply(Result.TAKEN, rejected=1)),  # to the end of the connection
        ([b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 202 Accepted\r\nContent-Length: 0\r\n\r\n"], Reply(Result.TAKEN)),
        ([b"HTTP/1.1 429 Slow Down\r\nRetry-After: 3\r\nContent-Length: 0\r\n\r\n"], Reply(Result.BUSY, "it answered 429", 3.0)),
        ([b"HTTP/1.1 400 Bad\r\nContent-Length: 2\r\n\r\n{}"], Reply(Result.REFUSED, "it answered 400")),
        ([b"SSH-2.0-x\r\n\r\n"], Reply(Result.UNCERTAIN, "BadStatusLine")),
        ([b"HTTP/1.1 200 OK\r\nContent-Length: 45\r\n\r\n{"], Reply(Result.TAKEN)),  # it has said so
        ([], Reply(Result.UNCERTAIN, "RemoteDisconnected")),
    ],
)
def test_every_form_of_an_answer_is_read(parts: Sequence[bytes], reply: Reply) -> None:
    assert answered(*parts)[0] == reply


def test_where_nobody_listens_nothing_was_sent() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert Post(f"http://127.0.0.1:{port}", None, 1.0).send("/v1/logs", b"{}").result is Result.UNREACHED


def test_a_receiver_without_tls_gets_no_body_meant_for_one() -> None:
    asked: list[bytes] = []

    def serve(server: socket.socket) -> None:
        line, _ = server.accept()
        with line:
            asked.append(line.recv(65536))
            line.sendall(b"HTTP/1.1 400 Bad\r\nContent-Length: 0\r\n\r\n")

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve, args=(server,))
        thread.start()
        reply = Post(f"https://127.0.0.1:{server.getsockname()[1]}", "secret-token", 2.0).send("/v1/logs", b'{"n":1}')
        thread.join(5)
    assert reply.result is Result.UNREACHED
    assert b'{"n":1}' not in asked[0]
    assert b"secret-token" not in asked[0]
